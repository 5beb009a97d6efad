// error: layer_norm: out must not be const: it is written
#include <attn/kernels.hpp>

void f(const attn::Tensor2<float>& x, const attn::Tensor2<float>& out) {
  attn::layer_norm(x, {}, {}, 1e-5, out);
}
