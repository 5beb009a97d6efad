// JvpScores: scores of a tile and their tangents.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/jvp/task.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
class JvpScores {
 public:
  explicit JvpScores(JvpTask<T>& task)
      : task_(task),
        forward_(task.problem.forward),
        kernels_(task.forward.kernels.rows),
        first_position_(forward_.lengths(task.forward.block.b).first_key) {}

  /// Scores of the tile go to tiles.forward(), their tangents to tiles.of_queries(). Tangents of
  /// masked scores are unspecified and may be NaN.
  void score(const JvpTiles<T>& tiles) {
    const ScoreTile<T>&s = tiles.forward(), &d_s = tiles.of_queries(), &more = tiles.of_keys();
    task_.forward.score(s, ScoreStage::scaled);
    if (task_.problem.has_query_tangents) task_.of_queries.score(d_s, ScoreStage::scaled);
    if (task_.problem.has_key_tangents) task_.of_keys.score(more, ScoreStage::scaled);
    for (index_t x = 0; x < s.num_rows; ++x) {
      if (!task_.problem.has_query_tangents) std::fill_n(d_s.row_scores(x), s.num_columns(), T{0});
      if (task_.problem.has_key_tangents) {
        task_.gradients.add_scaled(s.num_columns(), T{1}, more.row_scores(x), d_s.row_scores(x));
      }
      if (task_.forward.changes_scores) change_row(tiles, x);
    }
  }

 private:
  /// Applies options and functors to a row of scaled products, and their derivatives to its
  /// tangents.
  void change_row(const JvpTiles<T>& tiles, index_t x) const {
    const ScoreRow<T> s = seen_scores(tiles.forward(), x, first_position_),
                      d_s = seen_scores(tiles.of_queries(), x, first_position_);
    if (s.n == 0) return;
    apply_derivatives(s, d_s.s, seen_scores(tiles.of_keys(), x, first_position_).s);
    cap_row(forward_, kernels_, s);
    if (forward_.options.softcap > 0) {
      const T cap = static_cast<T>(forward_.options.softcap);
      task_.gradients.softcap_derivative(s.n, s.s, cap, d_s.s);
    }
    mask_row(forward_, kernels_, s, tiles.forward().chunks);
    mask_row(task_.problem.of_queries, kernels_, d_s, tiles.forward().chunks);
  }

  /// Applies the derivatives of the score functor; `row` is memory for s.n numbers.
  void apply_derivatives(const ScoreRow<T>& s, T* d_s, T* row) const {
    const JvpProblem<T>& problem = task_.problem;
    if (!problem.score_derivative) return;
    const auto apply = [&](const RowFunctor<T>& derivative) {
      std::copy_n(s.s, s.n, row);
      ScoreRow<T> copy = s;
      copy.s = row;
      copy.apply(derivative);
    };
    apply(problem.score_derivative);
    task_.gradients.multiply(s.n, d_s, row);
    for (std::size_t k = 0; k < kMaxScoreParameters; ++k) {
      if (!problem.parameter_derivatives[k]) continue;
      apply(problem.parameter_derivatives[k]);
      const TensorView1<const T>& tangents = problem.score_parameters[k];
      task_.gradients.add_scaled(s.n, tangents(tangents.extent(0) == 1 ? 0 : s.h), row, d_s);
    }
  }

  JvpTask<T>& task_;
  const AttentionProblem<T>& forward_;
  const RowKernels<T>& kernels_;
  index_t first_position_;  ///< of key 0
};

}  // namespace detail

ATTN_NAMESPACE_END
