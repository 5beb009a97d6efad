// Checks of a benchmark's result on a sample of its elements: what is timed must be right.
#pragma once

#include <string>

#include "support/inputs.hpp"
#include "support/naive.hpp"

namespace bench {

/// The worst distances from the double reference, of attn's result and of the naive float formula's.
struct Errors {
  double ours = 0, naive = 0;

  void add(const std::vector<double>& reference, const std::vector<float>& plain,
           attn::TensorView1<const float> found) {
    for (std::size_t d = 0; d < reference.size(); ++d) {
      const double distance = std::abs(found(static_cast<index_t>(d)) - reference[d]);
      ours = std::isnan(distance) ? INFINITY : std::max(ours, distance);
      naive = std::max(naive, std::abs(plain[d] - reference[d]));
    }
  }

  bool good() const { return ours <= 2 * naive; }

  /// Empty where the result is good.
  std::string complaint() const {
    if (good()) return "";
    return "wrong result: off by " + std::to_string(ours) + ", the naive float formula by " +
           std::to_string(naive);
  }
};

/// `samples` rows of an attention's output, first and last among them.
inline Errors attention_errors(attn::TensorView4<const float> q, attn::TensorView4<const float> k,
                               attn::TensorView4<const float> v, attn::TensorView4<const float> out,
                               const attn::AttentionOptions<float>& options, int samples = 12) {
  Errors errors;
  Random random(7);
  for (int n = 0; n < samples; ++n) {
    const auto pick = [&](int axis) {
      const index_t extent = q.extent(axis);
      return n == 0 ? 0 : n == 1 ? extent - 1 : random.below(extent);
    };
    const index_t b = pick(0), h = pick(1), i = pick(2);
    errors.add(naive_attention<double>(q, k, v, options, b, h, i),
               naive_attention<float>(q, k, v, options, b, h, i),
               out.select(0, b).select(0, h).select(0, i));
  }
  return errors;
}

/// Two rows of a multi-head attention's output.
inline Errors multi_head_errors(attn::MultiHeadAttention<float>& mha,
                                attn::TensorView3<const float> x,
                                attn::TensorView3<const float> out) {
  Errors errors;
  for (const auto& [b, i] :
       {std::pair{index_t{0}, index_t{1}}, std::pair{x.extent(0) - 1, x.extent(1) - 1}}) {
    errors.add(naive_multi_head<double>(mha, x, b, i), naive_multi_head<float>(mha, x, b, i),
               out.select(0, b).select(0, i));
  }
  return errors;
}

/// 64 elements of c = a b, each within k eps max|a| max|b| of the sum in double. Empty where all are.
template <class T>
std::string gemm_complaint(attn::TensorView2<const T> a, attn::TensorView2<const T> b,
                           attn::TensorView2<const T> c) {
  const index_t k = a.extent(1);
  Random random(7);
  for (int n = 0; n < 64; ++n) {
    const index_t i = n == 0 ? c.extent(0) - 1 : random.below(c.extent(0));
    const index_t j = n == 0 ? c.extent(1) - 1 : random.below(c.extent(1));
    long double sum = 0;
    double most_a = 0, most_b = 0;
    for (index_t p = 0; p < k; ++p) {
      sum += static_cast<long double>(a(i, p)) * static_cast<long double>(b(p, j));
      most_a = std::max(most_a, std::abs(static_cast<double>(a(i, p))));
      most_b = std::max(most_b, std::abs(static_cast<double>(b(p, j))));
    }
    const double bound = static_cast<double>(k) *
                         static_cast<double>(std::numeric_limits<T>::epsilon()) * most_a * most_b;
    const double distance = std::abs(static_cast<double>(sum - static_cast<long double>(c(i, j))));
    if (!(distance <= bound)) {
      return "wrong result: element (" + std::to_string(i) + ", " + std::to_string(j) +
             ") is off by " + std::to_string(distance) + ", more than " + std::to_string(bound);
    }
  }
  return "";
}

/// The first and the last row of a softmax. e^(x - max) is good to a few ULP beyond the rounding of its
/// argument, which makes |x - max| ULP of it.
inline std::string softmax_complaint(attn::TensorView2<const float> x,
                                     attn::TensorView2<const float> out) {
  for (index_t i : {index_t{0}, x.extent(0) - 1}) {
    std::vector<double> row;
    for (index_t j = 0; j < x.extent(1); ++j) row.push_back(x(i, j));
    const double top = *std::max_element(row.begin(), row.end());
    naive_softmax(row);
    for (index_t j = 0; j < x.extent(1); ++j) {
      const double expected = row[static_cast<std::size_t>(j)];
      const double bound = (4 + top - x(i, j)) * std::numeric_limits<float>::epsilon() * expected;
      if (!(std::abs(out(i, j) - expected) <= bound)) {
        return "wrong result: row " + std::to_string(i) + ", column " + std::to_string(j) + " is " +
               std::to_string(out(i, j)) + " instead of " + std::to_string(expected);
      }
    }
  }
  return "";
}

}  // namespace bench
