// Checks a sample of a benchmark's result with the references and tolerances of the tests.
#pragma once

#include <array>
#include <string>
#include <utility>

#include "support/draws/library_options.hpp"
#include "support/inputs.hpp"
#include "support/references/reference_layers.hpp"
#include "support/tolerance.hpp"

namespace bench {

/// Errors against the double reference, of attn's result and of the naive float formula; attn's may
/// be up to twice the latter. Both are 0 if nothing was compared.
struct Errors {
  double ours = 0, naive = 0;
  std::string where = {};  ///< place of attn's worst error

  bool good() const { return ours <= 2 * naive; }
  /// attn's error relative to the naive formula's; 0 if both are exact.
  double ratio() const { return ours > 0 ? ours / naive : 0; }

  void add(const attn_test::Array<float>& found, const attn_test::Array<float>& plain,
           const attn_test::Array<double>& exact, const std::string& what = "") {
    const double distance = attn_test::worst(found, exact).distance;
    if (distance > ours) where = what;
    ours = std::max(ours, distance);
    naive = std::max(naive, attn_test::worst(plain, exact).distance);
  }

  /// Empty if the result is correct.
  std::string complaint() const {
    if (good()) return "";
    return "wrong result: off by " + std::to_string(ours) + ", the naive float formula by " +
           std::to_string(naive);
  }
};

/// Checks `samples` rows of an attention's output, including the first and the last; no dense
/// masks.
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
    // Checks one row as a problem with one query at its position.
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

/// Compares c = a b at 8 rows and 8 columns, within twice the naive formula's error. Empty if all
/// elements are right.
template <class T>
std::string gemm_complaint(attn::TensorView2<const T> a, attn::TensorView2<const T> b,
                           attn::TensorView2<const T> c) {
  using Wide = attn_test::Wider<T>;
  constexpr attn::index_t kLines = 8;
  const attn::index_t k = a.extent(1);
  attn_test::Array<T> rows({kLines, k}), columns({k, kLines}), found({kLines, kLines});
  std::array<attn::index_t, kLines> row_at{c.extent(0) - 1}, column_at{c.extent(1) - 1};
  Random random(7);
  for (std::size_t n = 1; n < row_at.size(); ++n) {
    row_at[n] = random.below(c.extent(0));
    column_at[n] = random.below(c.extent(1));
  }
  for (attn::index_t n = 0; n < kLines; ++n) {
    const auto line = static_cast<std::size_t>(n);
    for (attn::index_t p = 0; p < k; ++p) {
      rows(n, p) = a(row_at[line], p);
      columns(p, n) = b(p, column_at[line]);
    }
    for (attn::index_t m = 0; m < kLines; ++m) {
      found(n, m) = c(row_at[line], column_at[static_cast<std::size_t>(m)]);
    }
  }
  const auto exact =
      attn_test::reference_matmul(rows.template as<Wide>(), columns.template as<Wide>());
  const double off = attn_test::worst(found, exact).distance;
  const double bound = attn_test::gemm_bound(rows, columns);
  return off <= bound ? ""
                      : "wrong result: an element is off by " + std::to_string(off) +
                            ", more than " + std::to_string(bound);
}

/// Checks the last row of a softmax. e^(x - max) is accurate to a few ULP beyond the rounding of
/// its argument, which is up to |x - max| ULP.
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
