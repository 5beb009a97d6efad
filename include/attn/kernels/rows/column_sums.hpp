// add_column_sums: sums over rows, the gradient of a bias.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/tensor.hpp"
#include "attn/kernels/rows/in_floats.hpp"
#include "attn/simd/vec/vec.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Rows with unit inner stride; out (columns), contiguous.
template <class T>
struct ColumnSumsProblem {
  TensorView2<const T> x;
  T* out;
};

/// Columns of one task, which sums all rows in order: the same bits on any number of threads.
inline constexpr index_t kColumnsOfTask = 64;
/// Rows are summed in groups of this size, and then the sums of the groups: errors grow with the
/// size of a group plus the number of groups, not with the number of rows.
inline constexpr index_t kRowsOfPartSum = 64;

/// Calls f(begin, end) for ranges that cover all columns.
template <class F>
void for_column_ranges(const Executor& executor, index_t rows, index_t columns, F f) {
  const Executor& threads = threads_for(executor, rows * columns);
  threads.run((columns + kColumnsOfTask - 1) / kColumnsOfTask, [&](index_t task, int) {
    f(task * kColumnsOfTask, (std::min)((task + 1) * kColumnsOfTask, columns));
  });
}

template <class In, class Acc>
struct Backend<family::ColumnSums, In, Acc> {
  Kernel<ColumnSumsProblem<In>> add;

  static constexpr std::uint64_t kLayout =
      layout_hash({sizeof(Backend), offsetof(Backend, add), sizeof(ColumnSumsProblem<In>),
                   offsetof(ColumnSumsProblem<In>, x), offsetof(ColumnSumsProblem<In>, out)});
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/rows/column_sums.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

/// out(j) += sum over all rows of x(.., j). Shapes: x (.., n) with a unit innermost stride, out
/// (n), contiguous, float if x has 16 bits. Rows are summed in a fixed order. Throws ShapeError.
template <TensorLike X>
void add_column_sums(const X& x, TensorView1<Accumulator<detail::floating_t<X>>> out,
                     const Execution& execution = {}) {
  using T = detail::floating_t<X>;
  ATTN_ASSERT_FLOATING(X, "add_column_sums: x");
  const auto from = detail::view_as<const T, rank_v<X>>(x);
  constexpr int kLast = rank_v<X> - 1;
  check_shape("add_column_sums", "out", Shape<1>{from.extent(kLast)}, out.shape());
  if (!out.is_contiguous() || (from.extent(kLast) > 1 && from.stride(kLast) != 1)) {
    throw_shape("add_column_sums", "x and out", "have innermost stride 1 (these are x's strides)",
                from.strides());
  }
  if constexpr (Float16Element<T>) {
    const detail::WidenedTensor<rank_v<X>> floats(from, execution);
    add_column_sums(floats.view(), out, execution);
  } else {
    detail::each_joined(
        [&](const auto& part) {
          detail::backend<family::ColumnSums, T>(execution).add({part.rows(), out.data()},
                                                                execution);
        },
        from);
  }
}

ATTN_NAMESPACE_END
