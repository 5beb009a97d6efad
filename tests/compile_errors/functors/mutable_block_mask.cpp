// error: BlockMask: the functor must be callable as f(b, h, i, j)
#include <attn/attention.hpp>

void f() {
  const auto once = attn::mask_mod([n = 0](int, int, int, int) mutable { return ++n > 1; });
  const attn::BlockMask mask(once, {1, 1, 4, 4});
}
