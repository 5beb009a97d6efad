// NextTask: asks for what a worker's next task reads first, while the last products of the present one run.
#pragma once

#include "attn/attention/task_rows.hpp"
#include "attn/core/prefetch.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Asks for `count` rows of x from `row` on before they are needed: short sequences come from memory once, and what
/// reads them takes as long as it waits. Into the second cache. kWrite: 1 for rows that will be written.
template <int kWrite, class T, class U>
ATTN_INLINE void prefetch_rows(const T* row, const TensorView4<U>& x, index_t count) {
  for (index_t i = 0; i < count; ++i, row += x.stride(2)) {
    prefetch_bytes<2, kWrite>(row, x.extent(3) * index_t{sizeof(T)});
  }
}

/// The queries of one block of rows, and the first keys and values that they meet. A core waits for few lines at a
/// time, so a few rows are asked for at each step (attn_report's sdpa_short).
template <class T>
class NextTask {
 public:
  /// Nothing to ask for.
  NextTask() = default;
  /// All is asked for within so many steps. keys: how many; 0 where they are at hand.
  NextTask(const AttentionProblem<T>& problem, const RowBlock& block, index_t keys, index_t steps)
      : problem_(&problem),
        block_(block),
        q_len_(problem.lengths(block.b).q_len),
        keys_(problem.paged() ? 0 : keys),
        share_((std::max(block.num_rows, keys_) + steps - 1) / steps),
        h_(block.kv_head * problem.group() + block.first_row / q_len_),
        i_(block.first_row % q_len_) {}

  ATTN_INLINE void ask() {
    if (next_ >= std::max(block_.num_rows, keys_)) return;
    for (const index_t end = next_ + share_; next_ < end; ++next_) {
      if (next_ < block_.num_rows) {
        prefetch_rows<0>(problem_->query(block_.b, h_, i_), problem_->q, 1);
        if (++i_ == q_len_) {
          i_ = 0;
          ++h_;
        }
      }
      if (next_ < keys_) {
        for (const auto* x : {&problem_->k, &problem_->v}) {
          prefetch_rows<0>(problem_->key(*x, block_.b, block_.kv_head, next_), *x, 1);
        }
      }
    }
  }

 private:
  const AttentionProblem<T>* problem_ = nullptr;
  RowBlock block_{};
  index_t q_len_ = 0, keys_ = 0, share_ = 0;
  index_t h_ = 0, i_ = 0;  ///< the next query
  index_t next_ = 0;       ///< row and key
};

}  // namespace detail

ATTN_NAMESPACE_END
