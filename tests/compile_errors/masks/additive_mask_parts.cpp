// error: additive_mask: the parts of a mask have one element type
#include <attn/attention.hpp>

attn::Mask f(const attn::Tensor2<float>& a, const attn::Tensor2<double>& b) {
  return attn::additive_mask(a) & attn::additive_mask(b);
}
