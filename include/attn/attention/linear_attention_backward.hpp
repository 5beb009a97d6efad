// linear_attention_backward: gradients of linear attention, by chunks of recomputed states.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/linear_attention.hpp"

ATTN_NAMESPACE_BEGIN

/// Optional inputs and outputs of linear_attention_backward(): the gradient of final_state, and the
/// gradients of decay, beta and initial_state. Each of the latter is added to the contents of its
/// view, which has the shape of the option; axes that the option broadcasts are summed.
template <class T>
struct LinearAttentionBackwardCall {
  TensorView4<const T> d_final_state = {};  ///< (batch, num_kv_heads, key_dim, value_dim)
  TensorView4<T> d_decay = {};              ///< of options.decay, with its shape
  TensorView3<T> d_beta = {};               ///< of options.beta, with its shape
  TensorView4<T> d_initial_state = {};      ///< of options.initial_state, with its shape

  ATTN_REFUSE_OTHER_ELEMENTS(LinearAttentionBackwardCall)
};

namespace detail {

/// After the checks. d_decay (batch, num_kv_heads, seq, key_dim or 1) and d_beta (batch,
/// num_kv_heads, seq) are contiguous and 0, or empty; d_initial_state is added to.
template <class T>
struct LinearAttentionBackwardProblem {
  LinearAttentionProblem<T> forward;  ///< its out is not used
  TensorView4<const T> d_out, d_final_state;
  TensorView4<T> d_q, d_k, d_v, d_decay, d_initial_state;
  TensorView3<T> d_beta;
};

template <class In, class Acc>
struct Backend<family::LinearAttentionBackward, In, Acc> {
  Kernel<LinearAttentionBackwardProblem<In>> attend;

  using Problem = LinearAttentionBackwardProblem<In>;
  static constexpr std::uint64_t kLayout = layout_hash(
      {Backend<family::LinearAttention, In, Acc>::kLayout, sizeof(Backend), sizeof(Problem),
       offsetof(Problem, forward), offsetof(Problem, d_out), offsetof(Problem, d_final_state),
       offsetof(Problem, d_q), offsetof(Problem, d_k), offsetof(Problem, d_v),
       offsetof(Problem, d_decay), offsetof(Problem, d_initial_state), offsetof(Problem, d_beta)});
};

/// Checks every argument; d_decay and d_beta are left empty.
template <class T>
LinearAttentionBackwardProblem<T> make_linear_attention_backward_problem(
    const TensorView4<const T>& d_out, const TensorView4<const T>& q, const TensorView4<const T>& k,
    const TensorView4<const T>& v, const TensorView4<T>& d_q, const TensorView4<T>& d_k,
    const TensorView4<T>& d_v, const LinearAttentionOptions<T>& options,
    const LinearAttentionBackwardCall<T>& call) {
  constexpr std::string_view kFunction = "linear_attention_backward";
  const auto check = [&](std::string_view name, const Shape<4>& expected,
                         const TensorView4<const T>& view) {
    check_shape(kFunction, name, expected, view.shape());
    if (view.extent(3) > 1 && view.stride(3) != 1) {
      throw_shape(kFunction, name, "have innermost stride 1 (these are the strides)",
                  view.strides());
    }
  };
  const auto check_with = [&](std::string_view name, const auto& of, const auto& gradient) {
    if (!gradient) return;
    if (!of) {
      throw ValueError(message(kFunction, name, "be given only together with its option", "alone"));
    }
    check_shape(kFunction, name, of.shape(), gradient.shape());
  };
  if (options.initial_state && options.final_state.data() == options.initial_state.data()) {
    throw ValueError(message(kFunction, "options.initial_state",
                             "be the state before forward, which wrote final_state over it",
                             "final_state"));
  }
  check("d_out", {q.extent(0), q.extent(1), q.extent(2), v.extent(3)}, d_out);
  // The forward's problem holds its output for writing.
  const TensorView4<T> out(const_cast<T*>(d_out.data()), d_out.shape(), d_out.strides());
  LinearAttentionBackwardProblem<T> problem{
      .forward = make_linear_attention_problem<T>(kFunction, q, k, v, out, options),
      .d_out = d_out,
      .d_final_state = call.d_final_state,
      .d_q = d_q,
      .d_k = d_k,
      .d_v = d_v,
      .d_decay = {},
      .d_initial_state = call.d_initial_state,
      .d_beta = {}};
  check("d_q", q.shape(), d_q);
  check("d_k", k.shape(), d_k);
  check("d_v", v.shape(), d_v);
  check_with("d_decay", options.decay, call.d_decay);
  check_with("d_beta", options.beta, call.d_beta);
  check_with("d_initial_state", options.initial_state, call.d_initial_state);
  const Shape<4> state{k.extent(0), k.extent(1), k.extent(3), v.extent(3)};
  if (call.d_initial_state) check("d_initial_state", state, call.d_initial_state);
  if (call.d_final_state) check("d_final_state", state, call.d_final_state);
  return problem;
}

/// Adds x to `to`, whose axes of extent 1 are sums.
template <class T>
void add_to_gate(const TensorView4<const T>& x, const TensorView4<T>& to) {
  const auto index = [&](int axis, index_t i) { return to.extent(axis) == 1 ? 0 : i; };
  const index_t step = to.extent(3) == 1 ? 0 : to.stride(3);
  for (index_t b = 0; b < x.extent(0); ++b) {
    for (index_t h = 0; h < x.extent(1); ++h) {
      for (index_t t = 0; t < x.extent(2); ++t) {
        T* const sum = to.at_index({index(0, b), index(1, h), index(2, t), 0});
        const T* const from = x.at_index({b, h, t, 0});
        for (index_t d = 0; d < x.extent(3); ++d) sum[d * step] += from[d];
      }
    }
  }
}

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/attention/backward/linear_attention_backward.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

/// d_q, d_k and d_v of linear_attention(q, k, v, out, options), from d_out. For the gradients of
/// decay, beta and the states see LinearAttentionBackwardCall.
///
/// Shapes are those of the forward call; d_q has the shape of q, d_k of k, d_v of v. Each is
/// overwritten, must not overlap an input, and has a unit innermost stride. Pass the options of
/// forward; if its final_state overwrote initial_state, pass a copy of the state from before.
/// final_state is not written. States are computed again in chunks of about sqrt(seq)
/// tokens, so that each thread needs memory for 2 sqrt(seq) states of a few columns. The bits are
/// the same on any number of threads. Throws ShapeError or ValueError before anything is written.
/// With S' the state after the decay, u = beta (v - S'^T k) what the token writes, and G the
/// gradient of the state, from the last token to the first:
///   d_q = scale (S' + k u^T) d_out, G <- G + scale q d_out^T, d_u = G^T k, d_v = beta d_u,
///   d_beta = d_u . (v - S'^T k), d_k = G u - S' d_v, G <- G - k d_v^T,
///   d_decay = row by row, G . S', and G <- e^decay G.
/// Without beta, d_v = d_u and its other terms are left out.
/// Source: Yang et al., "Parallelizing Linear Transformers with the Delta Rule" (2024), whose
/// recurrence this is the gradient of.
template <TensorLike D, TensorLike Q, TensorLike K, TensorLike V, TensorLike DQ, TensorLike DK,
          TensorLike DV>
void linear_attention_backward(const D& d_out, const Q& q, const K& k, const V& v, DQ&& d_q,
                               DK&& d_k, DV&& d_v,
                               const LinearAttentionOptions<detail::real_t<Q>>& options = {},
                               const LinearAttentionBackwardCall<detail::real_t<Q>>& call = {},
                               const Execution& execution = {}) {
  using T = detail::real_t<Q>;
  ATTN_ASSERT_REAL(Q, "linear_attention_backward: q");
  ATTN_ASSERT_AXES(Q, 4, "linear_attention_backward: q", "(batch, num_heads, seq, head_dim)");
  ATTN_ASSERT_INPUT_LIKE(D, Q, "linear_attention_backward: d_out", "q");
  ATTN_ASSERT_INPUT_LIKE(K, Q, "linear_attention_backward: k", "q");
  ATTN_ASSERT_INPUT_LIKE(V, Q, "linear_attention_backward: v", "q");
  ATTN_ASSERT_OUTPUT_LIKE(DQ, Q, "linear_attention_backward: d_q", "q");
  ATTN_ASSERT_OUTPUT_LIKE(DK, Q, "linear_attention_backward: d_k", "q");
  ATTN_ASSERT_OUTPUT_LIKE(DV, Q, "linear_attention_backward: d_v", "q");
  auto problem = detail::make_linear_attention_backward_problem<T>(
      detail::view_as<const T, 4>(d_out), detail::view_as<const T, 4>(q),
      detail::view_as<const T, 4>(k), detail::view_as<const T, 4>(v), detail::view_as<T, 4>(d_q),
      detail::view_as<T, 4>(d_k), detail::view_as<T, 4>(d_v), options, call);
  const Shape<3> tokens{problem.d_k.extent(0), problem.d_k.extent(1), problem.d_k.extent(2)};
  const Shape<4> rates{tokens[0], tokens[1], tokens[2], call.d_decay ? call.d_decay.extent(3) : 0};
  Workspace& workspace = execution.scratch();
  Scratch<T> decay_memory(workspace, size_of(rates)),
      beta_memory(workspace, call.d_beta ? size_of(tokens) : 0);
  if (call.d_decay) {
    problem.d_decay = {decay_memory.data(), rates};
    std::fill_n(decay_memory.data(), problem.d_decay.size(), T{0});
  }
  if (call.d_beta) {
    problem.d_beta = {beta_memory.data(), tokens};
    std::fill_n(beta_memory.data(), problem.d_beta.size(), T{0});
  }
  detail::backend<family::LinearAttentionBackward, T>(execution).attend(problem, execution);
  if (call.d_decay) detail::add_to_gate<T>(problem.d_decay, call.d_decay);
  if (call.d_beta) detail::add_to_gate<T>(problem.d_beta.unsqueeze(3), call.d_beta.unsqueeze(3));
}

ATTN_NAMESPACE_END
