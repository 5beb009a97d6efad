// error: cross_entropy: logits must have 2 axes (rows, classes), has 3
#include <attn/train.hpp>

double f(const attn::Tensor3<float>& logits, const attn::Tensor1<int>& targets) {
  return attn::cross_entropy(logits, targets);
}
