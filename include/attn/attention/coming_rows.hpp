// ComingRows: asks for what attention reads next, the next block of keys or the next task's rows, while products run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/task_rows.hpp"
#include "attn/core/prefetch.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Asks for a row of x before it is needed: short sequences come from memory once, and what reads them takes as long as
/// it waits. kWrite: 1 for a row that will be written.
template <int kWrite, class Void>
ATTN_INLINE void prefetch_row(const void* row, const StoredView<Void>& x) {
  prefetch_bytes<kWrite>(row, x.row_bytes());
}

/// Asks for the dense masks of one query over `keys`, where each query has a row of them of its own. One row at a time,
/// between rows of scores: a core waits for few lines at a time (attn_report's cost_additive).
template <class T>
ATTN_INLINE void prefetch_masks(const AttentionProblem<T>& problem, index_t b,
                                const QueryRow<T>& row, KeyRange keys) {
  const Mask& mask = problem.options.mask;
  for (int part = 0; part < mask.num_dense; ++part) {
    const Mask::Dense& dense = mask.dense[static_cast<std::size_t>(part)];
    const auto& strides = dense.strides;
    if (strides[2] == 0 || strides[3] != 1) continue;
    const index_t size = dense.kind == Mask::Dense::Kind::add ? index_t{sizeof(T)} : 1;
    const index_t at = b * strides[0] + row.h * strides[1] + row.i * strides[2];
    prefetch_bytes(static_cast<const char*>(dense.data) + (at + keys.begin) * size,
                   (keys.end - keys.begin) * size);
  }
}

/// Some queries, and some keys and values. A core waits for few lines at a time: rows without gaps are asked for line by
/// line during products, others a few at each step (attn_report's sdpa_short, sdpa_queries_32 and cost_seq_major).
template <class T>
class ComingRows {
 public:
  /// Nothing to ask for.
  ComingRows() = default;
  /// Rows apart are asked for within `products` calls of ask_during() and `steps` more of ask(); of keys and values without
  /// gaps a panel by each ask_during(), as far as there are products. `queries` names the heads whose keys they are,
  /// even if it has no rows.
  ComingRows(const AttentionProblem<T>& problem, const RowBlock& queries, KeyRange keys,
             index_t steps, index_t products, index_t panel_width)
      : problem_(&problem),
        queries_(queries),
        keys_(keys),
        panel_(panel_width * problem.score_dim() * index_t{sizeof(T)}) {
    if (keys.begin < keys.end && !problem.paged() && lies_together(problem.k) &&
        lies_together(problem.v)) {
      std::size_t n = 0;
      for (const auto* x : {&problem.k, &problem.v}) {
        streams_[n++] = {
            static_cast<const char*>(problem.key(*x, queries.b, queries.kv_head, keys.begin)),
            (keys.end - keys.begin) * x->row_bytes()};
      }
      keys_.end = keys_.begin;
    }
    count_ = (std::max)(queries.num_rows, keys_.end - keys_.begin);
    share_ = (count_ + steps + products - 1) / (steps + products);
    if (queries.num_rows == 0) return;
    q_len_ = problem.lengths(queries.b).q_len;
    h_ = queries.kv_head * problem.group + queries.first_row / q_len_;
    i_ = queries.first_row % q_len_;
  }

  ATTN_INLINE void ask() {
    for (const index_t end = (std::min)(next_ + share_, count_); next_ < end; ++next_) {
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

  /// Where score_panel() is to ask for a panel's worth of memory; `otherwise` is in a cache.
  ATTN_INLINE const void* ask_during(const T* otherwise) {
    ask();
    for (Stream& stream : streams_) {
      if (stream.left <= 0) continue;
      const char* at = stream.at;
      const index_t asked = (std::min)(panel_, stream.left);
      stream.at += asked;
      stream.left -= asked;
      return at;
    }
    return otherwise;
  }

 private:
  /// Bytes that are asked for from `at` on.
  struct Stream {
    const char* at = nullptr;
    index_t left = 0;
  };

  static bool lies_together(const StoredView<const void>& x) { return x.stride(2) == x.extent(3); }

  const AttentionProblem<T>* problem_ = nullptr;
  RowBlock queries_{};
  KeyRange keys_{};  ///< of those that lie apart
  std::array<Stream, 2> streams_{};
  index_t panel_ = 0;  ///< bytes of score_panel()'s panel
  index_t count_ = 0, share_ = 0;
  index_t q_len_ = 0, h_ = 0, i_ = 0;  ///< the next query
  index_t next_ = 0;                   ///< of count_
};

}  // namespace detail

ATTN_NAMESPACE_END
