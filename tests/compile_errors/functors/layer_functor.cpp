// error: score_mod: the functor must be callable as f(score, b, h, i, j)
#include <attn/layers.hpp>

void f(const attn::MultiHeadAttention<float>& layer, const attn::Tensor3<float>& x) {
  layer(x, {}, {}, attn::score_mod([](float s) { return s; }));
}
