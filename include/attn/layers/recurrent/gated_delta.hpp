// GatedDelta: linear attention by the gated delta rule, as in Qwen3-Next.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/linear_attention.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/recurrent/gated_delta_steps.hpp"
#include "attn/layers/recurrent/recurrent_layer.hpp"

ATTN_NAMESPACE_BEGIN

/// x (batch, seq, d_model) to the same shape. in_proj_qkvz gives the queries and keys of each key
/// head and the values and gates z of its value heads; in_proj_ba gives numbers b and a of each
/// value head. Queries, keys and values pass through a causal convolution and SiLU, queries and
/// keys are divided by their length, and linear_attention() computes with beta = sigmoid(b) and
/// decay = -e^A_log softplus(a + dt_bias); each head is then RMS-normalised and multiplied by
/// SiLU(z) before out_proj. A cache holds the rows of the convolution and a matrix per value head:
/// its size does not depend on the number of tokens. There is no backward. Source: Yang, Kautz,
/// Hatamizadeh, "Gated Delta Networks" (2024), section 3.4.
template <class T>
class GatedDelta : public detail::RecurrentLayer<GatedDelta<T>, T> {
 public:
  GatedDelta() = default;
  /// Parameters are zero until loaded. Throws ValueError for options out of range.
  explicit GatedDelta(const GatedDeltaOptions& options) : options_(options) {
    detail::check_gated_delta(options);
    const GatedDeltaOptions& o = options_;
    in_proj_qkvz = Linear<T>(o.d_model, 2 * (o.keys_width() + o.values_width()), false);
    in_proj_ba = Linear<T>(o.d_model, 2 * o.num_value_heads, false);
    convolution = {o.channels(), o.width, false};
    dt_bias = Tensor1<T>({o.num_value_heads});
    a_log = Tensor1<T>({o.num_value_heads});
    norm = Norm<T>(NormKind::rms, o.value_dim, o.norm_eps);
    out_proj = Linear<T>(o.values_width(), o.d_model, false);
  }

  const GatedDeltaOptions& options() const { return options_; }
  /// Whether it has parameters.
  explicit operator bool() const { return options_.d_model > 0; }
  /// Numbers of the state of a row: the rows of the convolution, and a matrix per value head.
  index_t state_size() const {
    return convolution.state_size() + options_.num_value_heads * matrix_size();
  }

  /// Writes the result + call.residual to `out`, which may be the residual, not x. With a cache, x
  /// holds the tokens after those in the cache; call.row_caches give the bits of one call per row.
  /// A call without tokens does nothing. Throws ShapeError or ValueError, and then leaves the
  /// caches unchanged.
  template <TensorLike X, TensorLike Out>
  void forward(const X& x, Out&& out, const MultiHeadAttentionCall<T>& call = {},
               const Execution& execution = {}) const {
    ATTN_ASSERT_INPUT(X, T, 3, "GatedDelta: x", "(batch, seq, d_model)", "the layer");
    ATTN_ASSERT_OUTPUT(Out, T, 3, "GatedDelta: out", "(batch, seq, d_model)", "the layer");
    const auto from = detail::view_as<const T, 3>(x);
    const auto to = detail::view_as<T, 3>(out);
    detail::check_recurrent_call("GatedDelta", options_.d_model, state_size(), from.shape(),
                                 to.shape(), call);
    if (from.size() == 0) return;
    const GatedDeltaOptions& o = options_;
    const index_t batch = from.extent(0), seq = from.extent(1), rows = batch * seq;
    Workspace& workspace = execution.scratch();
    const Shape<3> joint{batch, seq, in_proj_qkvz.out_features()},
        gates{batch, seq, 2 * o.num_value_heads}, values{batch, seq, o.values_width()},
        padded_shape = convolution.padded_shape(batch, seq);
    Scratch<T> joint_memory(workspace, size_of(joint)), gates_memory(workspace, size_of(gates)),
        normed_memory(workspace, size_of(values));
    Scratch<Acc> padded_memory(workspace, size_of(padded_shape)),
        mixed_memory(workspace, rows * o.channels()),
        rates_memory(workspace, 2 * rows * o.num_value_heads),
        results_memory(workspace, size_of(values));
    const TensorView3<T> projected(joint_memory.data(), joint), ba(gates_memory.data(), gates),
        normed(normed_memory.data(), values);
    const TensorView3<Acc> padded(padded_memory.data(), padded_shape),
        mixed(mixed_memory.data(), {batch, seq, o.channels()}),
        results(results_memory.data(), values),
        beta(rates_memory.data(), {batch, seq, o.num_value_heads}),
        decay(rates_memory.data() + beta.size(), beta.shape());
    in_proj_qkvz.forward(from, projected, Activation::none, {}, execution);
    in_proj_ba.forward(from, ba, Activation::none, {}, execution);
    detail::CallGuard guard(call);
    const detail::RowStates<T> states(call, seq);
    convolution.read_state(states, padded);
    detail::gather_channels<T>(o, projected, padded.slice(1, o.width - 1, o.width - 1 + seq),
                               execution);
    convolution.write_state(padded, states);
    convolution.forward(padded, mixed, execution);
    activate(Activation::silu, mixed, mixed, execution);
    detail::normalize_keys(o, mixed, execution);
    detail::delta_rates<T>(o, ba, a_log.view(), dt_bias.view(), beta, decay);
    if (call.row_caches.empty()) {
      attend(mixed, beta, decay, results, call.cache, execution);
    }
    for (index_t b = 0; b < std::ssize(call.row_caches); ++b) {
      const auto row = [b](const TensorView3<Acc>& all) { return all.slice(0, b, b + 1); };
      attend(row(mixed), row(beta), row(decay), row(results),
             call.row_caches[static_cast<std::size_t>(b)], execution);
    }
    detail::gated_norm<T>(o, results, projected, norm.weight.view(), normed, execution);
    out_proj.forward(normed, to, Activation::none, call.residual, execution);
    guard.commit();
  }

  /// See Linear::pack().
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    for (Linear<T>* layer : {&in_proj_qkvz, &in_proj_ba, &out_proj}) layer->pack(precision);
  }

  /// in_proj_qkvz., in_proj_ba., conv1d.weight, dt_bias, A_log, norm.weight, out_proj.
  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  /// For each key head rows of its query, key, values and gates.
  Linear<T> in_proj_qkvz;
  Linear<T> in_proj_ba;  ///< for each key head rows b, then a, of its value heads
  detail::CausalConvolution<T> convolution;  ///< channels of all queries, all keys, all values
  Tensor1<T> dt_bias, a_log;                 ///< (num_value_heads)
  Norm<T> norm;
  Linear<T> out_proj;

 private:
  using Acc = Accumulator<T>;

  index_t matrix_size() const { return options_.key_dim * options_.value_dim; }

  /// linear_attention() of rows that share a cache, or have none: one call for the n-th value heads
  /// of all key heads.
  void attend(const TensorView3<Acc>& mixed, const TensorView3<Acc>& beta,
              const TensorView3<Acc>& decay, const TensorView3<Acc>& results, KvCache<T>* cache,
              const Execution& execution) const {
    const GatedDeltaOptions& o = options_;
    const index_t batch = mixed.extent(0), seq = mixed.extent(1), heads = o.num_key_heads,
                  members = o.num_value_heads / heads;
    const auto keys = [&](index_t first) {
      return TensorView4<const Acc>(mixed.data() + first, {batch, heads, seq, o.key_dim},
                                    {mixed.stride(0), o.key_dim, mixed.stride(1), 1});
    };
    // (batch, heads, seq, width) of the n-th member of each head.
    const auto of_member = [&](const TensorView3<Acc>& x, index_t first, index_t n, index_t width) {
      return TensorView4<Acc>(x.data() + first + n * width, {batch, heads, seq, width},
                              {x.stride(0), members * width, x.stride(1), 1});
    };
    for (index_t n = 0; n < members; ++n) {
      LinearAttentionOptions<Acc> options{.decay = of_member(decay, 0, n, 1),
                                          .beta = of_member(beta, 0, n, 1).select(3, 0)};
      if (cache != nullptr) {
        const auto matrices = [&]<class E>(const TensorView2<E>& state) {
          return TensorView4<E>(state.data() + convolution.state_size() + n * matrix_size(),
                                {batch, heads, o.key_dim, o.value_dim},
                                {state.stride(0), members * matrix_size(), o.value_dim, 1});
        };
        options.initial_state = matrices(std::as_const(*cache).state_before());
        options.final_state = matrices(cache->state());
      }
      linear_attention(keys(0), keys(o.keys_width()),
                       of_member(mixed, 2 * o.keys_width(), n, o.value_dim),
                       of_member(results, 0, n, o.value_dim), options, execution);
    }
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    if (!self) return;
    self.in_proj_qkvz.visit_parameters(f.under("in_proj_qkvz."));
    self.in_proj_ba.visit_parameters(f.under("in_proj_ba."));
    detail::CausalConvolution<T>::visit(self.convolution, f.under("conv1d."));
    f.visit("dt_bias", self.dt_bias);
    f.visit("A_log", self.a_log);
    self.norm.visit_parameters(f.under("norm."));
    self.out_proj.visit_parameters(f.under("out_proj."));
  }

  GatedDeltaOptions options_;
};

ATTN_NAMESPACE_END
