// error: copy: to must have as many axes as from
#include <attn/core.hpp>

void f(const attn::Tensor2<float>& a, attn::Tensor3<float>& b) { attn::copy(a, b); }
