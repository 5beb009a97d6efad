// error: concatenate: the axis comes first, then the tensors
#include <attn/core.hpp>

auto f(const attn::Tensor2<float>& a) { return attn::concatenate(a, a, 0); }
