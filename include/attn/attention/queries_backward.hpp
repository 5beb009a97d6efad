// BackwardQueries: the queries of one key/value head: copies for the products, and gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/score_gradients_backward.hpp"
#include "attn/attention/task_rows.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Row r is query r % q_len of the head r / q_len of those that share the keys. Blocks of kRows
/// rows are copied in turn.
template <class T>
class BackwardQueries {
 public:
  static constexpr index_t kRows = BackwardTiling::kBlockQ;

  /// `deltas` of all rows: see AttentionProblem::row_at().
  BackwardQueries(const BackwardProblem<T>& problem, const RowKernels<T>& kernels,
                  const GradientKernels<T>& gradients, const BackwardScratch<T>& scratch,
                  const BackwardShare<T>& share, const T* deltas, index_t b, index_t kv_head)
      : problem_(problem),
        forward_(problem.forward),
        kernels_(kernels),
        gradients_(gradients),
        scratch_(scratch),
        share_(share),
        deltas_(deltas),
        b_(b),
        kv_head_(kv_head),
        q_len_(forward_.lengths(b).q_len) {}

  /// Rows.
  index_t count() const { return forward_.heads_per_kv_head * q_len_; }

  struct Query {
    index_t h, i;
  };
  Query query(index_t r) const {
    return {kv_head_ * forward_.heads_per_kv_head + r / q_len_, r % q_len_};
  }

  /// The block that begins with row `first`, in scratch.rows.
  TaskRows<T> rows_from(index_t first) const {
    return {forward_, {b_, kv_head_, first, (std::min)(kRows, count() - first)}, scratch_.rows};
  }

  /// scratch.seen = which of `keys` each block sees.
  void find_seen(KeyRange keys) const {
    for (index_t first = 0, n = 0; first < count(); first += kRows, ++n) {
      scratch_.seen[n] = rows_from(first).seen(keys);
    }
  }

  /// Queries and gradients of outputs of a block side by side, in whole tiles, and what is known of
  /// each row. Returns whether all is finite.
  bool copy(const TaskRows<T>& rows) const {
    const index_t d = forward_.score_dim(), dv = forward_.head_dim_v(), count = rows.count();
    bool finite = true;
    for (index_t r = 0; r < count; ++r) {
      QueryRow<T>& row = rows[r];
      T* q = std::copy_n(static_cast<const T*>(forward_.query(b_, row.h, row.i)),
                         forward_.head_dim(), scratch_.q + r * d);
      if (forward_.options.qv) std::copy_n(forward_.query_of_values(b_, row.h, row.i), dv, q);
      std::copy_n(problem_.query_row(problem_.d_out, b_, row.h, row.i), dv,
                  scratch_.d_out + r * dv);
      const T lse = problem_.of_query(problem_.lse, b_, row.h, row.i);
      const T delta = deltas_[forward_.row_at(b_, row.h, row.i)];
      scratch_.delta[r] = delta;
      // Of a row without a key all scores are -inf: weights e^(-inf - 0) are 0.
      row.state = {lse == kMinusInf<T> ? T{0} : lse, T{1}};
      finite = finite && std::isfinite(row.state.row_max) && std::isfinite(delta);
    }
    const index_t filled = round_up(count, kernels_.tile_rows);
    std::fill_n(scratch_.q + count * d, (filled - count) * d, T{0});
    std::fill_n(scratch_.d_out + count * dv, (filled - count) * dv, T{0});
    return finite && gradients_.all_finite(count, d, scratch_.q, d) &&
           gradients_.all_finite(count, dv, scratch_.d_out, dv);
  }

  /// d_q of all rows = 0.
  void clear_gradients() const {
    const index_t n = share_.d_q == nullptr ? forward_.head_dim() : forward_.score_dim();
    for (index_t r = 0; r < count(); ++r) std::fill_n(d_q_row(r), n, T{0});
  }

  /// What a block of keys gives row r of d_q and d_qv.
  void add_gradient(index_t r, const T* d_q) const {
    const index_t d = forward_.head_dim(), dim = forward_.score_dim();
    gradients_.add_scaled(share_.d_q == nullptr ? d : dim, forward_.scale, d_q, d_q_row(r));
    if (share_.d_q != nullptr || !problem_.call.d_qv) return;
    const auto [h, i] = query(r);
    gradients_.add_scaled(dim - d, forward_.scale, d_q + d,
                          problem_.query_row(problem_.call.d_qv, b_, h, i));
  }

 private:
  T* d_q_row(index_t r) const {
    const auto [h, i] = query(r);
    if (share_.d_q == nullptr) return problem_.query_row(problem_.d_q, b_, h, i);
    return share_.d_q + forward_.row_at(b_, h, i) * forward_.score_dim();
  }

  const BackwardProblem<T>& problem_;
  const AttentionProblem<T>& forward_;
  const RowKernels<T>& kernels_;
  const GradientKernels<T>& gradients_;
  const BackwardScratch<T>& scratch_;
  BackwardShare<T> share_;
  const T* deltas_;
  index_t b_, kv_head_, q_len_;
};

}  // namespace detail

ATTN_NAMESPACE_END
