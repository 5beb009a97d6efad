// error: attention: q, k and v come first, and each is a tensor, a view or an Eigen matrix
#include <attn/attention.hpp>

auto f(const attn::Tensor4<float>& q, const attn::AttentionOptions<float>& options) {
  return attn::scaled_dot_product_attention(options, q, q, q);
}
