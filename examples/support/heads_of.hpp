// The attention weights of a language model's heads for a text.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "attn/models/language_model.hpp"

#include "attention_of.hpp"

namespace examples {

// For a decoder, which tokenizes the text itself: at most `most` tokens, as their bytes. Throws
// std::invalid_argument for a text without tokens.
inline AttentionMap heads_of(const attn::LanguageModel& model, const std::string& text,
                             attn::index_t most) {
  std::vector<attn::index_t> ids = model.encode_raw(text);
  if (ids.empty()) throw std::invalid_argument("the text has no tokens");
  AttentionMap map;
  map.num_tokens = ids.size();
  map.is_causal = true;
  const attn::index_t seq = std::min({std::ssize(ids), most, model.max_positions()});
  ids.resize(static_cast<std::size_t>(seq));
  for (const attn::index_t id : ids) map.tokens.push_back(model.tokenizer().piece(id));
  const attn::GptOptions& options = model.gpt().options();
  map.weights = attn::Tensor4<float>({options.num_layers, options.layer.nhead, seq, seq});
  attn::Tensor3<float> hidden({1, seq, options.layer.d_model});
  model.gpt().embedding.forward(attn::TensorView2<const attn::index_t>(ids.data(), {1, seq}),
                                hidden);
  for (attn::index_t i = 0; i < options.num_layers; ++i) {
    const auto& layer = model.gpt().blocks.layers[static_cast<std::size_t>(i)];
    map.windows.push_back(layer.self_attn.options().window);
    // The weights of a layer have batch 1.
    layer.forward(hidden, hidden,
                  {.mask = attn::causal(), .weights = map.weights.view().slice(0, i, i + 1)});
  }
  return map;
}

}  // namespace examples
