// error: swiglu: b must have the element type of a
#include <attn/kernels.hpp>

auto f(const attn::Tensor2<float>& a, const attn::Tensor2<double>& b) { return attn::swiglu(a, b); }
