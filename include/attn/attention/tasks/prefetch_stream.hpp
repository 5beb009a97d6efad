// PrefetchStream: prefetches the next key block or task during products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "attn/attention/tasks/task_rows.hpp"
#include "attn/core/prefetch.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Prefetches a row of x. For short sequences, which hardware prefetchers detect too late. kWrite:
/// 1 for a row that will be written.
template <int kWrite, class Void>
ATTN_INLINE void prefetch_row(const void* row, const StoredView<Void>& x) {
  prefetch_bytes<kWrite>(row, x.row_bytes());
}

/// Prefetches the dense masks of one query for `keys`, if each query has its own mask row. Called
/// between rows of scores, one row at a time: a core has few fill buffers (attn_report
/// cost_additive).
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

/// Prefetches the queries, keys and values of the next block or task. A core has few fill buffers,
/// so requests are spread over the current block's work: contiguous rows line by line during the
/// products, others a few rows at each step (attn_report sdpa_short, sdpa_queries_32,
/// cost_seq_major).
template <class T>
class PrefetchStream {
 public:
  /// Prefetches nothing.
  PrefetchStream() = default;
  /// Spreads rows with gaps between them over `products` calls of next_panel() and `steps` calls of
  /// advance(); each next_panel() also takes panel_bytes of contiguous keys or values. `queries`
  /// identifies the key/value head, even if it has no rows.
  PrefetchStream(const AttentionProblem<T>& problem, const RowBlock& queries, KeyRange keys,
                 index_t steps, index_t products, index_t panel_bytes)
      : problem_(&problem), queries_(queries), keys_(keys), panel_(panel_bytes) {
    if (keys.begin < keys.end) head_ = problem.key_head(queries.b, queries.kv_head);
    if (keys.begin < keys.end && !problem.scattered() && is_contiguous(problem.k) &&
        is_contiguous(problem.v)) {
      std::size_t n = 0;
      for (const auto* x : {&problem.k, &problem.v}) {
        streams_[n++] = {static_cast<const char*>(problem.key(*x, head_, keys.begin)),
                         (keys.end - keys.begin) * x->row_bytes()};
      }
      keys_.end = keys_.begin;
    }
    count_ = (std::max)(queries.num_rows, keys_.end - keys_.begin);
    share_ = (count_ + steps + products - 1) / (steps + products);
    if (queries.num_rows == 0) return;
    q_len_ = problem.lengths(queries.b).q_len;
    h_ = queries.kv_head * problem.heads_per_kv_head + queries.first_row / q_len_;
    i_ = queries.first_row % q_len_;
  }

  ATTN_INLINE void advance() {
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
          prefetch_row<0>(problem_->key(*x, head_, j), *x);
        }
      }
    }
  }

  /// Returns the next panel_bytes for score_panel() to prefetch; once everything was prefetched,
  /// returns `otherwise`, which is in a cache.
  ATTN_INLINE const void* next_panel(const void* otherwise) {
    advance();
    for (Stream& stream : streams_) {
      if (stream.left <= 0) continue;
      const char* at = stream.at;
      const index_t bytes = (std::min)(panel_, stream.left);
      stream.at += bytes;
      stream.left -= bytes;
      return at;
    }
    return otherwise;
  }

 private:
  /// Contiguous bytes still to prefetch.
  struct Stream {
    const char* at = nullptr;
    index_t left = 0;
  };

  static bool is_contiguous(const StoredView<const void>& x) { return x.stride(2) == x.extent(3); }

  const AttentionProblem<T>* problem_ = nullptr;
  RowBlock queries_{};
  KeyHead head_{};
  KeyRange keys_{};  ///< keys whose rows have gaps between them
  std::array<Stream, 2> streams_{};
  index_t panel_ = 0;                  ///< bytes that score_panel() prefetches
  index_t count_ = 0, share_ = 0;      ///< rows to prefetch, in all and at each step
  index_t q_len_ = 0, h_ = 0, i_ = 0;  ///< the next query
  index_t next_ = 0;                   ///< rows prefetched, of count_
};

}  // namespace detail

ATTN_NAMESPACE_END
