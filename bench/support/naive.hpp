// The formulas as the textbook writes them, one row at a time: in double the reference, in float the yardstick.
//
// A result passes if it is at most twice as far from the double one as the float formula is: what a program
// without any cleverness would have got.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attn/attn.hpp"

namespace bench {

using attn::index_t;

namespace detail {

inline bool keeps(const attn::Mask::Dense& part, const void* element) {
  const bool truth = *static_cast<const bool*>(element);
  return part.kind == attn::Mask::Dense::Kind::keep ? truth : !truth;
}

/// Score `s` of key j for query i after masks and bias; -inf where the key is hidden.
template <class A>
A masked(const attn::AttentionOptions<float>& options, index_t q_len, index_t kv_len, index_t b,
         index_t h, index_t i, index_t j, A s) {
  using Kind = attn::QueryOffset::Kind;
  const attn::Mask& mask = options.mask;
  const index_t keys = mask.key_lengths ? mask.key_lengths(b) : kv_len;
  const index_t offset = options.offset.kind == Kind::bottom_right ? keys - q_len
                         : options.offset.kind == Kind::top_left   ? 0
                                                                   : options.offset.value;
  const index_t p = i + offset;
  bool visible = j < keys && j >= p - mask.left && j <= p + mask.right;
  visible = visible && !(mask.causal && j > p);
  if (options.alibi_slopes) {
    s -= static_cast<A>(options.alibi_slopes(h)) * static_cast<A>(std::abs(p - j));
  }
  for (int d = 0; d < mask.num_dense; ++d) {
    const attn::Mask::Dense& part = mask.dense[static_cast<std::size_t>(d)];
    const index_t at =
        b * part.strides[0] + h * part.strides[1] + i * part.strides[2] + j * part.strides[3];
    switch (part.element) {
      case attn::Mask::Dense::Element::boolean:
        visible = visible && keeps(part, static_cast<const bool*>(part.data) + at);
        break;
      case attn::Mask::Dense::Element::f32:
        s += static_cast<A>(static_cast<const float*>(part.data)[at]);
        break;
      case attn::Mask::Dense::Element::f64:
        s += static_cast<A>(static_cast<const double*>(part.data)[at]);
        break;
    }
  }
  return visible ? s : -std::numeric_limits<A>::infinity();
}

}  // namespace detail

/// Softmax over s, in place; the sink is one more logit without an element. All hidden: all zero.
template <class A>
void naive_softmax(std::vector<A>& s, A sink = -std::numeric_limits<A>::infinity()) {
  const A top = std::max(sink, *std::max_element(s.begin(), s.end()));
  if (std::isinf(top)) return std::fill(s.begin(), s.end(), A{0});
  A sum = std::exp(sink - top);
  for (A& each : s) sum += each = std::exp(each - top);
  for (A& each : s) each /= sum;
}

/// Output row (b, h, i) of scaled_dot_product_attention with every step in A.
template <class A>
std::vector<A> naive_attention(attn::TensorView4<const float> q, attn::TensorView4<const float> k,
                               attn::TensorView4<const float> v,
                               const attn::AttentionOptions<float>& options, index_t b, index_t h,
                               index_t i) {
  const index_t head_dim = q.extent(3), kv_len = k.extent(2);
  const index_t g = h / (q.extent(1) / k.extent(1));
  const A scale =
      static_cast<A>(options.scale.value_or(1 / std::sqrt(static_cast<double>(head_dim))));
  std::vector<A> weights(static_cast<std::size_t>(kv_len));
  for (index_t j = 0; j < kv_len; ++j) {
    A s = 0;
    for (index_t d = 0; d < head_dim; ++d) {
      s += static_cast<A>(q(b, h, i, d)) * static_cast<A>(k(b, g, j, d));
    }
    weights[static_cast<std::size_t>(j)] =
        detail::masked(options, q.extent(2), kv_len, b, h, i, j, scale * s);
  }
  if (options.sinks) {
    naive_softmax(weights, static_cast<A>(options.sinks(h)));
  } else {
    naive_softmax(weights);
  }
  std::vector<A> out(static_cast<std::size_t>(v.extent(3)));
  for (index_t j = 0; j < kv_len; ++j) {
    const A weight = weights[static_cast<std::size_t>(j)];
    if (weight == A{0}) continue;
    for (std::size_t d = 0; d < out.size(); ++d) {
      out[d] += weight * static_cast<A>(v(b, g, j, static_cast<index_t>(d)));
    }
  }
  return out;
}

/// x W^T + b for each row of x, in A; x is (rows, in), flat.
template <class A>
std::vector<A> naive_linear(const std::vector<A>& x, attn::TensorView2<const float> weight,
                            attn::TensorView1<const float> bias) {
  const auto in = static_cast<std::size_t>(weight.extent(1));
  std::vector<A> out;
  for (std::size_t row = 0; row < x.size(); row += in) {
    for (index_t o = 0; o < weight.extent(0); ++o) {
      A sum = 0;
      for (std::size_t c = 0; c < in; ++c) {
        sum += x[row + c] * static_cast<A>(weight(o, static_cast<index_t>(c)));
      }
      out.push_back(bias ? sum + static_cast<A>(bias(o)) : sum);
    }
  }
  return out;
}

/// Output row (b, i) of self-attention without a mask through a MultiHeadAttention, with every step in A.
template <class A>
std::vector<A> naive_multi_head(attn::MultiHeadAttention<float>& mha,
                                attn::TensorView3<const float> x, index_t b, index_t i) {
  const attn::MultiHeadAttentionOptions& o = mha.options();
  std::vector<A> tokens, query;
  for (index_t t = 0; t < x.extent(1); ++t) {
    for (index_t c = 0; c < x.extent(2); ++c) tokens.push_back(static_cast<A>(x(b, t, c)));
  }
  for (index_t c = 0; c < x.extent(2); ++c) query.push_back(static_cast<A>(x(b, i, c)));
  const std::vector<A> q = naive_linear<A>(query, mha.q_weight(), mha.q_bias());
  const std::vector<A> k = naive_linear<A>(tokens, mha.k_weight(), mha.k_bias());
  const std::vector<A> v = naive_linear<A>(tokens, mha.v_weight(), mha.v_bias());

  const auto heads = static_cast<std::size_t>(o.num_heads);
  const auto dim = static_cast<std::size_t>(o.head_dim),
             dim_v = static_cast<std::size_t>(o.head_dim_v);
  const auto keys = static_cast<std::size_t>(x.extent(1));
  const A scale = static_cast<A>(o.scale.value_or(1 / std::sqrt(static_cast<double>(o.head_dim))));
  std::vector<A> context(heads * dim_v);
  for (std::size_t h = 0; h < heads; ++h) {
    std::vector<A> weights(keys);
    for (std::size_t j = 0; j < keys; ++j) {
      A s = 0;
      for (std::size_t d = 0; d < dim; ++d) s += q[h * dim + d] * k[(j * heads + h) * dim + d];
      weights[j] = scale * s;
    }
    naive_softmax(weights);
    for (std::size_t j = 0; j < keys; ++j) {
      for (std::size_t d = 0; d < dim_v; ++d) {
        context[h * dim_v + d] += weights[j] * v[(j * heads + h) * dim_v + d];
      }
    }
  }
  return naive_linear<A>(context, mha.out_proj().weight.view(), mha.out_proj().bias.view());
}

}  // namespace bench
