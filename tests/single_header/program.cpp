// A program with only attn_single.hpp: attention leaves values that are all equal unchanged.
#define ATTN_COMPILED
#include <cstdio>

#include "attn_single.hpp"

#if defined(EIGEN_WORLD_VERSION)
#error "Eigen was found: this program is to show that none is needed"
#endif

int main() {
  attn::Tensor4<float> q({1, 2, 8, 16});
  q.fill(0.5F);
  const auto out = attn::scaled_dot_product_attention(q, q, q, {.mask = attn::causal()});
  std::printf("one file: %g of 0.5, %s\n", static_cast<double>(out(0, 1, 7, 15)),
              attn::name(attn::active_isa()).data());
}
