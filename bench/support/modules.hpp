// Modules with random weights, and what their forward pass costs.
#pragma once

#include <cmath>

#include "attn/layers/multi_head_attention.hpp"

#include "support/inputs.hpp"

namespace bench {

/// Weights of variance 1 / width, so that features keep theirs.
inline attn::MultiHeadAttention<float> random_multi_head(attn::index_t width, attn::index_t heads) {
  attn::MultiHeadAttention<float> mha({.embed_dim = width, .num_heads = heads});
  Random random(1);
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  mha.visit_parameters([&](std::string_view, auto view) {
    for (attn::index_t i = 0; i < view.size(); ++i) view.data()[i] = scale * random.number<float>();
  });
  return mha;
}

/// Four projections of (batch * seq) rows, and the two products of attention.
inline double multi_head_flops(attn::index_t batch, attn::index_t seq, attn::index_t width) {
  const double rows = static_cast<double>(batch * seq);
  return rows * (8 * static_cast<double>(width * width) + 4 * static_cast<double>(seq * width));
}

}  // namespace bench
