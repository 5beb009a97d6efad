// shard: tensor parallel inference of a model on several ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attn/distributed/gathered_weight.hpp"
#include "attn/models/bert.hpp"
#include "attn/models/gpt.hpp"

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

/// This rank's part of a stack, which replace() puts into its place.
template <class T>
class EncoderPart {
 public:
  EncoderPart(const Encoder<T>& whole, Communicator& communicator) {
    const ShardPlan plan(communicator);
    for (const EncoderLayer<T>& layer : whole.layers) {
      refuse(static_cast<bool>(layer.latent_attn), "latent attention");
      refuse(static_cast<bool>(layer.experts), "experts");
      refuse(layer.is_recurrent(), "a recurrent mixer");
      attentions_.push_back(plan.part_of(layer.self_attn));
      feed_forwards_.push_back(plan.part_of(layer.feed_forward));
    }
    if (!whole.relative_bias || whole.layers.empty()) return;
    const MultiHeadAttentionOptions& o = whole.layers[0].self_attn.options();
    const index_t group = o.num_heads / o.num_kv_heads;
    const auto [begin, end] = plan.heads(o.num_kv_heads);
    relative_bias_ = Tensor2<T>(whole.relative_bias.view().slice(1, group * begin, group * end));
  }

  void replace(Encoder<T>& whole) {
    for (std::size_t n = 0; n < whole.layers.size(); ++n) {
      whole.layers[n].self_attn = std::move(attentions_[n]);
      whole.layers[n].feed_forward = std::move(feed_forwards_[n]);
    }
    whole.relative_bias = std::move(relative_bias_);
  }

 private:
  static void refuse(bool has, std::string_view what) {
    if (has)
      throw ValueError(message("shard", "the layers",
                               "be without experts, latent attention and recurrent mixers", what));
  }

  std::vector<MultiHeadAttention<T>> attentions_;
  std::vector<FeedForward<T>> feed_forwards_;
  Tensor2<T> relative_bias_;
};

/// Runs build() on all ranks, which either all return or all throw. `vocab_size`: of the logits, 0
/// without.
template <class T, class F>
void agree_on_shards(Communicator& communicator, const Encoder<T>& encoder, index_t vocab_size,
                     F build) {
  agree(communicator, "shard", [&] {
    build();
    AgreedFields fields;
    fields.add("vocab_size", vocab_size);
    fields.add("the number of layers", std::ssize(encoder.layers));
    if (!encoder.layers.empty()) {
      const MultiHeadAttentionOptions& o = encoder.layers[0].self_attn.options();
      fields.add("embed_dim", o.embed_dim);
      fields.add("num_heads", o.num_heads);
      fields.add("num_kv_heads", o.num_kv_heads);
      fields.add("head_dim_v", o.head_dim_v);
    }
    Digest hidden;
    for (const EncoderLayer<T>& layer : encoder.layers) {
      hidden.take(static_cast<std::uint64_t>(layer.feed_forward.linear2.in_features()));
    }
    fields.add("dim_feedforward", hidden);
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
/// Refers to communicator. Throws ValueError on every rank, and leaves the model unchanged, for
/// experts, latent attention, recurrent mixers, query_key_norm_of_all_heads, attention without an
/// output projection, weights of 16 bits that are not compressed, and a model that has been sharded
/// already. A sharded model cannot be saved; calls with functors, and options with a value for each
/// head, are errors.
template <class T>
void shard(Encoder<T>& encoder, Communicator& communicator) {
  std::unique_ptr<detail::EncoderPart<T>> part;
  detail::agree_on_shards(communicator, encoder, 0, [&] {
    part = std::make_unique<detail::EncoderPart<T>>(encoder, communicator);
  });
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
  std::unique_ptr<detail::EncoderPart<T>> part;
  std::vector<detail::WeightForm<T>> head;
  const bool is_tied = gpt.lm_head.tied();
  detail::agree_on_shards(communicator, gpt.blocks, gpt.vocab_size(), [&] {
    part = std::make_unique<detail::EncoderPart<T>>(gpt.blocks, communicator);
    const auto whole = is_tied ? detail::forms_of<T>(gpt.embedding.words)
                               : detail::forms_of<T>(gpt.lm_head.linear());
    head.push_back(std::make_shared<const detail::GatheredWeight<Accumulator<T>>>(
        communicator, whole.at(0), is_tied));
  });
  part->replace(gpt.blocks);
  if (is_tied) {
    detail::set_forms<T>(gpt.embedding.words, head);
  } else {
    detail::set_forms<T>(gpt.lm_head.linear(), head);
  }
}

ATTN_NAMESPACE_END
