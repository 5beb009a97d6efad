// error: gemm: c must not be const: it is written
#include <attn/kernels.hpp>

void f(const attn::Tensor2<float>& a, const attn::PackedWeights<float>& b) { attn::gemm(a, b, a); }
