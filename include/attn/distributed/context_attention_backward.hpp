// context_parallel_attention_backward: gradients of attention over tokens on several ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/sdpa_backward.hpp"
#include "attn/distributed/context_call.hpp"
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

/// The tensors of a backward call, with the tokens of this rank.
template <class T>
struct GradientTensors {
  TensorView4<const T> d_out, q, k, v, out;
  TensorView4<T> d_q, d_k, d_v;
};

/// Tensors widened to float.
class WidenedGradientTensors {
 public:
  template <class D, class Q, class K, class V, class Out, class DQ, class DK, class DV>
  WidenedGradientTensors(const Execution& execution, const D& d_out, const Q& q, const K& k,
                         const V& v, const Out& out, const DQ& d_q, const DK& d_k, const DV& d_v)
      : d_out_(const_view(d_out), execution),
        q_(const_view(q), execution),
        k_(const_view(k), execution),
        v_(const_view(v), execution),
        out_(const_view(out), execution),
        d_q_(const_view(d_q).shape(), execution),
        d_k_(const_view(d_k).shape(), execution),
        d_v_(const_view(d_v).shape(), execution) {}

  GradientTensors<float> view() const {
    return {.d_out = d_out_.view(),
            .q = q_.view(),
            .k = k_.view(),
            .v = v_.view(),
            .out = out_.view(),
            .d_q = d_q_.view(),
            .d_k = d_k_.view(),
            .d_v = d_v_.view()};
  }

 private:
  WidenedTensor<4> d_out_, q_, k_, v_, out_, d_q_, d_k_, d_v_;
};

/// Implements context_parallel_attention_backward(). q, k and v are those of the caller; tensors()
/// returns all tensors as GradientTensors<T>.
template <class T, class Tensors, class... Functors>
void context_backward(Communicator& communicator, const ContextLayout& layout,
                      const StoredView<const void>& q, const StoredView<const void>& k,
                      const StoredView<const void>& v, const Tensors& tensors,
                      const TensorView3<const T>& lse, const AttentionOptions<T>& options,
                      const AttentionBackwardCall<T>& call, const Functors&... functors) {
  constexpr std::string_view kFunction = "context_parallel_attention_backward";
  const index_t kv_heads = k.extent(1),
                per_kv_head = q.extent(1) / (std::max)(kv_heads, index_t{1});
  HeadExchange exchange(communicator, layout, q.extent(0) * kv_heads);
  HeadStream<const T> in_d_out{{}, per_kv_head}, in_q{{}, per_kv_head}, in_k{{}, 1}, in_v{{}, 1},
      in_out{{}, per_kv_head}, in_lse{{}, per_kv_head}, in_d_lse{{}, per_kv_head};
  HeadStream<T> of_q{{}, per_kv_head}, of_k{{}, 1}, of_v{{}, 1};
  Tensor3<T> zeros;
  AttentionOptions<T> whole_options = options;
  whole_options.lse = {};  // not written
  AttentionBackwardCall<T> whole_call = call;
  std::optional<BackwardProblem<T>> problem;
  agree(communicator, kFunction, [&] {
    refuse_on_ranks(kFunction, options);
    check_ranks(kFunction, communicator, layout);
    // Checks a tensor and gives it to its stream.
    const auto take = [&]<class E>(std::string_view name, HeadStream<E>& stream,
                                   const TensorView4<E>& x, const Shape<4>& shape) {
      check_shape(kFunction, name, shape, x.shape());
      if (x.extent(3) > 1 && x.stride(3) != 1) {
        throw_shape(kFunction, name, "have innermost stride 1 (these are the strides)",
                    x.strides());
      }
      stream.by_tokens = x;
    };
    const GradientTensors<T> all = tensors();
    const index_t tokens = layout.size(communicator.rank());
    const Shape<4> of_queries{q.extent(0), q.extent(1), tokens, q.extent(3)};
    const Shape<4> of_outputs{q.extent(0), q.extent(1), tokens, v.extent(3)};
    const Shape<4> of_keys{q.extent(0), kv_heads, tokens, q.extent(3)};
    const Shape<4> of_values{q.extent(0), kv_heads, tokens, v.extent(3)};
    const Shape<4> of_lse{q.extent(0), q.extent(1), tokens, 1};
    take("d_out", in_d_out, all.d_out, of_outputs);
    take("q", in_q, all.q, of_queries);
    take("k", in_k, all.k, of_keys);
    take("v", in_v, all.v, of_values);
    take("out", in_out, all.out, of_outputs);
    take("lse", in_lse, lse.unsqueeze(3), of_lse);
    // A d_lse that is not given becomes zeros: subtracting them changes no bit, and a rank without
    // tokens cannot tell whether it is given.
    if (!call.d_lse) zeros = Tensor3<T>(lse.shape());
    const TensorView3<const T> d_lse = call.d_lse ? call.d_lse : std::as_const(zeros).view();
    take("d_lse", in_d_lse, d_lse.unsqueeze(3), of_lse);
    take("d_q", of_q, all.d_q, of_queries);
    take("d_k", of_k, all.d_k, of_keys);
    take("d_v", of_v, all.d_v, of_values);
    whole_call.d_lse = exchange.take(in_d_lse).select(3, 0);
    problem.emplace(make_backward_problem<T>(
        exchange.take(in_d_out), exchange.take(in_q), exchange.take(in_k), exchange.take(in_v),
        exchange.take(in_out), exchange.take(in_lse).select(3, 0), exchange.take(of_q),
        exchange.take(of_k), exchange.take(of_v), whole_options, whole_call, functors...));
    refuse_on_ranks(*problem);
    return context_fields<T, Functors...>(layout, q, k, v, options);
  });
  run_or_fail(communicator, [&] {
    exchange.run(std::vector<HeadStream<const T>*>{&in_d_out, &in_q, &in_k, &in_v, &in_out, &in_lse,
                                                   &in_d_lse});
    const auto& kernels = backend<family::AttentionBackward, T>(options.execution);
    // Packed sequences are batch rows of the problem, but not of the tensors.
    const KeyRange own = exchange.own_heads();
    const index_t sequences = problem->forward.packed() ? problem->forward.batch() : 1;
    for (index_t n = 0; n < sequences; ++n) {
      problem->kv_heads = {n * kv_heads + own.begin, n * kv_heads + own.end};
      kernels.backward(*problem, options.execution);
    }
    exchange.run(std::vector<HeadStream<T>*>{&of_q, &of_k, &of_v});
  });
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
  detail::assert_backward_types<D, Q, K, V, Out, DQ, DK, DV, Functors...>();
  if constexpr (!detail::BackwardTypes<D, Q, K, V, Out, DQ, DK, DV, Functors...>::is_good) {
    // The assertion above ensures this.
  } else if constexpr (detail::is_of_element<T, D, Q, K, V, Out, DQ, DK, DV>) {
    const auto tensors = [&] {
      return detail::GradientTensors<T>{.d_out = const_view(d_out),
                                        .q = const_view(q),
                                        .k = const_view(k),
                                        .v = const_view(v),
                                        .out = const_view(out),
                                        .d_q = view_of(d_q),
                                        .d_k = view_of(d_k),
                                        .d_v = view_of(d_v)};
    };
    detail::context_backward<T>(communicator, layout, const_view(q), const_view(k), const_view(v),
                                tensors, lse, options, call, functors...);
  } else {
    const Execution& execution = options.execution;
    std::optional<detail::WidenedGradientTensors> wide;
    const auto tensors = [&] {
      return wide.emplace(execution, d_out, q, k, v, out, d_q, d_k, d_v).view();
    };
    detail::context_backward<T>(communicator, layout, const_view(q), const_view(k), const_view(v),
                                tensors, lse, options, call, functors...);
    convert(wide->view().d_q, d_q, execution);
    convert(wide->view().d_k, d_k, execution);
    convert(wide->view().d_v, d_v, execution);
  }
}

ATTN_NAMESPACE_END
