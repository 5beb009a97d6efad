// cap_row() and mask_row(): all that options and functors say of one query's scores, in the order of the contract.
#pragma once

#include "attn/attention/tiling.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// s += relative_bias of a query at `position` over keys [first_key, first_key + n).
template <class T>
void add_relative_bias(const AttentionProblem<T>& problem, const RowKernels<T>& kernels, index_t h,
                       index_t position, index_t first_key, index_t n, T* s) {
  const TensorView2<const T>& bias = problem.options.relative_bias;
  const index_t most = bias.extent(1) / 2;
  // Keys up to `near` lie further than `most` before the query, those from `far` on further behind it.
  const index_t near = std::clamp(position - most - first_key, index_t{0}, n);
  const index_t far = std::clamp(position + most - first_key, near, n);
  const index_t middle = std::clamp(first_key + near - position + most, index_t{0}, 2 * most);
  kernels.add_bias(near, s, &bias(h, 0), 0);
  kernels.add_bias(far - near, s + near, &bias(h, middle), 1);
  kernels.add_bias(n - far, s + far, &bias(h, 2 * most), 0);
}

/// Scores of one query against keys [first_key, first_key + n).
template <class T>
struct ScoreRow {
  index_t b, h, i, first_key, n;
  T* s;

  void apply(const RowFunctor<T>& functor) const {
    functor.apply(functor.object, n, s, b, h, i, first_key);
  }
};

/// Whether cap_row() or mask_row() do anything.
template <class T>
bool changes_scores(const AttentionProblem<T>& problem) {
  const AttentionOptions<T>& options = problem.options;
  return problem.functors.score || options.softcap > 0 || options.alibi_slopes ||
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

/// First what is added, then what hides, so that a NaN in a bias for a hidden key goes the way of the key.
/// `all_visible`: to the mask functor.
template <class T>
void mask_row(const AttentionProblem<T>& problem, const RowKernels<T>& kernels,
              const ScoreRow<T>& row, bool all_visible) {
  using Dense = Mask::Dense;
  const AttentionOptions<T>& options = problem.options;
  const auto& [b, h, i, first_key, n, s] = row;
  if (options.alibi_slopes) {
    kernels.add_alibi(n, s, options.alibi_slopes(h), problem.position(b, i) - first_key);
  }
  if (options.relative_bias) {
    add_relative_bias(problem, kernels, h, problem.position(b, i), first_key, n, s);
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
        kernels.hide(n, s, static_cast<const bool*>(dense.data) + at, strides[3],
                     dense.kind == Dense::Kind::drop);
      }
    }
  }
  if (problem.functors.mask && !all_visible) row.apply(problem.functors.mask);
}

/// Whether functors, masks and biases show a query any key, whatever its products are. `s` holds `room` scores.
template <class T>
bool sees_key(const AttentionProblem<T>& problem, const RowKernels<T>& kernels, index_t b,
              const QueryRow<T>& row, index_t room, T* s) {
  for (index_t j = row.keys.begin; j < row.keys.end; j += room) {
    const index_t n = std::min(row.keys.end - j, room);
    std::fill_n(s, n, T{0});
    const ScoreRow<T> scores{b, row.h, row.i, j, n, s};
    cap_row(problem, kernels, scores);
    mask_row(problem, kernels, scores, false);
    if (std::any_of(s, s + n, [](T x) { return x != kMinusInf<T>; })) return true;
  }
  return false;
}

}  // namespace detail

ATTN_NAMESPACE_END
