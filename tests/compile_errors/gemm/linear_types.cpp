// error: Linear: x must have the element type of the layer
#include <attn/layers.hpp>

auto f(const attn::Linear<float>& layer, const attn::Tensor2<double>& x) { return layer(x); }
