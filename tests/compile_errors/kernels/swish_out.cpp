// error: swish: out must not be const: it is written
#include <attn/kernels.hpp>

void f(const attn::Tensor2<float>& x, const attn::Tensor2<float>& out) { attn::swish(x, out); }
