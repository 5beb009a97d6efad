// CodedCall: the exact result of attention with AttentionPrecision::int8, in double.
#pragma once

#include <algorithm>
#include <cmath>

#include "support/references/reference.hpp"
#include "support/tolerance.hpp"

namespace attn_test {

inline constexpr Index kMeanPositions = 64;  ///< positions of one mean

/// Quantises and dequantises rows: the scale of each is its largest magnitude over 127; a row with
/// a number that is not finite becomes NaN.
inline void round_to_codes(Array<double>& x) {
  const Index n = x.extent(3);
  for (Index row = 0; row < x.size() / n; ++row) {
    double* at = &x.data[static_cast<std::size_t>(row * n)];
    double most = 0;
    bool finite = true;
    for (Index i = 0; i < n; ++i) {
      most = std::max(most, std::abs(at[i]));
      finite = finite && std::isfinite(at[i]);
    }
    for (Index i = 0; i < n; ++i) {
      at[i] = !finite     ? std::nan("")
              : most == 0 ? 0
                          : std::nearbyint(at[i] / most * 127) * most / 127;
    }
  }
}

/// x and y side by side along the last axis.
inline Array<double> joined(const Array<double>& x, const Array<double>& y) {
  const Index n = x.extent(3), m = y.extent(3);
  Array<double> result({x.extent(0), x.extent(1), x.extent(2), n + m});
  for (Index row = 0; row < x.size() / n; ++row) {
    double* to = &result.data[static_cast<std::size_t>(row * (n + m))];
    std::copy_n(&x.data[static_cast<std::size_t>(row * n)], n, to);
    std::copy_n(&y.data[static_cast<std::size_t>(row * m)], m, to + n);
  }
  return result;
}

/// The quantised call as exact attention in double: queries [quantised q, q], keys [quantised
/// (k - mean), mean].
struct CodedCall {
  Array<double> q, k;
  ReferenceOptions options;
  double flip = 0;  ///< the largest effect on a score of a value that is rounded to the other side

  CodedCall(const Array<float>& q_float, const Array<float>& k_float, const Array<float>& v,
            const ReferenceOptions& call)
      : options(call) {
    Array<double> queries = q_float.as<double>(), keys = k_float.as<double>();
    if (options.qv) {
      queries = joined(queries, options.qv);
      keys = joined(keys, v.as<double>());
      options.qv = {};
    }
    const Index n = queries.extent(3);
    options.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(n)));
    const Index batch = queries.extent(0), q_len = queries.extent(2), kv_len = keys.extent(2);
    Array<double> means(keys.shape);
    for (Index b = 0; b < batch; ++b) {
      // From the first key that any query attends to by position, to the last.
      const Index offset = reference_offset(options, b, q_len, kv_len);
      Index first = kv_len, end = 0;
      for (Index i = 0; i < q_len; ++i) {
        for (Index j = 0; j < kv_len; ++j) {
          if (!is_in_reach(options, b, i, j, i + offset)) continue;
          first = std::min(first, j), end = std::max(end, j + 1);
        }
      }
      for (Index h = 0; h < keys.extent(1); ++h) {
        for (Index j = 0; j < kv_len; ++j) {
          const Index block = (options.first_key + j) / kMeanPositions;
          const auto is_shared = [&](Index at) {
            if (at < first || at >= end || (options.first_key + at) / kMeanPositions != block)
              return false;
            for (Index x = 0; x < n; ++x) {
              if (!std::isfinite(keys(b, h, at, x))) return false;
            }
            return true;
          };
          Index count = 0;
          for (Index at = std::max<Index>(j - kMeanPositions, 0);
               at < std::min(j + kMeanPositions, kv_len); ++at) {
            if (!is_shared(at)) continue;
            ++count;
            for (Index x = 0; x < n; ++x) means(b, h, j, x) += keys(b, h, at, x);
          }
          for (Index x = 0; x < n && count > 0; ++x)
            means(b, h, j, x) /= static_cast<double>(count);
        }
      }
    }
    for (std::size_t i = 0; i < keys.data.size(); ++i) keys.data[i] -= means.data[i];
    flip = 2 * std::abs(*options.scale) * max_abs(queries) * max_abs(keys) / 127;
    Array<double> codes = queries;
    round_to_codes(codes);
    round_to_codes(keys);
    q = joined(codes, queries);
    k = joined(keys, means);
  }
};

}  // namespace attn_test
