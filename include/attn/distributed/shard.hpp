// shard: tensor parallel inference of a model on several ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attn/distributed/gathered_weight.hpp"
#include "attn/models/bert.hpp"
#include "attn/models/gpt.hpp"
#include "attn/models/seq2seq_transformer.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
using WeightForm = std::shared_ptr<const CompressedWeight<Accumulator<T>>>;

/// The weights of a module, as forms, in the order of visit_weights(). Throws ValueError for a
/// weight of 16 bits that is not compressed: forms multiply in float.
template <class T, class Module>
std::vector<WeightForm<T>> forms_of(const Module& module) {
  std::vector<WeightForm<T>> forms;
  visit_weights<const T>(module, [&](std::string_view name, WeightSlot<const T>& slot) {
    if (slot.form != nullptr) {
      forms.push_back(slot.form);
    } else if constexpr (std::same_as<T, Accumulator<T>>) {
      forms.push_back(std::make_shared<const DenseWeight<T>>(Tensor2<T>(slot.dense)));
    } else {
      throw ValueError(message(
          "shard", name, "be compressed in a module of 16 bits (see store_weights())", "a tensor"));
    }
  });
  return forms;
}

/// Replaces the weights of a module, in the order of visit_weights().
template <class T, class Module>
void set_forms(Module& module, const std::vector<WeightForm<T>>& forms) {
  std::size_t at = 0;
  visit_weights<T>(module,
                   [&](std::string_view, WeightSlot<T>& slot) { slot.compress(forms[at++]); });
}

/// Which heads and hidden features this rank computes.
class ShardPlan {
 public:
  explicit ShardPlan(Communicator& communicator) : communicator_(communicator) {}

  /// Ranks beyond the number of key/value heads compute one that another rank has, too.
  IndexRange heads(index_t num_kv_heads) const {
    const RankParts parts(num_kv_heads, communicator_.size());
    const index_t begin = (std::min)(parts.begin(communicator_.rank()), num_kv_heads - 1);
    return {begin, (std::max)(parts.end(communicator_.rank()), begin + 1)};
  }

  template <class T>
  MultiHeadAttention<T> part_of(const MultiHeadAttention<T>& whole) const {
    const MultiHeadAttentionOptions& o = whole.options();
    if (!o.output_projection) {
      throw ValueError(message("shard", "attention.output_projection", "be true", "false"));
    }
    const index_t begin = heads(o.num_kv_heads).begin, end = heads(o.num_kv_heads).end;
    MultiHeadAttention<T> part = whole.of_heads(begin, end);
    const std::vector<WeightForm<T>> forms = forms_of<T>(whole);
    const index_t group = o.num_heads / o.num_kv_heads;
    const auto rows = [&](std::size_t which, index_t width) {
      return forms[which]->rows(begin * width, end * width);
    };
    const RankParts inputs(o.num_kv_heads, communicator_.size(), group * o.head_dim_v);
    set_forms<T>(part,
                 {rows(0, group * o.query_features()), rows(1, o.head_dim), rows(2, o.head_dim_v),
                  gathered<T>(forms[3], inputs, (end - begin) * group * o.head_dim_v)});
    return part;
  }

  template <class T>
  FeedForward<T> part_of(const FeedForward<T>& whole) const {
    const std::vector<WeightForm<T>> forms = forms_of<T>(whole);
    const index_t hidden = forms.back()->shape()[1], d_model = forms.back()->shape()[0];
    if (hidden < communicator_.size()) {
      throw ValueError(
          message("shard", "dim_feedforward",
                  "be at least the number of ranks, " + std::to_string(communicator_.size()),
                  std::to_string(hidden)));
    }
    const RankParts inputs(hidden, communicator_.size());
    const index_t begin = inputs.begin(communicator_.rank()),
                  end = inputs.end(communicator_.rank());
    FeedForward<T> part({.d_model = d_model,
                         .dim_feedforward = end - begin,
                         .activation = whole.activation,
                         .gated = whole.gated,
                         .bias = false,
                         .glu_limit = whole.glu_limit,
                         .glu_offset = whole.glu_offset});
    part.linear2.bias = whole.linear2.bias;
    std::vector<WeightForm<T>> own;
    for (index_t first = 0; first < (whole.gated ? 2 * hidden : hidden); first += hidden) {
      const bool is_joint = whole.joint_gate || first == 0;
      own.push_back(is_joint ? forms[0]->rows(first + begin, first + end)
                             : forms[1]->rows(begin, end));
    }
    if (const TensorView1<const T> bias = whole.linear1.bias) {
      const index_t parts = std::ssize(own), width = end - begin;
      part.linear1.bias = Tensor1<T>({parts * width});
      for (index_t n = 0; n < parts; ++n) {
        copy(bias.slice(0, n * hidden + begin, n * hidden + end),
             part.linear1.bias.view().slice(0, n * width, (n + 1) * width));
      }
    }
    own.push_back(gathered<T>(forms.back(), inputs, end - begin));
    set_forms<T>(part, own);
    return part;
  }

  /// Its outputs are cut; `inputs`: the parts of its inputs that the ranks have.
  template <class T>
  WeightForm<T> gathered(const WeightForm<T>& whole, const RankParts& inputs,
                         index_t in_features) const {
    return std::make_shared<const GatheredWeight<Accumulator<T>>>(communicator_, whole, inputs,
                                                                  in_features);
  }

 private:
  Communicator& communicator_;
};

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
        refuse(static_cast<bool>(layer.latent_attn), "latent attention");
        refuse(layer.is_recurrent(), "a recurrent mixer");
        for (const FeedForward<T>& expert : layer.experts.experts) {
          part.experts.push_back(plan.part_of(expert));
        }
        if (layer.experts.options().dim_shared > 0) {
          part.shared_expert = plan.part_of(layer.experts.shared_expert);
        }
      }
      part.self_attn = plan.part_of(layer.self_attn);
      if (part.experts.empty()) part.feed_forward = plan.part_of(layer.feed_forward);
    }
    if (!whole.relative_bias || whole.layers.empty()) return;
    const MultiHeadAttentionOptions& o = whole.layers[0].self_attn.options();
    const index_t group = o.num_heads / o.num_kv_heads;
    const auto [begin, end] = plan.heads(o.num_kv_heads);
    relative_bias_ = Tensor2<T>(whole.relative_bias.view().slice(1, group * begin, group * end));
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
        layer.experts.experts = std::move(part.experts);
        layer.experts.shared_expert = std::move(part.shared_expert);
      }
    }
    whole.relative_bias = std::move(relative_bias_);
  }

 private:
  struct LayerPart {
    MultiHeadAttention<T> self_attn, multihead_attn;
    FeedForward<T> feed_forward, shared_expert;
    std::vector<FeedForward<T>> experts;
  };

  static void refuse(bool has, std::string_view what) {
    if (has)
      throw ValueError(
          message("shard", "the layers", "be without latent attention and recurrent mixers", what));
  }

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
  Digest hidden, experts;
  for (const auto& layer : stack.layers) {
    hidden.take(static_cast<std::uint64_t>(layer.feed_forward.linear2.in_features()));
    if constexpr (!is_decoder<Stack>) {
      const MixtureOfExpertsOptions& o = layer.experts.options();
      for (const index_t number :
           {o.num_experts, o.experts_per_token, o.dim_feedforward, o.dim_shared}) {
        experts.take(static_cast<std::uint64_t>(number));
      }
    }
  }
  add("dim_feedforward", hidden);
  add("the experts", experts);
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
/// its part of the weights, and caches of its key/value heads.
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
///
/// Refers to communicator. Throws ValueError on every rank, and leaves the model unchanged, for
/// latent attention, recurrent mixers, query_key_norm_of_all_heads, attention without an output
/// projection, weights of 16 bits that are not compressed, a model that has been sharded already,
/// models of other sizes on other ranks, and instruction sets (active_isa()) that differ between
/// ranks. A sharded model cannot be saved; calls with functors, and options with a value for each
/// head, are errors.
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
