// BackwardProblem: a checked call of backward attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "attn/attention/backward/gradient_kernels.hpp"
#include "attn/attention/functors/score_parameters.hpp"
#include "attn/attention/tasks/tiling.hpp"

ATTN_NAMESPACE_BEGIN

/// Optional inputs and outputs of backward beyond the options: d_lse, and the gradients of biases,
/// slopes, sinks, qv and score parameters. Each gradient is added to the contents of its view.
template <class T>
struct AttentionBackwardCall {
  TensorView3<const T> d_lse = {};  ///< of lse, with its shape
  /// Gradients of the additive parts of options.mask, in their order. Each has the shape of its
  /// part, aligned at the right, and is summed over broadcast axes. Leave a view empty to skip it.
  std::array<TensorView4<T>, Mask::kMaxDense> d_bias = {};
  TensorView1<T> d_sinks = {};               ///< (num_heads)
  TensorView1<T> d_alibi_slopes = {};        ///< (num_heads)
  TensorView2<T> d_batch_alibi_slopes = {};  ///< (batch, num_heads)
  TensorView2<T> d_relative_bias = {};       ///< (num_heads, 2 n + 1)
  TensorView4<T> d_qv = {};                  ///< of options.qv, with its shape
  /// Gradients of the parameters of a score_mod, in their order: (1) for a number, (num_heads) for
  /// a view.
  std::array<TensorView1<T>, detail::kMaxScoreParameters> d_score_parameters = {};
};

namespace detail {

template <class T>
struct BackwardProblem {
  AttentionProblem<T> forward;  ///< its out is only read
  TensorView4<const T> d_out;
  TensorView3<const T> lse;
  TensorView4<T> d_q, d_k, d_v;
  AttentionBackwardCall<T> call = {};
  RowFunctor<T> score_derivative = {};  ///< the score functor's derivative
  RowFunctor<T> prob_derivative = {};   ///< the prob functor's derivative
  /// Derivatives of the score functor with respect to the parameters whose gradients are requested.
  std::array<RowFunctor<T>, kMaxScoreParameters> parameter_derivatives = {};
  /// Only gradients of these key/value heads and of the queries that share them are computed; head
  /// kv_head of batch row b counts as b * num_kv_heads + kv_head.
  KeyRange kv_heads = {0, forward.batch() * forward.num_kv_heads()};

  /// The row of query i in q, out and their gradients.
  template <class V>
  auto* query_row(const V& of, index_t b, index_t h, index_t i) const {
    return of.at_index(forward.row(b, h, i));
  }
  template <class V>
  auto& of_query(const V& of, index_t b, index_t h, index_t i) const {
    const Shape<4> at = forward.row(b, h, i);
    return of(at[0], at[1], at[2]);
  }
  /// The row of key j in k, v and their gradients.
  template <class V>
  auto* key_row(const V& of, const KeyHead& head, index_t j) const {
    return of.at_index(forward.key_index(head, j));
  }
  /// Whether a score functor or softcap is applied between q . k and the softmax.
  bool has_score_derivative() const {
    return forward.options.softcap > 0 || static_cast<bool>(score_derivative);
  }

  /// Whether gradients of ALiBi slopes are requested.
  bool wants_alibi_slopes() const { return call.d_alibi_slopes || call.d_batch_alibi_slopes; }

  /// Elements of PartialGradients::head_sums per head: gradients that are sums over the scores of a
  /// head.
  index_t head_sums() const {
    const bool any =
        wants_alibi_slopes() || call.d_relative_bias ||
        std::any_of(parameter_derivatives.begin(), parameter_derivatives.end(),
                    [](const RowFunctor<T>& derivative) { return static_cast<bool>(derivative); });
    return any ? parameter_sum(kMaxScoreParameters) : 0;
  }
  /// Index of a score parameter's sum in head_sums.
  index_t parameter_sum(std::size_t parameter) const {
    return 1 + call.d_relative_bias.extent(1) + static_cast<index_t>(parameter);
  }
};

}  // namespace detail

ATTN_NAMESPACE_END
