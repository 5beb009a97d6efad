// error: attention: q, k and v come first, and each is a tensor, a view or an Eigen matrix
#include <attn/attention.hpp>

auto f(const float* q) { return attn::scaled_dot_product_attention(q, q, q); }
