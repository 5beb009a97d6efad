// error: cross_entropy: targets must have integers as elements
#include <attn/train.hpp>

double f(const attn::Tensor2<float>& logits, const attn::Tensor1<float>& targets) {
  return attn::cross_entropy(logits, targets);
}
