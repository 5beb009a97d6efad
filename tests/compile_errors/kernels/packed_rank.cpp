// error: PackedWeights: b must have 2 axes (k, n), has 3
#include <attn/kernels.hpp>

auto f(const attn::Tensor3<float>& b) { return attn::PackedWeights<float>(b); }
