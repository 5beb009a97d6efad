// error: key_lengths: lengths must have elements of attn::index_t
#include <attn/attention.hpp>

attn::Mask f(const attn::Tensor1<int>& x) { return attn::key_lengths(x); }
