// error: Transformer: tgt must have the element type of the layer
#include <attn/layers.hpp>

auto f(const attn::Transformer<float>& model, const attn::Tensor3<float>& src,
       const attn::Tensor3<double>& tgt) {
  return model(src, tgt);
}
