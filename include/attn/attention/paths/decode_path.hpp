// DecodePath: products for few queries with unpacked keys, limited by memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/call/key_rows.hpp"
#include "attn/attention/tasks/task.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Reads keys and values once, unpacked, through pointers to their rows. A tile is all rows of a
/// key/value head. Scales of int8 keys multiply the scores, scales of int8 values the weights.
template <class T>
class DecodePath final : public ScorePath<T> {
 public:
  explicit DecodePath(const ForwardTask<T>& task)
      : problem_(task.problem),
        own_(task.kernels.own),
        of_keys_(task.kernels.of_keys),
        scratch_(task.scratch) {}

  // Nothing to prefetch: hardware prefetchers follow in-order reads.
  void load(const KeyBlock&, bool) override {}
  void prefetch(const ScoreTile<T>&, index_t) override {}

  void score(const ScoreTile<T>& tile) override {
    const index_t d = problem_.head_dim(), n = tile.num_keys();
    T* scores = tile.key_scores(0);
    of_keys_.score_rows(tile.num_rows, n, d, tile.queries, tile.query_stride,
                        point_to(problem_.k, tile), problem_.scale, scores, tile.stride,
                        is_gathered());
    apply_scales(problem_.k_scales, tile, scores, tile.stride);
    if (!problem_.options.qv) return;
    // scores += scale qv . v
    of_keys_.score_rows(tile.num_rows, n, problem_.head_dim_v(), tile.queries + d,
                        tile.query_stride, point_to(problem_.v, tile), problem_.scale,
                        scratch_.products, n, is_gathered());
    apply_scales(problem_.v_scales, tile, scratch_.products, n);
    for (index_t x = 0; x < tile.num_rows; ++x) {
      T* s = tile.key_scores(x);
      const T* products = scratch_.products + x * n;
      for (index_t j = 0; j < n; ++j) s[j] += products[j];
    }
  }

  void add_values(const ScoreTile<T>& tile, const T* rescale) override {
    apply_scales(problem_.v_scales, tile, tile.key_scores(0), tile.stride);
    const void* const* values = point_to(problem_.v, tile);
    if (tile.chunks.has_empty()) skip_empty(tile);
    add(of_keys_, tile, values, rescale);
  }

  /// Copies values without their scales; the scales, or 0 for masked keys, go to scratch.scales.
  ATTN_COLD void copy_kept_values(const ScoreTile<T>& tile, KeyRange keys, const T* kept) override {
    const index_t dv = problem_.head_dim_v(), stride = scratch_.out_stride;
    const KeyHead head = problem_.key_head(tile.b, tile.kv_head);
    for (index_t j = keys.begin; j < keys.end; ++j) {
      T* to = scratch_.v + (j - tile.first_key) * stride;
      const bool is_kept = kept[j - keys.begin] != kMinusInf<T>;
      StoredRows<T> value = problem_.values_from(head, j);
      if (value.scales != nullptr) {
        scratch_.scales[j - tile.first_key] = is_kept ? *value.scales : T{0};
        value.scales = nullptr;
      }
      if (is_kept) {
        of_keys_.widen_rows(1, dv, value, to, stride);
      } else {
        std::fill_n(to, dv, T{0});
      }
    }
  }

  void add_copied_values(const ScoreTile<T>& tile, const T* rescale) override {
    const index_t stride = scratch_.out_stride;
    const T* copies = scratch_.v + tile.first_column() * stride;
    for (index_t j = 0; j < tile.num_keys(); ++j) scratch_.pointers[j] = copies + j * stride;
    if (problem_.v_scales) multiply_by_scales(tile, tile.key_scores(0), tile.stride);
    add(own_, tile, scratch_.pointers, rescale);
  }

 private:
  bool is_gathered() const { return static_cast<bool>(problem_.gathered); }

  /// Sets scratch.pointers to the rows of the tile's keys in k or v.
  const void* const* point_to(const StoredView<const void>& of, const ScoreTile<T>& tile) const {
    point_to_rows(problem_, of, problem_.key_head(tile.b, tile.kv_head), tile.keys,
                  scratch_.pointers);
    return scratch_.pointers;
  }

  /// Sets the pointers of keys in empty chunks, whose weights are 0, to a value that is read
  /// anyway. Leaving these keys out would change the order of sums.
  void skip_empty(const ScoreTile<T>& tile) const {
    const void** values = scratch_.pointers;
    const void* other = nullptr;
    tile.chunks.for_each_seen(tile.keys,
                              [&](KeyRange seen) { other = values[seen.begin - tile.keys.begin]; });
    tile.chunks.for_each_run(tile.keys, [&](KeyRange keys, Visibility visibility) {
      if (visibility != Visibility::empty) return;
      std::fill_n(values + (keys.begin - tile.keys.begin), keys.end - keys.begin, other);
    });
  }

  /// Multiplies a tile's scores (or weights) by the scales of its int8 keys (or values), if any.
  void apply_scales(const TensorView3<const T>& scales, const ScoreTile<T>& tile, T* s,
                    index_t stride) const {
    if (!scales) return;
    copy_scales(problem_, scales, problem_.key_head(tile.b, tile.kv_head), tile.keys,
                scratch_.scales + tile.first_column());
    multiply_by_scales(tile, s, stride);
  }
  void multiply_by_scales(const ScoreTile<T>& tile, T* s, index_t stride) const {
    of_keys_.scale_columns(tile.num_rows, tile.num_keys(), scratch_.scales + tile.first_column(), s,
                           stride);
  }

  void add(const ElementKernels<T>& of_values, const ScoreTile<T>& tile, const void* const* values,
           const T* rescale) const {
    of_values.add_values_rows(tile.num_rows, problem_.head_dim_v(), tile.first_column(),
                              tile.num_keys(), tile.key_scores(0), tile.stride, values, tile.sums,
                              scratch_.out_stride, rescale, is_gathered());
  }

  const AttentionProblem<T>& problem_;
  const ElementKernels<T>&own_, &of_keys_;  ///< for rows of T; for keys and values
  const ForwardScratch<T>& scratch_;
};

}  // namespace detail

ATTN_NAMESPACE_END
