// PairValues: a block of values in bfloat16 pairs, and its product with weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/paths/pair_kernels.hpp"
#include "attn/attention/tasks/task.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// For targets with pair products: rounds values and weights to bfloat16, or to the sum of two, and
/// sums in T.
template <class T>
class PairValues {
 public:
  explicit PairValues(const ForwardTask<T>& task)
      : task_(task), kernels_(*task.kernels.products.pairs), scratch_(task.scratch) {}

  /// Packs the values of `keys` of the block that begins with first_key; pads with 0 to whole
  /// steps.
  void load(index_t first_key, KeyRange keys) const { copy_kept(first_key, keys, nullptr); }

  /// Packs values like load(), but writes 0 for keys whose `kept`, if given, is -inf.
  void copy_kept(index_t first_key, KeyRange keys, const T* kept) const {
    const index_t n = scratch_.out_stride, dv = task_.problem.head_dim_v();
    T* both = scratch_.pairs.two_values;
    std::fill_n(both, 2 * n, T{0});
    const index_t end = round_up(keys.end - first_key, kPairStep);
    for (index_t column = (keys.begin - first_key) & -kPairStep; column < end; column += 2) {
      for (index_t x = 0; x < 2; ++x) {
        const index_t j = first_key + column + x;
        const bool is_kept = j >= keys.begin && j < keys.end &&
                             (kept == nullptr || kept[j - keys.begin] != kMinusInf<T>);
        if (is_kept) {
          task_.kernels.of_keys.widen_rows(1, dv, task_.problem.values_from(task_.head, j),
                                           both + x * n, n);
        } else {
          std::fill_n(both + x * n, dv, T{0});
        }
      }
      kernels_.pair_rows(n, both, scratch_.pairs.values + column / 2 * n,
                         has_tails() ? scratch_.pairs.values_part : 0);
    }
  }

  /// tile.sums = rescale tile.sums + weights v; the weights are stored in tile.scores.
  void add(const ScoreTile<T>& tile, const T* rescale) const {
    const index_t begin = tile.first_column(), end = begin + tile.num_keys();
    const index_t first = begin & -kPairStep, last = round_up(end, kPairStep);
    const PairScratch<T>& pairs = scratch_.pairs;
    for (index_t x = 0; x < tile.num_rows; ++x) {
      bfloat16* weights = pairs.weights + x * tile.stride;
      kernels_.round_row(end - begin, tile.key_scores(x), weights + begin,
                         has_tails() ? pairs.weights_part : 0);
      for (index_t part = 0; part < pairs.parts; ++part, weights += pairs.weights_part) {
        std::fill(weights + first, weights + begin, bfloat16{});
        std::fill(weights + end, weights + last, bfloat16{});
      }
    }
    const auto add_product = [&](index_t weights_part, index_t values_part, const T* factors) {
      kernels_.add_values(
          scratch_.out_stride, last - first,
          pairs.weights + weights_part * pairs.weights_part + first, tile.stride,
          pairs.values + values_part * pairs.values_part + first / 2 * scratch_.out_stride,
          tile.sums, factors);
    };
    if (!has_tails()) return add_product(0, 0, rescale);
    add_product(0, 1, rescale);
    add_product(0, 0, nullptr);
    add_product(1, 0, nullptr);
  }
  void add_copied(const ScoreTile<T>& tile, const T* rescale) const { add(tile, rescale); }

 private:
  bool has_tails() const { return scratch_.pairs.parts > 1; }

  const ForwardTask<T>& task_;
  const PairKernels<T>& kernels_;
  const ForwardScratch<T>& scratch_;
};

}  // namespace detail

ATTN_NAMESPACE_END
