// HessianTape: functions with their tangents, and the tangents of their gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "attn/attention/jvp/sdpa_backward_jvp.hpp"
#include "attn/kernels/rows/row_backward_jvp.hpp"
#include "attn/layers/hessian/linear_backward_jvp.hpp"
#include "attn/layers/jvp/linear_jvp.hpp"
#include "attn/layers/sublayer.hpp"

ATTN_NAMESPACE_BEGIN

/// A tensor (batch, seq, dim) on a HessianTape: x is the tensor with its tangent, d its gradient
/// with the tangent of the gradient.
template <class T>
struct Traced {
  DualView<T> x, d;
  bool constant = false;  ///< the tangent is 0, and linear() adds nothing to the gradient

  Traced slice(int axis, index_t begin, index_t end) const {
    return {x.slice(axis, begin, end), d.slice(axis, begin, end), constant};
  }
};

/// Multiplies a Hessian with a vector, by forward mode over backward. Each function computes its
/// result and the tangent of the result at once, and records a step that computes its gradients and
/// their tangents; run_backward() runs these steps from the last to the first. Tensors stay in
/// memory as long as the tape; parameters, and views in options, must outlive run_backward().
///
/// A function of a layer takes three modules with the same options: the layer, `vector` with the
/// tangents of its parameters, and `result`, to which the tangents of the parameters' gradients are
/// added. An empty tangent counts as 0, an empty result is skipped. Functions throw ShapeError for
/// shapes that do not fit.
template <class T>
class HessianTape {
  static_assert(std::same_as<T, Accumulator<T>>, "HessianTape: elements must be float or double");

 public:
  explicit HessianTape(const Execution& execution = {}) : execution_(execution) {}
  HessianTape(const HessianTape&) = delete;
  HessianTape& operator=(const HessianTape&) = delete;

  const Execution& execution() const { return execution_; }

  /// A tensor whose gradient is 0; value and tangent are not initialized.
  Traced<T> make(const Shape<3>& shape) {
    const index_t n = size_of(shape);
    T* data = memory_.emplace_back(Tensor1<T>::uninitialized({4 * n})).data();
    std::fill_n(data + 2 * n, 2 * n, T{0});
    return {{{data, shape}, {data + n, shape}}, {{data + 2 * n, shape}, {data + 3 * n, shape}}};
  }

  /// A copy of x; an empty tangent is 0.
  Traced<T> input(Input3<T> x, Input3<T> tangent = {}) {
    const Traced<T> out = make(x.shape());
    if (tangent) check_shape("HessianTape", "tangent", x.shape(), tangent.shape());
    copy(x, out.x.value);
    tangent ? copy(tangent, out.x.tangent) : detail::fill(out.x.tangent, T{0});
    return out;
  }

  /// A copy of x that is constant and whose gradient is not needed: linear() then computes three
  /// products instead of eight.
  Traced<T> constant(Input3<T> x) {
    Traced<T> out = input(x);
    out.constant = true;
    return out;
  }

  /// Records a function of your own: run_backward() calls `step`, which reads the gradients of the
  /// function's results and their tangents, and adds to those of its inputs.
  void record(std::function<void()> step) { steps_.push_back(std::move(step)); }

  /// Computes all gradients from those of the results, which the caller has set. To be called once.
  void run_backward() {
    for (; !steps_.empty(); steps_.pop_back()) steps_.back()();
  }

  /// x weight^T + bias: weight (out, in), bias (out) or empty, and the views that take the tangents
  /// of their gradients.
  Traced<T> linear(const Traced<T>& x, const std::type_identity_t<DualView<const T, 2>>& weight,
                   const std::type_identity_t<DualView<const T, 1>>& bias,
                   const std::type_identity_t<TensorView2<T>>& d_weight,
                   const std::type_identity_t<TensorView1<T>>& d_bias) {
    Shape<3> shape = x.x.value.shape();
    shape[2] = weight.value.extent(0);
    const Traced<T> out = make(shape);
    attn::linear(x.x.value, weight.value, bias.value, out.x.value, Activation::none, {},
                 execution_);
    if (x.constant && weight.tangent) {
      attn::linear(x.x.value, weight.tangent, bias.tangent, out.x.tangent, Activation::none, {},
                   execution_);
    } else {
      linear_jvp(x.x.value, x.x.tangent, weight.value, weight.tangent, bias.tangent, out.x.tangent,
                 {}, execution_);
    }
    record([=, this] {
      using Dual = DualView<T, 3>;
      linear_backward_jvp(out.d, x.constant ? Dual{x.x.value, {}} : x.x, weight,
                          x.constant ? Dual() : x.d, {{}, d_weight}, {{}, d_bias}, execution_);
    });
    return out;
  }

  Traced<T> linear(const Linear<T>& layer, const Linear<T>& vector, Linear<T>& result,
                   const Traced<T>& x) {
    if (!layer.weight && layer.in_features() > 0) detail::throw_compressed("Linear");
    return linear(x, {layer.weight, vector.weight}, {layer.bias, vector.bias}, result.weight.view(),
                  result.bias.view());
  }

  Traced<T> norm(const Norm<T>& layer, const Norm<T>& vector, Norm<T>& result, const Traced<T>& x) {
    const Traced<T> out = make(x.x.value.shape());
    norm(layer, vector, result, x, out);
    return out;
  }
  /// Writes to `out`, for example a slice; not to x.
  void norm(const Norm<T>& layer, const Norm<T>& vector, Norm<T>& result, const Traced<T>& x,
            const Traced<T>& out) {
    detail::norm_jvp(layer, vector, x.x, out.x, execution_);
    const DualView<const T, 1> weight{layer.weight, vector.weight};
    const DualView<T, 1> d_weight{{}, result.weight.view()}, d_bias{{}, result.bias.view()};
    record([=, this, eps = layer.eps, kind = layer.kind] {
      kind == NormKind::rms
          ? rms_norm_backward_jvp(out.d, x.x, weight, eps, x.d, d_weight, execution_)
          : layer_norm_backward_jvp(out.d, x.x, weight, eps, x.d, d_weight, d_bias, execution_);
    });
  }

  Traced<T> activate(Activation activation, const Traced<T>& x) {
    const Traced<T> out = make(x.x.value.shape());
    attn::activate(activation, x.x.value, out.x.value, execution_);
    activate_jvp(activation, x.x.value, x.x.tangent, out.x.tangent, execution_);
    record([=, this] { activate_backward_jvp(activation, out.d, x.x, x.d, execution_); });
    return out;
  }

  /// f(a) b: see glu().
  Traced<T> glu(const GatedUnit& unit, const Traced<T>& a, const Traced<T>& b) {
    const Traced<T> out = make(a.x.value.shape());
    attn::glu(unit, a.x.value, b.x.value, out.x.value, execution_);
    glu_jvp(unit, a.x.value, a.x.tangent, b.x.value, b.x.tangent, out.x.tangent, execution_);
    record([=, this] { glu_backward_jvp(unit, out.d, a.x, b.x, a.d, b.d, execution_); });
    return out;
  }

  /// x + scale y.
  Traced<T> add(const Traced<T>& x, const Traced<T>& y, double scale = 1) {
    const Shape<3> shape = x.x.value.shape();
    check_shape("HessianTape", "y", shape, y.x.value.shape());
    const Traced<T> out = make(shape);
    const auto add_to = [=, this](const TensorView3<T>& a, double by, const TensorView3<T>& b,
                                  const TensorView3<T>& sum) {
      detail::add_scaled<T>(a, by, b, sum, execution_);
    };
    add_to(x.x.value, scale, y.x.value, out.x.value);
    add_to(x.x.tangent, scale, y.x.tangent, out.x.tangent);
    record([=] {
      add_to(x.d.value, 1, out.d.value, x.d.value);
      add_to(x.d.tangent, 1, out.d.tangent, x.d.tangent);
      add_to(y.d.value, scale, out.d.value, y.d.value);
      add_to(y.d.tangent, scale, out.d.tangent, y.d.tangent);
    });
    return out;
  }

  /// scaled_dot_product_attention() of q (batch, q_len, num_heads * head_dim) and of k and v with
  /// num_kv_heads heads; takes the options of scaled_dot_product_attention_backward_jvp().
  template <class... Functors>
  Traced<T> attention(const Traced<T>& q, const Traced<T>& k, const Traced<T>& v, index_t num_heads,
                      index_t num_kv_heads, const AttentionOptions<T>& options,
                      const Functors&... functors) {
    return attention_with_sinks(q, k, v, num_heads, num_kv_heads, options, {}, {}, functors...);
  }

  /// attention() with learned options.sinks (num_heads): `vector` are their tangents, and d_sinks
  /// takes the tangents of their gradients.
  template <class... Functors>
  Traced<T> attention_with_sinks(const Traced<T>& q, const Traced<T>& k, const Traced<T>& v,
                                 index_t num_heads, index_t num_kv_heads,
                                 const AttentionOptions<T>& options, TensorView1<const T> vector,
                                 TensorView1<T> d_sinks, const Functors&... functors) {
    const auto heads = [](const DualView<T>& x, index_t n) {
      return DualView<T, 4>{split_heads(x.value, n), split_heads(x.tangent, n)};
    };
    const auto qx = heads(q.x, num_heads), kx = heads(k.x, num_kv_heads),
               vx = heads(v.x, num_kv_heads);
    const Shape<3> shape = q.x.value.shape();
    const Traced<T> out = make({shape[0], shape[1], num_heads * vx.value.extent(3)});
    const DualView<T, 4> y = heads(out.x, num_heads);
    const DualView<T> lse = make({shape[0], num_heads, shape[1]}).x;
    detail::refuse_without_second_derivative<T, Functors...>("HessianTape", options);
    if (d_sinks) check_shape("HessianTape", "d_sinks", Shape<1>{num_heads}, d_sinks.shape());
    AttentionOptions<T> with_lse = options;
    with_lse.lse = lse.value;
    scaled_dot_product_attention_jvp(
        qx.value, kx.value, vx.value,
        {.q = qx.tangent, .k = kx.tangent, .v = vx.tangent, .sinks = vector, .d_lse = lse.tangent},
        y.value, y.tangent, with_lse, functors...);
    record([=, this] {
      if (d_sinks) {
        add_sink_gradients(options.sinks, vector, heads(out.d, num_heads), y, lse, d_sinks);
      }
      scaled_dot_product_attention_backward_jvp(heads(out.d, num_heads), qx, kx, vx, y, lse,
                                                heads(q.d, num_heads), heads(k.d, num_kv_heads),
                                                heads(v.d, num_kv_heads), options, functors...);
    });
    return out;
  }

 private:
  /// The gradient of a sink is the sum over queries of -p D, with p = e^(sink - lse) and D the
  /// product of d_out and out, and its tangent the sum of -p ((t(sink) - t(lse)) D + t(D)).
  void add_sink_gradients(const TensorView1<const T>& sinks, const TensorView1<const T>& vector,
                          const DualView<T, 4>& d_out, const DualView<T, 4>& out,
                          const DualView<T>& lse, const TensorView1<T>& d_sinks) const {
    const index_t batch = out.value.extent(0), q_len = out.value.extent(2),
                  dv = out.value.extent(3);
    detail::for_rows(execution_.threads(), out.value.extent(1), batch * q_len * dv, [&](index_t h) {
      const T d_sink = vector ? vector(h) : T{0};
      T sum = 0;
      for (index_t b = 0; b < batch; ++b) {
        for (index_t i = 0; i < q_len; ++i) {
          if (lse.value(b, h, i) == detail::kMinusInf<T>) continue;
          T delta = 0, d_delta = 0;
          for (index_t x = 0; x < dv; ++x) {
            delta += d_out.value(b, h, i, x) * out.value(b, h, i, x);
            d_delta += d_out.tangent(b, h, i, x) * out.value(b, h, i, x) +
                       d_out.value(b, h, i, x) * out.tangent(b, h, i, x);
          }
          sum += std::exp(sinks(h) - lse.value(b, h, i)) *
                 ((d_sink - lse.tangent(b, h, i)) * delta + d_delta);
        }
      }
      d_sinks(h) -= sum;
    });
  }

  Execution execution_;
  std::vector<Tensor1<T>> memory_;
  std::vector<std::function<void()>> steps_;
};

ATTN_NAMESPACE_END
