// Tangents (JVP) of softmax, norms, activations and gated products.
// SPDX-License-Identifier: Apache-2.0
//
// In x_jvp(), d_x is the tangent of the input x and d_out that of the result. The Jacobians of
// softmax, of activations and of normalisation without weights are symmetric: their tangents are
// computed by the kernels of backward.
#pragma once

#include "attn/kernels/rows/activation_backward.hpp"
#include "attn/kernels/rows/norm_backward.hpp"
#include "attn/kernels/rows/softmax_backward.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Calls f(columns, row of first, rows of others..) for each row of matrices of one shape with unit
/// innermost strides.
template <class F, class First, class... Others>
void for_matrix_rows(const Execution& execution, const F& f, const TensorView2<First>& first,
                     const TensorView2<Others>&... others) {
  const index_t columns = first.extent(1);
  for_rows(execution.threads(), first.extent(0), columns, [&](index_t i) {
    f(columns, first.data() + i * first.stride(0), others.data() + i * others.stride(0)...);
  });
}

/// Throws unless `view` has this shape and rows of innermost stride 1.
template <class T, int Rank>
void check_tangent_rows(std::string_view function, std::string_view name, const Shape<Rank>& shape,
                        const TensorView<T, Rank>& view) {
  check_shape(function, name, shape, view.shape());
  if (view.extent(Rank - 1) > 1 && view.stride(Rank - 1) != 1) {
    throw_shape(function, name, "have innermost stride 1 (these are the strides)", view.strides());
  }
}

}  // namespace detail

/// The tangent of out = softmax(x): d_out = out (d_x - sum of out d_x) over the last axis. A fully
/// masked row gives zeros. Where out is 0, d_out is 0 and d_x is not used, even if it is NaN.
/// Innermost strides are 1; d_out may be d_x or out. Throws ShapeError.
template <TensorLike Y, TensorLike DX, TensorLike DOut>
void softmax_jvp(const Y& out, const DX& d_x, DOut&& d_out, const Execution& execution = {}) {
  softmax_backward(d_x, out, d_out, execution);
}

/// The tangent of out = log_softmax(x): d_out = d_x - sum of e^out d_x over the last axis. Elements
/// whose e^out is 0 add nothing to the sum, even if their d_x is NaN. Innermost strides are 1;
/// d_out may be d_x or out. Throws ShapeError.
template <TensorLike Y, TensorLike DX, TensorLike DOut>
void log_softmax_jvp(const Y& out, const DX& d_x, DOut&& d_out, const Execution& execution = {}) {
  using T = detail::real_t<Y>;
  constexpr int kRank = rank_v<Y>;
  ATTN_ASSERT_REAL(Y, "log_softmax_jvp: out");
  ATTN_ASSERT_INPUT_LIKE(DX, Y, "log_softmax_jvp: d_x", "out");
  ATTN_ASSERT_OUTPUT_LIKE(DOut, Y, "log_softmax_jvp: d_out", "out");
  const auto y = detail::view_as<const T, kRank>(out), from = detail::view_as<const T, kRank>(d_x);
  const auto to = detail::view_as<T, kRank>(d_out);
  const auto check = [&](std::string_view name, const auto& view) {
    detail::check_tangent_rows("log_softmax_jvp", name, y.shape(), view);
  };
  check("out", y), check("d_x", from), check("d_out", to);
  const auto run = [&](const auto& y_rows, const auto& from_rows, const auto& to_rows) {
    detail::for_matrix_rows(
        execution,
        [](index_t n, const T* log_p, const T* d, T* result) {
          T sum = 0;
          for (index_t k = 0; k < n; ++k) {
            const T p = std::exp(log_p[k]);
            if (p != 0) sum += p * d[k];
          }
          for (index_t k = 0; k < n; ++k) result[k] = d[k] - sum;
        },
        y_rows, from_rows, to_rows);
  };
  if constexpr (kRank == 1) {
    run(y.unsqueeze(0), from.unsqueeze(0), to.unsqueeze(0));
  } else {
    detail::each_joined(
        [&](const auto& a, const auto& b, const auto& c) { run(a.rows(), b.rows(), c.rows()); }, y,
        from, to);
  }
}

namespace detail {

/// Checks the arguments of a norm's tangent: x of shape `shape`.
template <class T, int Rank>
void check_norm_jvp(std::string_view function, const Shape<Rank>& shape,
                    TensorView<const T, Rank> d_x, TensorView<T, Rank> d_out,
                    TensorView1<const T> weight, TensorView1<const T> d_weight,
                    TensorView1<const T> d_bias) {
  check_tangent_rows(function, "d_x", shape, d_x);
  check_tangent_rows(function, "d_out", shape, d_out);
  const auto check_vector = [&](std::string_view name, const TensorView1<const T>& v) {
    if (v && (v.extent(0) != shape[Rank - 1] || !v.is_contiguous())) {
      throw_shape(function, name,
                  "be contiguous with shape (" + std::to_string(shape[Rank - 1]) + ")", v.shape());
    }
  };
  check_vector("weight", weight), check_vector("d_weight", d_weight);
  check_vector("d_bias", d_bias);
}

/// d_out = weight d_out + d_weight n + d_bias for each row, where n is the normalised row of x.
template <class T, int Rank, class Normalize>
void add_norm_tangents(TensorView<const T, Rank> x, TensorView1<const T> weight,
                       TensorView1<const T> d_weight, TensorView1<const T> d_bias,
                       TensorView<T, Rank> d_out, const Execution& execution,
                       const Normalize& normalize) {
  Scratch<T> memory(execution.scratch(), d_weight ? x.size() : 0);
  const TensorView<T, Rank> normed(memory.data(), x.shape());
  if (d_weight) normalize(normed);
  each_joined(
      [&](const auto& to, const auto& n) {
        for_matrix_rows(
            execution,
            [&](index_t columns, T* d, const T* unit) {
              for (index_t k = 0; k < columns; ++k) {
                T sum = weight ? weight.data()[k] * d[k] : d[k];
                if (d_weight) sum += d_weight.data()[k] * unit[k];
                if (d_bias) sum += d_bias.data()[k];
                d[k] = sum;
              }
            },
            to.rows(), TensorView2<const T>(n.rows()));
      },
      d_out, d_weight ? normed : d_out);
}

}  // namespace detail

/// The tangent of layer_norm(x, weight, bias, eps). With n = (x - mean) / sqrt(variance + eps):
/// d_out = weight (d_x - mean of d_x - n mean of (d_x n)) / sqrt(variance + eps) + d_weight n +
/// d_bias. weight, d_weight and d_bias may be empty: then the weight is 1, and the tangents are 0.
/// Innermost strides are 1; d_out may be d_x, not x. Throws ShapeError.
template <TensorLike X, TensorLike DX, TensorLike DOut>
  requires(rank_v<X> > 1)
void layer_norm_jvp(const X& x, const DX& d_x, TensorView1<const detail::real_t<X>> weight,
                    TensorView1<const detail::real_t<X>> d_weight,
                    TensorView1<const detail::real_t<X>> d_bias, double eps, DOut&& d_out,
                    const Execution& execution = {}) {
  using T = detail::real_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_REAL(X, "layer_norm_jvp: x");
  ATTN_ASSERT_INPUT_LIKE(DX, X, "layer_norm_jvp: d_x", "x");
  ATTN_ASSERT_OUTPUT_LIKE(DOut, X, "layer_norm_jvp: d_out", "x");
  const auto from = detail::view_as<const T, kRank>(x);
  const auto to = detail::view_as<T, kRank>(d_out);
  detail::check_norm_jvp<T, kRank>("layer_norm_jvp", from.shape(),
                                   detail::view_as<const T, kRank>(d_x), to, weight, d_weight,
                                   d_bias);
  layer_norm_backward(d_x, x, {}, eps, to, {}, {}, {}, execution);
  detail::add_norm_tangents<T, kRank>(
      from, weight, d_weight, d_bias, to, execution, [&](const auto& normed) {
        layer_norm(from, TensorView1<const T>(), TensorView1<const T>(), eps, normed, execution);
      });
}

/// The tangent of rms_norm(x, weight, eps): as layer_norm_jvp() without means, n = x / sqrt(mean of
/// x^2 + eps).
template <TensorLike X, TensorLike DX, TensorLike DOut>
  requires(rank_v<X> > 1)
void rms_norm_jvp(const X& x, const DX& d_x, TensorView1<const detail::real_t<X>> weight,
                  TensorView1<const detail::real_t<X>> d_weight, double eps, DOut&& d_out,
                  const Execution& execution = {}) {
  using T = detail::real_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_REAL(X, "rms_norm_jvp: x");
  ATTN_ASSERT_INPUT_LIKE(DX, X, "rms_norm_jvp: d_x", "x");
  ATTN_ASSERT_OUTPUT_LIKE(DOut, X, "rms_norm_jvp: d_out", "x");
  const auto from = detail::view_as<const T, kRank>(x);
  const auto to = detail::view_as<T, kRank>(d_out);
  detail::check_norm_jvp<T, kRank>("rms_norm_jvp", from.shape(),
                                   detail::view_as<const T, kRank>(d_x), to, weight, d_weight, {});
  rms_norm_backward(d_x, x, {}, eps, to, {}, {}, execution);
  detail::add_norm_tangents<T, kRank>(
      from, weight, d_weight, {}, to, execution,
      [&](const auto& normed) { rms_norm(from, TensorView1<const T>(), eps, normed, execution); });
}

/// The tangent of activate(activation, x): d_out = f'(x) d_x, element by element, with relu'(0) =
/// 0. Innermost strides are 1; d_out may be d_x or x. Throws ShapeError.
template <TensorLike X, TensorLike DX, TensorLike DOut>
void activate_jvp(Activation activation, const X& x, const DX& d_x, DOut&& d_out,
                  const Execution& execution = {}) {
  activate_backward(activation, d_x, x, d_out, execution);
}

/// The tangent of glu(unit, a, b) = f(a) b: d_out = f'(a) b d_a + f(a) d_b, without the tangent of
/// an input that the limit replaces. Innermost strides are 1; d_out may be d_a or d_b. Throws
/// ShapeError.
template <TensorLike A, TensorLike DA, TensorLike B, TensorLike DB, TensorLike DOut>
  requires(rank_v<A> > 1)
void glu_jvp(const GatedUnit& unit, const A& a, const DA& d_a, const B& b, const DB& d_b,
             DOut&& d_out, const Execution& execution = {}) {
  using T = detail::real_t<A>;
  constexpr int kRank = rank_v<A>;
  ATTN_ASSERT_REAL(A, "glu_jvp: a");
  ATTN_ASSERT_INPUT_LIKE(DA, A, "glu_jvp: d_a", "a");
  ATTN_ASSERT_INPUT_LIKE(DB, A, "glu_jvp: d_b", "a");
  ATTN_ASSERT_OUTPUT_LIKE(DOut, A, "glu_jvp: d_out", "a");
  const auto from = detail::view_as<const T, kRank>(a);
  const auto da = detail::view_as<const T, kRank>(d_a), db = detail::view_as<const T, kRank>(d_b);
  const auto to = detail::view_as<T, kRank>(d_out);
  const auto check = [&](std::string_view name, const auto& view) {
    detail::check_tangent_rows("glu_jvp", name, from.shape(), view);
  };
  check("d_a", da), check("d_b", db), check("d_out", to);
  // The gradients from d_out = 1 are the factors of the tangents.
  Scratch<T> memory(execution.scratch(), 2 * from.size());
  const TensorView<T, kRank> by_a(memory.data(), from.shape()),
      by_b(memory.data() + from.size(), from.shape());
  std::fill_n(by_b.data(), from.size(), T{1});
  glu_backward(unit, by_b, a, b, by_a, by_b, execution);
  detail::each_joined(
      [&](const auto& x, const auto& y, const auto& of_x, const auto& of_y, const auto& result) {
        detail::for_matrix_rows(
            execution,
            [](index_t n, const T* dx, const T* dy, const T* fx, const T* fy, T* sum) {
              for (index_t k = 0; k < n; ++k) sum[k] = dx[k] * fx[k] + dy[k] * fy[k];
            },
            x.rows(), y.rows(), TensorView2<const T>(of_x.rows()),
            TensorView2<const T>(of_y.rows()), result.rows());
      },
      da, db, by_a, by_b, to);
}

ATTN_NAMESPACE_END
