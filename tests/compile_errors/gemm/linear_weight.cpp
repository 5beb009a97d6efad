// error: linear: weight must have 2 axes (out, in), has 3
#include <attn/layers.hpp>

auto f(const attn::Tensor3<float>& x, const attn::Tensor3<float>& weight) {
  return attn::linear(x, weight);
}
