// error: functors are shared by threads: a lambda must not be `mutable`
#include <attn/attention.hpp>

void f(const attn::Tensor4<float>& q) {
  attn::scaled_dot_product_attention(q, q, q, {},
                                     attn::score_mod([n = 0](float s, int, int, int, int) mutable {
                                       ++n;
                                       return s;
                                     }));
}
