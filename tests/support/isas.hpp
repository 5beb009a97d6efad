// The instruction sets that tests sweep.
#pragma once

#include <vector>

#include "attn/simd/isa.hpp"

namespace attn_test {

/// Every set that this machine and this build have, those that add instructions to another too.
inline std::vector<attn::Isa> extended_isas() {
  std::vector<attn::Isa> sets;
  for (attn::Isa isa : attn::kAllIsas) {
    if (attn::is_available(isa)) sets.push_back(isa);
  }
  return sets;
}

/// Of these the ones whose kernels for floats are their own.
inline std::vector<attn::Isa> available_isas() {
  std::vector<attn::Isa> sets = extended_isas();
  std::erase_if(sets, [](attn::Isa isa) { return attn::base(isa) != isa; });
  return sets;
}

}  // namespace attn_test
