// cap_row(), mask_row(): what options and functors say of a query's scores, in contract order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/row_kernels.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// s += relative_bias of a query at `position` over keys of the numbers [first_key, first_key + n).
template <class T>
void add_relative_bias(const AttentionProblem<T>& problem, const RowKernels<T>& kernels, index_t h,
                       index_t position, index_t first_key, index_t n, T* s) {
  const TensorView2<const T>& bias = problem.options.relative_bias;
  const index_t max_distance = bias.extent(1) / 2;
  // Keys before `near` lie more than max_distance before the query, those from `far` on at least
  // max_distance behind it.
  const index_t near = std::clamp(position - max_distance - first_key, index_t{0}, n);
  const index_t far = std::clamp(position + max_distance - first_key, near, n);
  const index_t middle =
      std::clamp(first_key + near - position + max_distance, index_t{0}, 2 * max_distance);
  kernels.add_bias(near, s, &bias(h, 0), 0);
  kernels.add_bias(far - near, s + near, &bias(h, middle), 1);
  kernels.add_bias(n - far, s + far, &bias(h, 2 * max_distance), 0);
}

/// Scores of one query against keys [first_key, first_key + n) of those given, which begin with the
/// number `number`.
template <class T>
struct ScoreRow {
  index_t b, h, i, first_key, number, n;
  T* s;

  void apply(const RowFunctor<T>& functor) const {
    functor.apply(functor.object, n, s, b, h, i, number);
  }
};

/// Whether cap_row() or mask_row() do anything.
template <class T>
bool changes_scores(const AttentionProblem<T>& problem) {
  const AttentionOptions<T>& options = problem.options;
  return problem.functors.score || options.softcap > 0 || problem.alibi_slopes ||
         options.relative_bias || options.mask.num_dense > 0 || problem.functors.mask;
}

/// What acts on scores before the masks: score_mod and softcap.
template <class T>
void cap_row(const AttentionProblem<T>& problem, const RowKernels<T>& kernels,
             const ScoreRow<T>& row) {
  if (problem.functors.score) row.apply(problem.functors.score);
  if (problem.options.softcap > 0) {
    kernels.softcap(row.n, row.s, static_cast<T>(problem.options.softcap));
  }
}

/// First what is added, then what hides, so that a NaN in a bias for a hidden key goes the way of
/// the key. `all_visible`: to the mask functor.
template <class T>
void mask_row(const AttentionProblem<T>& problem, const RowKernels<T>& kernels,
              const ScoreRow<T>& row, bool all_visible) {
  using Dense = Mask::Dense;
  const AttentionOptions<T>& options = problem.options;
  const auto& [b, h, i, first_key, number, n, s] = row;
  if (problem.alibi_slopes) {
    kernels.add_alibi(n, s, problem.alibi_slopes(b, h), problem.position(b, i) - number);
  }
  if (options.relative_bias) {
    add_relative_bias(problem, kernels, h, problem.position(b, i), number, n, s);
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
  if (problem.functors.mask && !all_visible) row.apply(problem.functors.mask);
}

/// Keys that show_keys() is asked about at once.
inline constexpr index_t kKeysShown = 512;

/// shown[j - keys.begin] = -inf where lengths, functors, masks or biases hide a key of `keys` from
/// a query, whatever its product is: a score of -inf hides nothing. `all_visible`: to the mask
/// functor.
template <class T>
ATTN_COLD void show_keys(const AttentionProblem<T>& problem, const RowKernels<T>& kernels,
                         index_t b, const QueryRow<T>& row, KeyRange keys, bool all_visible,
                         T* shown) {
  const index_t begin = std::clamp(row.keys.begin, keys.begin, keys.end);
  const index_t end = std::clamp(row.keys.end, begin, keys.end), n = end - begin;
  std::fill_n(shown, keys.end - keys.begin, kMinusInf<T>);
  if (n == 0) return;
  T* s = shown + (begin - keys.begin);
  std::fill_n(s, n, T{0});
  const index_t number = problem.lengths(b).first_key + begin;
  const ScoreRow<T> scores{b, row.h, row.i, begin, number, n, s};
  cap_row(problem, kernels, scores);
  mask_row(problem, kernels, scores, all_visible);
}

/// Whether a query sees any key.
template <class T>
ATTN_COLD bool sees_key(const AttentionProblem<T>& problem, const RowKernels<T>& kernels, index_t b,
                        const QueryRow<T>& row) {
  T shown[kKeysShown];
  for (index_t j = row.keys.begin; j < row.keys.end; j += kKeysShown) {
    const KeyRange keys{j, (std::min)(j + kKeysShown, row.keys.end)};
    show_keys(problem, kernels, b, row, keys, false, shown);
    T* end = shown + (keys.end - keys.begin);
    if (std::any_of(shown, end, [](T x) { return x != kMinusInf<T>; })) return true;
  }
  return false;
}

}  // namespace detail

ATTN_NAMESPACE_END
