// Backend table of backward attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/backward/problem.hpp"
#include "attn/attention/forward/backend.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // for std::optional in the options

template <class In, class Acc>
struct Backend<family::AttentionBackward, In, Acc> {
  Kernel<BackwardProblem<In>> backward;

  static constexpr std::uint64_t kLayout =
      layout_hash({sizeof(Backend),
                   offsetof(Backend, backward),
                   sizeof(BackwardProblem<In>),
                   offsetof(BackwardProblem<In>, forward),
                   offsetof(BackwardProblem<In>, d_out),
                   offsetof(BackwardProblem<In>, lse),
                   offsetof(BackwardProblem<In>, d_q),
                   offsetof(BackwardProblem<In>, d_k),
                   offsetof(BackwardProblem<In>, d_v),
                   offsetof(BackwardProblem<In>, call),
                   offsetof(BackwardProblem<In>, score_derivative),
                   offsetof(BackwardProblem<In>, prob_derivative),
                   offsetof(BackwardProblem<In>, parameter_derivatives),
                   offsetof(BackwardProblem<In>, kv_heads),
                   sizeof(AttentionBackwardCall<In>),
                   offsetof(AttentionBackwardCall<In>, d_lse),
                   offsetof(AttentionBackwardCall<In>, d_bias),
                   offsetof(AttentionBackwardCall<In>, d_sinks),
                   offsetof(AttentionBackwardCall<In>, d_alibi_slopes),
                   offsetof(AttentionBackwardCall<In>, d_batch_alibi_slopes),
                   offsetof(AttentionBackwardCall<In>, d_relative_bias),
                   offsetof(AttentionBackwardCall<In>, d_qv),
                   offsetof(AttentionBackwardCall<In>, d_score_parameters),
                   Backend<family::Attention, In, Acc>::kLayout});
};

#pragma GCC diagnostic pop

}  // namespace detail

ATTN_NAMESPACE_END
