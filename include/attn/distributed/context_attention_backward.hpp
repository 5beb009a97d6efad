// context_parallel_attention_backward: gradients of attention over tokens on several ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/sdpa_backward.hpp"
#include "attn/distributed/context_attention.hpp"
#include "attn/distributed/head_exchange.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Throws ValueError for gradients that are sums over tokens and heads of several ranks.
template <class T>
void refuse_on_ranks(const BackwardProblem<T>& problem) {
  const AttentionBackwardCall<T>& call = problem.call;
  const auto refuse = [](std::string_view name, const auto& view) {
    if (!view) return;
    throw ValueError(message("context_parallel_attention_backward", name,
                             "not be requested of attention on several ranks", "one"));
  };
  for (const auto& view : call.d_bias) refuse("d_bias", view);
  refuse("d_sinks", call.d_sinks);
  refuse("d_alibi_slopes", call.d_alibi_slopes);
  refuse("d_batch_alibi_slopes", call.d_batch_alibi_slopes);
  refuse("d_relative_bias", call.d_relative_bias);
  for (const auto& view : call.d_score_parameters) refuse("d_score_parameters", view);
}

/// As context_parallel_attention_backward(); all tensors have elements of type T.
template <class T, class... Functors>
void context_backward(Communicator& communicator, const ContextLayout& layout,
                      const TensorView4<const T>& d_out, const TensorView4<const T>& q,
                      const TensorView4<const T>& k, const TensorView4<const T>& v,
                      const TensorView4<const T>& out, const TensorView3<const T>& lse,
                      const TensorView4<T>& d_q, const TensorView4<T>& d_k,
                      const TensorView4<T>& d_v, const AttentionOptions<T>& options,
                      const AttentionBackwardCall<T>& call, const Functors&... functors) {
  constexpr std::string_view kFunction = "context_parallel_attention_backward";
  const index_t kv_heads = k.extent(1),
                per_kv_head = q.extent(1) / (std::max)(kv_heads, index_t{1});
  // A d_lse that is not given becomes zeros: subtracting them changes no bit, and a rank without
  // tokens cannot tell whether it is given.
  const Tensor3<T> zeros(call.d_lse ? Shape<3>{0, 0, 0} : lse.shape());
  const TensorView3<const T> d_lse = call.d_lse ? call.d_lse : zeros.view();
  HeadExchange exchange(communicator, layout, q.extent(0) * kv_heads);
  HeadStream<const T> in_d_out{d_out, per_kv_head}, in_q{q, per_kv_head}, in_k{k, 1}, in_v{v, 1},
      in_out{out, per_kv_head}, in_lse{lse.unsqueeze(3), per_kv_head},
      in_d_lse{d_lse.unsqueeze(3), per_kv_head};
  HeadStream<T> of_q{d_q, per_kv_head}, of_k{d_k, 1}, of_v{d_v, 1};
  AttentionOptions<T> whole_options = options;
  whole_options.lse = {};  // not written
  AttentionBackwardCall<T> whole_call = call;
  std::optional<BackwardProblem<T>> problem;
  const auto check = [&] {
    refuse_on_ranks(kFunction, options);
    check_ranks(kFunction, communicator, layout);
    const auto check_tokens = [&](std::string_view name, const TensorView4<const T>& x,
                                  const Shape<4>& shape) {
      check_shape(kFunction, name, shape, x.shape());
      if (x.extent(3) > 1 && x.stride(3) != 1) {
        throw_shape(kFunction, name, "have innermost stride 1 (these are the strides)",
                    x.strides());
      }
    };
    const index_t tokens = layout.size(communicator.rank());
    const Shape<4> of_queries{q.extent(0), q.extent(1), tokens, q.extent(3)};
    const Shape<4> of_outputs{q.extent(0), q.extent(1), tokens, v.extent(3)};
    const Shape<4> of_keys{q.extent(0), kv_heads, tokens, q.extent(3)};
    const Shape<4> of_values{q.extent(0), kv_heads, tokens, v.extent(3)};
    const Shape<4> of_lse{q.extent(0), q.extent(1), tokens, 1};
    check_tokens("d_out", d_out, of_outputs);
    check_tokens("q", q, of_queries);
    check_tokens("k", k, of_keys);
    check_tokens("v", v, of_values);
    check_tokens("out", out, of_outputs);
    check_tokens("lse", in_lse.by_tokens, of_lse);
    check_tokens("d_lse", in_d_lse.by_tokens, of_lse);
    check_tokens("d_q", d_q, of_queries);
    check_tokens("d_k", d_k, of_keys);
    check_tokens("d_v", d_v, of_values);
    whole_call.d_lse = exchange.take(in_d_lse).select(3, 0);
    problem.emplace(make_backward_problem<T>(
        exchange.take(in_d_out), exchange.take(in_q), exchange.take(in_k), exchange.take(in_v),
        exchange.take(in_out), exchange.take(in_lse).select(3, 0), exchange.take(of_q),
        exchange.take(of_k), exchange.take(of_v), whole_options, whole_call, functors...));
    refuse_on_ranks(*problem);
  };
  agree(communicator, kFunction, context_fields<T, Functors...>(layout, q, k, v, options), check);
  try {
    exchange.run(std::vector<HeadStream<const T>*>{&in_d_out, &in_q, &in_k, &in_v, &in_out, &in_lse,
                                                   &in_d_lse});
    problem->kv_heads = exchange.own_heads();
    backend<family::AttentionBackward, T>(options.execution).backward(*problem, options.execution);
    exchange.run(std::vector<HeadStream<T>*>{&of_q, &of_k, &of_v});
  } catch (const std::exception& error) {
    communicator.fail(error.what());
    throw;
  } catch (...) {
    communicator.fail("unknown exception");
    throw;
  }
}

}  // namespace detail

/// Computes the gradients d_q, d_k and d_v of context_parallel_attention(). Bit-identical to
/// scaled_dot_product_attention_backward() in one process, for any number of ranks and any layout.
/// All ranks must call it.
///
/// Shapes: all tensors, lse and call.d_lse hold the tokens that `layout` gives to this rank. Pass
/// the options and functors of the forward call.
///
/// Exchanges tokens for heads: each rank receives all tokens of its share of the batch *
/// num_kv_heads key/value heads, computes their gradients, and sends them back. Every rank reads
/// all rows of dense masks; ranks beyond batch * num_kv_heads have nothing to compute. Throws what
/// the forward call throws, and ValueError for gradients of biases, slopes, sinks and score
/// parameters, which are sums over ranks.
template <TensorLike D, TensorLike Q, TensorLike K, TensorLike V, TensorLike Out, TensorLike DQ,
          TensorLike DK, TensorLike DV, class... Functors>
void context_parallel_attention_backward(
    Communicator& communicator, const ContextLayout& layout, const D& d_out, const Q& q, const K& k,
    const V& v, const Out& out,
    std::type_identity_t<TensorView3<const Accumulator<scalar_t<Q>>>> lse, DQ&& d_q, DK&& d_k,
    DV&& d_v, const AttentionOptions<Accumulator<scalar_t<Q>>>& options = {},
    const AttentionBackwardCall<Accumulator<scalar_t<Q>>>& call = {}, const Functors&... functors) {
  using T = Accumulator<scalar_t<Q>>;
  const Execution& execution = options.execution;
  detail::assert_backward_types<D, Q, K, V, Out, DQ, DK, DV, Functors...>();
  if constexpr (!detail::BackwardTypes<D, Q, K, V, Out, DQ, DK, DV, Functors...>::is_good) {
    // The assertion above ensures this.
  } else if constexpr (detail::is_of_element<T, D, Q, K, V, Out, DQ, DK, DV>) {
    detail::context_backward<T>(communicator, layout, const_view(d_out), const_view(q),
                                const_view(k), const_view(v), const_view(out), lse, view_of(d_q),
                                view_of(d_k), view_of(d_v), options, call, functors...);
  } else {
    using Wide = detail::WidenedTensor<4>;
    const Wide wide_d_out(const_view(d_out), execution), wide_q(const_view(q), execution),
        wide_k(const_view(k), execution), wide_v(const_view(v), execution),
        wide_out(const_view(out), execution);
    const Wide wide_d_q(view_of(d_q).shape(), execution), wide_d_k(view_of(d_k).shape(), execution),
        wide_d_v(view_of(d_v).shape(), execution);
    detail::context_backward<T>(communicator, layout, wide_d_out.view(), wide_q.view(),
                                wide_k.view(), wide_v.view(), wide_out.view(), lse, wide_d_q.view(),
                                wide_d_k.view(), wide_d_v.view(), options, call, functors...);
    convert(wide_d_q.view(), d_q, execution);
    convert(wide_d_k.view(), d_k, execution);
    convert(wide_d_v.view(), d_v, execution);
  }
}

ATTN_NAMESPACE_END
