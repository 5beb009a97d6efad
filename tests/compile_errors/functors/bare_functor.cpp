// error: what follows the options must be score_mod(f), mask_mod(f) or prob_mod(f)
#include <attn/attention.hpp>

void f(const attn::Tensor4<float>& q) {
  attn::scaled_dot_product_attention(q, q, q, {},
                                     [](float s, int, int, int, int) { return 2 * s; });
}
