// error: to_string: the elements must be floats, integers or bool
#include <attn/core.hpp>

struct Pixel {
  int red;
};
auto f(const attn::Tensor2<Pixel>& x) { return attn::to_string(x); }
