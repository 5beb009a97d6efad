// error: rotary_embedding: position_ids must have the element type of positions, index_t
#include <attn/layers/attention/rotary.hpp>

auto f(const attn::Tensor4<float>& x, const attn::Tensor2<float>& cos,
       const attn::Tensor2<float>& sin, const attn::Tensor2<int>& ids) {
  return attn::rotary_embedding(x, cos, sin, ids);
}
