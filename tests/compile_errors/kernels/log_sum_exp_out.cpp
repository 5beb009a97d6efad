// error: log_sum_exp: out must have the axes of x without the last
#include <attn/kernels.hpp>

void f(const attn::Tensor2<float>& x, attn::Tensor2<float>& out) { attn::log_sum_exp(x, out); }
