// error: activate, relu, gelu: x must have elements of float, double, bfloat16 or float16
#include <attn/kernels.hpp>

auto f(const attn::Tensor2<int>& x) { return attn::relu(x); }
