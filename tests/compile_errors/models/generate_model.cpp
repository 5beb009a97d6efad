// error: generating takes a session
#include <attn/generation.hpp>

void f(attn::Gpt<float>& model, const attn::Tensor2<attn::index_t>& prompt) {
  attn::generate(model, prompt, {.max_new_tokens = 3});
}
