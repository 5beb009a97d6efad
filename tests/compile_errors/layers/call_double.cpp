// error: MultiHeadAttentionCall<T>: T must be the element type of the call
#include <attn/layers.hpp>

auto f(const attn::MultiHeadAttention<float>& layer, const attn::Tensor3<float>& x) {
  const attn::MultiHeadAttentionCall<double> call;
  return layer(x, {}, call);
}
