// cap_row(), mask_row(): apply options and functors to a row of scores.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/rows/row_kernels.hpp"
#include "attn/attention/tasks/key_chunks.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// s += relative_bias of a query at `position` for keys at [first_position, first_position + n).
template <class T>
void add_relative_bias(const AttentionProblem<T>& problem, const RowKernels<T>& kernels, index_t h,
                       index_t position, index_t first_position, index_t n, T* s) {
  const TensorView2<const T>& bias = problem.options.relative_bias;
  const index_t max_distance = bias.extent(1) / 2;
  // Keys [0, first_near) lie more than max_distance before the query and [first_far, n) at least
  // max_distance after it: both take the bias at the end of the table.
  const index_t first_near = std::clamp(position - max_distance - first_position, index_t{0}, n);
  const index_t first_far = std::clamp(position + max_distance - first_position, first_near, n);
  const index_t middle = std::clamp(first_position + first_near - position + max_distance,
                                    index_t{0}, 2 * max_distance);
  kernels.add_bias(first_near, s, &bias(h, 0), 0);
  kernels.add_bias(first_far - first_near, s + first_near, &bias(h, middle), 1);
  kernels.add_bias(n - first_far, s + first_far, &bias(h, 2 * max_distance), 0);
}

/// Scores of one query with n keys, from index first_key of the given keys on; their first position
/// is first_position.
template <class T>
struct ScoreRow {
  index_t b, h, i, first_key, first_position, n;
  T* s;

  void apply(const RowFunctor<T>& functor) const {
    functor.apply(functor.object, n, s, b, h, i, first_position);
  }
};

/// Whether cap_row() or mask_row() changes any score.
template <class T>
bool changes_scores(const AttentionProblem<T>& problem) {
  const AttentionOptions<T>& options = problem.options;
  return problem.functors.score || options.softcap > 0 || problem.alibi_slopes ||
         options.relative_bias || options.mask.num_dense > 0 || problem.functors.mask;
}

/// Applies score_mod and softcap, which come before biases and masks.
template <class T>
void cap_row(const AttentionProblem<T>& problem, const RowKernels<T>& kernels,
             const ScoreRow<T>& row) {
  if (problem.functors.score) row.apply(problem.functors.score);
  if (problem.options.softcap > 0) {
    kernels.softcap(row.n, row.s, static_cast<T>(problem.options.softcap));
  }
}

/// Applies the mask functor to the partially visible chunks.
template <class T>
void mask_by_functor(const RowFunctor<T>& mask, const ScoreRow<T>& row, const KeyChunks& chunks) {
  chunks.for_each_run(
      {row.first_key, row.first_key + row.n}, [&](KeyRange keys, Visibility visibility) {
        const index_t skipped = keys.begin - row.first_key, n = keys.end - keys.begin;
        if (visibility == Visibility::empty) std::fill_n(row.s + skipped, n, kMinusInf<T>);
        if (visibility != Visibility::partial) return;
        ScoreRow<T> part = row;
        part.first_key += skipped, part.first_position += skipped, part.s += skipped, part.n = n;
        part.apply(mask);
      });
}

/// Applies ALiBi, relative and additive biases, then boolean masks and the mask functor. Masks come
/// last, so that they also mask out a NaN in the bias of a masked key. `chunks`: the visibility of
/// these keys under the mask functor.
template <class T>
void mask_row(const AttentionProblem<T>& problem, const RowKernels<T>& kernels,
              const ScoreRow<T>& row, const KeyChunks& chunks) {
  using Dense = Mask::Dense;
  const AttentionOptions<T>& options = problem.options;
  const auto& [b, h, i, first_key, first_position, n, s] = row;
  if (problem.alibi_slopes) {
    kernels.add_alibi(n, s, problem.alibi_slopes(b, h), problem.position(b, i) - first_position);
  }
  if (options.relative_bias) {
    add_relative_bias(problem, kernels, h, problem.position(b, i), first_position, n, s);
  }
  for (const bool adds : {true, false}) {
    for (int part = 0; part < options.mask.num_dense; ++part) {
      const Dense& dense = options.mask.dense[static_cast<std::size_t>(part)];
      if ((dense.kind == Dense::Kind::add) != adds) continue;
      const auto& strides = dense.strides;
      const index_t at = b * strides[0] + h * strides[1] + i * strides[2] + first_key * strides[3];
      if (adds) {
        kernels.add_bias(n, s, static_cast<const T*>(dense.data) + at, strides[3]);
      } else {
        kernels.mask_out(n, s, static_cast<const bool*>(dense.data) + at, strides[3],
                         dense.kind == Dense::Kind::drop);
      }
    }
  }
  if (problem.functors.mask) mask_by_functor(problem.functors.mask, row, chunks);
}

/// Maximal number of keys in one call of mark_keys().
inline constexpr index_t kKeysAtOnce = 512;

/// kept[j - keys.begin] = -inf where lengths, functors, masks or biases mask out key j of `keys`
/// for a query, otherwise another number. Starts from scores of 0, because a product q . k of -inf
/// does not mask out a key. `chunks`: as in mask_row().
template <class T>
ATTN_COLD void mark_keys(const AttentionProblem<T>& problem, const RowKernels<T>& kernels,
                         index_t b, const QueryRow<T>& row, KeyRange keys, const KeyChunks& chunks,
                         T* kept) {
  const index_t begin = std::clamp(row.keys.begin, keys.begin, keys.end);
  const index_t end = std::clamp(row.keys.end, begin, keys.end), n = end - begin;
  std::fill_n(kept, keys.end - keys.begin, kMinusInf<T>);
  if (n == 0) return;
  T* s = kept + (begin - keys.begin);
  std::fill_n(s, n, T{0});
  const index_t first_position = problem.lengths(b).first_key + begin;
  const ScoreRow<T> scores{.b = b,
                           .h = row.h,
                           .i = row.i,
                           .first_key = begin,
                           .first_position = first_position,
                           .n = n,
                           .s = s};
  cap_row(problem, kernels, scores);
  mask_row(problem, kernels, scores, chunks);
}

/// Whether a query sees any key.
template <class T>
ATTN_COLD bool sees_key(const AttentionProblem<T>& problem, const RowKernels<T>& kernels, index_t b,
                        const QueryRow<T>& row) {
  T kept[kKeysAtOnce];
  const BlockTable& blocks = problem.functors.blocks;
  const index_t first_position = problem.lengths(b).first_key;
  for (index_t j = row.keys.begin; j < row.keys.end; j += kKeysAtOnce) {
    const KeyRange keys{j, (std::min)(j + kKeysAtOnce, row.keys.end)};
    if (blocks &&
        blocks.visibility(b, row.h, {row.i, row.i + 1},
                          {first_position + j, first_position + keys.end}) == Visibility::empty) {
      continue;
    }
    mark_keys(problem, kernels, b, row, keys, KeyChunks{}, kept);
    T* end = kept + (keys.end - keys.begin);
    if (std::any_of(kept, end, [](T x) { return x != kMinusInf<T>; })) return true;
  }
  return false;
}

}  // namespace detail

ATTN_NAMESPACE_END
