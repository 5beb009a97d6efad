// error: gemm: b must have the element type of a
#include <attn/kernels.hpp>

void f(const attn::Tensor2<float>& a, const attn::Tensor2<double>& b, attn::Tensor2<float>& c) {
  attn::gemm(a, b, c);
}
