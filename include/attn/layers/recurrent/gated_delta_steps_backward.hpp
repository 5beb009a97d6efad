// Backward of the steps of GatedDelta between its projections.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/linear_attention_backward.hpp"
#include "attn/kernels/rows/activation_backward.hpp"
#include "attn/kernels/rows/norm_backward.hpp"
#include "attn/layers/recurrent/gated_delta_steps.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The backward of gated_norm(): sets d_results (batch, seq, values) and the gates in d_projected,
/// and adds to d_weight (value_dim), if it is given.
template <class T>
void gated_norm_backward(const GatedDeltaOptions& o, const TensorView3<const T>& d_out,
                         const TensorView3<const Accumulator<T>>& results,
                         const TensorView3<const T>& projected, const TensorView1<const T>& weight,
                         const TensorView3<Accumulator<T>>& d_results,
                         const TensorView3<T>& d_projected,
                         const TensorView1<Accumulator<T>>& d_weight, const Execution& execution) {
  using Acc = Accumulator<T>;
  const index_t seq = results.extent(1), dim = o.value_dim;
  const Shape<2> heads{results.extent(0) * seq * o.num_value_heads, dim};
  const TensorView2<const Acc> from(results.data(), heads);
  const TensorView2<Acc> to(d_results.data(), heads);
  Scratch<Acc> memory(execution.scratch(), dim);
  for (index_t i = 0; i < dim; ++i) memory.data()[i] = Acc{weight(i)};
  const TensorView1<const Acc> wide(memory.data(), {dim});
  rms_norm(from, wide, o.norm_eps, to, execution);
  for_rows(execution.threads(), heads[0], dim, [&](index_t row) {
    const index_t token = row / o.num_value_heads, h = row % o.num_value_heads;
    const Shape<3> at{token / seq, token % seq, gate_column(o, h)};
    const T* z = projected.at_index(at);
    T* d_z = d_projected.at_index(at);
    const T* d = d_out.at_index({token / seq, token % seq, h * dim});
    Acc* x = to.at_index({row, 0});
    for (index_t i = 0; i < dim; ++i) {
      const Acc gate{z[i]}, part = sigmoid(gate), normed = x[i];
      d_z[i] = static_cast<T>(Acc{d[i]} * normed * part * (1 + gate * (1 - part)));
      x[i] = Acc{d[i]} * gate * part;
    }
  });
  rms_norm_backward(to, from, wide, o.norm_eps, to, d_weight, {}, execution);
}

/// The backward of linear attention, from d_results (batch, seq, values).
template <class A>
void delta_attention_backward(const GatedDeltaOptions& o, const TensorView3<const A>& d_results,
                              const DeltaInputs<A>& inputs, const DeltaInputs<A>& gradients,
                              const Execution& execution) {
  const index_t batch = d_results.extent(0), seq = d_results.extent(1), keys = o.keys_width(),
                count = batch * seq * 2 * keys;
  Scratch<A> memory(execution.scratch(), count);
  const TensorView3<A> d_keys(memory.data(), {batch, seq, 2 * keys}),
      sums = gradients.mixed.slice(2, 0, 2 * keys);
  std::fill_n(gradients.beta.data(), gradients.beta.size(), A{0});
  std::fill_n(gradients.decay.data(), gradients.decay.size(), A{0});
  for (index_t n = 0; n < o.num_value_heads / o.num_key_heads; ++n) {
    // The first value heads write their gradients of queries and keys, the others add to them.
    const TensorView3<A>& to = n == 0 ? sums : d_keys;
    const auto values = [&](const TensorView3<A>& x) {
      return value_heads(o, x, 2 * keys, n, o.value_dim);
    };
    const auto rates = [&](const TensorView3<A>& x) { return value_heads(o, x, 0, n, 1); };
    linear_attention_backward(
        value_heads(o, d_results, 0, n, o.value_dim), key_heads(o, inputs.mixed, 0),
        key_heads(o, inputs.mixed, keys), values(inputs.mixed), key_heads(o, to, 0),
        key_heads(o, to, keys), values(gradients.mixed),
        {.decay = rates(inputs.decay), .beta = rates(inputs.beta).select(3, 0)},
        {.d_decay = rates(gradients.decay), .d_beta = rates(gradients.beta).select(3, 0)},
        execution);
    if (n == 0) continue;
    for_rows(execution.threads(), batch * seq, 2 * keys, [&](index_t row) {
      const Shape<3> at{row / seq, row % seq, 0};
      const A* from = d_keys.at_index(at);
      A* sum = sums.at_index(at);
      for (index_t i = 0; i < 2 * keys; ++i) sum[i] += from[i];
    });
  }
}

/// The backward of delta_rates(), whose results `inputs` holds, from gradients.beta and
/// gradients.decay: sets d_ba, and adds to d_a_log and d_dt_bias (num_value_heads), if they are
/// given.
template <class T>
void delta_rates_backward(const GatedDeltaOptions& o, const TensorView3<const T>& ba,
                          const TensorView1<const T>& a_log, const TensorView1<const T>& dt_bias,
                          const DeltaInputs<Accumulator<T>>& inputs,
                          const DeltaInputs<Accumulator<T>>& gradients, const TensorView3<T>& d_ba,
                          const TensorView1<Accumulator<T>>& d_a_log,
                          const TensorView1<Accumulator<T>>& d_dt_bias) {
  using Acc = Accumulator<T>;
  for_delta_rates(o, ba.extent(0), ba.extent(1),
                  [&](index_t b, index_t t, index_t h, index_t b_column, index_t a_column) {
                    const Acc beta = inputs.beta(b, t, h), d_decay = gradients.decay(b, t, h);
                    const Acc d_beta = gradients.beta(b, t, h) * beta * (1 - beta);
                    const Acc slope = sigmoid(Acc{ba(b, t, a_column)} + Acc{dt_bias(h)});
                    const Acc d_a = -std::exp(Acc{a_log(h)}) * d_decay * slope;
                    d_ba(b, t, b_column) = static_cast<T>(d_beta);
                    d_ba(b, t, a_column) = static_cast<T>(d_a);
                    if (d_a_log) d_a_log(h) += d_decay * inputs.decay(b, t, h);
                    if (d_dt_bias) d_dt_bias(h) += d_a;
                  });
}

/// The backward of normalize_keys() after SiLU, in place: `mixed` holds its results, `convolved`
/// the inputs of SiLU. Values are left as they are.
template <class A>
void normalize_keys_backward(const GatedDeltaOptions& o, const TensorView3<const A>& convolved,
                             const TensorView3<const A>& mixed, const TensorView3<A>& d_mixed,
                             const Execution& execution) {
  const index_t seq = mixed.extent(1);
  for_rows(execution.threads(), mixed.extent(0) * seq, 2 * o.keys_width(), [&](index_t row) {
    const Shape<3> at{row / seq, row % seq, 0};
    const A *c = convolved.at_index(at), *y = mixed.at_index(at);
    A* d = d_mixed.at_index(at);
    for (index_t h = 0; h < 2 * o.num_key_heads; ++h) {
      A squares = 0, along = 0;
      for (index_t i = 0; i < o.key_dim; ++i) {
        const A x = c[i] * sigmoid(c[i]);
        squares += x * x;
        along += y[i] * d[i];
      }
      const A factor = 1 / std::sqrt(squares + kDeltaKeyEpsilon<A>);
      for (index_t i = 0; i < o.key_dim; ++i) d[i] = factor * (d[i] - along * y[i]);
      c += o.key_dim, y += o.key_dim, d += o.key_dim;
    }
  });
}

/// The transpose of gather_channels(): copies x (batch, seq, channels) to the queries, keys and
/// values in d_projected.
template <class T>
void scatter_channels(const GatedDeltaOptions& o, const TensorView3<const Accumulator<T>>& x,
                      const TensorView3<T>& d_projected, const Execution& execution) {
  const index_t seq = x.extent(1);
  for_rows(execution.threads(), x.extent(0) * seq, o.channels(), [&](index_t row) {
    const Accumulator<T>* from = x.at_index({row / seq, row % seq, 0});
    T* to = d_projected.at_index({row / seq, row % seq, 0});
    each_channel_run(o, [&](index_t feature, index_t channel, index_t n) {
      for (index_t i = 0; i < n; ++i) to[feature + i] = static_cast<T>(from[channel + i]);
    });
  });
}

}  // namespace detail

ATTN_NAMESPACE_END
