// Derived tolerances, and a comparison that names the worst element.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "attn/simd/isa.hpp"

#include "support/references/reference.hpp"

namespace attn_test {

/// |a - b|; 0 for equal infinities and for two NaNs, infinity if only one is finite.
template <class A, class B>
double distance(A a, B b) {
  const auto x = static_cast<long double>(a), y = static_cast<long double>(b);
  if (x == y || (std::isnan(x) && std::isnan(y))) return 0;
  const long double d = std::abs(x - y);
  return std::isnan(d) ? std::numeric_limits<double>::infinity() : static_cast<double>(d);
}

/// The largest difference, and its place.
struct Worst {
  double distance = 0;
  std::size_t at = 0;
};

template <class A, class B>
Worst worst(const Array<A>& a, const Array<B>& b) {
  Worst result;
  for (std::size_t i = 0; i < a.data.size(); ++i) {
    const double d = distance(a.data[i], b.data.at(i));
    if (d > result.distance) result = {d, i};
  }
  return result;
}

/// Row-major position `at` as an index: "(0, 3, 2)".
inline std::string index_text(const std::vector<Index>& shape, std::size_t at) {
  std::vector<Index> index(shape.size());
  auto rest = static_cast<Index>(at);
  for (std::size_t a = shape.size(); a-- > 0; rest /= shape[a]) index[a] = rest % shape[a];
  return shape_text(index);
}

/// Empty if every element of `got` lies within `bound` of `want`; otherwise describes the worst
/// one.
template <class A, class B>
std::string difference(const Array<A>& got, const Array<B>& want, double bound, attn::Isa isa,
                       std::string_view what = "") {
  std::ostringstream text;
  text.precision(std::numeric_limits<A>::max_digits10);
  if (got.shape != want.shape) {
    text << what << " has shape " << shape_text(got.shape) << ", expected "
         << shape_text(want.shape);
    return text.str();
  }
  const Worst w = worst(got, want);
  if (w.distance <= bound) return "";
  text << what << index_text(got.shape, w.at) << " of " << shape_text(got.shape) << " on "
       << attn::name(isa) << ": " << got.data[w.at] << ", expected " << want.data[w.at]
       << ", off by " << w.distance << ", allowed " << bound;
  return text.str();
}

/// Twice the unit roundoff: the distance from 1 to the next T.
template <class T>
constexpr double epsilon = static_cast<double>(std::numeric_limits<T>::epsilon());

/// Whether there are too few results to show the largest rounding error.
inline bool is_few(Index results) { return results < 512; }

/// The tolerance "at most twice the error of the naive formula", plus one epsilon of the result:
/// naive(order) computes in T, `exact` comes from a wider type. Four times the error in double,
/// where the library's e^x is less accurate than the standard library's. A few results are a small
/// sample of rounding errors, whose maximum is often half of that of a larger sample, or 0: for
/// them the factor is doubled.
template <class Naive, class Exact>
double twice_naive(Naive naive, const Array<Exact>& exact) {
  using T = typename decltype(naive(Order::forward).data)::value_type;
  double error = 0;
  for (Order order : kOrders) error = std::max(error, worst(naive(order), exact).distance);
  const double bound = (std::is_same_v<T, double> ? 4 : 2) * error + epsilon<T> * max_abs(exact);
  return is_few(exact.size()) ? 2 * bound : bound;
}

/// Twice the error of `reference(T{}, order)` against `exact`: the tolerance of a module that
/// computes in T.
template <class T, class Reference, class W>
double module_bound(Reference reference, const Array<W>& exact) {
  return twice_naive([&](Order order) { return reference(T{}, order); }, exact);
}

/// 16 epsilon of the largest element: the tolerance between results whose sums have different
/// orders.
template <class T>
double near(const Array<T>& x) {
  return 16 * epsilon<T> * max_abs(x);
}
template <attn::TensorLike X>
double near(const X& x) {
  return near(to_array(x));
}

/// Expects every element within `epsilons` epsilon of the largest of 1 and the expected ones.
template <class T, int Rank>
void expect_within(double epsilons, const attn::Tensor<T, Rank>& found,
                   const attn::Tensor<double, Rank>& expected) {
  double largest = 1;
  for (const double value : expected.elements()) largest = std::max(largest, std::abs(value));
  for (Index i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(found.data()[i]), expected.data()[i],
                epsilons * epsilon<T> * largest)
        << i;
  }
}

/// difference() of two tensors of the library.
template <class X>
std::string unlike(const X& a, const X& b) {
  return difference(to_array(a), to_array(b), near(b), attn::active_isa());
}

/// The wider type for checking a result of T: double for float, x86's 80 bits for double.
template <class T>
using Wider = std::conditional_t<std::is_same_v<T, float>, double, long double>;

/// twice_naive() of a product a (m, k) times b (k, n).
template <class T>
double gemm_bound(const Array<T>& a, const Array<T>& b) {
  using W = Wider<T>;
  return twice_naive([&](Order order) { return reference_matmul(a, b, order); },
                     reference_matmul(a.template as<W>(), b.template as<W>()));
}

/// Checks all given outputs of one attention call against the reference in Wider<T>, within twice
/// the error of the naive formula in T. If a result exceeds that bound, the naive formula's error
/// is the maximum over 16 more calls, whose queries are up to an eighth longer: a score whose terms
/// cancel may be exact in every order by chance, and with some masks few results are sums of
/// several terms.
template <class T>
class AttentionReference {
 public:
  AttentionReference(const Array<T>& q, const Array<T>& k, const Array<T>& v,
                     const ReferenceOptions& options)
      : q_(q), k_(k), v_(v), options_(options), call_(call_of(q)) {}

  /// Empty, or a description of the difference.
  std::string difference_of(const ReferenceResult<T>& got, attn::Isa isa) {
    std::string text;
    const auto check = [&](Array<T> G::*got_part, Array<W> E::*part, std::string_view what) {
      if (!(got.*got_part) || !text.empty()) return;
      const auto bound_of = [&](const Call& of) {
        return twice_naive([&](Order order) { return of.naive.at(order).*got_part; },
                           of.exact.*part);
      };
      double bound = bound_of(call_);
      text = difference(got.*got_part, call_.exact.*part, bound, isa, what);
      if (text.empty()) return;
      for (int s = 1; nearby_.size() < 16; ++s) {
        Array<T> longer = q_;
        for (T& x : longer.data) x *= T{1} + static_cast<T>(s) / 128;
        nearby_.push_back(call_of(longer));
      }
      for (const Call& of : nearby_) bound = std::max(bound, bound_of(of));
      text = difference(got.*got_part, call_.exact.*part, bound, isa, what);
    };
    check(&G::y, &E::y, "y");
    check(&G::weights, &E::weights, "weights");
    check(&G::average, &E::average, "average_weights");
    check(&G::column_sums, &E::column_sums, "column_sums");
    check(&G::max_logits, &E::max_logits, "max_logits");
    check(&G::lse, &E::lse, "lse");
    return text;
  }

 private:
  using W = Wider<T>;
  using G = ReferenceResult<T>;
  using E = ReferenceResult<W>;
  struct Call {
    E exact;
    std::map<Order, G> naive;
  };

  Call call_of(const Array<T>& queries) const {
    Call call{reference_attention(queries.template as<W>(), k_.template as<W>(),
                                  v_.template as<W>(), options_),
              {}};
    for (Order order : kOrders) {
      call.naive[order] = reference_attention(queries, k_, v_, options_, order);
    }
    return call;
  }

  const Array<T>&q_, &k_, &v_;
  const ReferenceOptions& options_;
  Call call_;
  std::vector<Call> nearby_;
};

/// The check of one result.
template <class T>
std::string attention_difference(const ReferenceResult<T>& got, const Array<T>& q,
                                 const Array<T>& k, const Array<T>& v,
                                 const ReferenceOptions& options, attn::Isa isa) {
  return AttentionReference<T>(q, k, v, options).difference_of(got, isa);
}

}  // namespace attn_test
