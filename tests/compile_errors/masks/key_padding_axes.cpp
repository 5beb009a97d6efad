// error: key_padding_mask: padding must have 2 axes (batch, kv_len)
#include <attn/attention.hpp>

attn::Mask f(const attn::Tensor3<bool>& x) { return attn::key_padding_mask(x); }
