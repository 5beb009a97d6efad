// error: glu: b must have as many axes as a
#include <attn/kernels.hpp>

auto f(const attn::Tensor2<float>& a, const attn::Tensor3<float>& b) {
  return attn::glu(attn::Activation::gelu, a, b);
}
