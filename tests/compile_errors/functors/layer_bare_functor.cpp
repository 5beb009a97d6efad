// error: what follows the options must be score_mod(f), mask_mod(f) or prob_mod(f)
#include <attn/layers.hpp>

void f(const attn::Encoder<float>& encoder, const attn::Tensor3<float>& x) {
  encoder(x, {}, {}, {}, [](int, int, int i, int j) { return j <= i; });
}
