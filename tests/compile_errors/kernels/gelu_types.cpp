// error: activate, relu, gelu: out must have the element type of x
#include <attn/kernels.hpp>

void f(const attn::Tensor2<float>& x, attn::Tensor2<double>& out) { attn::gelu(x, out); }
