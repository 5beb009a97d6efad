// error: gemm: a must have the element type of the packed weights
#include <attn/kernels.hpp>

void f(const attn::Tensor2<double>& a, const attn::PackedWeights<float>& b,
       attn::Tensor2<double>& c) {
  attn::gemm(a, b, c);
}
