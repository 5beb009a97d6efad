// GatedDelta: linear attention by the gated delta rule, as in Qwen3-Next.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/linear_attention.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/recurrent/gated_delta_steps.hpp"
#include "attn/layers/recurrent/recurrent_layer.hpp"

ATTN_NAMESPACE_BEGIN

/// Maps x (batch, seq, d_model) to the same shape. in_proj_qkvz gives the queries and keys of each
/// key head and the values and gates z of its value heads; in_proj_ba gives numbers b and a of each
/// value head. Queries, keys and values pass through a causal convolution and SiLU, queries and
/// keys are divided by their length, and linear_attention() computes with beta = sigmoid(b) and
/// decay = -e^A_log softplus(a + dt_bias); each head is then RMS-normalised and multiplied by
/// SiLU(z) before out_proj. A cache holds the rows of the convolution and a matrix per value head:
/// its size does not depend on the number of tokens. Source: Yang, Kautz, Hatamizadeh, "Gated Delta
/// Networks" (2024), section 3.4.
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
    const index_t batch = from.extent(0), seq = from.extent(1);
    Workspace& workspace = execution.scratch();
    const Shape<3> joint{batch, seq, in_proj_qkvz.out_features()},
        gates{batch, seq, in_proj_ba.out_features()}, values{batch, seq, options_.values_width()};
    Scratch<T> joint_memory(workspace, size_of(joint)), gates_memory(workspace, size_of(gates)),
        normed_memory(workspace, size_of(values));
    Scratch<Acc> results_memory(workspace, size_of(values));
    const TensorView3<T> projected(joint_memory.data(), joint), ba(gates_memory.data(), gates),
        normed(normed_memory.data(), values);
    in_proj_qkvz.forward(from, projected, Activation::none, {}, execution);
    in_proj_ba.forward(from, ba, Activation::none, {}, execution);
    detail::CallGuard guard(call);
    const TensorView3<Acc> results(results_memory.data(), values);
    const detail::RowStates<T> states(call, seq);
    states.for_runs(seq, [&](index_t begin, index_t end, const detail::RowStates<T>& of_run) {
      const auto tokens = [&](const auto& all) { return all.slice(1, begin, end); };
      run(tokens(projected), tokens(ba), of_run, tokens(results), tokens(normed), execution);
    });
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

  /// From projected and ba, the results of in_proj_qkvz and in_proj_ba, computes the results of
  /// linear attention (batch, seq, values) and `normed`, the input of out_proj.
  void run(const TensorView3<const T>& projected, const TensorView3<const T>& ba,
           const detail::RowStates<T>& states, const TensorView3<Accumulator<T>>& results,
           const TensorView3<T>& normed, const Execution& execution) const {
    const index_t batch = projected.extent(0), seq = projected.extent(1);
    const Shape<3> padded_shape = convolution.padded_shape(batch, seq);
    Scratch<Acc> padded(execution.scratch(), size_of(padded_shape));
    const detail::DeltaInputs<Acc> inputs(options_, batch, seq, execution.scratch());
    prepare(projected, ba, states, {padded.data(), padded_shape}, inputs, inputs.mixed, execution);
    if (!states.has_row_caches()) {
      attend(inputs.mixed, inputs.beta, inputs.decay, results, states.before(), states.after(),
             execution);
    }
    for (index_t b = 0; states.has_row_caches() && b < batch; ++b) {
      const auto row = [b](const TensorView3<Acc>& all) { return all.slice(0, b, b + 1); };
      attend(row(inputs.mixed), row(inputs.beta), row(inputs.decay), row(results),
             states.before(b).unsqueeze(0), states.after(b).unsqueeze(0), execution);
    }
    detail::gated_norm<T>(options_, results, projected, norm.weight.view(), normed, execution);
  }

  /// Computes the inputs of linear attention. `padded` receives the inputs of the convolution, and
  /// `convolved` (batch, seq, channels), which may be inputs.mixed, its result.
  void prepare(const TensorView3<const T>& projected, const TensorView3<const T>& ba,
               const detail::RowStates<T>& states, const TensorView3<Accumulator<T>>& padded,
               const detail::DeltaInputs<Accumulator<T>>& inputs,
               const TensorView3<Accumulator<T>>& convolved, const Execution& execution) const {
    const GatedDeltaOptions& o = options_;
    const TensorView3<Acc>& mixed = inputs.mixed;
    convolution.read_state(states, padded);
    detail::gather_channels<T>(o, projected, padded.slice(1, o.width - 1, padded.extent(1)),
                               execution);
    convolution.write_state(padded, states);
    convolution.forward(padded, convolved, execution);
    activate(Activation::silu, convolved, mixed, execution);
    detail::normalize_keys(o, mixed, execution);
    detail::delta_rates<T>(o, ba, a_log.view(), dt_bias.view(), inputs.beta, inputs.decay);
  }

 private:
  using Acc = Accumulator<T>;

  index_t matrix_size() const { return options_.key_dim * options_.value_dim; }

  /// linear_attention() of rows that share a cache, or have none and no states: one call for the
  /// n-th value heads of all key heads.
  void attend(const TensorView3<Acc>& mixed, const TensorView3<Acc>& beta,
              const TensorView3<Acc>& decay, const TensorView3<Acc>& results,
              const TensorView2<const Acc>& before, const TensorView2<Acc>& after,
              const Execution& execution) const {
    const GatedDeltaOptions& o = options_;
    const index_t batch = mixed.extent(0), heads = o.num_key_heads,
                  members = o.num_value_heads / heads;
    for (index_t n = 0; n < members; ++n) {
      LinearAttentionOptions<Acc> options{
          .decay = detail::value_heads(o, decay, 0, n, 1),
          .beta = detail::value_heads(o, beta, 0, n, 1).select(3, 0)};
      if (before) {
        const auto matrices = [&]<class E>(const TensorView2<E>& state) {
          return TensorView4<E>(state.data() + convolution.state_size() + n * matrix_size(),
                                {batch, heads, o.key_dim, o.value_dim},
                                {state.stride(0), members * matrix_size(), o.value_dim, 1});
        };
        options.initial_state = matrices(before);
        options.final_state = matrices(after);
      }
      linear_attention(detail::key_heads(o, mixed, 0), detail::key_heads(o, mixed, o.keys_width()),
                       detail::value_heads(o, mixed, 2 * o.keys_width(), n, o.value_dim),
                       detail::value_heads(o, results, 0, n, o.value_dim), options, execution);
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
