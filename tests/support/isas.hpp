// The instruction sets that tests sweep.
#pragma once

#include <vector>

#include "attn/simd/isa.hpp"

namespace attn_test {

/// Every set that this machine and this build have.
inline std::vector<attn::Isa> available_isas() {
  std::vector<attn::Isa> sets;
  for (attn::Isa isa : attn::kAllIsas) {
    if (attn::is_available(isa)) sets.push_back(isa);
  }
  return sets;
}

}  // namespace attn_test
