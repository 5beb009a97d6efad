// error: generating: prompts must have 2 axes (batch, prompt_len), has 1
#include <attn/generation.hpp>

void f(attn::GptSession<float>& session, const attn::Tensor1<attn::index_t>& prompt) {
  attn::generate(session, prompt, {.max_new_tokens = 3});
}
