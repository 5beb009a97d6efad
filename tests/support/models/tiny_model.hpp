// A LanguageModel of TinyLlama, without its file.
#pragma once

#include "attn/models/language_model.hpp"

#include "support/models/tiny_llama.hpp"

namespace attn_test {

inline attn::LanguageModel tiny_language_model(
    attn::ActivationFormat activations = attn::ActivationFormat::exact, std::uint64_t seed = 7) {
  const TempFolder folder;
  return attn::LanguageModel(TinyLlama(seed).save(folder), {.activations = activations});
}

}  // namespace attn_test
