// error: deleted function
#include <attn/attention.hpp>

attn::Mask f() { return attn::key_lengths(attn::Tensor1<attn::index_t>({2})); }
