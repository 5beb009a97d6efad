// error: feed_forward: bias1 must have 1 axes (dim_feedforward), has 2
#include <attn/layers.hpp>

auto f(const attn::Tensor2<float>& x, const attn::Tensor2<float>& bias) {
  return attn::feed_forward(x, x, bias, x, {});
}
