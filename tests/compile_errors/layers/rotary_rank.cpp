// error: rotary_embedding: x must have 4 axes (batch, heads, seq, head_dim), has 3
#include <attn/layers/attention/rotary.hpp>

auto f(const attn::Tensor3<float>& x, const attn::Tensor2<float>& cos,
       const attn::Tensor2<float>& sin, const attn::Tensor2<attn::index_t>& ids) {
  return attn::rotary_embedding(x, cos, sin, ids);
}
