// AttentionTangents, JvpProblem: tangents of attention's inputs, and a checked call with them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "attn/attention/backward/gradient_kernels.hpp"
#include "attn/attention/functors/score_parameters.hpp"

ATTN_NAMESPACE_BEGIN

/// Tangents of the inputs of scaled_dot_product_attention_jvp(), each with the shape of its input;
/// an input without a tangent is constant. E: the element type of q; KV: that of k and v.
template <class E, class KV = E>
struct AttentionTangents {
  using T = Accumulator<E>;
  OptionView<const E, 4> q = {};                   ///< innermost stride 1
  OptionView<const KV, 4> k = {};                  ///< innermost stride 1
  OptionView<const KV, 4> v = {};                  ///< innermost stride 1
  OptionView<const T, 4> qv = {};                  ///< of options.qv, innermost stride 1
  OptionView<const T, 1> sinks = {};               ///< (num_heads)
  OptionView<const T, 1> alibi_slopes = {};        ///< (num_heads)
  OptionView<const T, 2> batch_alibi_slopes = {};  ///< (batch, num_heads)
  OptionView<const T, 2> relative_bias = {};       ///< (num_heads, 2 n + 1), innermost stride 1
  /// Tangents of the additive parts of options.mask, in their order. Each has the shape of its
  /// part, aligned at the right, and must be finite where the part is.
  std::array<OptionView<const T, 4>, Mask::kMaxDense> bias = {};
  /// Tangents of the parameters of a score_mod, in their order: (1) for a number, (num_heads) for a
  /// view.
  std::array<OptionView<const T, 1>, detail::kMaxScoreParameters> score_parameters = {};
  /// Output: the tangent of options.lse, which must be given, of its shape; 0 for fully masked
  /// queries.
  OptionView<T, 3> d_lse = {};
};

namespace detail {

/// Scores are linear in queries and in keys. So their tangent is the sum of the scores of two other
/// calls: tangents of queries with keys, and queries with tangents of keys.
template <class T>
struct JvpProblem {
  AttentionProblem<T> forward;
  /// Tangents of q and qv with k and v. Biases of its options are tangents of biases; its options
  /// have neither boolean masks nor softcap.
  AttentionProblem<T> of_queries;
  /// q and qv with tangents of k and v; its out is d_out.
  AttentionProblem<T> of_keys;
  bool has_query_tangents, has_key_tangents, has_value_tangents;  ///< others are 0
  TensorView1<const T> sinks;                                     ///< tangents
  TensorView3<T> d_lse;
  RowFunctor<T> score_derivative = {};  ///< the score functor's derivative
  RowFunctor<T> prob_derivative = {};   ///< the prob functor's
  /// Derivatives of the score functor with respect to the parameters that have tangents.
  std::array<RowFunctor<T>, kMaxScoreParameters> parameter_derivatives = {};
  std::array<TensorView1<const T>, kMaxScoreParameters> score_parameters = {};  ///< tangents
};

}  // namespace detail

ATTN_NAMESPACE_END
