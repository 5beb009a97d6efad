// error: tensors in files have elements of float, double, bfloat16, float16, bool or an integer
#include <attn/io.hpp>

void f(const attn::Tensor2<long double>& x) { attn::save_safetensors("x", {{"x", x}}); }
