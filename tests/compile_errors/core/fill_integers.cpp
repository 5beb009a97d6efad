// error: fill_normal, fill_uniform: x must have elements of float, double, bfloat16 or float16
#include <attn/core.hpp>

void f(attn::Tensor2<int>& x) { attn::fill_uniform(x); }
