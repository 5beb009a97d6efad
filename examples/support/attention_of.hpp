// The attention weights of every head of an encoder for one line of text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attn/models/sentence_encoder.hpp"

namespace examples {

// Tokens as the vocabulary spells them, including [CLS] and [SEP], and weights (layers, heads,
// queries, keys), whose rows add up to 1. `num_tokens` counts the whole line, even if it was
// truncated. `windows`: for each layer, how many tokens before itself a token attends to, or -1.
struct AttentionMap {
  std::size_t num_tokens = 0;
  bool is_causal = false;
  std::vector<attn::index_t> windows;
  std::vector<std::string> tokens;
  attn::Tensor4<float> weights;
};

inline AttentionMap attention_of(const attn::SentenceEncoder<float>& encoder,
                                 const std::string& line, const attn::Execution& execution = {}) {
  const std::vector<std::int32_t> tokens =
      encoder.tokenizer().encode(line, static_cast<std::size_t>(encoder.options().max_tokens));
  const auto seq = static_cast<attn::index_t>(tokens.size());
  AttentionMap map;
  map.num_tokens = static_cast<std::size_t>(encoder.count_tokens(line));
  for (const std::int32_t id : tokens) map.tokens.push_back(encoder.tokenizer().piece(id));

  const auto& layers = encoder.bert().encoder.layers;
  const auto num_layers = static_cast<attn::index_t>(layers.size());
  map.weights =
      attn::Tensor4<float>({num_layers, layers[0].self_attn.options().num_heads, seq, seq});
  attn::Tensor2<std::int32_t> ids({1, seq});
  std::copy(tokens.begin(), tokens.end(), ids.data());
  attn::Tensor3<float> hidden({1, seq, encoder.dim()});
  encoder.bert().embeddings.forward(ids, hidden);
  for (attn::index_t i = 0; i < num_layers; ++i) {
    const auto& layer = layers[static_cast<std::size_t>(i)];
    map.windows.push_back(layer.self_attn.options().window);
    // The weights of a layer have batch 1.
    layer.forward(hidden, hidden,
                  {.weights = map.weights.view().slice(0, i, i + 1), .execution = execution});
  }
  return map;
}

}  // namespace examples
