// max_abs_difference, all_close: comparison of tensors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// The tolerance of all_close(): |a - b| <= atol + rtol |b|.
struct CloseOptions {
  double rtol = 1e-5;      ///< tolerance relative to the second tensor
  double atol = 1e-8;      ///< absolute tolerance
  bool equal_nan = false;  ///< whether two NaNs compare equal
};

namespace detail {

template <class A, class B>
void assert_comparable() {
  ATTN_ASSERT_AXES_OF(B, A, "comparing tensors: the second", "the first");
}

/// Calls f(a, b) for every pair of elements, as doubles.
template <class A, class B, int Rank, class F>
void each_pair(const TensorView<A, Rank>& a, const TensorView<B, Rank>& b, const F& f) {
  for (index_t i = 0; i < a.extent(0); ++i) {
    if constexpr (Rank == 1) {
      f(static_cast<double>(a(i)), static_cast<double>(b(i)));
    } else {
      each_pair(a.select(0, i), b.select(0, i), f);
    }
  }
}

}  // namespace detail

/// The largest |a - b|, in double; 0 for empty tensors. Equal infinities differ by 0; a NaN in
/// either tensor gives NaN. The element types may differ. Throws ShapeError for different shapes.
template <TensorLike A, TensorLike B>
double max_abs_difference(const A& a, const B& b) {
  detail::assert_comparable<A, B>();
  double largest = 0;
  if constexpr (rank_v<A> == rank_v<B>) {
    const auto x = const_view(a);
    const auto y = const_view(b);
    check_shape("max_abs_difference", "b", x.shape(), y.shape());
    if (x.size() == 0) return 0;
    detail::each_pair(x, y, [&](double p, double q) {
      if (p == q) return;
      const double difference = std::abs(p - q);
      if (!(difference <= largest)) largest = std::isnan(largest) ? largest : difference;
    });
  }
  return largest;
}

/// Whether |a - b| <= atol + rtol |b| for all elements, as in numpy and PyTorch: equal infinities
/// are close; a NaN is close to nothing, or with equal_nan to a NaN. Throws ShapeError for
/// different shapes.
template <TensorLike A, TensorLike B>
bool all_close(const A& a, const B& b, const CloseOptions& options = {}) {
  detail::assert_comparable<A, B>();
  bool is_close = true;
  if constexpr (rank_v<A> == rank_v<B>) {
    const auto x = const_view(a);
    const auto y = const_view(b);
    check_shape("all_close", "b", x.shape(), y.shape());
    if (x.size() == 0) return true;
    detail::each_pair(x, y, [&](double p, double q) {
      if (p == q || (options.equal_nan && std::isnan(p) && std::isnan(q))) return;
      const bool is_near = std::abs(p - q) <= options.atol + options.rtol * std::abs(q);
      is_close = is_close && is_near && std::isfinite(p) && std::isfinite(q);
    });
  }
  return is_close;
}

ATTN_NAMESPACE_END
