// error: deleted function
#include <attn/layers/attention/heads.hpp>

auto f() { return attn::split_qkv(attn::Tensor3<float>({1, 2, 6}), 2); }
