// The instruction sets that tests sweep.
#pragma once

#include <vector>

#include "attn/simd/isa.hpp"

namespace attn_test {

/// Every instruction set of this machine and build, including those that extend another one.
inline std::vector<attn::Isa> extended_isas() {
  std::vector<attn::Isa> sets;
  for (attn::Isa isa : attn::kAllIsas) {
    if (attn::is_available(isa)) sets.push_back(isa);
  }
  return sets;
}

/// Those of them with their own kernels for floats.
inline std::vector<attn::Isa> available_isas() {
  std::vector<attn::Isa> sets = extended_isas();
  std::erase_if(sets, [](attn::Isa isa) { return attn::base(isa) != isa; });
  return sets;
}

}  // namespace attn_test
