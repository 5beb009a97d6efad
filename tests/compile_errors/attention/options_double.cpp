// error: AttentionOptions<T>: T must be the element type of the call
#include <attn/attention.hpp>

auto f(const attn::Tensor4<float>& q, const attn::AttentionOptions<double>& options) {
  return attn::scaled_dot_product_attention(q, q, q, options);
}
