// error: key_padding_mask: padding must have elements of bool, true = masked out
#include <attn/attention.hpp>

attn::Mask f(const attn::Tensor2<int>& x) { return attn::key_padding_mask(x); }
