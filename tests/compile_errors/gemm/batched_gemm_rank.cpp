// error: batched_gemm: a must have 3 axes (batch, m, k), has 4
#include <attn/kernels.hpp>

void f(const attn::Tensor4<float>& a, const attn::Tensor3<float>& b, attn::Tensor3<float>& c) {
  attn::batched_gemm(a, b, c);
}
