// error: Gpt: ids must have 2 axes (batch, seq), has 1
#include <attn/models.hpp>

auto f(const attn::Gpt<float>& model, const attn::Tensor1<int>& ids) { return model(ids); }
