// error: additive_mask: bias is added to scores; of bool, keep_mask() takes true = visible
#include <attn/attention.hpp>

attn::Mask f(const attn::Tensor2<bool>& x) { return attn::additive_mask(x); }
