// error: key_lengths takes lengths, (batch)
#include <attn/attention.hpp>

attn::Mask f(const attn::Tensor2<attn::index_t>& x) { return attn::key_lengths(x); }
