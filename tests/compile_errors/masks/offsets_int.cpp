// error: query_offsets: offsets must have elements of attn::index_t
#include <attn/attention.hpp>

attn::QueryOffset f(const attn::Tensor1<int>& x) { return attn::query_offsets(x); }
