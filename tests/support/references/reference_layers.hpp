// References of layers: linear, rotary, activations, multi-head attention.
#pragma once

#include <functional>
#include <utility>

#include "attn/kernels/rows/activation.hpp"
#include "attn/layers/attention/rotary.hpp"

#include "support/references/reference.hpp"

namespace attn_test {

/// linear(): x (.., in), weight (out, in), bias (out) or empty.
template <class T>
Array<T> reference_linear(const Array<T>& x, const Array<T>& weight, const Array<T>& bias,
                          Order order = Order::forward) {
  const Index in = weight.extent(1), out = weight.extent(0), rows = x.size() / in;
  auto shape = x.shape;
  shape.back() = out;
  Array<T> y(shape);
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < out; ++j) {
      T sum = 0;
      for (Index n = 0; n < in; ++n) {
        const Index p = in_order(order, n, in);
        sum += x.data.at(static_cast<std::size_t>(i * in + p)) * weight(j, p);
      }
      y.data.at(static_cast<std::size_t>(i * out + j)) = bias ? sum + bias(j) : sum;
    }
  }
  return y;
}

template <class T>
Array<T> reference_add(Array<T> a, const Array<T>& b) {
  for (std::size_t i = 0; i < a.data.size(); ++i) a.data[i] += b.data.at(i);
  return a;
}

template <class T, class F>
Array<T> reference_map(Array<T> x, F f) {
  for (T& value : x.data) value = f(value);
  return x;
}

/// Splits heads: (batch, seq, heads * dim) to (batch, heads, seq, dim).
template <class T>
Array<T> reference_split_heads(const Array<T>& x, Index heads) {
  const Index dim = x.extent(2) / heads;
  Array<T> y({x.extent(0), heads, x.extent(1), dim});
  for (Index b = 0; b < x.extent(0); ++b) {
    for (Index i = 0; i < x.extent(1); ++i) {
      for (Index c = 0; c < x.extent(2); ++c) y(b, c / dim, i, c % dim) = x(b, i, c);
    }
  }
  return y;
}

/// Joins heads: (batch, heads, seq, dim) to (batch, seq, heads * dim).
template <class T>
Array<T> reference_combine_heads(const Array<T>& x) {
  const Index dim = x.extent(3);
  Array<T> y({x.extent(0), x.extent(2), x.extent(1) * dim});
  for (Index b = 0; b < y.extent(0); ++b) {
    for (Index i = 0; i < y.extent(1); ++i) {
      for (Index c = 0; c < y.extent(2); ++c) y(b, i, c) = x(b, c / dim, i, c % dim);
    }
  }
  return y;
}

/// Rotates pairs of coordinates of x (batch, heads, seq, dim) by the angles of positions ids
/// (batch, seq).
template <class T>
Array<T> reference_rotary(const Array<T>& x, const Array<T>& cos, const Array<T>& sin,
                          const attn::Tensor2<attn::index_t>& ids, attn::RotaryPairs pairs) {
  Array<T> y = x;
  const Index half = cos.extent(1);
  for (Index b = 0; b < x.extent(0); ++b) {
    for (Index h = 0; h < x.extent(1); ++h) {
      for (Index i = 0; i < x.extent(2); ++i) {
        for (Index j = 0; j < half; ++j) {
          const bool halves = pairs == attn::RotaryPairs::halves;
          const Index u = halves ? j : 2 * j, v = halves ? j + half : 2 * j + 1;
          const T c = cos(ids(b, i), j), s = sin(ids(b, i), j);
          y(b, h, i, u) = x(b, h, i, u) * c - x(b, h, i, v) * s;
          y(b, h, i, v) = x(b, h, i, v) * c + x(b, h, i, u) * s;
        }
      }
    }
  }
  return y;
}

template <class T>
T reference_activation(attn::Activation activation, T x) {
  switch (activation) {
    case attn::Activation::relu:
      return reference_relu(x);
    case attn::Activation::relu_squared:
      return reference_relu(x) * reference_relu(x);
    case attn::Activation::gelu:
      return reference_gelu(x);
    case attn::Activation::gelu_tanh:
      return reference_gelu_tanh(x);
    case attn::Activation::silu:
      return reference_silu(x);
    case attn::Activation::quick_gelu:
      return reference_quick_gelu(x);
    default:
      return x;
  }
}

/// Parameters of multi-head attention; those that a module lacks are empty.
template <class T>
struct ReferenceHeads {
  Index num_heads = 1;
  Array<T> wq, wk, wv, bq, bk, bv;
  Array<T> bias_k, bias_v;  ///< (1, 1, width)
  bool add_zero_attn = false;
  Array<T> wo, bo;
  Index num_kv_heads = 0;  ///< num_heads
  /// Applied to the heads of queries, and (with true) of keys, before attention.
  std::function<Array<T>(const Array<T>&, bool)> turn = {};
  /// Rounds each tensor between steps; null: no rounding.
  T (*store)(T) = nullptr;
};

/// x rounded to another element and back.
template <class T>
Array<T> reference_stored(const Array<T>& x, T (*store)(T)) {
  return store != nullptr ? reference_map(x, store) : x;
}

/// x (batch, seq, width) with another row per batch row: `row`, or zeros if it is empty.
template <class T>
Array<T> reference_append(const Array<T>& x, const Array<T>& row) {
  Array<T> y({x.extent(0), x.extent(1) + 1, x.extent(2)});
  for (Index b = 0; b < y.extent(0); ++b) {
    for (Index i = 0; i < y.extent(1); ++i) {
      for (Index c = 0; c < y.extent(2); ++c) {
        y(b, i, c) = i < x.extent(1) ? x(b, i, c) : row ? row(0, 0, c) : T{0};
      }
    }
  }
  return y;
}

/// A dense mask with another key, kept for every query.
inline ReferenceOptions::Mask reference_append_visible(const ReferenceOptions::Mask& mask,
                                                       Index kv_len) {
  const auto& v = mask.values;
  const double visible = mask.kind == ReferenceOptions::Mask::Kind::keep ? 1 : 0;
  Array<double> longer({v.extent(0), v.extent(1), v.extent(2), kv_len + 1});
  for (Index b = 0; b < v.extent(0); ++b) {
    for (Index h = 0; h < v.extent(1); ++h) {
      for (Index i = 0; i < v.extent(2); ++i) {
        for (Index j = 0; j <= kv_len; ++j) {
          longer(b, h, i, j) = j == kv_len ? visible : broadcast(v, b, h, i, j);
        }
      }
    }
  }
  return {mask.kind, longer};
}

/// query, key, value (batch, seq, features) to y (batch, q_len, out) and weights per head. Appended
/// keys exclude causality, windows and key lengths.
template <class T>
ReferenceResult<T> reference_multi_head_attention(const ReferenceHeads<T>& p, const Array<T>& query,
                                                  const Array<T>& key, const Array<T>& value,
                                                  ReferenceOptions options,
                                                  Order order = Order::forward) {
  const Index kv_heads = p.num_kv_heads > 0 ? p.num_kv_heads : p.num_heads;
  const auto project = [&](const Array<T>& x, const Array<T>& weight, const Array<T>& bias) {
    return reference_stored(reference_linear(x, weight, bias, order), p.store);
  };
  Array<T> q = reference_split_heads(project(query, p.wq, p.bq), p.num_heads);
  Array<T> k = project(key, p.wk, p.bk), v = project(value, p.wv, p.bv);
  if (p.turn) {
    q = p.turn(q, false);
    k = reference_combine_heads(p.turn(reference_split_heads(k, kv_heads), true));
  }
  const auto append = [&](const Array<T>& key_row, const Array<T>& value_row) {
    for (auto& mask : options.masks) mask = reference_append_visible(mask, k.extent(1));
    k = reference_append(k, key_row);
    v = reference_append(v, value_row);
  };
  if (p.bias_k) append(p.bias_k, p.bias_v);
  if (p.add_zero_attn) append({}, {});
  ReferenceResult<T> result = reference_attention(
      q, reference_split_heads(k, kv_heads), reference_split_heads(v, kv_heads), options, order);
  result.y = reference_stored(reference_combine_heads(result.y), p.store);
  if (p.wo) result.y = reference_linear(result.y, p.wo, p.bo, order);
  return result;
}

/// The mean over heads of weights (batch, heads, q_len, kv_len).
template <class T>
Array<T> reference_average_heads(const Array<T>& weights) {
  Array<T> mean({weights.extent(0), weights.extent(2), weights.extent(3)});
  for (Index b = 0; b < mean.extent(0); ++b) {
    for (Index i = 0; i < mean.extent(1); ++i) {
      for (Index j = 0; j < mean.extent(2); ++j) {
        for (Index h = 0; h < weights.extent(1); ++h) mean(b, i, j) += weights(b, h, i, j);
        mean(b, i, j) /= static_cast<T>(weights.extent(1));
      }
    }
  }
  return mean;
}

}  // namespace attn_test
