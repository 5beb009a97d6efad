// error: x(i, j, ..): as many indices as x has axes
#include <attn/core.hpp>

float f(const attn::Tensor3<float>& x) { return x(0, 1); }
