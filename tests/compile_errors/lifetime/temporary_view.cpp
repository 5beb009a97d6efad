// error: deleted function
#include <attn/core.hpp>

auto f() { return attn::view_of(attn::Tensor2<float>({1, 2})); }
