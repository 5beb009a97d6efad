// References with nested loops: exact results in double, the naive formula in float.
//
// Each is a template of the type that it computes in, and shares only names with the library. The
// attention reference follows the contract's order of operations for one row; the numbers in its
// comments are the contract's steps.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "support/array.hpp"

namespace attn_test {

/// The order of a sum. The naive formula leaves it open, so its error is the worst over these
/// orders, which draw its rounding errors several times. The last ones order the terms by
/// remainders of their indices.
enum class Order { forward, backward, rotated, by_2, by_3, by_5, by_7, by_11 };
inline constexpr Order kOrders[] = {Order::forward, Order::backward, Order::rotated, Order::by_2,
                                    Order::by_3,    Order::by_5,     Order::by_7,    Order::by_11};

/// The i-th of n terms.
inline Index in_order(Order order, Index i, Index n) {
  if (order == Order::forward) return i;
  if (order == Order::backward) return n - 1 - i;
  if (order == Order::rotated) return (i + n / 2) % n;
  const Index step = order == Order::by_2   ? 2
                     : order == Order::by_3 ? 3
                     : order == Order::by_5 ? 5
                     : order == Order::by_7 ? 7
                                            : 11;
  for (Index remainder = step - 1;; --remainder) {
    const Index count = (n - remainder + step - 1) / step;  // terms with this remainder
    if (remainder >= n) continue;
    if (i < count) return remainder + i * step;
    i -= count;
  }
}

// Functions below compute in T. `float` squares, sums and exponentials must round to float, so
// nothing here may use a wider type.

/// (m, k) (k, n)
template <class T>
Array<T> reference_matmul(const Array<T>& a, const Array<T>& b, Order order = Order::forward) {
  Array<T> c({a.extent(0), b.extent(1)});
  const Index columns = b.extent(1);
  for (Index n = 0; n < a.extent(1); ++n) {
    const Index p = in_order(order, n, a.extent(1));
    const T* row = b.data.data() + p * columns;
    for (Index i = 0; i < a.extent(0); ++i) {
      const T x = a(i, p);
      T* to = c.data.data() + i * columns;
      for (Index j = 0; j < columns; ++j) to[j] += x * row[j];
    }
  }
  return c;
}

/// Softmax over the last axis; a row of -inf only gives zeros.
template <class T>
Array<T> reference_softmax(const Array<T>& x, Order order = Order::forward) {
  Array<T> y(x.shape);
  const Index n = x.shape.back();
  for (Index row = 0; n > 0 && row < x.size() / n; ++row) {
    const auto* in = &x.data[static_cast<std::size_t>(row * n)];
    auto* out = &y.data[static_cast<std::size_t>(row * n)];
    const T most = *std::max_element(in, in + n);
    if (most == -std::numeric_limits<T>::infinity()) continue;
    T total = 0;
    for (Index j = 0; j < n; ++j) out[j] = std::exp(in[j] - most);
    for (Index j = 0; j < n; ++j) total += out[in_order(order, j, n)];
    for (Index j = 0; j < n; ++j) out[j] /= total;
  }
  return y;
}

/// Log-softmax over the last axis, written so that nothing underflows.
template <class T>
Array<T> reference_log_softmax(const Array<T>& x, Order order = Order::forward) {
  Array<T> y(x.shape);
  const Index n = x.shape.back();
  for (Index row = 0; n > 0 && row < x.size() / n; ++row) {
    const auto* in = &x.data[static_cast<std::size_t>(row * n)];
    auto* out = &y.data[static_cast<std::size_t>(row * n)];
    const T most = *std::max_element(in, in + n);
    T total = 0;
    for (Index j = 0; j < n; ++j) total += std::exp(in[in_order(order, j, n)] - most);
    for (Index j = 0; j < n; ++j) {
      out[j] = most == -std::numeric_limits<T>::infinity() ? most : in[j] - most - std::log(total);
    }
  }
  return y;
}

/// Layer norm over the last axis, with the biased variance; weight and bias may be empty.
template <class T>
Array<T> reference_layer_norm(const Array<T>& x, const Array<T>& weight, const Array<T>& bias,
                              double eps, Order order = Order::forward) {
  Array<T> y(x.shape);
  const Index n = x.shape.back();
  for (Index row = 0; row < x.size() / n; ++row) {
    const auto* in = &x.data[static_cast<std::size_t>(row * n)];
    auto* out = &y.data[static_cast<std::size_t>(row * n)];
    T mean = 0, variance = 0;
    for (Index j = 0; j < n; ++j) mean += in[in_order(order, j, n)] / static_cast<T>(n);
    for (Index j = 0; j < n; ++j) {
      const T d = in[in_order(order, j, n)] - mean;
      variance += d * d / static_cast<T>(n);
    }
    for (Index j = 0; j < n; ++j) {
      out[j] = (in[j] - mean) / std::sqrt(variance + static_cast<T>(eps));
      if (weight) out[j] *= weight(j);
      if (bias) out[j] += bias(j);
    }
  }
  return y;
}

template <class T>
T reference_relu(T x) {
  return x < 0 ? T{0} : x;
}
template <class T>
T reference_gelu(T x) {
  return x * (T{1} + std::erf(x / std::sqrt(T{2}))) / T{2};
}
template <class T>
T reference_gelu_tanh(T x) {
  const T pi = static_cast<T>(3.14159265358979323846L);
  const T inner = std::sqrt(T{2} / pi) * (x + static_cast<T>(0.044715L) * x * x * x);
  return x * (T{1} + std::tanh(inner)) / T{2};
}
/// RMS norm over the last axis; weight may be empty.
template <class T>
Array<T> reference_rms_norm(const Array<T>& x, const Array<T>& weight, double eps,
                            Order order = Order::forward) {
  Array<T> y(x.shape);
  const Index n = x.shape.back();
  for (Index row = 0; row < x.size() / n; ++row) {
    const auto* in = &x.data[static_cast<std::size_t>(row * n)];
    auto* out = &y.data[static_cast<std::size_t>(row * n)];
    T square = 0;
    for (Index j = 0; j < n; ++j) {
      const T value = in[in_order(order, j, n)];
      square += value * value / static_cast<T>(n);
    }
    for (Index j = 0; j < n; ++j) {
      out[j] = in[j] / std::sqrt(square + static_cast<T>(eps));
      if (weight) out[j] *= weight(j);
    }
  }
  return y;
}

template <class T>
T reference_swish(T x, T alpha) {
  return x / (T{1} + std::exp(-alpha * x));
}

template <class T>
T reference_silu(T x) {
  return x / (T{1} + std::exp(-x));
}

template <class T>
T reference_quick_gelu(T x) {
  return x / (T{1} + std::exp(static_cast<T>(-1.702) * x));
}

/// The options of one call. Masks have rank 4; an extent of 1 broadcasts.
struct ReferenceOptions {
  struct Mask {
    enum class Kind { keep, drop, add };
    Kind kind;
    Array<double> values;  ///< of keep and drop: 0 is false
  };
  enum class Offset { bottom_right, top_left, fixed, per_row };

  std::optional<double> scale = {};
  double softcap = 0;  ///< 0: none
  std::vector<Mask> masks = {};
  bool causal = false;
  Index left = -1, right = -1;  ///< window, -1: open
  Offset offset = Offset::bottom_right;
  Index fixed_offset = 0;
  Index first_key = 0;  ///< position of the first key given
  // One entry per batch row; empty: not given.
  std::vector<Index> offsets = {}, key_lengths = {}, query_lengths = {}, left_padding = {},
                     prefix_lengths = {};
  Index chunk = 0;
  Array<Index> documents = {};  ///< (batch or 1, first_key + kv_len)
  std::vector<double> alibi_slopes = {}, sinks = {};
  Array<double> batch_alibi_slopes = {};  ///< (batch, heads)
  Array<double> qv = {};                  ///< (batch, heads, q_len, head_dim_v)
  Array<double> relative_bias = {};       ///< (heads, 2 n + 1)
  bool mean_of_masked_row = false;
  double dropout = 0;
  std::uint64_t seed = 0;
  // Functors of (value, b, h, i, j); empty: none.
  std::function<double(double, int, int, int, int)> score_mod = {}, prob_mod = {};
  std::function<bool(int, int, int, int)> mask_mod = {};
};

/// y (batch, heads, q_len, head_dim_v), weights (batch, heads, q_len, kv_len), lse (batch, heads,
/// q_len); then the mean of the weights over heads (batch, q_len, kv_len), their sum over queries
/// (batch, heads, kv_len) and the largest score of a visible key (batch, heads).
template <class T>
struct ReferenceResult {
  Array<T> y = {}, weights = {}, lse = {}, average = {}, column_sums = {}, max_logits = {};
};

inline double broadcast(const Array<double>& mask, Index b, Index h, Index i, Index j) {
  const auto one = [&](std::size_t axis, Index at) { return mask.extent(axis) == 1 ? 0 : at; };
  return mask(one(0, b), one(1, h), one(2, i), one(3, j));
}

/// The entry of batch row b, or `otherwise` if there is none.
inline Index entry(const std::vector<Index>& of, Index b, Index otherwise) {
  return of.empty() ? otherwise : of.at(static_cast<std::size_t>(b));
}

/// The number of keys of batch row b, of kv_len given.
inline Index reference_keys(const ReferenceOptions& options, Index b, Index kv_len) {
  const Index end = entry(options.key_lengths, b, options.first_key + kv_len);
  return std::max<Index>(end - options.first_key, 0);
}

/// Whether causality, windows, lengths and documents keep key `given` for query i at position p.
inline bool is_in_reach(const ReferenceOptions& options, Index b, Index i, Index given, Index p) {
  const Index j = options.first_key + given;
  const auto chunk_of = [&](Index x) {
    return static_cast<Index>(
        std::floor(static_cast<double>(x) / static_cast<double>(options.chunk)));
  };
  if (i >= entry(options.query_lengths, b, i + 1)) return false;
  if (j >= entry(options.key_lengths, b, j + 1)) return false;
  if (options.causal && j > p) return false;
  if (options.left >= 0 && j < p - options.left) return false;
  if (options.right >= 0 && j > p + options.right) return false;
  if (j < entry(options.left_padding, b, 0)) return false;
  if (!options.prefix_lengths.empty() && j > p && j >= entry(options.prefix_lengths, b, 0)) {
    return false;
  }
  if (options.chunk > 0 && chunk_of(j) != chunk_of(p)) return false;
  if (options.documents) {
    const Index row = options.documents.extent(0) == 1 ? 0 : b;
    if (p < 0 || p >= options.documents.extent(1)) return false;
    if (options.documents(row, j) != options.documents(row, p)) return false;
  }
  return true;
}

/// The bias of the score of query i and key `given`; no value if the key is masked out. `p` is the
/// query's position.
template <class T>
std::optional<T> reference_bias(const ReferenceOptions& options, Index b, Index h, Index i,
                                Index given, Index p) {
  using Kind = ReferenceOptions::Mask::Kind;
  if (!is_in_reach(options, b, i, given, p)) return {};
  const Index j = options.first_key + given;
  T bias = 0;
  if (options.batch_alibi_slopes) {
    bias -= static_cast<T>(options.batch_alibi_slopes(b, h)) * static_cast<T>(std::abs(p - j));
  }
  if (!options.alibi_slopes.empty()) {
    bias -= static_cast<T>(options.alibi_slopes.at(static_cast<std::size_t>(h))) *
            static_cast<T>(std::abs(p - j));
  }
  if (options.relative_bias) {
    const Index most = options.relative_bias.extent(1) / 2;
    bias += static_cast<T>(options.relative_bias(h, most + std::clamp(j - p, -most, most)));
  }
  for (const auto& mask : options.masks) {
    const double value = broadcast(mask.values, b, h, i, given);
    if (mask.kind == Kind::keep && value == 0) return {};
    if (mask.kind == Kind::drop && value != 0) return {};
    if (mask.kind == Kind::add) bias += static_cast<T>(value);
  }
  if (bias == -std::numeric_limits<T>::infinity()) return {};
  return bias;
}

/// Position of query 0 of batch row b.
inline Index reference_offset(const ReferenceOptions& options, Index b, Index q_len, Index kv_len) {
  switch (options.offset) {
    case ReferenceOptions::Offset::bottom_right:
      return entry(options.key_lengths, b, options.first_key + kv_len) -
             entry(options.query_lengths, b, q_len);
    case ReferenceOptions::Offset::top_left:
      return 0;
    case ReferenceOptions::Offset::per_row:
      return entry(options.offsets, b, 0);
    default:
      return options.fixed_offset;
  }
}

/// Philox 4x32-10, word by word as in the paper.
inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                           std::uint64_t seed) {
  auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(a)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

/// Whether dropout keeps key j for query i.
inline bool is_kept(const ReferenceOptions& options, Index b, Index h, Index i, Index j) {
  const auto word = [](Index x) { return static_cast<std::uint32_t>(x); };
  const auto words =
      philox({word(16 * (j / 64) + j % 16), word(i), word(h), word(b)}, options.seed);
  return std::ldexp(static_cast<double>(words[static_cast<std::size_t>(j / 16 % 4)] >> 8), -24) >=
         options.dropout;
}

template <class T>
ReferenceResult<T> reference_attention(const Array<T>& q, const Array<T>& k, const Array<T>& v,
                                       const ReferenceOptions& options,
                                       Order order = Order::forward) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  const Index batch = q.extent(0), heads = q.extent(1), q_len = q.extent(2), dim = q.extent(3);
  const Index kv_heads = k.extent(1), kv_len = k.extent(2), dim_v = v.extent(3);
  ReferenceResult<T> result{.y = Array<T>({batch, heads, q_len, dim_v}),
                            .weights = Array<T>({batch, heads, q_len, kv_len}),
                            .lse = Array<T>({batch, heads, q_len}),
                            .average = Array<T>({batch, q_len, kv_len}),
                            .column_sums = Array<T>({batch, heads, kv_len}),
                            .max_logits = Array<T>({batch, heads})};
  const Index score_dim = dim + (options.qv ? dim_v : 0);
  const T scale =
      static_cast<T>(options.scale.value_or(1 / std::sqrt(static_cast<double>(score_dim))));
  const T cap = static_cast<T>(options.softcap);
  const bool has_sinks = !options.sinks.empty();
  for (Index b = 0; b < batch; ++b) {
    const Index keys = reference_keys(options, b, kv_len);
    const Index offset = reference_offset(options, b, q_len, kv_len);
    const Index padding = entry(options.left_padding, b, 0);
    for (Index h = 0; h < heads; ++h) {
      const Index kv_head = h / (heads / kv_heads);
      const T sink =
          has_sinks ? static_cast<T>(options.sinks.at(static_cast<std::size_t>(h))) : -inf;
      result.max_logits(b, h) = -inf;
      for (Index i = 0; i < q_len; ++i) {
        std::vector<std::optional<T>> s(static_cast<std::size_t>(keys));
        bool any_visible = false;
        T most = sink;  // 6.
        for (Index j = 0; j < keys; ++j) {
          const auto bias = reference_bias<T>(options, b, h, i, j, i + offset);  // 4. and 5.
          if (!bias) continue;
          const auto at = [](Index x) { return static_cast<int>(x); };
          const int number = at(options.first_key + j);
          if (options.mask_mod && !options.mask_mod(at(b), at(h), at(i), number)) continue;
          T score = 0;
          for (Index n = 0; n < score_dim; ++n) {
            const Index x = in_order(order, n, score_dim);
            score += x < dim
                         ? q(b, h, i, x) * k(b, kv_head, j, x)
                         : static_cast<T>(options.qv(b, h, i, x - dim)) * v(b, kv_head, j, x - dim);
          }
          score *= scale;  // 1.
          if (options.score_mod) {
            score = static_cast<T>(
                options.score_mod(static_cast<double>(score), at(b), at(h), at(i), number));  // 2.
          }
          if (options.softcap > 0) score = cap * std::tanh(score / cap);  // 3.
          s[static_cast<std::size_t>(j)] = score + *bias;
          most = std::max(most, score + *bias);
          result.max_logits(b, h) = std::max(result.max_logits(b, h), score + *bias);
          any_visible = true;
        }

        if (!any_visible) {
          result.lse(b, h, i) = sink;
          // Like a fill with -1e9: all keys are equal, unless a sink takes all weight.
          if (!options.mean_of_masked_row || sink > -inf) continue;
          for (Index j = padding; j < keys; ++j) {
            result.weights(b, h, i, j) = T{1} / static_cast<T>(keys - padding);
            for (Index x = 0; x < dim_v; ++x) {
              result.y(b, h, i, x) += v(b, kv_head, j, x) / static_cast<T>(keys - padding);
            }
          }
          continue;
        }

        T total = has_sinks ? std::exp(sink - most) : T{0};
        for (Index n = 0; n < keys; ++n) {
          const auto& score = s[static_cast<std::size_t>(in_order(order, n, keys))];
          total += score ? std::exp(*score - most) : T{0};
        }
        result.lse(b, h, i) = most + std::log(total);
        for (Index n = 0; n < keys; ++n) {
          const Index j = in_order(order, n, keys);
          const auto& score = s[static_cast<std::size_t>(j)];
          if (!score) continue;                              // its value is not read either
          const T weight = std::exp(*score - most) / total;  // 7.
          result.weights(b, h, i, j) = weight;
          const Index number = options.first_key + j;
          if (!is_kept(options, b, h, i, number)) continue;  // 9.
          T kept = weight;
          if (options.prob_mod) {  // 8.
            const auto at = [](Index x) { return static_cast<int>(x); };
            kept = static_cast<T>(
                options.prob_mod(static_cast<double>(weight), at(b), at(h), at(i), at(number)));
          }
          if (options.dropout > 0) kept /= static_cast<T>(1 - options.dropout);
          for (Index x = 0; x < dim_v; ++x) {
            result.y(b, h, i, x) += kept * v(b, kv_head, j, x);  // 10.
          }
        }
      }
      for (Index n = 0; n < q_len; ++n) {
        const Index i = in_order(order, n, q_len);
        for (Index j = 0; j < kv_len; ++j) {
          const T weight = result.weights(b, h, i, j);
          result.average(b, i, j) += weight / static_cast<T>(heads);
          result.column_sums(b, h, j) += weight;
        }
      }
    }
  }
  return result;
}

}  // namespace attn_test
