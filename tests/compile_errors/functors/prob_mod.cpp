// error: prob_mod: the functor must be callable as f(weight, b, h, i, j)
#include <attn/attention.hpp>

void f(const attn::Tensor4<double>& q) {
  attn::scaled_dot_product_attention(q, q, q, {}, attn::prob_mod([](double p) { return p; }));
}
