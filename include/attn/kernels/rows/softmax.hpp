// Softmax, its logarithm and log-sum-exp over the last axis.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "attn/core/tensor.hpp"
#include "attn/exec/caches.hpp"
#include "attn/kernels/rows/in_floats.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Rows with unit inner stride; out may be x.
template <class T>
struct SoftmaxProblem {
  TensorView2<const T> x;
  TensorView2<T> out;
};

/// Rows with unit inner stride; out (rows), of any stride.
template <class T>
struct LogSumExpProblem {
  TensorView2<const T> x;
  TensorView1<T> out;
};

template <class In, class Acc>
struct Backend<family::Softmax, In, Acc> {
  Kernel<SoftmaxProblem<In>> softmax, log_softmax;
  Kernel<LogSumExpProblem<In>> log_sum_exp;

  static constexpr std::uint64_t kLayout = layout_hash(
      {sizeof(Backend), offsetof(Backend, softmax), offsetof(Backend, log_softmax),
       offsetof(Backend, log_sum_exp), sizeof(SoftmaxProblem<In>), offsetof(SoftmaxProblem<In>, x),
       offsetof(SoftmaxProblem<In>, out), sizeof(LogSumExpProblem<In>),
       offsetof(LogSumExpProblem<In>, x), offsetof(LogSumExpProblem<In>, out)});
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/rows/softmax.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Runs `kernel` on rows of T.
template <class T>
void on_rows(const Kernel<SoftmaxProblem<Accumulator<T>>>& kernel, const SoftmaxProblem<T>& problem,
             const Execution& execution) {
  if constexpr (Float16Element<T>) {
    in_floats(
        [&](index_t, const auto& out, const auto& x, const Execution& alone) {
          kernel({x, out}, alone);
        },
        execution, problem.out, problem.x);
  } else {
    kernel(problem, execution);
  }
}

/// Calls kernel(SoftmaxProblem) for every matrix of the last two axes.
template <class T, int Rank, class Kernel>
void on_matrices(TensorView<const T, Rank> x, TensorView<T, Rank> out, const Kernel& kernel) {
  if constexpr (Rank == 1) {
    kernel(SoftmaxProblem<T>{x.unsqueeze(0), out.unsqueeze(0)});
  } else if constexpr (Rank == 2) {
    kernel(SoftmaxProblem<T>{x, out});
  } else {
    for (index_t i = 0; i < x.extent(0); ++i) {
      on_matrices<T, Rank - 1>(x.select(0, i), out.select(0, i), kernel);
    }
  }
}

/// Checks the arguments of `function`, then runs the kernel.
template <class T, int Rank, class Kernel>
void softmax(std::string_view function, TensorView<const T, Rank> x, TensorView<T, Rank> out,
             const Kernel& kernel) {
  check_shape(function, "out", x.shape(), out.shape());
  if (x.extent(Rank - 1) > 1 && (x.stride(Rank - 1) != 1 || out.stride(Rank - 1) != 1)) {
    throw ShapeError(message(function, "the innermost strides", "be 1",
                             to_string(x.strides()) + " and " + to_string(out.strides())));
  }
  if (out.size() == 0) return;  // which may have no address
  on_matrices<T, Rank>(x, out, kernel);
}

template <class T, int Rank>
void log_sum_exp(TensorView<const T, Rank> x, TensorView<Accumulator<T>, Rank - 1> out,
                 const Execution& execution) {
  if constexpr (Rank == 2) {
    const auto& kernel = backend<family::Softmax, Accumulator<T>>(execution).log_sum_exp;
    if constexpr (Float16Element<T>) {
      in_floats(
          [&](index_t first, const auto&, const auto& floats, const Execution& alone) {
            kernel({floats, out.slice(0, first, first + floats.extent(0))}, alone);
          },
          execution, TensorView2<T>(nullptr, {x.extent(0), 0}), x);
    } else {
      kernel({x, out}, execution);
    }
  } else {
    for (index_t i = 0; i < x.extent(0); ++i) {
      log_sum_exp<T, Rank - 1>(x.select(0, i), out.select(0, i), execution);
    }
  }
}

}  // namespace detail

/// out = e^(x - max) / sum over the last axis; out may be x. A row of only -inf (fully masked)
/// gives zeros, a row that holds NaN or +inf gives NaN. Throws ShapeError unless shapes agree and
/// the innermost strides are 1.
template <TensorLike X, TensorLike Out>
void softmax(const X& x, Out&& out, const Execution& execution = {}) {
  using T = detail::floating_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_FLOATING(X, "softmax: x");
  ATTN_ASSERT_OUTPUT_LIKE(Out, X, "softmax: out", "x");
  const auto& backend = detail::backend<family::Softmax, Accumulator<T>>(execution);
  detail::softmax<T, kRank>("softmax", detail::view_as<const T, kRank>(x),
                            detail::view_as<T, kRank>(out),
                            [&](const detail::SoftmaxProblem<T>& problem) {
                              detail::on_rows(backend.softmax, problem, execution);
                            });
}

/// Returns the result as a new tensor.
template <TensorLike X>
auto softmax(const X& x, const Execution& execution = {}) {
  auto out = Tensor<scalar_t<X>, rank_v<X>>::uninitialized(const_view(x).shape());
  softmax(x, out, execution);
  return out;
}

/// out = x - max - log(sum of e^(x - max)) over the last axis, the logarithm of softmax without
/// underflow; out may be x. A row of only -inf gives -inf (the logarithm of softmax's zeros), a row
/// that holds NaN or +inf gives NaN. Throws ShapeError unless shapes agree and the innermost
/// strides are 1.
template <TensorLike X, TensorLike Out>
void log_softmax(const X& x, Out&& out, const Execution& execution = {}) {
  using T = detail::floating_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_FLOATING(X, "log_softmax: x");
  ATTN_ASSERT_OUTPUT_LIKE(Out, X, "log_softmax: out", "x");
  const auto& backend = detail::backend<family::Softmax, Accumulator<T>>(execution);
  detail::softmax<T, kRank>("log_softmax", detail::view_as<const T, kRank>(x),
                            detail::view_as<T, kRank>(out),
                            [&](const detail::SoftmaxProblem<T>& problem) {
                              detail::on_rows(backend.log_softmax, problem, execution);
                            });
}

/// Returns the result as a new tensor.
template <TensorLike X>
auto log_softmax(const X& x, const Execution& execution = {}) {
  auto out = Tensor<scalar_t<X>, rank_v<X>>::uninitialized(const_view(x).shape());
  log_softmax(x, out, execution);
  return out;
}

/// out = natural logarithm of the sum of e^x over the last axis, computed relative to the row's
/// largest element, so that it cannot overflow; -inf for a row of only -inf, NaN for a row that
/// holds NaN or +inf. Shapes: x of rank 2 or more, out without the last axis, float if x has 16
/// bits. Throws ShapeError unless shapes agree and x's innermost stride is 1.
template <TensorLike X, TensorLike Out>
void log_sum_exp(const X& x, Out&& out, const Execution& execution = {}) {
  using T = detail::floating_t<X>;
  constexpr int kRank = (std::max)(rank_v<X>, 2), kLast = kRank - 1;
  ATTN_ASSERT_FLOATING(X, "log_sum_exp: x");
  static_assert(rank_v<X> >= 2, "log_sum_exp: x must have at least 2 axes (.., n), has 1");
  static_assert(rank_v<X> < 2 || rank_v<Out> == rank_v<X> - 1,
                "log_sum_exp: out must have the axes of x without the last");
  ATTN_ASSERT_ELEMENTS(Out, Accumulator<T>, "log_sum_exp: out",
                       "x (of float where they have 16 bits)");
  ATTN_ASSERT_WRITABLE(Out, "log_sum_exp: out");
  const auto from = detail::view_as<const T, kRank>(x);
  const auto to = detail::view_as<Accumulator<T>, kLast>(out);
  Shape<kLast> rows;
  std::copy_n(from.shape().begin(), kLast, rows.begin());
  check_shape("log_sum_exp", "out", rows, to.shape());
  if (from.extent(kLast) > 1 && from.stride(kLast) != 1) {
    throw_shape("log_sum_exp", "the innermost stride", "be 1 (these are the strides)",
                from.strides());
  }
  detail::log_sum_exp<T, kRank>(from, to, execution);
}

/// Returns the result as a new tensor.
template <TensorLike X>
auto log_sum_exp(const X& x, const Execution& execution = {}) {
  constexpr int kLast = (std::max)(rank_v<X>, 2) - 1;
  Shape<kLast> shape{};
  std::copy_n(const_view(x).shape().begin(), kLast, shape.begin());
  auto out = Tensor<Accumulator<scalar_t<X>>, kLast>::uninitialized(shape);
  log_sum_exp(x, out, execution);
  return out;
}

ATTN_NAMESPACE_END
