// Tangents (JVP) of losses: the gradient times the tangents of the inputs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/kernels/losses/contrastive_loss.hpp"
#include "attn/kernels/losses/cosine_loss.hpp"
#include "attn/kernels/losses/loss.hpp"

ATTN_NAMESPACE_BEGIN

/// A loss and its tangent.
struct LossTangent {
  double loss, d_loss;
};

namespace detail {

/// The sum of gradient x tangent over all elements, in double and in their order. Elements whose
/// gradient is 0, such as those of ignored rows, add nothing, even if their tangent is NaN.
template <class T, int Rank>
double dot_tangent(TensorView<T, Rank> gradient, TensorView<const T, Rank> tangent) {
  double sum = 0;
  for (index_t i = 0; i < gradient.extent(0); ++i) {
    if constexpr (Rank > 1) {
      sum += dot_tangent<T, Rank - 1>(gradient.select(0, i), tangent.select(0, i));
    } else {
      if (gradient(i) == 0) continue;
      sum += static_cast<double>(gradient(i)) * static_cast<double>(tangent(i));
    }
  }
  return sum;
}

/// A gradient in scratch memory, multiplied with a tangent of the same shape.
template <class T, int Rank>
class GradientOf {
 public:
  GradientOf(std::string_view function, std::string_view name, const TensorView<const T, Rank>& of,
             const TensorView<const T, Rank>& tangent, const Execution& execution)
      : memory_(execution.scratch(), of.size()),
        view_(memory_.data(), of.shape()),
        tangent_(tangent) {
    check_shape(function, name, of.shape(), tangent.shape());
  }
  const TensorView<T, Rank>& view() const { return view_; }
  double dot() const { return dot_tangent<T, Rank>(view_, tangent_); }

 private:
  Scratch<T> memory_;
  TensorView<T, Rank> view_;
  TensorView<const T, Rank> tangent_;
};

}  // namespace detail

/// cross_entropy(logits, targets, options) and its tangent for the tangent d_logits (rows, classes)
/// of the logits. Takes scratch memory of the size of the logits. Throws ShapeError, and ValueError
/// for a target out of range and for options.gradient_scale other than 1, which is for backward.
template <TensorLike X, TensorLike DX, TensorLike Targets>
LossTangent cross_entropy_jvp(const X& logits, const DX& d_logits, const Targets& targets,
                              const CrossEntropyOptions<detail::real_t<X>>& options = {}) {
  using T = detail::real_t<X>;
  ATTN_ASSERT_REAL(X, "cross_entropy_jvp: logits");
  ATTN_ASSERT_AXES(X, 2, "cross_entropy_jvp: logits", "(rows, classes)");
  ATTN_ASSERT_INPUT_LIKE(DX, X, "cross_entropy_jvp: d_logits", "logits");
  if (options.gradient_scale != 1) {
    throw ValueError(
        message("cross_entropy_jvp", "gradient_scale", "be 1", to_string(options.gradient_scale)));
  }
  const auto from = detail::view_as<const T, 2>(logits);
  const detail::GradientOf<T, 2> gradient("cross_entropy_jvp", "d_logits", from,
                                          detail::view_as<const T, 2>(d_logits), options.execution);
  const double loss = cross_entropy_backward(from, targets, gradient.view(), options);
  return {loss, gradient.dot()};
}

/// mse_loss(x, target) and its tangent for the tangent d_x of x. Throws ShapeError.
template <TensorLike X, TensorLike DX, TensorLike Target>
LossTangent mse_loss_jvp(const X& x, const DX& d_x, const Target& target) {
  using T = detail::real_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_REAL(X, "mse_loss_jvp: x");
  ATTN_ASSERT_INPUT_LIKE(DX, X, "mse_loss_jvp: d_x", "x");
  const auto from = detail::view_as<const T, kRank>(x);
  const detail::GradientOf<T, kRank> gradient("mse_loss_jvp", "d_x", from,
                                              detail::view_as<const T, kRank>(d_x), Execution{});
  const double loss = mse_loss_backward(from, target, gradient.view());
  return {loss, gradient.dot()};
}

/// cosine_embedding_loss(x, y, targets, options) and its tangent for the tangents d_x and d_y (n,
/// dim). Throws ShapeError or ValueError.
template <TensorLike X, TensorLike DX, TensorLike Y, TensorLike DY, TensorLike Targets>
LossTangent cosine_embedding_loss_jvp(const X& x, const DX& d_x, const Y& y, const DY& d_y,
                                      const Targets& targets,
                                      const CosineEmbeddingOptions& options = {}) {
  using T = detail::real_t<X>;
  constexpr std::string_view kFunction = "cosine_embedding_loss_jvp";
  ATTN_ASSERT_REAL(X, "cosine_embedding_loss_jvp: x");
  ATTN_ASSERT_AXES(X, 2, "cosine_embedding_loss_jvp: x", "(n, dim)");
  ATTN_ASSERT_INPUT_LIKE(DX, X, "cosine_embedding_loss_jvp: d_x", "x");
  ATTN_ASSERT_INPUT_LIKE(DY, X, "cosine_embedding_loss_jvp: d_y", "x");
  const auto from = detail::view_as<const T, 2>(x);
  const detail::GradientOf<T, 2> of_x(kFunction, "d_x", from, detail::view_as<const T, 2>(d_x), {});
  const detail::GradientOf<T, 2> of_y(kFunction, "d_y", from, detail::view_as<const T, 2>(d_y), {});
  const double loss =
      cosine_embedding_loss_backward(x, y, targets, of_x.view(), of_y.view(), options);
  return {loss, of_x.dot() + of_y.dot()};
}

/// The loss of contrastive_loss_backward(x, y, .., options) and its tangent for the tangents d_x
/// and d_y (n, dim). Throws ShapeError or ValueError.
template <TensorLike X, TensorLike DX, TensorLike Y, TensorLike DY>
LossTangent contrastive_loss_jvp(const X& x, const DX& d_x, const Y& y, const DY& d_y,
                                 const ContrastiveOptions& options = {}) {
  using T = detail::real_t<X>;
  constexpr std::string_view kFunction = "contrastive_loss_jvp";
  ATTN_ASSERT_REAL(X, "contrastive_loss_jvp: x");
  ATTN_ASSERT_AXES(X, 2, "contrastive_loss_jvp: x", "(n, dim)");
  ATTN_ASSERT_INPUT_LIKE(DX, X, "contrastive_loss_jvp: d_x", "x");
  ATTN_ASSERT_INPUT_LIKE(DY, X, "contrastive_loss_jvp: d_y", "x");
  const auto from = detail::view_as<const T, 2>(x);
  const detail::GradientOf<T, 2> of_x(kFunction, "d_x", from, detail::view_as<const T, 2>(d_x),
                                      options.execution);
  const detail::GradientOf<T, 2> of_y(kFunction, "d_y", from, detail::view_as<const T, 2>(d_y),
                                      options.execution);
  const double loss = contrastive_loss_backward(x, y, of_x.view(), of_y.view(), options);
  return {loss, of_x.dot() + of_y.dot()};
}

ATTN_NAMESPACE_END
