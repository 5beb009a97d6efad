// error: FeedForward: out must have as many axes as x
#include <attn/layers.hpp>

void f(const attn::FeedForward<float>& layer, const attn::Tensor3<float>& x,
       attn::Tensor2<float>& out) {
  layer.forward(x, out);
}
