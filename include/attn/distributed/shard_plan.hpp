// ShardPlan: the part of each layer of a model that a rank computes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attn/distributed/gathered_weight.hpp"
#include "attn/layers/encoder_layer.hpp"

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

  /// The columns of this rank's heads in a table (rows, num_heads).
  template <class T>
  Tensor2<T> part_of(const MultiHeadAttention<T>& whole, const Tensor2<T>& table) const {
    const MultiHeadAttentionOptions& o = whole.options();
    const index_t group = o.num_heads / o.num_kv_heads;
    const auto [begin, end] = heads(o.num_kv_heads);
    return Tensor2<T>(table.view().slice(1, group * begin, group * end));
  }

  /// A part of the heads; projections to latents, which all heads share, are cut by outputs.
  template <class T>
  LatentAttention<T> part_of(const LatentAttention<T>& whole) const {
    const LatentAttentionOptions& o = whole.options();
    const auto [begin, end] = heads(o.num_heads);
    LatentAttention<T> part = whole.of_heads(begin, end);
    const std::vector<WeightForm<T>> forms = forms_of<T>(whole);
    std::vector<WeightForm<T>> own;
    if (o.q_lora_rank > 0) own.push_back(gathered<T>(forms[0]));
    const std::size_t next = own.size();
    const index_t width = o.head_dim + o.rotary_dim;
    own.push_back(forms[next]->rows(begin * width, end * width));
    own.push_back(gathered<T>(forms[next + 1]));
    const RankParts inputs(o.num_heads, communicator_.size(), o.head_dim_v);
    own.push_back(gathered<T>(forms[next + 2], inputs, (end - begin) * o.head_dim_v));
    set_forms<T>(part, own);
    return part;
  }

  /// A part of both products' outputs; every rank convolves all channels.
  template <class T>
  ShortConvolution<T> part_of(const ShortConvolution<T>& whole) const {
    ShortConvolution<T> part(whole.options());
    part.in_proj.bias = whole.in_proj.bias;
    part.convolution = whole.convolution;
    part.out_proj.bias = whole.out_proj.bias;
    const std::vector<WeightForm<T>> forms = forms_of<T>(whole);
    set_forms<T>(part, {gathered<T>(forms[0]), gathered<T>(forms[1])});
    return part;
  }

  /// A part of the key heads, with their value heads.
  template <class T>
  GatedDelta<T> part_of(const GatedDelta<T>& whole) const {
    const GatedDeltaOptions& o = whole.options();
    const index_t begin = heads(o.num_key_heads).begin, end = heads(o.num_key_heads).end;
    const index_t members = o.num_value_heads / o.num_key_heads, values = members * o.value_dim,
                  joint = 2 * (o.key_dim + values);
    GatedDeltaOptions own = o;
    own.num_key_heads = end - begin;
    own.num_value_heads = members * own.num_key_heads;
    GatedDelta<T> part(own);
    const auto channels = [&](index_t to, index_t from, index_t width) {
      copy(whole.convolution.weight.view().slice(0, from + begin * width, from + end * width),
           part.convolution.weight.view().slice(0, to, to + own.num_key_heads * width));
    };
    channels(0, 0, o.key_dim);
    channels(own.keys_width(), o.keys_width(), o.key_dim);
    channels(2 * own.keys_width(), 2 * o.keys_width(), values);
    const auto of_values = [&](const Tensor1<T>& x) {
      return Tensor1<T>(x.view().slice(0, begin * members, end * members));
    };
    part.dt_bias = of_values(whole.dt_bias);
    part.a_log = of_values(whole.a_log);
    part.norm = whole.norm;
    const std::vector<WeightForm<T>> forms = forms_of<T>(whole);
    const RankParts inputs(o.num_key_heads, communicator_.size(), values);
    set_forms<T>(part, {forms[0]->rows(begin * joint, end * joint),
                        forms[1]->rows(begin * 2 * members, end * 2 * members),
                        gathered<T>(forms[2], inputs, own.values_width())});
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

  /// Its outputs are cut; every rank has all inputs.
  template <class T>
  WeightForm<T> gathered(const WeightForm<T>& whole) const {
    return std::make_shared<const GatheredWeight<Accumulator<T>>>(communicator_, whole);
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

}  // namespace detail

ATTN_NAMESPACE_END
