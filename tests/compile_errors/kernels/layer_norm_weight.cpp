// error: layer_norm: weight must have the element type of x
#include <attn/kernels.hpp>

auto f(const attn::Tensor2<float>& x, const attn::Tensor1<double>& weight) {
  return attn::layer_norm(x, weight);
}
