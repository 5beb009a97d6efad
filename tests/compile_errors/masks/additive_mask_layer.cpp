// error: additive_mask: bias must have the element type of q
#include <attn/layers.hpp>

auto f(const attn::EncoderLayer<float>& layer, const attn::Tensor3<float>& x,
       const attn::Tensor2<double>& padding) {
  return layer(x, {.mask = attn::key_padding_mask(padding)});
}
