// error: one mask_mod or BlockMask a call: join mask_mods by & or |
#include <attn/attention.hpp>

void f(const attn::Tensor4<float>& q) {
  const auto all = attn::mask_mod([](int, int, int, int) { return true; });
  const attn::BlockMask mask(all, {1, 1, 4, 4});
  attn::scaled_dot_product_attention(q, q, q, {}, all, mask);
}
