// linear_attention: linear, gated and delta rules with a state per head.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <optional>

#include "attn/core/tensor.hpp"
#include "attn/kernels/backend.hpp"
#include "attn/simd/vec/vec.hpp"

ATTN_NAMESPACE_BEGIN

/// decay and beta select the rule: with neither, linear attention; with decay, the gated rule
/// (RetNet, GLA, Mamba-2); with beta, the delta rule (DeltaNet); with both, the gated delta rule.
/// Extents of 1 in either broadcast.
template <class T>
struct LinearAttentionOptions {
  std::optional<double> scale = {};  ///< any finite number; 1 / sqrt(key_dim) if not given
  TensorView4<const T> decay = {};   ///< (batch, num_kv_heads, seq, key_dim): logarithms, at most 0
  TensorView3<const T> beta = {};    ///< (batch, num_kv_heads, seq): how much of v is written
  TensorView4<const T> initial_state =
      {};  ///< (batch, num_kv_heads, key_dim, value_dim); zeros if not given
  TensorView4<T> final_state = {};  ///< out: of the same shape; may be initial_state

  ATTN_REFUSE_OTHER_ELEMENTS(LinearAttentionOptions)
};

namespace detail {

/// After the checks: innermost strides are 1, and decay and beta have the extents of k.
template <class T>
struct LinearAttentionProblem {
  TensorView4<const T> q, k, v;
  TensorView4<T> out;
  TensorView4<const T> decay = {};
  TensorView3<const T> beta = {};
  TensorView4<const T> initial_state;
  TensorView4<T> final_state;
  T scale;
};

template <class In, class Acc>
struct Backend<family::LinearAttention, In, Acc> {
  Kernel<LinearAttentionProblem<In>> attend;

  using Problem = LinearAttentionProblem<In>;
  static constexpr std::uint64_t kLayout =
      layout_hash({sizeof(Backend), sizeof(Problem), offsetof(Problem, q), offsetof(Problem, k),
                   offsetof(Problem, v), offsetof(Problem, out), offsetof(Problem, decay),
                   offsetof(Problem, beta), offsetof(Problem, initial_state),
                   offsetof(Problem, final_state), offsetof(Problem, scale)});
};

/// The view with axes of extent 1 broadcast to `shape`.
template <class T, int Rank>
TensorView<const T, Rank> broadcast_gate(std::string_view function, std::string_view argument,
                                         std::string_view axes, TensorView<const T, Rank> x,
                                         const Shape<Rank>& shape) {
  Shape<Rank> strides = x.strides();
  for (std::size_t a = 0; a < shape.size(); ++a) {
    if (x.shape()[a] == shape[a]) continue;
    if (x.shape()[a] != 1) {
      throw_shape(function, argument,
                  std::string("broadcast to ").append(axes).append(" = ") + to_string(shape),
                  x.shape());
    }
    strides[a] = 0;
  }
  return {x.data(), shape, strides};
}

template <class T>
LinearAttentionProblem<T> make_linear_attention_problem(std::string_view function,
                                                        TensorView4<const T> q,
                                                        TensorView4<const T> k,
                                                        TensorView4<const T> v, TensorView4<T> out,
                                                        const LinearAttentionOptions<T>& options) {
  const index_t batch = q.extent(0), heads = q.extent(1), seq = q.extent(2), key_dim = q.extent(3),
                kv_heads = k.extent(1), value_dim = v.extent(3);
  const auto check = [function](std::string_view argument, std::string_view axes,
                                const Shape<4>& expected, const TensorView4<const T>& view) {
    check_shape(function, argument, axes, expected, view.shape());
    if (view.extent(3) > 1 && view.stride(3) != 1) {
      throw_shape(function, argument, "have innermost stride 1 (these are the strides)",
                  view.strides());
    }
  };
  check("q", "(batch, num_heads, seq, key_dim)", q.shape(), q);
  check("k", "(batch, num_kv_heads, seq, key_dim)", {batch, kv_heads, seq, key_dim}, k);
  check("v", "(batch, num_kv_heads, seq, value_dim)", {batch, kv_heads, seq, value_dim}, v);
  check("out", "(batch, num_heads, seq, value_dim)", {batch, heads, seq, value_dim}, out);
  if (kv_heads == 0 || heads % kv_heads != 0) {
    throw_shape(function, "num_heads and num_kv_heads", "divide without remainder",
                Shape<2>{heads, kv_heads});
  }
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(key_dim)));
  if (!std::isfinite(static_cast<T>(scale))) {
    throw ValueError(message(function, "scale", "be finite", to_string(scale)));
  }
  LinearAttentionProblem<T> problem{.q = q,
                                    .k = k,
                                    .v = v,
                                    .out = out,
                                    .initial_state = options.initial_state,
                                    .final_state = options.final_state,
                                    .scale = static_cast<T>(scale)};
  if (options.decay) {
    problem.decay = broadcast_gate<T, 4>(function, "decay", "(batch, num_kv_heads, seq, key_dim)",
                                         options.decay, {batch, kv_heads, seq, key_dim});
  }
  if (options.beta) {
    problem.beta = broadcast_gate<T, 3>(function, "beta", "(batch, num_kv_heads, seq)",
                                        options.beta, {batch, kv_heads, seq});
  }
  const std::string_view state_axes = "(batch, num_kv_heads, key_dim, value_dim)";
  const Shape<4> state{batch, kv_heads, key_dim, value_dim};
  if (options.initial_state) check("initial_state", state_axes, state, options.initial_state);
  if (options.final_state) check("final_state", state_axes, state, options.final_state);
  return problem;
}

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/attention/linear_attention.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

/// Linear attention, token by token, with one state S (key_dim, value_dim) per key/value head. S
/// starts at zero, and each token computes
///   S <- e^decay S (row by row), v <- beta (v - S^T k), S <- S + k v^T, out = scale S^T q.
/// The first step needs decay and the second beta; a step without its input is left out. The result
/// is causal; time is linear in seq, and memory does not depend on seq.
///
/// Shapes: q (batch, num_heads, seq, key_dim), k (batch, num_kv_heads, seq, key_dim), v (batch,
/// num_kv_heads, seq, value_dim), out (batch, num_heads, seq, value_dim); any strides with a unit
/// innermost one. num_heads is a multiple of num_kv_heads: head h reads state h / (num_heads /
/// num_kv_heads). out must not overlap q, k or v. A sequence may be computed in pieces: start each
/// with the final state of the previous one, and the bits equal those of one call. Throws
/// ShapeError or ValueError before anything is written.
/// Source: Katharopoulos et al., "Transformers are RNNs" (2020), equation 18 without feature map
/// and normaliser; Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (2024); ONNX LinearAttention.
template <TensorLike Q, TensorLike K, TensorLike V, TensorLike Out>
void linear_attention(const Q& q, const K& k, const V& v, Out&& out,
                      const LinearAttentionOptions<detail::real_t<Q>>& options = {},
                      const Execution& execution = {}) {
  using T = detail::real_t<Q>;
  ATTN_ASSERT_REAL(Q, "linear_attention: q");
  ATTN_ASSERT_AXES(Q, 4, "linear_attention: q", "(batch, num_heads, seq, head_dim)");
  ATTN_ASSERT_INPUT(K, scalar_t<Q>, 4, "linear_attention: k",
                    "(batch, num_kv_heads, seq, head_dim)", "q");
  ATTN_ASSERT_INPUT(V, scalar_t<Q>, 4, "linear_attention: v",
                    "(batch, num_kv_heads, seq, head_dim_v)", "q");
  ATTN_ASSERT_OUTPUT(Out, scalar_t<Q>, 4, "linear_attention: out",
                     "(batch, num_heads, seq, head_dim_v)", "q");
  detail::backend<family::LinearAttention, T>(execution).attend(
      detail::make_linear_attention_problem<T>(
          "linear_attention", detail::view_as<const T, 4>(q), detail::view_as<const T, 4>(k),
          detail::view_as<const T, 4>(v), detail::view_as<T, 4>(out), options),
      execution);
}

/// Returns the output as a new tensor.
template <TensorLike Q, TensorLike K, TensorLike V>
Tensor4<detail::real_t<Q>> linear_attention(
    const Q& q, const K& k, const V& v,
    const LinearAttentionOptions<detail::real_t<Q>>& options = {},
    const Execution& execution = {}) {
  using T = detail::real_t<Q>;
  ATTN_ASSERT_REAL(Q, "linear_attention: q");
  ATTN_ASSERT_AXES(Q, 4, "linear_attention: q", "(batch, num_heads, seq, head_dim)");
  ATTN_ASSERT_INPUT(K, scalar_t<Q>, 4, "linear_attention: k",
                    "(batch, num_kv_heads, seq, head_dim)", "q");
  ATTN_ASSERT_INPUT(V, scalar_t<Q>, 4, "linear_attention: v",
                    "(batch, num_kv_heads, seq, head_dim_v)", "q");
  const auto qv = detail::view_as<const T, 4>(q), kv = detail::view_as<const T, 4>(k),
             vv = detail::view_as<const T, 4>(v);
  auto out = Tensor4<T>::uninitialized({qv.extent(0), qv.extent(1), qv.extent(2), vv.extent(3)});
  linear_attention(qv, kv, vv, out, options, execution);
  return out;
}

ATTN_NAMESPACE_END
