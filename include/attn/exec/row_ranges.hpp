// for_rows(): distributes rows over an executor's threads if the work is worth it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/exec/executor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Below a million multiplications, waking threads costs more than it saves.
constexpr bool is_worth_threads(index_t multiplications) { return multiplications >= 1000000; }

/// Returns `executor`, or a serial one for too little work. Throws ValueError for an executor
/// without workers.
inline const Executor& threads_for(const Executor& executor, index_t multiplications) {
  static const SerialExecutor one_thread;
  if (!is_worth_threads(multiplications)) return one_thread;
  static_cast<void>(worker_count(executor));
  return executor;
}

/// Calls f(begin, end) for ranges that cover all rows. An element counts as 16 multiplications,
/// about the cost of softmax and norms.
template <class F>
void for_row_ranges(const Executor& executor, index_t rows, index_t elements_per_row, F f) {
  constexpr index_t kRangeElements = index_t{1} << 14;
  const Executor& threads = threads_for(executor, 16 * rows * elements_per_row);
  const index_t range = 1 + kRangeElements / (elements_per_row + 1);
  threads.run((rows + range - 1) / range, [&](index_t task, int) {
    f(task * range, (task + 1) * range < rows ? (task + 1) * range : rows);
  });
}

/// Calls f(row) for every row.
template <class F>
void for_rows(const Executor& executor, index_t rows, index_t elements_per_row, F f) {
  for_row_ranges(executor, rows, elements_per_row, [&f](index_t begin, index_t end) {
    for (index_t row = begin; row < end; ++row) f(row);
  });
}

}  // namespace detail

ATTN_NAMESPACE_END
