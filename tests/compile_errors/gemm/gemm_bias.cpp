// error: an option is given a tensor of other elements
#include <attn/kernels.hpp>

void f(const attn::Tensor2<float>& a, const attn::Tensor1<double>& bias, attn::Tensor2<float>& c) {
  attn::gemm(a, a, c, {.bias = bias});
}
