// The gradients of reference_attention(), by nested loops over one matrix of scores.
#pragma once

#include <map>
#include <string>

#include "support/references/reference.hpp"

namespace attn_test {

/// Gradients of the loss sum of d_y y + sum of d_lse lse, by name: d_q, d_k and d_v; d_sinks,
/// d_slopes, d_relative, d_qv and d_bias0, d_bias1, .. (additive masks in their order), if present.
/// d_lse may be empty. Computes in T, without functors. Recomputes weights from scores and lse, and
/// subtracts D from d_p, as in the contract and FlashAttention: forward and backward sum in
/// different orders, so that cancelling terms have the rounding errors of both.
template <class T>
std::map<std::string, Array<T>> reference_backward(const Array<T>& q, const Array<T>& k,
                                                   const Array<T>& v,
                                                   const ReferenceOptions& options,
                                                   const Array<T>& d_y, const Array<T>& d_lse,
                                                   Order order = Order::forward) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  const Order other = order == Order::forward ? Order::backward : Order::forward;
  const ReferenceResult<T> forward = reference_attention(q, k, v, options, order);
  const Index batch = q.extent(0), heads = q.extent(1), q_len = q.extent(2), dim = q.extent(3);
  const Index kv_len = k.extent(2), dim_v = v.extent(3), group = heads / k.extent(1);
  const Index score_dim = dim + (options.qv ? dim_v : 0);
  const T scale =
      static_cast<T>(options.scale.value_or(1 / std::sqrt(static_cast<double>(score_dim))));
  const T cap = static_cast<T>(options.softcap);
  std::map<std::string, Array<T>> d{
      {"d_q", Array<T>(q.shape)}, {"d_k", Array<T>(k.shape)}, {"d_v", Array<T>(v.shape)}};
  Array<T>&d_q = d["d_q"], &d_k = d["d_k"], &d_v = d["d_v"];
  if (!options.sinks.empty()) d["d_sinks"] = Array<T>({heads});
  if (!options.alibi_slopes.empty()) d["d_slopes"] = Array<T>({heads});
  if (options.batch_alibi_slopes) d["d_batch_slopes"] = Array<T>({batch, heads});
  if (options.relative_bias) d["d_relative"] = Array<T>(options.relative_bias.shape);
  if (options.qv) d["d_qv"] = Array<T>(options.qv.shape);
  std::vector<Array<T>*> d_bias;
  for (const auto& mask : options.masks) {
    if (mask.kind != ReferenceOptions::Mask::Kind::add) continue;
    Array<T>& to = d["d_bias" + std::to_string(d_bias.size())];
    to = Array<T>(mask.values.shape);
    d_bias.push_back(&to);
  }
  for (Index b = 0; b < batch; ++b) {
    const Index keys = reference_keys(options, b, kv_len);
    const Index offset = reference_offset(options, b, q_len, kv_len);
    for (Index h = 0; h < heads; ++h) {
      const Index kv_head = h / group;
      for (Index m = 0; m < q_len; ++m) {
        const Index i = in_order(order, m, q_len), p = i + offset;
        const T lse = forward.lse(b, h, i);
        T delta = 0;  // D - d_lse
        for (Index x = 0; x < dim_v; ++x) delta += d_y(b, h, i, x) * forward.y(b, h, i, x);
        if (d_lse) delta -= d_lse(b, h, i);
        if (!options.sinks.empty() && lse > -inf) {
          const T sink = static_cast<T>(options.sinks[static_cast<std::size_t>(h)]);
          d["d_sinks"](h) -= std::exp(sink - lse) * delta;
        }
        for (Index n = 0; n < keys; ++n) {
          const Index j = in_order(order, n, keys), number = options.first_key + j;
          // A fully masked row with the mean of all values passes no gradient to dropout or scores.
          const bool is_mean = lse == -inf;
          T weight = forward.weights(b, h, i, j), slope = 1;
          if (weight == T{0}) continue;
          if (!is_mean) {
            T score = 0;
            for (Index z = 0; z < score_dim; ++z) {
              const Index x = in_order(other, z, score_dim);
              score += x < dim ? q(b, h, i, x) * k(b, kv_head, j, x)
                               : static_cast<T>(options.qv(b, h, i, x - dim)) *
                                     v(b, kv_head, j, x - dim);
            }
            score *= scale;
            if (options.softcap > 0) {
              const T t = std::tanh(score / cap);
              score = cap * t;
              slope = 1 - t * t;
            }
            weight = std::exp(score + *reference_bias<T>(options, b, h, i, j, p) - lse);
          }
          T d_p = 0, kept = 0;
          if (is_mean || is_kept(options, b, h, i, number)) {
            kept =
                options.dropout > 0 && !is_mean ? T{1} / static_cast<T>(1 - options.dropout) : T{1};
          }
          for (Index z = 0; z < dim_v; ++z) {
            const Index x = in_order(other, z, dim_v);
            d_p += kept * d_y(b, h, i, x) * v(b, kv_head, j, x);
            d_v(b, kv_head, j, x) += kept * weight * d_y(b, h, i, x);
          }
          if (is_mean) continue;
          T d_s = weight * (d_p - delta);
          for (Array<T>* to : d_bias) {
            const auto one = [&](std::size_t axis, Index at) {
              return to->extent(axis) == 1 ? 0 : at;
            };
            (*to)(one(0, b), one(1, h), one(2, i), one(3, j)) += d_s;
          }
          const T away = static_cast<T>(std::abs(p - number));
          if (!options.alibi_slopes.empty()) d["d_slopes"](h) -= d_s * away;
          if (options.batch_alibi_slopes) d["d_batch_slopes"](b, h) -= d_s * away;
          if (options.relative_bias) {
            const Index most = options.relative_bias.extent(1) / 2;
            d["d_relative"](h, most + std::clamp(number - p, -most, most)) += d_s;
          }
          d_s *= slope;
          for (Index x = 0; x < dim; ++x) {
            d_q(b, h, i, x) += scale * d_s * k(b, kv_head, j, x);
            d_k(b, kv_head, j, x) += scale * d_s * q(b, h, i, x);
          }
          for (Index x = 0; x < dim_v && options.qv; ++x) {
            d["d_qv"](b, h, i, x) += scale * d_s * v(b, kv_head, j, x);
            d_v(b, kv_head, j, x) += scale * d_s * static_cast<T>(options.qv(b, h, i, x));
          }
        }
      }
    }
  }
  return d;
}

}  // namespace attn_test
