// ComingRows: asks for what attention reads next, the next block of keys or the next task's rows, while products run.
#pragma once

#include "attn/attention/task_rows.hpp"
#include "attn/core/prefetch.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Asks for a row of x before it is needed: short sequences come from memory once, and what reads them takes as long as
/// it waits. kWrite: 1 for a row that will be written.
template <int kWrite, class T, class U>
ATTN_INLINE void prefetch_row(const T* row, const TensorView4<U>& x) {
  prefetch_bytes<kWrite>(row, x.extent(3) * index_t{sizeof(T)});
}

/// Some queries, and some keys and values. A core waits for few lines at a time, so a few rows are asked for at each
/// step (attn_report's sdpa_short and sdpa_queries_32).
template <class T>
class ComingRows {
 public:
  /// Nothing to ask for.
  ComingRows() = default;
  /// All is asked for within so many steps. `queries` names the heads whose keys they are, even if it has no rows.
  ComingRows(const AttentionProblem<T>& problem, const RowBlock& queries, KeyRange keys,
             index_t steps)
      : problem_(&problem),
        queries_(queries),
        keys_(keys),
        count_(std::max(queries.num_rows, keys.end - keys.begin)),
        share_((count_ + steps - 1) / steps) {
    if (queries.num_rows == 0) return;
    q_len_ = problem.lengths(queries.b).q_len;
    h_ = queries.kv_head * problem.group() + queries.first_row / q_len_;
    i_ = queries.first_row % q_len_;
  }

  ATTN_INLINE void ask() {
    for (const index_t end = std::min(next_ + share_, count_); next_ < end; ++next_) {
      if (next_ < queries_.num_rows) {
        prefetch_row<0>(problem_->query(queries_.b, h_, i_), problem_->q);
        if (++i_ == q_len_) {
          i_ = 0;
          ++h_;
        }
      }
      if (const index_t j = keys_.begin + next_; j < keys_.end) {
        for (const auto* x : {&problem_->k, &problem_->v}) {
          prefetch_row<0>(problem_->key(*x, queries_.b, queries_.kv_head, j), *x);
        }
      }
    }
  }

 private:
  const AttentionProblem<T>* problem_ = nullptr;
  RowBlock queries_{};
  KeyRange keys_{};
  index_t count_ = 0, share_ = 0;
  index_t q_len_ = 0, h_ = 0, i_ = 0;  ///< the next query
  index_t next_ = 0;                   ///< of count_
};

}  // namespace detail

ATTN_NAMESPACE_END
