// Options of small Transformers: random layers, stacks, and the shapes of known models.
#pragma once

#include "attn/models/gpt.hpp"

#include "support/random.hpp"

namespace attn_test {

/// Random options of an encoder or decoder layer, with positions 0 .. 29.
inline attn::TransformerLayerOptions random_layer_options(Random& random) {
  using attn::Activation, attn::NormKind, attn::RotaryPairs;
  attn::TransformerLayerOptions o;
  const Index kv_heads = random.integer(1, 3);
  o.nhead = kv_heads * random.integer(1, 2);
  o.d_model = o.nhead * random.integer(2, 12);
  o.dim_feedforward = random.integer(1, 70);
  o.activation =
      random.pick<Activation>({Activation::relu, Activation::relu_squared, Activation::gelu,
                               Activation::gelu_tanh, Activation::silu, Activation::quick_gelu});
  o.layer_norm_eps = random.pick<double>({1e-5, 1e-12});
  o.norm_first = random.chance(0.5);
  o.bias = random.chance(0.7);
  o.gated = random.chance(0.3);
  o.norm = random.chance(0.3) ? NormKind::rms : NormKind::layer;
  attn::MultiHeadAttentionOptions& a = o.attention;
  a.bias = random.chance(0.7);
  if (random.chance(0.4)) a.num_kv_heads = kv_heads;
  if (random.chance(0.4))
    a.head_dim = 2 * random.integer(1, 8), a.head_dim_v = random.integer(1, 9);
  if (random.chance(0.3)) {
    a.query_key_norm = random.chance(0.5) ? NormKind::rms : NormKind::layer;
  }
  if (a.head_dim > 0 && random.chance(0.6)) {
    a.rotary = attn::RotaryOptions{
        .dim = random.chance(0.5) ? 0 : 2 * random.integer(1, a.head_dim / 2),
        .pairs = random.chance(0.5) ? RotaryPairs::halves : RotaryPairs::interleaved,
        .theta = random.pick<double>({10000, 500000}),
        .max_positions = 30};
  }
  a.separate_in_proj = random.chance(0.3);
  return o;
}

/// Three layers of d_model 16 with grouped heads and a rotary embedding; if pre-norm, also gated,
/// with RMS norms, and one after the last layer.
inline attn::TransformerStackOptions stack_options(bool pre, Index max_positions) {
  return {.num_layers = 3,
          .layer = {.d_model = 16,
                    .nhead = 4,
                    .dim_feedforward = 20,
                    .activation = attn::Activation::silu,
                    .norm_first = pre,
                    .gated = pre,
                    .norm = pre ? attn::NormKind::rms : attn::NormKind::layer,
                    .attention = {.num_kv_heads = 2,
                                  .rotary = attn::RotaryOptions{.max_positions = max_positions}}},
          .norm = pre};
}

inline attn::GptOptions gpt2_options(Index vocab_size, Index max_positions) {
  return {.vocab_size = vocab_size,
          .num_layers = 2,
          .layer = {.d_model = 24,
                    .nhead = 3,
                    .dim_feedforward = 40,
                    .activation = attn::Activation::gelu_tanh,
                    .norm_first = true},
          .max_positions = max_positions};
}

/// Llama-like: rotary embedding, grouped heads, RMS norms, gated.
inline attn::GptOptions llama_options(Index vocab_size, Index max_positions) {
  return {.vocab_size = vocab_size,
          .num_layers = 2,
          .layer = {.d_model = 24,
                    .nhead = 4,
                    .dim_feedforward = 40,
                    .activation = attn::Activation::silu,
                    .norm_first = true,
                    .bias = false,
                    .gated = true,
                    .norm = attn::NormKind::rms,
                    .attention = {.num_kv_heads = 2,
                                  .head_dim = 8,
                                  .query_key_norm = attn::NormKind::rms,
                                  .rotary = attn::RotaryOptions{.max_positions = max_positions},
                                  .separate_in_proj = true}},
          .positions = attn::Positions::none,
          .tied = false};
}

}  // namespace attn_test
