// error: add, multiply, scale: each operand must have the element type of out
#include <attn/core.hpp>

void f(const attn::Tensor2<float>& a, attn::Tensor2<double>& out) { attn::add(a, a, out); }
