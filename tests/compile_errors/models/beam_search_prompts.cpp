// error: generating: prompts must have the element type of ids, index_t
#include <attn/generation.hpp>

void f(attn::GptSession<float>& session, const attn::Tensor2<int>& prompt) {
  attn::beam_search(session, prompt, {.max_new_tokens = 3});
}
