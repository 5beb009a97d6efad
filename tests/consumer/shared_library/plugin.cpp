// A shared library that uses attn internally and exports two functions.
#include <attn/attn.hpp>

/// Attention with as many keys as queries: throws ShapeError unless `head_dim` is 16.
__attribute__((visibility("default"))) float plugin_attend(int head_dim) {
  attn::Tensor4<float> q({1, 2, 8, 16});
  attn::Tensor4<float> k({1, 2, 8, head_dim});
  q.fill(0.5F);
  k.fill(0.5F);
  return attn::scaled_dot_product_attention(q, k, k, {.mask = attn::causal()})(0, 0, 0, 0);
}

/// Throws IoError.
__attribute__((visibility("default"))) void plugin_read() { throw attn::IoError("no file"); }
