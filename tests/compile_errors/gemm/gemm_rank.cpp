// error: gemm: b must have 2 axes (k, n), has 3
#include <attn/kernels.hpp>

void f(const attn::Tensor2<float>& a, const attn::Tensor3<float>& b, attn::Tensor2<float>& c) {
  attn::gemm(a, b, c);
}
