// error: deleted function
#include <attn/train.hpp>

auto f() { return attn::micro_batch(std::vector<attn::index_t>{5, 3, 8, 1}, 0, 2); }
