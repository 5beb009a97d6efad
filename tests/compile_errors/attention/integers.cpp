// error: attention: the elements of q must be float, double, bfloat16 or float16
#include <attn/attention.hpp>

void f(const attn::Tensor4<int>& q) { attn::scaled_dot_product_attention(q, q, q); }
