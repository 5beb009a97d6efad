// error: mse_loss: target must have the element type of x
#include <attn/train.hpp>

double f(const attn::Tensor2<float>& x, const attn::Tensor2<double>& target) {
  return attn::mse_loss(x, target);
}
