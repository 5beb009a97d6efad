// error: keep_mask: visible must have elements of bool, true = visible
#include <attn/attention.hpp>

attn::Mask f(const attn::Tensor2<float>& x) { return attn::keep_mask(x); }
