// error: fill_normal, fill_uniform: x must not be const: it is written
#include <attn/core.hpp>

void f(const attn::Tensor2<float>& x) { attn::fill_normal(x); }
