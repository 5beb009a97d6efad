// error: Decoder: memory must have 3 axes (batch, memory_len, d_model), has 2
#include <attn/layers.hpp>

auto f(const attn::Decoder<float>& decoder, const attn::Tensor3<float>& x,
       const attn::Tensor2<float>& memory) {
  return decoder(x, memory);
}
