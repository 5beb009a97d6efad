// error: LayerNorm, RMSNorm: x must have the element type of the layer
#include <attn/layers.hpp>

auto f(const attn::RMSNorm<double>& norm, const attn::Tensor2<float>& x) { return norm(x); }
