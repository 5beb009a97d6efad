// A user's program: attention leaves values that are all equal unchanged.
#include <cmath>
#include <cstdio>

#include <attn/attn.hpp>

int main() {
  attn::Tensor4<float> q({1, 2, 8, 16});
  q.fill(0.5F);
  const auto out = attn::scaled_dot_product_attention(q, q, q, {.mask = attn::causal()});
  const float first = out(0, 0, 0, 0);
  std::printf("attn %d.%d.%d: %g\n", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR, ATTN_VERSION_PATCH,
              static_cast<double>(first));
  return std::abs(first - 0.5F) < 1e-6F ? 0 : 1;
}
