// error: backward calls a score_mod or prob_mod with a Dual: its first argument must be of any type
#include <attn/train.hpp>

void f(const attn::Tensor4<float>& q, const attn::Tensor3<float>& lse, attn::Tensor4<float>& d) {
  attn::scaled_dot_product_attention_backward(
      q, q, q, q, q, lse, d, d, d, {}, {},
      attn::score_mod([](float s, int, int, int, int) { return 2 * s; }));
}
