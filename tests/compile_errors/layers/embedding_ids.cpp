// error: embedding: ids must have integers as elements
#include <attn/layers.hpp>

auto f(const attn::Embedding<float>& table, const attn::Tensor2<float>& ids) { return table(ids); }
