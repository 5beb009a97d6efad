// Checks a sample of a benchmark's result by the tests' references and tolerances.
#pragma once

#include <string>
#include <utility>

#include "support/inputs.hpp"
#include "support/library_options.hpp"
#include "support/reference_layers.hpp"
#include "support/tolerance.hpp"

namespace bench {

/// Distances from the double reference, of attn's result and of the naive float formula's; the
/// former may be twice the latter. Both 0 where nothing was compared.
struct Errors {
  double ours = 0, naive = 0;
  std::string where = {};  ///< of the worst of ours

  bool good() const { return ours <= 2 * naive; }
  /// 0 where both are exact.
  double ratio() const { return ours > 0 ? ours / naive : 0; }

  void add(const attn_test::Array<float>& found, const attn_test::Array<float>& plain,
           const attn_test::Array<double>& exact, const std::string& what = "") {
    const double distance = attn_test::worst(found, exact).distance;
    if (distance > ours) where = what;
    ours = std::max(ours, distance);
    naive = std::max(naive, attn_test::worst(plain, exact).distance);
  }

  /// Empty where the result is good.
  std::string complaint() const {
    if (good()) return "";
    return "wrong result: off by " + std::to_string(ours) + ", the naive float formula by " +
           std::to_string(naive);
  }
};

/// `samples` rows of an attention's output, the first and the last among them; no dense masks.
inline Errors attention_errors(attn::TensorView4<const float> q, attn::TensorView4<const float> k,
                               attn::TensorView4<const float> v, attn::TensorView4<const float> out,
                               const attn_test::ReferenceOptions& options = {}, int samples = 8) {
  Errors errors;
  Random random(7);
  for (int n = 0; n < samples; ++n) {
    const auto pick = [&](int axis) {
      const attn::index_t extent = q.extent(axis);
      return n == 0 ? 0 : n == 1 ? extent - 1 : random.below(extent);
    };
    const attn::index_t b = pick(0), h = pick(1), i = pick(2);
    const attn::index_t g = h / (q.extent(1) / k.extent(1));
    // One row is a problem of its own, whose query stands where it stood.
    attn_test::ReferenceOptions row = options;
    row.offset = attn_test::ReferenceOptions::Offset::fixed;
    row.fixed_offset = i + k.extent(2) - q.extent(2);
    const auto cut = [b](auto view, attn::index_t head) {
      return view.slice(0, b, b + 1).slice(1, head, head + 1);
    };
    const auto q_row = attn_test::to_array(cut(q, h).slice(2, i, i + 1));
    const auto k_head = attn_test::to_array(cut(k, g)), v_head = attn_test::to_array(cut(v, g));
    errors.add(attn_test::to_array(cut(out, h).slice(2, i, i + 1)),
               attn_test::reference_attention(q_row, k_head, v_head, row).y,
               attn_test::reference_attention(q_row.as<double>(), k_head.as<double>(),
                                              v_head.as<double>(), row)
                   .y);
  }
  return errors;
}

/// The first two tokens of the last batch row through self-attention without a mask.
inline Errors multi_head_errors(attn::MultiHeadAttention<float>& mha,
                                attn::TensorView3<const float> x,
                                attn::TensorView3<const float> out) {
  const attn::index_t batch = x.extent(0);
  const auto tokens = attn_test::to_array(x.slice(0, batch - 1, batch));
  const auto queries = attn_test::to_array(x.slice(0, batch - 1, batch).slice(1, 0, 2));
  const auto compute = [&]<class T>(T) {
    const auto array = [](auto view) { return attn_test::to_array(view).template as<T>(); };
    attn_test::ReferenceHeads<T> heads;
    heads.num_heads = mha.options().num_heads;
    heads.wq = array(mha.q_weight());
    heads.wk = array(mha.k_weight());
    heads.wv = array(mha.v_weight());
    heads.bq = array(mha.q_bias());
    heads.bk = array(mha.k_bias());
    heads.bv = array(mha.v_bias());
    heads.wo = array(mha.out_proj().weight.view());
    heads.bo = array(mha.out_proj().bias.view());
    const auto keys = tokens.as<T>();
    return attn_test::reference_multi_head_attention<T>(heads, queries.as<T>(), keys, keys, {}).y;
  };
  Errors errors;
  errors.add(attn_test::to_array(out.slice(0, batch - 1, batch).slice(1, 0, 2)), compute(float{}),
             compute(double{}));
  return errors;
}

/// 64 elements of c = a b, each within k eps max|a| max|b| of the sum in long double. Empty where
/// all are.
template <class T>
std::string gemm_complaint(attn::TensorView2<const T> a, attn::TensorView2<const T> b,
                           attn::TensorView2<const T> c) {
  using Wide = long double;
  Random random(7);
  for (int n = 0; n < 64; ++n) {
    const attn::index_t i = n == 0 ? c.extent(0) - 1 : random.below(c.extent(0));
    const attn::index_t j = n == 0 ? c.extent(1) - 1 : random.below(c.extent(1));
    const auto row = attn_test::to_array(a.slice(0, i, i + 1)).template as<Wide>();
    const auto column = attn_test::to_array(b.slice(1, j, j + 1)).template as<Wide>();
    const double off =
        attn_test::distance(c(i, j), attn_test::reference_matmul(row, column).data[0]);
    const double bound =
        attn_test::gemm_bound<T>(a.extent(1), attn_test::max_abs(row), attn_test::max_abs(column));
    if (!(off <= bound)) {
      return "wrong result: element (" + std::to_string(i) + ", " + std::to_string(j) +
             ") is off by " + std::to_string(off) + ", more than " + std::to_string(bound);
    }
  }
  return "";
}

/// The last row of a softmax. e^(x - max) is good to a few ULP beyond the rounding of its argument,
/// which makes up to |x - max| ULP of it.
inline std::string softmax_complaint(attn::TensorView2<const float> x,
                                     attn::TensorView2<const float> out) {
  const attn::index_t last = x.extent(0) - 1;
  const auto row = attn_test::to_array(x.select(0, last)).as<double>();
  const auto exact = attn_test::reference_softmax(row);
  const double top = *std::max_element(row.data.begin(), row.data.end());
  for (attn::index_t j = 0; j < x.extent(1); ++j) {
    const double bound = (4 + top - row(j)) * attn_test::epsilon<float> * exact(j);
    if (!(attn_test::distance(out(last, j), exact(j)) <= bound)) {
      return "wrong result: column " + std::to_string(j) + " is " + std::to_string(out(last, j)) +
             " instead of " + std::to_string(exact(j));
    }
  }
  return "";
}

}  // namespace bench
