// error: comparing tensors: the second must have as many axes as the first
#include <attn/core.hpp>

bool f(const attn::Tensor2<float>& a, const attn::Tensor3<float>& b) {
  return attn::all_close(a, b);
}
