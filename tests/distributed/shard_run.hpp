// ShardDraw: a random GPT and its calls, on one process and sharded.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "attn/distributed.hpp"
#include "attn/generation/generate.hpp"
#include "attn/generation/gpt_session.hpp"
#include "attn/models/quantize.hpp"
#include "attn/train/initialize.hpp"

#include "support/random.hpp"

namespace attn_test {

using attn::index_t;

/// Puts latent attention, or a recurrent mixer in every second layer, into the place of attention.
inline void draw_mixer(Random& random, attn::GptOptions& options) {
  attn::TransformerLayerOptions& layer = options.layer;
  const auto kind = random.pick<attn::TokenMixer>({attn::TokenMixer::attention,
                                                   attn::TokenMixer::short_convolution,
                                                   attn::TokenMixer::gated_delta});
  if (kind != attn::TokenMixer::attention) {
    options.mixers = {kind, attn::TokenMixer::attention};
    layer.convolution = {.width = random.integer(2, 4), .bias = random.chance(0.5)};
    layer.gated_delta = {.num_key_heads = random.pick<index_t>({1, 2, 5}),
                         .key_dim = 8,
                         .value_dim = 32,
                         .width = random.integer(2, 4)};
    layer.gated_delta.num_value_heads = layer.gated_delta.num_key_heads * random.integer(1, 2);
    return;
  }
  layer.attention = {.rotary = layer.attention.rotary};
  layer.nhead = random.pick<index_t>({1, 2, 5, 10, 16});
  layer.latent = {.q_lora_rank = random.pick<index_t>({0, 32}),
                  .kv_lora_rank = random.pick<index_t>({20, 50, 150}),
                  .head_dim = random.pick<index_t>({3, 8}),
                  .rotary_dim = 4,
                  .head_dim_v = 32,
                  .bias = random.chance(0.5)};
}

inline attn::GptOptions draw_gpt(Random& random) {
  struct Heads {
    index_t query, key, size, size_v;
  };
  const Heads heads = random.pick<Heads>(
      {{4, 4, 8, 8}, {4, 2, 8, 16}, {6, 3, 16, 16}, {8, 1, 4, 4}, {10, 5, 16, 16}});
  const bool rotary = random.chance(0.5);
  attn::MultiHeadAttentionOptions attention{.num_kv_heads = heads.key,
                                            .head_dim = heads.size,
                                            .head_dim_v = heads.size_v,
                                            .sinks = random.chance(0.3),
                                            .alibi = !rotary && random.chance(0.5),
                                            .separate_in_proj = random.chance(0.5)};
  if (random.chance(0.3)) attention.query_key_norm = attn::NormKind::rms;
  if (random.chance(0.3)) attention.window = 3;
  if (rotary) attention.rotary = attn::RotaryOptions{};
  const bool gated = random.chance(0.5);
  attention.output_gate = random.chance(0.5);
  attn::MixtureOfExpertsOptions experts;
  if (random.chance(0.3)) {
    experts = {.num_experts = 5,
               .experts_per_token = 2,
               .dim_feedforward = random.pick<index_t>({32, 64}),
               .score = random.pick<attn::RouterScore>(
                   {attn::RouterScore::softmax, attn::RouterScore::sigmoid}),
               .dim_shared = random.pick<index_t>({0, 32}),
               .bias = random.chance(0.5)};
    experts.shared_gate = experts.dim_shared > 0 && random.chance(0.5);
  }
  attn::GptOptions options{.vocab_size = random.integer(20, 50),
                           .num_layers = 2,
                           .layer = {.d_model = random.pick<index_t>({32, 64}),
                                     .nhead = heads.query,
                                     .dim_feedforward = random.pick<index_t>({32, 96}),
                                     .dropout = 0,
                                     .activation = attn::Activation::gelu_tanh,
                                     .norm_first = random.chance(0.7),
                                     .bias = random.chance(0.5),
                                     .gated = gated,
                                     .joint_gate = gated && random.chance(0.5),
                                     .experts = experts,
                                     .attention = attention},
                           .positions = rotary ? attn::Positions::none : attn::Positions::learned,
                           .max_positions = 32,
                           .tied = random.chance(0.5),
                           .head_bias = random.chance(0.5),
                           .logit_softcap = random.chance(0.3) ? 5.0 : 0.0};
  if (random.chance(0.6)) draw_mixer(random, options);
  return options;
}

/// Sets all parameters, norms and biases too.
template <class Module>
void randomize(Module& module, Random& random) {
  module.visit_parameters([&]<class T, int Rank>(std::string_view, attn::TensorView<T, Rank> x) {
    for (index_t n = 0; n < x.size(); ++n) {
      x.data()[n] = static_cast<T>(static_cast<float>(0.3 * random.normal()));
    }
  });
}

/// The logits of a prompt of two rows and of steps behind it, all bits, and what generate() draws.
template <class T>
struct ShardCalls {
  std::vector<attn::Accumulator<T>> logits;
  std::vector<std::vector<index_t>> drawn;
  std::size_t cache_bytes = 0;

  ShardCalls(const attn::Gpt<T>& model, std::uint64_t draw) {
    Random random(draw);
    auto caches = model.make_caches(2, 32);
    for (const index_t seq : {5, 1, 3, 1, 20}) {
      attn::Tensor2<index_t> ids({2, seq});
      for (index_t& id : ids.elements()) id = random.integer(0, model.vocab_size() - 1);
      const auto out = model(ids, {}, caches);
      logits.insert(logits.end(), out.elements().begin(), out.elements().end());
    }
    for (const auto& cache : caches) cache_bytes += cache.bytes();
    attn::GptSession<T> session(model, 2, 16);
    const attn::Tensor2<index_t> prompts({2, 3}, {1, 2, 3, 4, 5, 6});
    drawn = attn::generate(session, prompts,
                           {.max_new_tokens = 8, .sampling = attn::SamplingOptions{.seed = 3}});
  }

  bool operator==(const ShardCalls& other) const {
    return drawn == other.drawn && logits.size() == other.logits.size() &&
           std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(logits[0])) == 0;
  }
};

/// A weight format: none keeps the model's elements.
inline std::optional<attn::QuantizeOptions> draw_format(Random& random) {
  using attn::ActivationFormat, attn::WeightFormat;
  if (random.chance(0.25)) return std::nullopt;
  const auto weights =
      random.pick<WeightFormat>({WeightFormat::int8, WeightFormat::q8_0, WeightFormat::q5_1,
                                 WeightFormat::q4_0, WeightFormat::bf16, WeightFormat::f16});
  const bool is_16_bits = weights == WeightFormat::bf16 || weights == WeightFormat::f16;
  return attn::QuantizeOptions{
      .weights = weights,
      .activations =
          is_16_bits
              ? random.pick<ActivationFormat>({ActivationFormat::exact, ActivationFormat::bf16})
              : random.pick<ActivationFormat>({ActivationFormat::exact, ActivationFormat::int8})};
}

/// Called by every rank: whether a random float GPT gives the bits of one process if it is sharded.
inline bool shards_as_one_process(attn::Communicator& comm, std::uint64_t draw) {
  Random random(draw);
  attn::Gpt<float> model(draw_gpt(random));
  randomize(model, random);
  if (const auto format = draw_format(random)) attn::quantize(model, *format);
  const ShardCalls<float> expected(model, draw);
  attn::shard(model, comm);
  const auto is_finite = [](float x) { return std::isfinite(x); };
  return ShardCalls<float>(model, draw) == expected &&
         std::ranges::all_of(expected.logits, is_finite);
}

}  // namespace attn_test
