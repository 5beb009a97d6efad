// error: additive_mask: bias must have elements of float or double, those of q
#include <attn/attention.hpp>

attn::Mask f(const attn::Tensor2<int>& x) { return attn::additive_mask(x); }
