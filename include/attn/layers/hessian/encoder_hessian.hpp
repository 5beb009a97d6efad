// FeedForward, EncoderLayer and Encoder on a HessianTape; hessian_vector_product of Encoder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/kernels/losses/loss_backward_jvp.hpp"
#include "attn/layers/encoder.hpp"
#include "attn/layers/hessian/multi_head_attention_hessian.hpp"

ATTN_NAMESPACE_BEGIN

/// The layer on a tape: x (batch, seq, d_model). Throws ShapeError.
template <class T>
Traced<T> trace(HessianTape<T>& tape, const FeedForward<T>& layer,
                const std::type_identity_t<FeedForward<T>>& vector,
                std::type_identity_t<FeedForward<T>>& result, const Traced<T>& x) {
  const Traced<T> before = tape.linear(layer.linear1, vector.linear1, result.linear1, x);
  const index_t width = before.x.value.extent(2), half = width / 2;
  const Traced<T> hidden = layer.gated ? tape.glu(layer.gated_unit(), before.slice(2, 0, half),
                                                  before.slice(2, half, width))
                                       : tape.activate(layer.activation, before);
  return tape.linear(layer.linear2, vector.linear2, result.linear2, hidden);
}

namespace detail {

/// check_tangents() of both modules; throws ValueError if the result is one of the others.
template <class Module>
void check_products(std::string_view function, const Module& module, const Module& vector,
                    const Module& result) {
  check_tangents(function, "vector", module, vector);
  check_tangents(function, "result", module, result);
  if (&result == &module || &result == &vector) {
    throw ValueError(
        message(function, "result", "be another module than the model and the vector", "the same"));
  }
}

/// Norms of an attention or feed-forward, for `result`.
template <class T>
struct TracedNorms {
  SublayerNorms<T> norms, vector;
  Norm<T>*norm, *behind;  ///< of the result
};

/// forward_sublayer() on a tape: run(from) returns f(from).
template <class T, class F>
Traced<T> trace_sublayer(HessianTape<T>& tape, const TracedNorms<T>& of, const Traced<T>& x,
                         const Traced<T>& residual, const F& run) {
  const SublayerNorms<T>& norms = of.norms;
  const auto norm = [&](const Traced<T>& from) {
    return tape.norm(*norms.norm, *of.vector.norm, *of.norm, from);
  };
  Traced<T> branch = run(norms.is_pre_norm() ? norm(x) : x);
  if (norms.has_behind()) {
    branch = tape.norm(*norms.behind, *of.vector.behind, *of.behind, branch);
  }
  const Traced<T> sum = tape.add(residual, branch, norms.scale);
  return norms.is_post_norm() ? norm(sum) : sum;
}

}  // namespace detail

/// The layer on a tape: x (batch, seq, d_model). Dropout is not applied. Throws ShapeError, and
/// ValueError for mixers other than attention, experts, and what MultiHeadAttention refuses.
template <class T, class... Functors>
Traced<T> trace(HessianTape<T>& tape, const EncoderLayer<T>& layer,
                const std::type_identity_t<EncoderLayer<T>>& vector,
                std::type_identity_t<EncoderLayer<T>>& result, const Traced<T>& x,
                const std::type_identity_t<AttentionOptions<T>>& options = {},
                TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  const auto refuse = [](std::string_view name, bool given) {
    if (!given) return;
    throw ValueError(message("EncoderLayer", name, "be none: it has no second derivative", "some"));
  };
  refuse("latent attention", static_cast<bool>(layer.latent_attn));
  refuse("convolution", static_cast<bool>(layer.convolution));
  refuse("gated_delta", static_cast<bool>(layer.gated_delta));
  refuse("experts", static_cast<bool>(layer.experts));
  const detail::TracedNorms<T> of_attention{.norms = layer.attention_norms(),
                                            .vector = vector.attention_norms(),
                                            .norm = &result.norm1,
                                            .behind = &result.norm1_behind};
  const detail::TracedNorms<T> of_feed_forward{
      .norms = layer.feed_forward_norms(),
      .vector = layer.feed_forward_norms(vector),
      .norm = layer.norm2.weight ? &result.norm2 : &result.norm1,
      .behind = &result.norm2_behind};
  const Traced<T> attended =
      detail::trace_sublayer(tape, of_attention, x, x, [&](const Traced<T>& from) {
        return trace(tape, layer.self_attn, vector.self_attn, result.self_attn, from, from, from,
                     options, position_ids, functors...);
      });
  return detail::trace_sublayer(
      tape, of_feed_forward, layer.parallel ? x : attended, attended, [&](const Traced<T>& from) {
        return trace(tape, layer.feed_forward, vector.feed_forward, result.feed_forward, from);
      });
}

/// The stack on a tape: x (batch, seq, d_model). Throws ShapeError, and ValueError for a learned
/// relative bias, another number of layers, and what its layers refuse.
template <class T, class... Functors>
Traced<T> trace(HessianTape<T>& tape, const Encoder<T>& stack,
                const std::type_identity_t<Encoder<T>>& vector,
                std::type_identity_t<Encoder<T>>& result, Traced<T> x,
                const std::type_identity_t<AttentionOptions<T>>& options = {},
                TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  if (stack.relative_bias) {
    throw ValueError(message("Encoder", "relative_buckets",
                             "be 0: a learned bias has no second derivative", "more"));
  }
  const auto check_layers = [&](std::string_view name, const Encoder<T>& of) {
    if (of.layers.size() == stack.layers.size()) return;
    throw ValueError(message("Encoder", name,
                             "have " + std::to_string(stack.layers.size()) + " layers",
                             std::to_string(of.layers.size())));
  };
  check_layers("vector", vector), check_layers("result", result);
  detail::check_products("Encoder", stack, vector, result);
  for (std::size_t n = 0; n < stack.num_layers(); ++n) {
    const std::size_t place = stack.place_of(n);
    x = trace(tape, stack.layers[place], vector.layers[place], result.layers[place], x, options,
              position_ids, functors...);
  }
  return stack.norm.weight ? tape.norm(stack.norm, vector.norm, result.norm, x) : x;
}

/// Adds H vector to `result`, where H is the Hessian of the loss of Encoder at x (batch, seq,
/// d_model) with respect to the parameters. vector and result are modules with the same options;
/// vector may be the stack, result neither. Returns the loss and its tangent along the vector,
/// which loss() returns.
///
/// loss(out, d_out) takes the output and its tangent, a DualView<const T>; it writes the gradient
/// of the loss and the tangent of this gradient to d_out, a DualView<T>, for example by
/// mse_loss_backward_jvp(). Dropout is not applied; tensors in the options are constant. The result
/// is exact up to rounding: backward is differentiated in forward mode. Throws what trace() throws,
/// and then leaves the result unchanged. Source: Pearlmutter, "Fast Exact Multiplication by the
/// Hessian" (1994).
template <class T, class Loss, class... Functors>
LossTangent hessian_vector_product(const Encoder<T>& stack, Input3<T> x, const Loss& loss,
                                   const std::type_identity_t<Encoder<T>>& vector,
                                   std::type_identity_t<Encoder<T>>& result,
                                   const AttentionOptions<Accumulator<T>>& options = {},
                                   TensorView2<const index_t> position_ids = {},
                                   const Functors&... functors) {
  HessianTape<T> tape(options.execution);
  const Traced<T> out =
      trace(tape, stack, vector, result, tape.constant(x), options, position_ids, functors...);
  const LossTangent value = loss(DualView<const T>(out.x), out.d);
  tape.run_backward();
  return value;
}

ATTN_NAMESPACE_END
