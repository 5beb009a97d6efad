// The smallest program that uses attn; compile_time compares its compile time with that of Eigen.
#if defined(EIGEN_ALONE)
#include <Eigen/Core>
#else
#if defined(ATTENTION_ALONE)
#include <attn/attention.hpp>
#elif defined(SINGLE_HEADER)
#include <attn_single.hpp>
#else
#include <attn/attn.hpp>
#endif

int main() {
  attn::Tensor4<float> q({1, 2, 8, 16});
  q.fill(0.5F);
  const auto out = attn::scaled_dot_product_attention(q, q, q, {.mask = attn::causal()});
  return out(0, 0, 0, 0) == 0.5F ? 0 : 1;
}
#endif
