// Backward of softmax and of its logarithm over the last axis.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/kernels/rows/softmax.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Rows with unit inner stride; out is the result of forward, d_x may be d_out or out.
template <class T>
struct SoftmaxBackwardProblem {
  TensorView2<const T> d_out, out;
  bool is_log;
  TensorView2<T> d_x;
};

template <class In, class Acc>
struct Backend<family::SoftmaxBackward, In, Acc> {
  Kernel<SoftmaxBackwardProblem<In>> softmax;

  static constexpr std::uint64_t kLayout = layout_hash(
      {sizeof(Backend), offsetof(Backend, softmax), sizeof(SoftmaxBackwardProblem<In>),
       offsetof(SoftmaxBackwardProblem<In>, d_out), offsetof(SoftmaxBackwardProblem<In>, out),
       offsetof(SoftmaxBackwardProblem<In>, is_log), offsetof(SoftmaxBackwardProblem<In>, d_x)});
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/rows/softmax_backward.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T, int Rank>
void softmax_backward(std::string_view function, bool is_log, TensorView<const T, Rank> d_out,
                      TensorView<const T, Rank> out, TensorView<T, Rank> d_x,
                      const Execution& execution) {
  const auto check = [&](std::string_view name, const auto& view) {
    check_shape(function, name, out.shape(), view.shape());
    if (view.extent(Rank - 1) > 1 && view.stride(Rank - 1) != 1) {
      throw_shape(function, name, "have innermost stride 1 (these are the strides)",
                  view.strides());
    }
  };
  check("out", out);
  check("d_out", d_out);
  check("d_x", d_x);
  const auto run = [&](const auto& dy, const auto& y, const auto& to) {
    backend<family::SoftmaxBackward, T>(execution).softmax(
        {.d_out = dy.rows(), .out = y.rows(), .is_log = is_log, .d_x = to.rows()}, execution);
  };
  if constexpr (Rank == 1) {
    run(d_out.unsqueeze(0), out.unsqueeze(0), d_x.unsqueeze(0));
  } else {
    each_joined(run, d_out, out, d_x);
  }
}

}  // namespace detail

/// The gradient of out = softmax(x): d_x = out (d_out - sum of d_out out) over the last axis. A
/// fully masked row gives zeros. Where out is 0, d_x is 0 and d_out is not used, even if it is NaN.
/// Innermost strides are 1; d_x may be d_out or out. Throws ShapeError.
template <TensorLike D, TensorLike Y, TensorLike DX>
void softmax_backward(const D& d_out, const Y& out, DX&& d_x, const Execution& execution = {}) {
  using T = detail::real_t<Y>;
  constexpr int kRank = rank_v<Y>;
  ATTN_ASSERT_REAL(Y, "softmax_backward: out");
  ATTN_ASSERT_INPUT_LIKE(D, Y, "softmax_backward: d_out", "out");
  ATTN_ASSERT_OUTPUT_LIKE(DX, Y, "softmax_backward: d_x", "out");
  detail::softmax_backward<T, kRank>(
      "softmax_backward", false, detail::view_as<const T, kRank>(d_out),
      detail::view_as<const T, kRank>(out), detail::view_as<T, kRank>(d_x), execution);
}

/// The gradient of out = log_softmax(x): d_x = d_out - e^out times the sum of d_out over the last
/// axis. Innermost strides are 1; d_x may be d_out or out. Throws ShapeError.
template <TensorLike D, TensorLike Y, TensorLike DX>
void log_softmax_backward(const D& d_out, const Y& out, DX&& d_x, const Execution& execution = {}) {
  using T = detail::real_t<Y>;
  constexpr int kRank = rank_v<Y>;
  ATTN_ASSERT_REAL(Y, "log_softmax_backward: out");
  ATTN_ASSERT_INPUT_LIKE(D, Y, "log_softmax_backward: d_out", "out");
  ATTN_ASSERT_OUTPUT_LIKE(DX, Y, "log_softmax_backward: d_x", "out");
  detail::softmax_backward<T, kRank>(
      "log_softmax_backward", true, detail::view_as<const T, kRank>(d_out),
      detail::view_as<const T, kRank>(out), detail::view_as<T, kRank>(d_x), execution);
}

ATTN_NAMESPACE_END
