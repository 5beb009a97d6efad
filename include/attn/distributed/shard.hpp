// shard: tensor parallel inference of a model on several ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "attn/distributed/shard_plan.hpp"
#include "attn/models/bert.hpp"
#include "attn/models/gpt.hpp"
#include "attn/models/seq2seq_transformer.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class Stack>
inline constexpr bool is_decoder =
    requires(const Stack& stack) { stack.layers.front().multihead_attn; };

/// This rank's part of an Encoder or Decoder, which replace() puts into its place.
template <class T>
class StackPart {
 public:
  template <class Stack>
  StackPart(const Stack& whole, Communicator& communicator) {
    const ShardPlan plan(communicator);
    for (const auto& layer : whole.layers) {
      LayerPart& part = layers_.emplace_back();
      if constexpr (is_decoder<Stack>) {
        part.multihead_attn = plan.part_of(layer.multihead_attn);
      } else {
        if (layer.latent_attn) part.latent_attn = plan.part_of(layer.latent_attn);
        if (layer.convolution) part.convolution = plan.part_of(layer.convolution);
        if (layer.gated_delta) part.gated_delta = plan.part_of(layer.gated_delta);
        for (const FeedForward<T>& expert : layer.experts.experts) {
          part.experts.push_back(plan.part_of(expert));
        }
        if (layer.experts.options().dim_shared > 0) {
          part.shared_expert = plan.part_of(layer.experts.shared_expert);
        }
      }
      if (layer.self_attn.options().embed_dim > 0) {
        part.self_attn = plan.part_of(layer.self_attn);
        if (whole.relative_bias)
          relative_bias_ = plan.part_of(layer.self_attn, whole.relative_bias);
      }
      if (part.experts.empty()) part.feed_forward = plan.part_of(layer.feed_forward);
    }
  }

  template <class Stack>
  void replace(Stack& whole) {
    for (std::size_t n = 0; n < whole.layers.size(); ++n) {
      auto& layer = whole.layers[n];
      LayerPart& part = layers_[n];
      layer.self_attn = std::move(part.self_attn);
      layer.feed_forward = std::move(part.feed_forward);
      if constexpr (is_decoder<Stack>) {
        layer.multihead_attn = std::move(part.multihead_attn);
      } else {
        layer.latent_attn = std::move(part.latent_attn);
        layer.convolution = std::move(part.convolution);
        layer.gated_delta = std::move(part.gated_delta);
        layer.experts.experts = std::move(part.experts);
        layer.experts.shared_expert = std::move(part.shared_expert);
      }
    }
    whole.relative_bias = std::move(relative_bias_);
  }

 private:
  struct LayerPart {
    MultiHeadAttention<T> self_attn, multihead_attn;
    LatentAttention<T> latent_attn;
    ShortConvolution<T> convolution;
    GatedDelta<T> gated_delta;
    FeedForward<T> feed_forward, shared_expert;
    std::vector<FeedForward<T>> experts;
  };

  std::vector<LayerPart> layers_;
  Tensor2<T> relative_bias_;
};

/// This rank's part of the product that computes logits.
template <class T>
class LogitsPart {
 public:
  LogitsPart(const OutputProjection<T>& head, const Embedding<T>& words,
             Communicator& communicator) {
    const auto whole = head.tied() ? forms_of<T>(words) : forms_of<T>(head.linear());
    form_.push_back(std::make_shared<const GatheredWeight<Accumulator<T>>>(
        communicator, whole.at(0), head.tied()));
  }

  void replace(OutputProjection<T>& head, Embedding<T>& words) {
    if (head.tied()) {
      set_forms<T>(words, form_);
    } else {
      set_forms<T>(head.linear(), form_);
    }
  }

 private:
  std::vector<WeightForm<T>> form_;
};

template <class T>
void add_mixer(Digest& digest, const EncoderLayer<T>& layer) {
  const MultiHeadAttentionOptions& heads = layer.self_attn.options();
  const LatentAttentionOptions& latent = layer.latent_attn.options();
  const GatedDeltaOptions& delta = layer.gated_delta.options();
  for (const index_t number :
       {heads.num_heads, heads.num_kv_heads, heads.head_dim_v, latent.num_heads, latent.q_lora_rank,
        latent.kv_lora_rank, latent.head_dim, latent.rotary_dim, latent.head_dim_v, delta.d_model,
        delta.num_key_heads, delta.num_value_heads, delta.key_dim, delta.value_dim,
        layer.convolution.options().d_model}) {
    digest.take(static_cast<std::uint64_t>(number));
  }
}

/// `whose`: added to the name of each field.
template <class Stack>
void add_stack(AgreedFields& fields, const Stack& stack, std::string_view whose) {
  const auto add = [&](std::string_view name, const auto& x) {
    fields.add(join({name, whose}), x);
  };
  add("the number of layers", std::ssize(stack.layers));
  if (!stack.layers.empty()) {
    const MultiHeadAttentionOptions& o = stack.layers[0].self_attn.options();
    add("embed_dim", o.embed_dim);
    add("num_heads", o.num_heads);
    add("num_kv_heads", o.num_kv_heads);
    add("head_dim_v", o.head_dim_v);
  }
  Digest hidden, experts, mixers;
  for (const auto& layer : stack.layers) {
    hidden.take(static_cast<std::uint64_t>(layer.feed_forward.linear2.in_features()));
    if constexpr (!is_decoder<Stack>) {
      const MixtureOfExpertsOptions& o = layer.experts.options();
      for (const index_t number : {o.num_experts, o.experts_per_token, o.dim_feedforward,
                                   o.dim_shared, index_t{o.gated}}) {
        experts.take(static_cast<std::uint64_t>(number));
      }
      add_mixer(mixers, layer);
    }
  }
  add("dim_feedforward", hidden);
  add("the experts", experts);
  add("the token mixers", mixers);
}

/// Runs build() on all ranks, which either all return or all throw. `vocab_size`: of the logits, 0
/// without.
template <class F, class... Stacks>
void agree_on_shards(Communicator& communicator, index_t vocab_size, F build,
                     const Stacks&... stacks) {
  agree(communicator, "shard", [&] {
    build();
    AgreedFields fields;
    fields.add("vocab_size", vocab_size);
    // Every rank computes the routing, with the same bits.
    fields.add("the instruction set", static_cast<index_t>(active_isa()));
    (add_stack(fields, stacks,
               sizeof...(stacks) == 1 ? ""
               : is_decoder<Stacks>   ? " of the decoder"
                                      : " of the encoder"),
     ...);
    return fields;
  });
}

}  // namespace detail

/// Divides a model among ranks, for inference. Every rank loads the same model, in any weight
/// format, and calls shard(). From then on all ranks make the same calls in the same order, each on
/// one thread of its own program, and get the same results: the bits of one process. A rank keeps
/// its part of the weights, and caches of its key/value heads. All heads of latent attention share
/// latents, so each rank caches them whole.
///
/// Each product is divided by its output features, and the results are gathered: the heads before
/// the output projection, and the hidden features of a feed-forward before its second product, so
/// that no sum depends on the number of ranks. If the heads or features are not a multiple of the
/// number of ranks, parts differ in size. If there are more ranks than key/value heads, the
/// additional ranks repeat a head of another rank, but have their own share of all other products.
/// A layer exchanges num_heads * head_dim_v + dim_feedforward + 2 d_model numbers per token. The
/// word embeddings stay whole.
///
/// Each expert of a MixtureOfExperts is divided as a feed-forward; every rank computes the routing.
/// LatentAttention is divided by heads, and its projections to latents by outputs; GatedDelta by
/// key heads with their value heads; of ShortConvolution both products by outputs, and every rank
/// convolves all channels.
///
/// Refers to communicator. Throws ValueError on every rank, and leaves the model unchanged, for
/// query_key_norm_of_all_heads, attention without an output
/// projection, weights of 16 bits that are not compressed, a model that has been sharded already,
/// models of other sizes on other ranks, and instruction sets (active_isa()) that differ between
/// ranks. A sharded model cannot be saved; calls with functors, dropout, requested outputs, and
/// options with a value for each head, are errors.
template <class T>
void shard(Encoder<T>& encoder, Communicator& communicator) {
  std::optional<detail::StackPart<T>> part;
  detail::agree_on_shards(
      communicator, 0, [&] { part.emplace(encoder, communicator); }, encoder);
  part->replace(encoder);
}

/// The layers of its encoder.
template <class T>
void shard(Bert<T>& bert, Communicator& communicator) {
  shard(bert.encoder, communicator);
}

/// Also cuts the product that computes logits; every rank has all logits.
template <class T>
void shard(Gpt<T>& gpt, Communicator& communicator) {
  std::optional<detail::StackPart<T>> part;
  std::optional<detail::LogitsPart<T>> logits;
  const auto build = [&] {
    part.emplace(gpt.blocks, communicator);
    logits.emplace(gpt.lm_head, gpt.embedding.words, communicator);
  };
  detail::agree_on_shards(communicator, gpt.vocab_size(), build, gpt.blocks);
  part->replace(gpt.blocks);
  logits->replace(gpt.lm_head, gpt.embedding.words);
}

/// Both stacks, and the product that computes logits. Every rank encodes and decodes.
template <class T>
void shard(Seq2SeqTransformer<T>& model, Communicator& communicator) {
  Encoder<T>& encoder = model.transformer.encoder;
  Decoder<T>& decoder = model.transformer.decoder;
  std::optional<detail::StackPart<T>> encoder_part, decoder_part;
  std::optional<detail::LogitsPart<T>> logits;
  const auto build = [&] {
    encoder_part.emplace(encoder, communicator);
    decoder_part.emplace(decoder, communicator);
    logits.emplace(model.generator, model.tgt_embedding.words, communicator);
  };
  detail::agree_on_shards(communicator, model.options().tgt_vocab_size, build, encoder, decoder);
  encoder_part->replace(encoder);
  decoder_part->replace(decoder);
  logits->replace(model.generator, model.tgt_embedding.words);
}

ATTN_NAMESPACE_END
