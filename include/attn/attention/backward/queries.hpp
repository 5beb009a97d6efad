// BackwardQueries: packed queries of one key/value head, and d_q.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/backward/task.hpp"
#include "attn/attention/tasks/task_rows.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Row r is query r % q_len of the (r / q_len)-th query head that shares the keys. Rows are copied
/// to scratch in blocks of kRows.
template <class T>
class BackwardQueries {
 public:
  static constexpr index_t kRows = BackwardTiling::kBlockQ;

  explicit BackwardQueries(const BackwardTask<T>& task)
      : task_(task), forward_(task.problem.forward), q_len_(forward_.lengths(task.b).q_len) {}

  /// Number of rows.
  index_t count() const { return forward_.heads_per_kv_head * q_len_; }

  struct Query {
    index_t h, i;
  };
  Query query(index_t r) const {
    return {task_.kv_head * forward_.heads_per_kv_head + r / q_len_, r % q_len_};
  }

  /// The block of rows that begins with row `first`; scratch.rows holds its rows.
  TaskRows<T> rows_from(index_t first) const {
    return {forward_,
            {.b = task_.b,
             .kv_head = task_.kv_head,
             .first_row = first,
             .num_rows = (std::min)(kRows, count() - first)},
            task_.scratch.rows,
            true};
  }

  /// scratch.seen[n] = the range of `keys` that block n of the rows sees.
  void find_seen(KeyRange keys) const {
    for (index_t first = 0, n = 0; first < count(); first += kRows, ++n) {
      task_.scratch.seen[n] = rows_from(first).seen(keys);
    }
  }

  /// Copies a block's queries and d_out into whole tiles, and sets each row's state (from lse) and
  /// delta. Returns whether all elements are finite.
  bool copy(const TaskRows<T>& rows) const {
    const index_t d = forward_.score_dim(), dv = forward_.head_dim_v(), count = rows.count();
    bool finite = true;
    for (index_t r = 0; r < count; ++r) {
      QueryRow<T>& row = rows[r];
      T* q = std::copy_n(static_cast<const T*>(forward_.query(task_.b, row.h, row.i)),
                         forward_.head_dim(), task_.scratch.q + r * d);
      if (forward_.options.qv) std::copy_n(forward_.query_of_values(task_.b, row.h, row.i), dv, q);
      std::copy_n(task_.problem.query_row(task_.problem.d_out, task_.b, row.h, row.i), dv,
                  task_.scratch.d_out + r * dv);
      const T lse = task_.problem.of_query(task_.problem.lse, task_.b, row.h, row.i);
      const T delta = task_.deltas[task_.row_at(row.h, row.i)];
      task_.scratch.delta[r] = delta;
      // A fully masked row has lse -inf and scores -inf; with 0 instead of lse its weights e^(-inf
      // - 0) are 0, not NaN.
      row.state = {lse == kMinusInf<T> ? T{0} : lse, T{1}};
      finite = finite && std::isfinite(row.state.row_max) && std::isfinite(delta);
    }
    const index_t filled = round_up(count, task_.kernels.tile_rows);
    std::fill_n(task_.scratch.q + count * d, (filled - count) * d, T{0});
    std::fill_n(task_.scratch.d_out + count * dv, (filled - count) * dv, T{0});
    return finite && task_.gradients.all_finite(count, d, task_.scratch.q, d) &&
           task_.gradients.all_finite(count, dv, task_.scratch.d_out, dv);
  }

  /// d_q of all rows = 0.
  void clear_gradients() const {
    const index_t n = task_.partial.d_q == nullptr ? forward_.head_dim() : forward_.score_dim();
    for (index_t r = 0; r < count(); ++r) std::fill_n(d_q_row(r), n, T{0});
  }

  /// Adds the contribution d_s k of a block of keys to row r of d_q, and d_s v to row r of d_qv.
  void add_gradient(index_t r, const T* d_q) const {
    const index_t d = forward_.head_dim(), dim = forward_.score_dim();
    task_.gradients.add_scaled(task_.partial.d_q == nullptr ? d : dim, forward_.scale, d_q,
                               d_q_row(r));
    if (task_.partial.d_q != nullptr || !task_.problem.call.d_qv) return;
    const auto [h, i] = query(r);
    task_.gradients.add_scaled(dim - d, forward_.scale, d_q + d,
                               task_.problem.query_row(task_.problem.call.d_qv, task_.b, h, i));
  }

 private:
  T* d_q_row(index_t r) const {
    const auto [h, i] = query(r);
    if (task_.partial.d_q == nullptr)
      return task_.problem.query_row(task_.problem.d_q, task_.b, h, i);
    return task_.partial.d_q + task_.row_at(h, i) * forward_.score_dim();
  }

  BackwardTask<T> task_;
  const AttentionProblem<T>& forward_;
  index_t q_len_;
};

}  // namespace detail

ATTN_NAMESPACE_END
