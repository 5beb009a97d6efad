// HeadProjections: query, key and value projections with PyTorch's parameter layout.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/attention/rotary.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/norm.hpp"

ATTN_NAMESPACE_BEGIN

/// PyTorch's options of nn.MultiheadAttention, followed by attn's own.
struct MultiHeadAttentionOptions {
  index_t embed_dim = 0;                   ///< features of query and output
  index_t num_heads = 1;                   ///< query heads
  bool bias = true;                        ///< of all projections, unless set separately:
  std::optional<bool> in_proj_bias = {};   ///< of the query, key and value projections
  std::optional<bool> out_proj_bias = {};  ///< of the output projection
  index_t kdim = 0;                        ///< features of key; 0: embed_dim
  index_t vdim = 0;                        ///< features of value; 0: embed_dim
  bool add_bias_kv = false;                ///< append a learned key and value that is never masked
  bool add_zero_attn = false;              ///< append a zero key and value that is never masked
  index_t num_kv_heads = 0;       ///< key/value heads, a divisor of num_heads; 0: num_heads
  index_t head_dim = 0;           ///< of queries and keys (d_k); 0: embed_dim / num_heads
  index_t head_dim_v = 0;         ///< of values (d_v); 0: head_dim
  bool output_projection = true;  ///< false: return the concatenated heads
  /// Default 1 / sqrt(head_dim); the scale of a call takes precedence.
  std::optional<double> scale = {};
  /// Normalises each head of queries and keys before rotary: q_norm and k_norm of Qwen3 and Gemma.
  std::optional<NormKind> query_key_norm = {};
  /// These norms are over all heads together, as in OLMo 2, not head by head.
  bool query_key_norm_of_all_heads = false;
  double query_key_norm_eps = 1e-6;  ///< epsilon of these norms
  /// Clamps queries, keys and values of each token to [-clip_qkv, clip_qkv], after query_key_norm
  /// and before rotary, as in MPT, OLMo and DBRX; 0: none.
  double clip_qkv = 0;
  /// The query projection gives each head its query and a gate of head_dim_v features: heads are
  /// multiplied by sigmoid(gate) before the output projection, as in Qwen3-Next.
  bool output_gate = false;
  double softcap = 0;   ///< of scores; the softcap of a call takes precedence
  index_t window = -1;  ///< sliding window before the query, combined with the mask; -1: none
  bool symmetric_window = false;  ///< the window also ends as far after the query
  /// A learned sink for each head, as in gpt-oss: see AttentionOptions::sinks, which takes
  /// precedence in a call.
  bool sinks = false;
  bool alibi = false;  ///< biases scores by alibi_slopes(num_heads), unless a call gives slopes
  std::optional<RotaryOptions> rotary = {};  ///< rotary embedding of queries and keys
  /// Names the input projections separately: q_proj_weight, q_proj_bias, ..
  bool separate_in_proj = false;
  double dropout = 0;  ///< of attention weights in training; calls have their own

  /// Features that the query projection gives each head: its query, then its gate.
  index_t query_features() const { return head_dim + (output_gate ? head_dim_v : 0); }
};

namespace detail {

/// Whether two views are of the same elements, shape and strides.
template <class T, int Rank>
bool is_same_view(const TensorView<T, Rank>& a, const TensorView<T, Rank>& b) {
  return a.data() == b.data() && are_equal(a.shape(), b.shape()) &&
         are_equal(a.strides(), b.strides());
}

}  // namespace detail

/// The three input projections, stored as one matrix if query, key and value have embed_dim
/// features.
template <class T>
class HeadProjections {
 public:
  HeadProjections() = default;

  /// `options` must have every default filled in.
  explicit HeadProjections(const MultiHeadAttentionOptions& o)
      : ends_{o.num_heads * o.query_features(),
              o.num_heads * o.query_features() + o.num_kv_heads * o.head_dim,
              o.num_heads * o.query_features() + o.num_kv_heads * (o.head_dim + o.head_dim_v)},
        separate_names_(o.separate_in_proj) {
    if (o.kdim == o.embed_dim && o.vdim == o.embed_dim) {
      weight_ = Tensor2<T>::zero_pages({ends_[2], o.embed_dim});
    } else {
      const auto part = [&](int which, index_t features) {
        return Tensor2<T>::zero_pages({width(which), features});
      };
      parts_ = {part(0, o.embed_dim), part(1, o.kdim), part(2, o.vdim)};
    }
    if (o.in_proj_bias.value_or(o.bias)) bias_ = Tensor1<T>({ends_[2]});
  }

  /// The projections of key/value heads [begin, end) and their query heads, with their biases;
  /// weights are zero. `part`: the options of all with these numbers of heads.
  HeadProjections of_heads(const MultiHeadAttentionOptions& part, index_t begin,
                           index_t end) const {
    HeadProjections result(part);
    for (int which = 0; which < 3 && bias_; ++which) {
      const index_t width = result.width(which) / (end - begin);
      copy(bias(which).slice(0, begin * width, end * width), result.bias(which));
    }
    return result;
  }

  /// The features of all heads of q (0), with their gates, k (1) or v (2).
  index_t width(int which) const { return end(which) - begin(which); }

  /// Weight (out, in) and bias (out, or empty) of q (0), k (1) or v (2), however they are stored.
  /// Access to a writable weight makes packed copies stale; code that keeps the view and writes
  /// after pack() must call pack() again.
  TensorView2<T> weight(int which) {
    version_.touch();
    return weight_of(*this, which);
  }
  TensorView2<const T> weight(int which) const { return weight_of(*this, which); }
  TensorView1<T> bias(int which) { return bias_of(*this, which, which); }
  TensorView1<const T> bias(int which) const { return bias_of(*this, which, which); }

  /// Packs the joint matrix of self-attention, or the projections of cross-attention: see
  /// Linear::pack().
  void pack(MatmulPrecision precision, bool self_attention) {
    packed_ = {};
    if (!weight_) return;  // in three matrices, or compressed
    const auto rows = [&](int first, int last) {
      return detail::PackedCopy<T>(weight_.view().slice(0, begin(first), end(last)), version_,
                                   precision);
    };
    if (self_attention) {
      packed_[0] = rows(0, 2);
    } else {
      packed_[1] = rows(0, 0);
      packed_[2] = rows(1, 2);
    }
  }

  struct Heads {
    TensorView3<T> q, k, v;  ///< (batch, seq, width)
  };

  /// Number of elements of memory that project() takes.
  index_t elements(index_t batch, index_t q_len, index_t kv_len) const {
    return batch * (q_len * width(0) + kv_len * (width(1) + width(2)));
  }

  /// Projects queries, keys and values into `memory`, with room for `appended` keys and values
  /// after the others. An empty key computes queries only.
  Heads project(const TensorView3<const T>& query, const TensorView3<const T>& key,
                const TensorView3<const T>& value, index_t appended, T* memory,
                const Execution& execution) const {
    const index_t batch = query.extent(0), q_len = query.extent(1);
    const index_t kv_len = key ? key.extent(1) : 0, keys = kv_len + appended;
    if ((weight_ || compressed_) && appended == 0 && detail::is_same_view(key, value)) {
      if (detail::is_same_view(query, key)) {
        // One product for all three: x is read and packed once.
        const TensorView3<T> qkv(memory, {batch, q_len, ends_[2]});
        multiply(query, 0, 2, packed_[0], qkv, execution);
        return {.q = qkv.slice(2, 0, ends_[0]),
                .k = qkv.slice(2, ends_[0], ends_[1]),
                .v = qkv.slice(2, ends_[1], ends_[2])};
      }
      const TensorView3<T> q(memory, {batch, q_len, width(0)});
      const TensorView3<T> kv(memory + q.size(), {batch, kv_len, width(1) + width(2)});
      multiply(query, 0, 0, packed_[1], q, execution);
      if (key) multiply(key, 1, 2, packed_[2], kv, execution);
      return {
          .q = q, .k = kv.slice(2, 0, width(1)), .v = kv.slice(2, width(1), width(1) + width(2))};
    }
    Heads heads;
    heads.q = {memory, {batch, q_len, width(0)}};
    heads.k = {heads.q.data() + heads.q.size(), {batch, keys, width(1)}};
    heads.v = {heads.k.data() + heads.k.size(), {batch, keys, width(2)}};
    project_one(query, 0, heads.q, execution);
    if (key) {
      project_one(key, 1, heads.k.slice(1, 0, kv_len), execution);
      project_one(value, 2, heads.v.slice(1, 0, kv_len), execution);
    }
    return heads;
  }

  /// Visits in_proj_weight if query, key and value have embed_dim features, otherwise
  /// q_proj_weight, k_proj_weight and v_proj_weight; then in_proj_bias. With separate names:
  /// q_proj_weight .. and q_proj_bias ..
  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

 private:
  index_t begin(int which) const { return which == 0 ? 0 : end(which - 1); }
  index_t end(int which) const { return ends_[static_cast<std::size_t>(which)]; }

  template <class Self>
  static auto weight_of(Self& self, int which) {
    if (self.compressed_) detail::throw_compressed("MultiHeadAttention");
    if (self.weight_) return self.weight_.view().slice(0, self.begin(which), self.end(which));
    return self.parts_[static_cast<std::size_t>(which)].view();
  }

  template <class Self>
  static auto bias_of(Self& self, int first, int last) {
    auto bias = self.bias_.view();
    return bias ? bias.slice(0, self.begin(first), self.end(last)) : bias;
  }

  static constexpr std::string_view kWeights[] = {"q_proj_weight", "k_proj_weight",
                                                  "v_proj_weight"};
  static constexpr std::string_view kBiases[] = {"q_proj_bias", "k_proj_bias", "v_proj_bias"};

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    if constexpr (!std::is_const_v<Self>) {
      self.version_.touch();
      if (f.takes_away()) return take_away(self, f);
    }
    const bool one_weight = self.weight_ && !self.separate_names_;
    if (f.takes_slot(static_cast<bool>(self.compressed_))) {
      for (int which = 0; which < 3; ++which) show_slot(self, f, kWeights[which], which);
    } else if (self.compressed_) {
      detail::throw_compressed("MultiHeadAttention");
    } else if (one_weight) {
      f("in_proj_weight", self.weight_.view());
    } else {
      for (int which = 0; which < 3; ++which) {
        const auto weight = self.weight(which);
        if (weight) f(kWeights[which], weight);
      }
    }
    if (!self.bias_) return;
    if (!self.separate_names_) return f("in_proj_bias", self.bias_.view());
    for (int which = 0; which < 3; ++which) f(kBiases[which], self.bias(which));
  }

  /// Removes a joint tensor if all of its names are to be removed.
  static void take_away(HeadProjections& self, const ParameterVisitor<T>& f) {
    const auto go = [&](std::string_view joined, const auto& names) {
      if (!self.separate_names_) return f.goes(joined);
      return std::all_of(std::begin(names), std::end(names),
                         [&](std::string_view name) { return f.goes(name); });
    };
    if (self.weight_ && go("in_proj_weight", kWeights)) self.weight_ = {};
    for (std::size_t which = 0; which < 3; ++which) f.visit(kWeights[which], self.parts_[which]);
    if (self.bias_ && go("in_proj_bias", kBiases)) self.bias_ = {};
  }

  template <class Self, class Visited>
  static void show_slot(Self& self, const ParameterVisitor<Visited>& f, std::string_view name,
                        int which) {
    const auto n = static_cast<std::size_t>(which);
    WeightSlot<Visited> slot;
    if (self.compressed_) {
      slot.form = self.compressed_.parts()[n];
      slot.shape = slot.form->shape();
      slot.bytes = slot.form->bytes();
    } else {
      slot.dense = self.weight(which);
      slot.shape = slot.dense.shape();
      slot.bytes = slot.dense.size() * index_t{sizeof(T)};
    }
    if constexpr (!std::is_const_v<Self>) {
      slot.compress = [&self, n, shape = slot.shape](auto form) {
        if (!self.compressed_.set(n, 3, shape, std::move(form))) return;
        self.weight_ = {};
        self.parts_ = {};
        self.packed_ = {};
      };
    }
    f(name, slot);
  }

  /// to = from W^T + b for adjacent projections of the joint matrix, or for the compressed ones.
  void multiply(const TensorView3<const T>& from, int first, int last,
                const detail::PackedCopy<T>& copy, const TensorView3<T>& to,
                const Execution& execution) const {
    const TensorView1<const T> bias = bias_of(*this, first, last);
    if (compressed_) {
      const auto parts = compressed_.parts().subspan(static_cast<std::size_t>(first),
                                                     static_cast<std::size_t>(last - first + 1));
      detail::linear_parts<T, 3>(from, parts, bias, to, Activation::none, {}, execution);
    } else if (const PackedWeights<T>* packed = copy.find(version_, execution)) {
      linear(from, *packed, bias, to, Activation::none, {}, execution);
    } else {
      linear(from, weight_.view().slice(0, begin(first), end(last)), bias, to, Activation::none, {},
             execution);
    }
  }

  void project_one(const TensorView3<const T>& from, int which, const TensorView3<T>& to,
                   const Execution& execution) const {
    if (compressed_) return multiply(from, which, which, {}, to, execution);
    linear(from, weight(which), bias(which), to, Activation::none, {}, execution);
  }

  std::array<index_t, 3> ends_{};  ///< rows of q, of k and of v end here
  bool separate_names_ = false;
  Tensor2<T> weight_;
  std::array<Tensor2<T>, 3> parts_;  ///< where there is not one matrix
  Tensor1<T> bias_;
  detail::ParameterVersion version_;                    ///< of all weights
  std::array<detail::PackedCopy<T>, 3> packed_;         ///< all; q; k and v
  detail::CompressedParts<Accumulator<T>> compressed_;  ///< q, k and v
};

ATTN_NAMESPACE_END
