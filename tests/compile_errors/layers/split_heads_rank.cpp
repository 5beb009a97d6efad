// error: split_heads: x must have 3 axes (batch, seq, heads * dim), has 4
#include <attn/layers.hpp>

auto f(const attn::Tensor4<float>& x) { return attn::split_heads(x, 2); }
