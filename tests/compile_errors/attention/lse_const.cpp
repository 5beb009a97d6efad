// error: an option is given a tensor of other elements, or a const one to write
#include <attn/attention.hpp>

auto f(const attn::Tensor4<float>& q, const attn::Tensor3<float>& lse) {
  return attn::scaled_dot_product_attention(q, q, q, {.lse = lse});
}
