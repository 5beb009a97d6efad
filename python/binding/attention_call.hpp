// AttentionCall: the arguments of scaled_dot_product_attention, read and checked.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "attn/attention/sdpa.hpp"

#include "arrays.hpp"

namespace attn_python {

/// The keywords of scaled_dot_product_attention that forward and backward share.
struct AttentionKeywords {
  nb::object attn_mask;
  double dropout_p = 0;
  bool is_causal = false;
  std::optional<double> scale;
  bool enable_gqa = false;
  std::optional<std::pair<index_t, index_t>> window;
  std::optional<double> softcap;
  nb::object sinks, alibi, key_lengths;
  std::variant<std::string, index_t> offset;
  std::optional<std::uint64_t> dropout_seed;
};

/// Three axes of an array, (heads, seq, dim) or (heads, q_len, kv_len), and the strides of the axes
/// before them.
struct Operand {
  Array array;
  Extents leading;
  attn::Shape<3> shape{}, strides{};

  template <class T>
  attn::TensorView4<const T> view(const T* from, index_t batch, index_t batch_stride) const {
    return {from,
            {batch, shape[0], shape[1], shape[2]},
            {batch_stride, strides[0], strides[1], strides[2]}};
  }
};

/// Splits an array of at least 3 axes, or of 2 without heads.
Operand operand_of(Array array);

/// The strides of the axes `leading` in an array of this shape, which may lack the first of them
/// and broadcasts where its extent is 1.
Extents leading_strides(const Extents& leading, const Extents& shape, const Extents& strides);

/// A call with its arguments read. Leading axes, those before the heads, broadcast.
class AttentionCall {
 public:
  /// Throws TypeError or ValueError.
  AttentionCall(nb::handle query, nb::handle key, nb::handle value,
                const AttentionKeywords& keywords, std::string_view function);

  /// (.., num_heads, q_len, head_dim_v), with as many axes as query.
  Extents out_shape() const;
  /// (.., num_heads, q_len)
  Extents lse_shape() const;
  /// The type of scores, lse and gradients of the mask.
  DType score_type() const { return q.array.dtype == DType::F64 ? DType::F64 : DType::F32; }
  index_t num_heads() const { return q.shape[0]; }
  const std::optional<Array>& sinks() const { return sinks_; }
  const std::optional<Array>& alibi() const { return slopes_; }

  /// The options of one round: batch rows [round * batch, (round + 1) * batch). They view this
  /// object.
  template <class T>
  attn::AttentionOptions<T> options(index_t round, index_t batch, index_t mask_offset,
                                    index_t mask_stride) const;

  /// For gradients: throws ValueError where query, key or value broadcast; copies an expanded mask.
  void prepare_gradients();

  std::string_view function;
  Operand q, k, v;
  std::optional<Operand> mask;
  Extents leading;
  int rank;  ///< of query

 private:
  void read_mask(nb::handle given);
  void read_vectors(const AttentionKeywords& keywords);

  bool causal_;
  std::optional<double> scale_;
  std::optional<std::pair<index_t, index_t>> window_;
  double softcap_;
  attn::QueryOffset offset_;
  attn::Dropout dropout_;
  std::optional<Array> sinks_, slopes_;  ///< of the type of scores; slopes (heads) or (rows, heads)
  std::optional<std::vector<index_t>> key_lengths_;  ///< one per batch row
};

template <class T>
attn::AttentionOptions<T> AttentionCall::options(index_t round, index_t batch, index_t mask_offset,
                                                 index_t mask_stride) const {
  attn::AttentionOptions<T> options;
  attn::Mask visible;
  if (causal_) visible = visible & attn::causal();
  if (window_) visible = visible & attn::sliding_window(window_->first, window_->second);
  if (key_lengths_) {
    const attn::TensorView1<const index_t> lengths(key_lengths_->data() + round * batch, {batch});
    visible = visible & attn::key_lengths(lengths);
  }
  const index_t mask_rows = mask_stride == 0 ? 1 : batch;
  if (mask && mask->array.dtype == DType::BOOL) {
    const auto keep =
        mask->view(mask->array.elements<bool>() + mask_offset, mask_rows, mask_stride);
    visible = visible & attn::keep_mask(keep);
  } else if (mask) {
    const auto bias = mask->view(mask->array.elements<T>() + mask_offset, mask_rows, mask_stride);
    visible = visible & attn::additive_mask(bias);
  }
  options.mask = visible;
  options.scale = scale_;
  options.softcap = softcap_;
  options.offset = offset_;
  if (slopes_ && slopes_->rank() == 1) {
    options.alibi_slopes = view<T, 1>(*slopes_);
  } else if (slopes_) {
    options.batch_alibi_slopes = view<T, 2>(*slopes_).slice(0, round * batch, (round + 1) * batch);
  }
  if (sinks_) options.sinks = view<T, 1>(*sinks_);
  // Rounds have the same batch indices, and must not have the same masks.
  constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15u;  // odd: no two rounds have one seed
  options.dropout = {dropout_.p, dropout_.seed + static_cast<std::uint64_t>(round) * kStep};
  return options;
}

}  // namespace attn_python
