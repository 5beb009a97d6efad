// error: rotary_embedding: cos must have the element type of x
#include <attn/layers/attention/rotary.hpp>

auto f(const attn::Tensor4<float>& x, const attn::Tensor2<double>& cos,
       const attn::Tensor2<double>& sin, const attn::Tensor2<attn::index_t>& ids) {
  return attn::rotary_embedding(x, cos, sin, ids);
}
