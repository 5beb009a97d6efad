// error: an option is given a tensor of another rank
#include <attn/attention.hpp>

auto f(const attn::Tensor4<float>& q, const attn::Tensor2<float>& slopes) {
  return attn::scaled_dot_product_attention(q, q, q, {.alibi_slopes = slopes});
}
