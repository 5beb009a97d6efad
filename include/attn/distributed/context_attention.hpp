// context_parallel_attention: attention over a sequence whose tokens lie on several ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string_view>

#include "attn/distributed/context_call.hpp"
#include "attn/distributed/context_chunks.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Calls f(its number among the tokens of `rank`, its number among `kept`) for each token of a rank
/// that is kept; `kept`: ranges of tokens, in order.
template <class F>
void for_kept_tokens(const ContextLayout& layout, int rank, const std::vector<IndexRange>& kept,
                     F f) {
  index_t before = 0;
  for (const IndexRange& all : kept) {
    for_parts(layout, rank, all, [&](const IndexRange& part, index_t at, std::size_t) {
      for (index_t i = part.begin; i < part.end; ++i) {
        f(at + i - part.begin, before + i - all.begin);
      }
    });
    before += all.end - all.begin;
  }
}

/// Gathers the tokens `kept` of x (batch, heads, tokens, dim), of which each rank holds some.
template <class E>
Tensor4<E> gather_tokens(Communicator& communicator, const ContextLayout& layout,
                         const TensorView4<const E>& x, const std::vector<IndexRange>& kept) {
  Shape<4> shape = x.shape();
  const index_t size = shape[0] * shape[1] * shape[3];
  shape[2] = 0;
  for (const IndexRange& part : kept) shape[2] += part.end - part.begin;
  index_t longest = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    index_t count = 0;
    for_kept_tokens(layout, rank, kept, [&](index_t, index_t) { ++count; });
    longest = (std::max)(longest, count);
  }
  // (tokens, batch, heads, dim)
  Buffer<E> mine = Buffer<E>::zeros(longest * size), all(layout.ranks() * longest * size);
  E* to = mine.data();
  for_kept_tokens(layout, communicator.rank(), kept, [&](index_t at, index_t) {
    for (index_t b = 0; b < shape[0]; ++b) {
      for (index_t h = 0; h < shape[1]; ++h) {
        to = std::copy_n(x.at_index({b, h, at, 0}), shape[3], to);
      }
    }
  });
  communicator.all_gather(bytes_of(mine), bytes_of(all));
  auto whole = Tensor4<E>::uninitialized(shape);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const E* from = all.data() + rank * longest * size;
    for_kept_tokens(layout, rank, kept, [&](index_t, index_t token) {
      for (index_t b = 0; b < shape[0]; ++b) {
        for (index_t h = 0; h < shape[1]; ++h, from += shape[3]) {
          std::copy_n(from, shape[3], &whole(b, h, token, 0));
        }
      }
    });
  }
  return whole;
}

/// Sequences on the decode path, whose sums depend on all rows of a key/value head: there are few
/// rows, so every rank computes all of them and keeps its own. `problem`: the whole call.
template <class In, class KeyElement, class T>
void gathered_attention(Communicator& communicator, const ContextLayout& layout,
                        const TensorView4<const In>& q, const TensorView4<const KeyElement>& k,
                        const TensorView4<const KeyElement>& v, const TensorView4<In>& out,
                        const AttentionProblem<T>& problem, const AttentionOptions<T>& options) {
  std::vector<IndexRange> queries, keys;
  // The other sequences become empty.
  std::vector<index_t> q_starts{0}, k_starts{0};
  for (const ContextSequence& sequence : sequences_of(problem)) {
    q_starts.push_back(q_starts.back());
    k_starts.push_back(k_starts.back());
    if (!sequence.is_decoded(problem)) continue;
    queries.push_back(sequence.queries);
    keys.push_back(sequence.keys);
    q_starts.back() += sequence.queries.end - sequence.queries.begin;
    k_starts.back() += sequence.keys.end - sequence.keys.begin;
  }
  if (queries.empty()) return;
  const Tensor4<In> all_q = gather_tokens(communicator, layout, q, queries);
  const Tensor4<KeyElement> all_k = gather_tokens(communicator, layout, k, keys),
                            all_v = gather_tokens(communicator, layout, v, keys);
  Shape<4> shape = all_q.shape();
  shape[3] = v.extent(3);
  auto all_out = Tensor4<In>::uninitialized(shape);
  Tensor3<T> lse({shape[0], shape[1], shape[2]});
  AttentionOptions<T> all_options = options;
  all_options.lse = lse;
  if (problem.packed()) {
    all_options.cu_seqlens_q = q_starts;
    all_options.cu_seqlens_k = k_starts;
  }
  const AttentionProblem<T> gathered{.q = const_view(all_q),
                                     .k = const_view(all_k),
                                     .v = const_view(all_v),
                                     .out = all_out.view(),
                                     .options = all_options,
                                     .scale = problem.scale,
                                     .scores = problem.scores,
                                     .heads_per_kv_head = problem.heads_per_kv_head,
                                     .alibi_slopes = problem.alibi_slopes,
                                     .functors = problem.functors};
  backend<family::Attention, KeyElement, T>(options.execution).forward(gathered, options.execution);
  for_kept_tokens(layout, communicator.rank(), queries, [&](index_t at, index_t token) {
    for (index_t b = 0; b < out.extent(0); ++b) {
      for (index_t h = 0; h < out.extent(1); ++h) {
        std::copy_n(&all_out(b, h, token, 0), out.extent(3), out.at_index({b, h, at, 0}));
        if (options.lse) options.lse(b, h, at) = lse(b, h, token);
      }
    }
  });
}

}  // namespace detail

/// out = attention over a sequence whose tokens are spread over the ranks of `communicator`.
/// Bit-identical to scaled_dot_product_attention() in one process, for any number of ranks and any
/// layout. All ranks must call it.
///
/// Shapes: q (batch, num_heads, tokens, head_dim), k (batch, num_kv_heads, tokens, head_dim), v
/// (batch, num_kv_heads, tokens, head_dim_v), out and options.lse hold the tokens that `layout`
/// gives to this rank. All other arguments describe the whole sequence and are equal on every rank:
/// masks, lengths, documents and biases have the extents of all tokens; functors, ALiBi and dropout
/// take positions in the sequence. A rank reads only the rows of dense masks that belong to its
/// tokens, except on the decode path.
///
/// Keys and values arrive in chunks, in the order of keys; a rank receives the next chunk while it
/// computes the current one. It receives only chunks with keys that causality, windows, lengths and
/// documents keep for one of its tokens. It stores a packed copy of its keys and values, two chunks
/// (each as long as the longest range of a rank, at most 2048 tokens) and the running sums of each
/// query. Sequences with few queries in all (the decode path) are computed by every rank, which
/// reads all their rows of dense masks.
///
/// Packed sequences (options.cu_seqlens_q and cu_seqlens_k, batch extent 1): the layout cuts the
/// tokens of all sequences together, and a rank computes the sequences that its queries belong to.
///
/// Throws ValueError on every rank if shapes or options differ between ranks or are invalid on one
/// of them. Refuses weights, scores, their sums, qv, pages, gather, first_key and MaskedRow::mean.
/// A later exception, for example from a functor, calls communicator.fail().
/// Source: Liu et al., "Ring Attention with Blockwise Transformers" (2023); chunks travel in the
/// order of keys instead of in a ring, since the order determines the bits.
template <TensorLike Q, TensorLike K, TensorLike V, TensorLike Out, class... Functors>
void context_parallel_attention(Communicator& communicator, const ContextLayout& layout, const Q& q,
                                const K& k, const V& v, Out&& out,
                                const AttentionOptions<Accumulator<scalar_t<Q>>>& options = {},
                                const Functors&... functors) {
  using T = Accumulator<scalar_t<Q>>;
  detail::assert_call_types<Q, K, V, Out, Functors...>();
  if constexpr (detail::CallTypes<Q, K, V, Out, Functors...>::is_good) {
    constexpr std::string_view kFunction = "context_parallel_attention";
    const auto queries = const_view(q);
    const auto keys = const_view(k), values = const_view(v);
    const auto to = view_of(out);
    detail::ContextAttention<scalar_t<Q>, scalar_t<K>, T> attention(communicator, layout, keys,
                                                                    values, options);
    detail::agree(communicator, kFunction, [&] {
      detail::refuse_on_ranks(kFunction, options);
      detail::check_ranks(kFunction, communicator, layout);
      const index_t tokens = layout.size(communicator.rank());
      const auto check_tokens = [&](std::string_view name, std::string_view axes, const auto& x) {
        auto shape = x.shape();
        shape[2] = tokens;
        check_shape(kFunction, name, axes, shape, x.shape());
      };
      check_tokens("q", "(batch, num_heads, tokens of the rank, head_dim)", queries);
      check_tokens("k", "(batch, num_kv_heads, tokens of the rank, head_dim)", keys);
      check_tokens("v", "(batch, num_kv_heads, tokens of the rank, head_dim_v)", values);
      check_tokens("out", "(batch, num_heads, tokens of the rank, head_dim_v)", to);
      if (options.lse) {
        check_tokens("lse", "(batch, num_heads, tokens of the rank)", options.lse);
      }
      index_t at = 0;
      for (const IndexRange& range : layout.ranges(communicator.rank())) {
        attention.add_range(range, at, queries, to, functors...);
        at += range.end - range.begin;
      }
      return detail::context_fields<T, Functors...>(layout, queries, keys, values, options);
    });
    const detail::AttentionProblem<T>& problem = attention.problem();
    if (!problem.has_rows()) return;
    detail::run_or_fail(communicator, [&] {
      attention.run();
      detail::gathered_attention<scalar_t<Q>, scalar_t<K>, T>(communicator, layout, queries, keys,
                                                              values, to, problem, options);
    });
  }
}

ATTN_NAMESPACE_END
