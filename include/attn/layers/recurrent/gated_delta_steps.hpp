// GatedDeltaOptions, and the steps of GatedDelta between its projections and linear attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "attn/layers/attention/head_steps.hpp"
#include "attn/layers/recurrent/causal_convolution.hpp"

ATTN_NAMESPACE_BEGIN

struct GatedDeltaOptions {
  index_t d_model = 0;          ///< features of a token
  index_t num_key_heads = 1;    ///< heads of queries and keys
  index_t num_value_heads = 1;  ///< heads of values and states, a multiple of num_key_heads
  index_t key_dim = 128;        ///< of a query or key
  index_t value_dim = 128;      ///< of a value
  index_t width = 4;            ///< tokens of the convolution, at least 2
  double norm_eps = 1e-6;       ///< epsilon of the norm of each head

  index_t keys_width() const { return num_key_heads * key_dim; }
  index_t values_width() const { return num_value_heads * value_dim; }
  /// Channels of the convolution.
  index_t channels() const { return 2 * keys_width() + values_width(); }
};

namespace detail {

/// Throws ValueError for options out of range.
inline void check_gated_delta(const GatedDeltaOptions& o) {
  constexpr index_t kMost = index_t{1} << 20;  // products of three do not overflow
  const auto check = [](std::string_view argument, index_t found, index_t lowest) {
    if (found >= lowest && found <= kMost) return;
    throw ValueError(message("GatedDelta", argument,
                             "lie in " + std::to_string(lowest) + " .. 2^20",
                             std::to_string(found)));
  };
  check("d_model", o.d_model, 1);
  check("num_key_heads", o.num_key_heads, 1);
  check("num_value_heads", o.num_value_heads, 1);
  check("key_dim", o.key_dim, 1);
  check("value_dim", o.value_dim, 1);
  check("width", o.width, 2);
  if (o.num_value_heads % o.num_key_heads != 0) {
    throw ValueError(message("GatedDelta", "num_value_heads",
                             "be a multiple of num_key_heads = " + std::to_string(o.num_key_heads),
                             std::to_string(o.num_value_heads)));
  }
}

/// Calls f(feature, channel, n) for each run of n queries, keys or values: where it begins in the
/// result of in_proj_qkvz, which has them by key head, and among the channels of the convolution,
/// which are all queries, then all keys, then all values.
template <class F>
void each_channel_run(const GatedDeltaOptions& o, const F& f) {
  const index_t keys = o.key_dim, values = o.values_width() / o.num_key_heads;
  for (index_t h = 0, feature = 0; h < o.num_key_heads; ++h) {
    f(feature, h * keys, keys);
    f(feature + keys, o.keys_width() + h * keys, keys);
    f(feature + 2 * keys, 2 * o.keys_width() + h * values, values);
    feature += 2 * (keys + values);  // the last are gates
  }
}

/// Copies queries, keys and values from the result of in_proj_qkvz to `to` (batch, seq, channels).
template <class T>
void gather_channels(const GatedDeltaOptions& o, const TensorView3<const T>& projected,
                     const TensorView3<Accumulator<T>>& to, const Execution& execution) {
  const index_t seq = to.extent(1);
  for_rows(execution.threads(), to.extent(0) * seq, o.channels(), [&](index_t row) {
    const T* from = projected.at_index({row / seq, row % seq, 0});
    Accumulator<T>* out = to.at_index({row / seq, row % seq, 0});
    each_channel_run(o, [&](index_t feature, index_t channel, index_t n) {
      for (index_t i = 0; i < n; ++i) out[channel + i] = Accumulator<T>{from[feature + i]};
    });
  });
}

/// (batch, num_key_heads, seq, key_dim) of x (batch, seq, ..): the queries or keys from `first` on.
template <class A>
TensorView4<A> key_heads(const GatedDeltaOptions& o, const TensorView3<A>& x, index_t first) {
  return {x.data() + first,
          {x.extent(0), o.num_key_heads, x.extent(1), o.key_dim},
          {x.stride(0), o.key_dim, x.stride(1), 1}};
}

/// (batch, num_key_heads, seq, width) of x (batch, seq, ..), which has `width` numbers for each
/// value head from `first` on: those of the n-th value head of each key head.
template <class A>
TensorView4<A> value_heads(const GatedDeltaOptions& o, const TensorView3<A>& x, index_t first,
                           index_t n, index_t width) {
  return {x.data() + first + n * width,
          {x.extent(0), o.num_key_heads, x.extent(1), width},
          {x.stride(0), o.num_value_heads / o.num_key_heads * width, x.stride(1), 1}};
}

/// Scratch memory for the inputs of linear attention in one call.
template <class A>
struct DeltaInputs {
  DeltaInputs(const GatedDeltaOptions& o, index_t batch, index_t seq, Workspace& workspace)
      : mixed_memory(workspace, batch * seq * o.channels()),
        rates_memory(workspace, 2 * batch * seq * o.num_value_heads),
        mixed(mixed_memory.data(), {batch, seq, o.channels()}),
        beta(rates_memory.data(), {batch, seq, o.num_value_heads}),
        decay(rates_memory.data() + beta.size(), beta.shape()) {}

  Scratch<A> mixed_memory, rates_memory;
  TensorView3<A> mixed;        ///< (batch, seq, channels): queries, keys, values
  TensorView3<A> beta, decay;  ///< (batch, seq, num_value_heads)
};

/// Qwen3-Next's, added to the sum of squares of a query or key.
template <class A>
inline constexpr A kDeltaKeyEpsilon = static_cast<A>(1e-6);

/// Divides each query and key in mixed (batch, seq, channels) by its length, in place.
template <class A>
void normalize_keys(const GatedDeltaOptions& o, const TensorView3<A>& mixed,
                    const Execution& execution) {
  const index_t seq = mixed.extent(1);
  for_rows(execution.threads(), mixed.extent(0) * seq, 2 * o.keys_width(), [&](index_t row) {
    A* x = mixed.at_index({row / seq, row % seq, 0});
    for (index_t h = 0; h < 2 * o.num_key_heads; ++h, x += o.key_dim) {
      A squares = 0;
      for (index_t i = 0; i < o.key_dim; ++i) squares += x[i] * x[i];
      const A factor = 1 / std::sqrt(squares + kDeltaKeyEpsilon<A>);
      for (index_t i = 0; i < o.key_dim; ++i) x[i] *= factor;
    }
  });
}

/// Calls f(b, t, h, b_column, a_column) for each token and value head h with its columns in the
/// result of in_proj_ba, which has b and then a of the value heads of each key head.
template <class F>
void for_delta_rates(const GatedDeltaOptions& o, index_t batch, index_t seq, const F& f) {
  const index_t members = o.num_value_heads / o.num_key_heads;
  for (index_t b = 0; b < batch; ++b) {
    for (index_t t = 0; t < seq; ++t) {
      for (index_t h = 0; h < o.num_value_heads; ++h) {
        const index_t column = h / members * 2 * members + h % members;
        f(b, t, h, column, column + members);
      }
    }
  }
}

/// beta and decay (batch, seq, num_value_heads) from the result of in_proj_ba.
template <class T>
void delta_rates(const GatedDeltaOptions& o, const TensorView3<const T>& ba,
                 const TensorView1<const T>& a_log, const TensorView1<const T>& dt_bias,
                 const TensorView3<Accumulator<T>>& beta,
                 const TensorView3<Accumulator<T>>& decay) {
  using Acc = Accumulator<T>;
  for_delta_rates(o, ba.extent(0), ba.extent(1),
                  [&](index_t b, index_t t, index_t h, index_t b_column, index_t a_column) {
                    const Acc x = Acc{ba(b, t, a_column)} + Acc{dt_bias(h)};
                    // log(1 + e^x) without overflow.
                    const Acc softplus = (std::max)(x, Acc{0}) + std::log1p(std::exp(-std::abs(x)));
                    beta(b, t, h) = sigmoid(Acc{ba(b, t, b_column)});
                    decay(b, t, h) = -std::exp(Acc{a_log(h)}) * softplus;
                  });
}

/// Where the gates of value head h begin in the result of in_proj_qkvz.
inline index_t gate_column(const GatedDeltaOptions& o, index_t h) {
  const index_t members = o.num_value_heads / o.num_key_heads,
                by_key_head = 2 * (o.key_dim + members * o.value_dim);
  return h / members * by_key_head + 2 * o.key_dim + (members + h % members) * o.value_dim;
}

/// out = rms_norm(results, weight, norm_eps) silu(z), head by head: results and out (batch, seq,
/// values), z in the result of in_proj_qkvz.
template <class T>
void gated_norm(const GatedDeltaOptions& o, const TensorView3<const Accumulator<T>>& results,
                const TensorView3<const T>& projected, const TensorView1<const T>& weight,
                const TensorView3<T>& out, const Execution& execution) {
  using Acc = Accumulator<T>;
  const index_t seq = out.extent(1), dim = o.value_dim;
  for_rows(execution.threads(), out.extent(0) * seq, o.values_width(), [&](index_t row) {
    const Shape<3> at{row / seq, row % seq, 0};
    for (index_t h = 0; h < o.num_value_heads; ++h) {
      const Acc* x = results.at_index(at) + h * dim;
      const T* z = projected.at_index(at) + gate_column(o, h);
      T* to = out.at_index(at) + h * dim;
      Acc squares = 0;
      for (index_t i = 0; i < dim; ++i) squares += x[i] * x[i];
      const Acc factor =
          1 / std::sqrt(squares / static_cast<Acc>(dim) + static_cast<Acc>(o.norm_eps));
      for (index_t i = 0; i < dim; ++i) {
        const Acc gate{z[i]};
        to[i] = static_cast<T>(x[i] * factor * Acc{weight(i)} * gate * sigmoid(gate));
      }
    }
  });
}

}  // namespace detail

ATTN_NAMESPACE_END
