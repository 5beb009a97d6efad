// error: documents: ids must have elements of attn::index_t
#include <attn/attention.hpp>

attn::Mask f(const attn::Tensor2<int>& x) { return attn::documents(x); }
