// error: Encoder: x must have the element type of the layer
#include <attn/layers.hpp>

auto f(const attn::Encoder<float>& encoder, const attn::Tensor3<double>& x) { return encoder(x); }
