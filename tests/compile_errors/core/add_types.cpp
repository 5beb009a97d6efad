// error: add, multiply, scale: the operands and out must have one element type
#include <attn/core.hpp>

void f(const attn::Tensor2<float>& a, attn::Tensor2<double>& out) { attn::add(a, a, out); }
