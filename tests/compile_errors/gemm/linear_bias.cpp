// error: linear: bias must have the element type of x
#include <attn/layers.hpp>

auto f(const attn::Tensor2<float>& x, const attn::Tensor1<double>& bias) {
  return attn::linear(x, x, bias);
}
