// error: attention: q must have 4 axes (batch, heads, seq, dim; split_heads() makes them), has 1
#include <vector>

#include <attn/attention.hpp>

auto f(const std::vector<float>& q) { return attn::scaled_dot_product_attention(q, q, q); }
