// error: MultiHeadAttention: x must have 3 axes (batch, seq, embed_dim), has 2
#include <attn/layers.hpp>

auto f(const attn::MultiHeadAttention<float>& layer, const attn::Tensor2<float>& x) {
  return layer(x);
}
