// error: score_mod: the functor must be callable as f(score, b, h, i, j)
#include <attn/attention.hpp>

void f(const attn::Tensor4<float>& q) {
  attn::scaled_dot_product_attention(q, q, q, {}, attn::score_mod([](float s) { return s; }));
}
