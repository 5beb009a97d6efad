// error: gemm: a must have 2 axes (m, k), has 1
#include <vector>

#include <attn/kernels.hpp>

void f(const std::vector<float>& a, attn::Tensor2<float>& c) { attn::gemm(a, c, c); }
