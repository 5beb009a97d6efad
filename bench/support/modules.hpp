// Modules with random weights, and the number of operations of their forward pass.
#pragma once

#include <cmath>

#include "attn/layers/encoder_layer.hpp"

#include "support/inputs.hpp"

namespace bench {

/// Parameters of variance 1 / width, which preserves the variance of features.
template <class Module>
Module with_random_parameters(Module module, attn::index_t width) {
  Random random(1);
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  module.visit_parameters([&](std::string_view, auto view) {
    for (attn::index_t i = 0; i < view.size(); ++i) view.data()[i] = scale * random.number<float>();
  });
  return module;
}

inline attn::MultiHeadAttention<float> random_multi_head(attn::index_t width, attn::index_t heads) {
  return with_random_parameters(
      attn::MultiHeadAttention<float>({.embed_dim = width, .num_heads = heads}), width);
}

inline attn::EncoderLayer<float> random_encoder_layer(attn::index_t width, attn::index_t heads,
                                                      attn::index_t hidden) {
  return with_random_parameters(attn::EncoderLayer<float>({.d_model = width,
                                                           .nhead = heads,
                                                           .dim_feedforward = hidden,
                                                           .activation = attn::Activation::gelu}),
                                width);
}

/// Four projections of (batch * seq) rows, and the two products of attention.
inline double multi_head_flops(attn::index_t batch, attn::index_t seq, attn::index_t width) {
  const double rows = static_cast<double>(batch * seq);
  return rows * (8 * static_cast<double>(width * width) + 4 * static_cast<double>(seq * width));
}

/// Operations of attention and of the two products of the feed-forward.
inline double encoder_layer_flops(attn::index_t batch, attn::index_t seq, attn::index_t width,
                                  attn::index_t hidden) {
  return multi_head_flops(batch, seq, width) +
         4 * static_cast<double>(batch * seq) * static_cast<double>(width * hidden);
}

}  // namespace bench
