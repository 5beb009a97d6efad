// Losses and their gradients: cross_entropy, from logits, and mse_loss.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/tensor.hpp"
#include "attn/kernels/backend.hpp"
#include "attn/simd/vec/vec.hpp"

ATTN_NAMESPACE_BEGIN

/// PyTorch's options of cross_entropy, which averages over targets that are not ignored.
template <class T>
struct CrossEntropyOptions {
  std::optional<index_t> ignore_index = {};  ///< rows with this target are ignored
  double label_smoothing = 0;  ///< in [0, 1]: share of the target distributed over all classes
  TensorView1<const T> class_weights = {};  ///< (classes), at least 0; default 1
  /// Divides the sum of losses; default: the sum of the weights of targets that are not ignored.
  /// For part of a batch, pass the value of the whole batch, so that gradients add up to those of
  /// the batch.
  std::optional<double> divisor = {};
  /// Factor of the gradient but not of the loss, such as LossScale's factor().
  double gradient_scale = 1;
  Execution execution = {};  ///< threads, scratch and instruction set

  ATTN_REFUSE_OTHER_ELEMENTS(CrossEntropyOptions)
};

namespace detail {

/// Rows have innermost stride 1. targets: after the checks; -1 = ignored.
template <class T>
struct CrossEntropyProblem {
  TensorView2<const T> logits;
  const index_t* targets;
  const T* weights;           ///< of classes; nullptr: 1
  T smoothing, total_weight;  ///< the sum of all classes' weights
  T scale;                    ///< of the gradient
  T* losses;                  ///< of each row
  TensorView2<T> d_logits;    ///< empty: only losses
};

template <class In, class Acc>
struct Backend<family::Losses, In, Acc> {
  Kernel<CrossEntropyProblem<In>> cross_entropy;

  static constexpr std::uint64_t kLayout = layout_hash(
      {sizeof(Backend), offsetof(Backend, cross_entropy), sizeof(CrossEntropyProblem<In>),
       offsetof(CrossEntropyProblem<In>, logits), offsetof(CrossEntropyProblem<In>, targets),
       offsetof(CrossEntropyProblem<In>, weights), offsetof(CrossEntropyProblem<In>, smoothing),
       offsetof(CrossEntropyProblem<In>, total_weight), offsetof(CrossEntropyProblem<In>, scale),
       offsetof(CrossEntropyProblem<In>, losses), offsetof(CrossEntropyProblem<In>, d_logits)});
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/losses/loss.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T, class Id>
double cross_entropy(std::string_view function, TensorView2<const T> logits,
                     TensorView1<const Id> targets, TensorView2<T> d_logits,
                     const CrossEntropyOptions<T>& options) {
  const index_t rows = logits.extent(0), classes = logits.extent(1);
  check_shape(function, "targets", Shape<1>{rows}, targets.shape());
  if (d_logits) check_shape(function, "d_logits", logits.shape(), d_logits.shape());
  if (classes > 1 && (logits.stride(1) != 1 || (d_logits && d_logits.stride(1) != 1))) {
    throw_shape(function, "logits and d_logits",
                "have innermost stride 1 (these are the strides of logits)", logits.strides());
  }
  const TensorView1<const T>& weights = options.class_weights;
  if (weights && (weights.extent(0) != classes || !weights.is_contiguous())) {
    throw_shape(function, "class_weights",
                "be contiguous with shape (" + std::to_string(classes) + ")", weights.shape());
  }
  const double smoothing = options.label_smoothing;
  if (!(smoothing >= 0 && smoothing <= 1)) {
    throw ValueError(
        message(function, "label_smoothing", "lie in 0 .. 1", std::to_string(smoothing)));
  }
  Workspace& workspace = options.execution.scratch();
  Scratch<index_t> classes_of(workspace, rows);
  double divisor = 0, total_weight = weights ? 0 : static_cast<double>(classes);
  for (index_t c = 0; weights && c < classes; ++c) total_weight += static_cast<double>(weights(c));
  for (index_t i = 0; i < rows; ++i) {
    const Id id = targets(i);
    const bool fits = std::in_range<index_t>(id);
    if (fits && options.ignore_index && static_cast<index_t>(id) == *options.ignore_index) {
      classes_of.data()[i] = -1;
      continue;
    }
    if (!fits || static_cast<index_t>(id) < 0 || static_cast<index_t>(id) >= classes) {
      throw ValueError(message(function, "targets(" + std::to_string(i) + ")",
                               "lie in 0 .. " + std::to_string(classes - 1) + " or be ignore_index",
                               std::to_string(id)));
    }
    classes_of.data()[i] = static_cast<index_t>(id);
    divisor += weights ? static_cast<double>(weights(static_cast<index_t>(id))) : 1;
  }
  divisor = options.divisor.value_or(divisor);
  Scratch<T> losses(workspace, rows);
  backend<family::Losses, T>(options.execution)
      .cross_entropy({.logits = logits,
                      .targets = classes_of.data(),
                      .weights = weights.data(),
                      .smoothing = static_cast<T>(smoothing),
                      .total_weight = static_cast<T>(total_weight),
                      .scale = static_cast<T>(options.gradient_scale / divisor),
                      .losses = losses.data(),
                      .d_logits = d_logits},
                     options.execution);
  double sum = 0;
  for (index_t i = 0; i < rows; ++i) sum += static_cast<double>(losses.data()[i]);
  return sum / divisor;
}

}  // namespace detail

/// The mean over rows of (1 - s) w(target) (-log p(target)) + s / classes * sum over c of w(c)
/// (-log p(c)), where p is softmax(logits), s label_smoothing and w the class weights, divided by
/// the mean w(target) as in PyTorch. NaN if every target is ignored. Shapes: logits (rows, classes)
/// with a unit innermost stride, targets (rows) of any integer type. Rows are summed in order, in
/// double. Throws ShapeError, and ValueError for a target or label_smoothing out of range.
template <TensorLike X, TensorLike Targets>
double cross_entropy(const X& logits, const Targets& targets,
                     const CrossEntropyOptions<detail::real_t<X>>& options = {}) {
  using T = detail::real_t<X>;
  using Id = detail::id_t<Targets>;
  ATTN_ASSERT_REAL(X, "cross_entropy: logits");
  ATTN_ASSERT_AXES(X, 2, "cross_entropy: logits", "(rows, classes)");
  ATTN_ASSERT_AXES(Targets, 1, "cross_entropy: targets", "(rows)");
  ATTN_ASSERT_INTEGERS(Targets, "cross_entropy: targets");
  return detail::cross_entropy<T, Id>("cross_entropy", detail::view_as<const T, 2>(logits),
                                      detail::view_as<const Id, 1>(targets), {}, options);
}

/// Returns the loss and writes its gradient to d_logits (rows, classes), which may be logits:
/// softmax and loss share one pass, and memory need not hold both logits and their gradient.
/// Ignored rows get 0.
template <TensorLike X, TensorLike Targets, TensorLike DX>
double cross_entropy_backward(const X& logits, const Targets& targets, DX&& d_logits,
                              const CrossEntropyOptions<detail::real_t<X>>& options = {}) {
  using T = detail::real_t<X>;
  using Id = detail::id_t<Targets>;
  ATTN_ASSERT_REAL(X, "cross_entropy_backward: logits");
  ATTN_ASSERT_AXES(X, 2, "cross_entropy_backward: logits", "(rows, classes)");
  ATTN_ASSERT_AXES(Targets, 1, "cross_entropy_backward: targets", "(rows)");
  ATTN_ASSERT_INTEGERS(Targets, "cross_entropy_backward: targets");
  ATTN_ASSERT_OUTPUT_LIKE(DX, X, "cross_entropy_backward: d_logits", "logits");
  return detail::cross_entropy<T, Id>("cross_entropy_backward", detail::view_as<const T, 2>(logits),
                                      detail::view_as<const Id, 1>(targets),
                                      detail::view_as<T, 2>(d_logits), options);
}

namespace detail {

/// Mean squared difference, and its gradient if d_x is given; both views have the same shape and
/// any strides.
template <class T, int Rank>
double add_squares(TensorView<const T, Rank> x, TensorView<const T, Rank> target,
                   TensorView<T, Rank> d_x, double scale) {
  double sum = 0;
  for (index_t i = 0; i < x.extent(0); ++i) {
    if constexpr (Rank > 1) {
      sum += add_squares<T, Rank - 1>(x.select(0, i), target.select(0, i),
                                      d_x ? d_x.select(0, i) : TensorView<T, Rank - 1>(), scale);
    } else {
      const double difference = static_cast<double>(x(i)) - static_cast<double>(target(i));
      sum += difference * difference;
      if (d_x) d_x(i) = static_cast<T>(scale * difference);
    }
  }
  return sum;
}

}  // namespace detail

/// Mean of (x - target)^2 over all elements, summed in double. Throws ShapeError unless shapes
/// agree.
template <TensorLike X, TensorLike Target>
double mse_loss(const X& x, const Target& target) {
  using T = detail::real_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_REAL(X, "mse_loss: x");
  ATTN_ASSERT_INPUT_LIKE(Target, X, "mse_loss: target", "x");
  const auto from = detail::view_as<const T, kRank>(x),
             to = detail::view_as<const T, kRank>(target);
  check_shape("mse_loss", "target", from.shape(), to.shape());
  return detail::add_squares<T, kRank>(from, to, {}, 0) / static_cast<double>(from.size());
}

/// Returns the loss and writes its gradient 2 (x - target) / elements to d_x, which may be x.
/// Throws ShapeError.
template <TensorLike X, TensorLike Target, TensorLike DX>
double mse_loss_backward(const X& x, const Target& target, DX&& d_x) {
  using T = detail::real_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_REAL(X, "mse_loss_backward: x");
  ATTN_ASSERT_INPUT_LIKE(Target, X, "mse_loss_backward: target", "x");
  ATTN_ASSERT_OUTPUT_LIKE(DX, X, "mse_loss_backward: d_x", "x");
  const auto from = detail::view_as<const T, kRank>(x),
             to = detail::view_as<const T, kRank>(target);
  const auto gradient = detail::view_as<T, kRank>(d_x);
  check_shape("mse_loss_backward", "target", from.shape(), to.shape());
  check_shape("mse_loss_backward", "d_x", from.shape(), gradient.shape());
  const double size = static_cast<double>(from.size());
  return detail::add_squares<T, kRank>(from, to, gradient, 2 / size) / size;
}

ATTN_NAMESPACE_END
