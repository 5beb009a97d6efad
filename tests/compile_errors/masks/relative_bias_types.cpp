// error: t5_relative_bias: bias must have the element type of weight
#include <attn/attention.hpp>

void f(const attn::Tensor2<float>& weight, attn::Tensor2<double>& bias) {
  attn::t5_relative_bias(weight, true, bias);
}
