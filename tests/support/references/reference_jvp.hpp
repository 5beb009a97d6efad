// The tangent of reference_attention(), by nested loops over one matrix of scores.
#pragma once

#include "support/random.hpp"
#include "support/references/reference.hpp"

namespace attn_test {

/// Tangents of the inputs of reference_attention(), each of the shape of its input; an empty one
/// is 0.
template <class T>
struct ReferenceTangents {
  Array<T> q, k, v;
  Array<double> qv = {}, batch_alibi_slopes = {}, relative_bias = {};
  std::vector<double> alibi_slopes = {}, sinks = {};
  std::vector<Array<double>> bias = {};  ///< of additive masks, in their order

  template <class U>
  ReferenceTangents<U> as() const {
    return {.q = q.template as<U>(),
            .k = k.template as<U>(),
            .v = v.template as<U>(),
            .qv = qv,
            .batch_alibi_slopes = batch_alibi_slopes,
            .relative_bias = relative_bias,
            .alibi_slopes = alibi_slopes,
            .sinks = sinks,
            .bias = bias};
  }

  /// Random tangents of all inputs; numbers of float.
  static ReferenceTangents draw(Random& random, const Array<T>& of_q, const Array<T>& of_k,
                                const Array<T>& of_v, const ReferenceOptions& options) {
    const auto like = [&](const Array<double>& x, double scale) {
      return x ? random.array<float>(x.shape, scale).template as<double>() : Array<double>();
    };
    const auto like_all = [&](const std::vector<double>& x, double scale) {
      return random.array<float>({static_cast<Index>(x.size())}, scale).template as<double>().data;
    };
    ReferenceTangents t{random.array<T>(of_q.shape), random.array<T>(of_k.shape),
                        random.array<T>(of_v.shape)};
    t.qv = like(options.qv, 1);
    t.batch_alibi_slopes = like(options.batch_alibi_slopes, 0.1);
    t.relative_bias = like(options.relative_bias, 1);
    t.alibi_slopes = like_all(options.alibi_slopes, 0.1);
    t.sinks = like_all(options.sinks, 1);
    for (const auto& mask : options.masks) {
      if (mask.kind == ReferenceOptions::Mask::Kind::add) t.bias.push_back(like(mask.values, 1));
    }
    return t;
  }
};

template <class T>
struct ReferenceJvp {
  Array<T> d_y, d_lse;
  double largest = 0;  ///< the largest sum of magnitudes of the terms of an element of d_y or d_lse
};

/// Computes in T. score_mod and prob_mod must be linear functions of the score and of the weight.
template <class T>
ReferenceJvp<T> reference_jvp(const Array<T>& q, const Array<T>& k, const Array<T>& v,
                              const ReferenceOptions& options, const ReferenceTangents<T>& tangents,
                              Order order = Order::forward) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  const ReferenceResult<T> forward = reference_attention(q, k, v, options, order);
  const Index batch = q.extent(0), heads = q.extent(1), q_len = q.extent(2), dim = q.extent(3);
  const Index kv_len = k.extent(2), dim_v = v.extent(3), group = heads / k.extent(1);
  const Index score_dim = dim + (options.qv ? dim_v : 0);
  const T scale =
      static_cast<T>(options.scale.value_or(1 / std::sqrt(static_cast<double>(score_dim))));
  const T cap = static_cast<T>(options.softcap);
  const auto or_zero = [](const auto& x, auto... at) {
    return x ? static_cast<T>(x(at...)) : T{0};
  };
  ReferenceJvp<T> result{Array<T>(forward.y.shape), Array<T>(forward.lse.shape)};
  for (Index b = 0; b < batch; ++b) {
    const Index keys = reference_keys(options, b, kv_len);
    const Index offset = reference_offset(options, b, q_len, kv_len);
    for (Index h = 0; h < heads; ++h) {
      const Index kv_head = h / group;
      for (Index i = 0; i < q_len; ++i) {
        const Index p = i + offset;
        const T lse = forward.lse(b, h, i);
        const auto call = [&](const auto& f, T x, Index number) {
          const auto at = [](Index n) { return static_cast<int>(n); };
          return static_cast<T>(f(static_cast<double>(x), at(b), at(h), at(i), at(number)));
        };
        std::vector<T> d_s(static_cast<std::size_t>(keys));
        T d_lse = 0;
        double sum = 0;
        for (Index n = 0; n < keys && lse > -inf; ++n) {
          const Index j = in_order(order, n, keys), number = options.first_key + j;
          const T weight = forward.weights(b, h, i, j);
          if (weight == T{0}) continue;
          T s = 0, d = 0;
          for (Index m = 0; m < score_dim; ++m) {
            const Index x = in_order(order, m, score_dim);
            if (x < dim) {
              s += q(b, h, i, x) * k(b, kv_head, j, x);
              d += or_zero(tangents.q, b, h, i, x) * k(b, kv_head, j, x) +
                   q(b, h, i, x) * or_zero(tangents.k, b, kv_head, j, x);
            } else {
              const T value = v(b, kv_head, j, x - dim),
                      qv = static_cast<T>(options.qv(b, h, i, x - dim));
              s += qv * value;
              d += or_zero(tangents.qv, b, h, i, x - dim) * value +
                   qv * or_zero(tangents.v, b, kv_head, j, x - dim);
            }
          }
          s *= scale, d *= scale;
          if (options.score_mod) {
            s = call(options.score_mod, s, number), d = call(options.score_mod, d, number);
          }
          if (options.softcap > 0) {
            const T t = std::tanh(s / cap);
            d *= 1 - t * t;
          }
          const T away = static_cast<T>(std::abs(p - number));
          if (!tangents.alibi_slopes.empty()) {
            d -= static_cast<T>(tangents.alibi_slopes[static_cast<std::size_t>(h)]) * away;
          }
          d -= or_zero(tangents.batch_alibi_slopes, b, h) * away;
          if (tangents.relative_bias) {
            const Index most = options.relative_bias.extent(1) / 2;
            d += or_zero(tangents.relative_bias, h, most + std::clamp(number - p, -most, most));
          }
          for (const auto& bias : tangents.bias) d += static_cast<T>(broadcast(bias, b, h, i, j));
          d_s[static_cast<std::size_t>(j)] = d;
          d_lse += weight * d;
          sum += static_cast<double>(std::abs(weight * d));
        }
        if (!tangents.sinks.empty() && lse > -inf) {
          const auto at = static_cast<std::size_t>(h);
          d_lse += std::exp(static_cast<T>(options.sinks[at]) - lse) *
                   static_cast<T>(tangents.sinks[at]);
        }
        result.d_lse(b, h, i) = d_lse;
        result.largest = std::max(result.largest, sum + static_cast<double>(std::abs(d_lse)));
        for (Index x = 0; x < dim_v; ++x) {
          T& d_y = result.d_y(b, h, i, x);
          sum = 0;
          for (Index n = 0; n < keys; ++n) {
            const Index j = in_order(order, n, keys), number = options.first_key + j;
            T weight = forward.weights(b, h, i, j), d_weight = 0;
            if (weight == T{0}) continue;
            const T value = v(b, kv_head, j, x), d_v = or_zero(tangents.v, b, kv_head, j, x);
            if (lse > -inf) {
              // Without a prob_mod, d_lse times the output is subtracted at the end.
              const T d = d_s[static_cast<std::size_t>(j)];
              d_weight = weight * (options.prob_mod ? d - d_lse : d);
              if (options.prob_mod) {
                weight = call(options.prob_mod, weight, number);
                d_weight = call(options.prob_mod, d_weight, number);
              }
              if (!is_kept(options, b, h, i, number)) continue;
              const T kept = options.dropout > 0 ? static_cast<T>(1 - options.dropout) : T{1};
              weight /= kept, d_weight /= kept;
            }
            d_y += d_weight * value + weight * d_v;
            sum += static_cast<double>(std::abs(d_weight * value) + std::abs(weight * d_v));
          }
          if (options.prob_mod || lse == -inf) continue;
          d_y -= d_lse * forward.y(b, h, i, x);
          sum += static_cast<double>(std::abs(d_lse * forward.y(b, h, i, x)));
          result.largest = std::max(result.largest, sum);
        }
      }
    }
  }
  return result;
}

}  // namespace attn_test
