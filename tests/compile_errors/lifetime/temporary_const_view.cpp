// error: deleted function
#include <attn/core.hpp>

auto f() { return attn::const_view(attn::Tensor2<float>({1, 2})); }
