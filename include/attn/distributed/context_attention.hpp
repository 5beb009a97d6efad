// context_parallel_attention: attention over a sequence whose tokens lie on several ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string_view>

#include "attn/distributed/context_call.hpp"
#include "attn/distributed/context_chunks.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Gathers x (batch, heads, tokens, dim), of which each rank holds some tokens, from all ranks.
template <class E>
Tensor4<E> gather_tokens(Communicator& communicator, const ContextLayout& layout,
                         const TensorView4<const E>& x) {
  const Shape<4> shape{x.extent(0), x.extent(1), layout.seq(), x.extent(3)};
  const index_t size = shape[0] * shape[1] * shape[3];
  index_t longest = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    longest = (std::max)(longest, layout.size(rank));
  }
  // (tokens, batch, heads, dim)
  Buffer<E> mine = Buffer<E>::zeros(longest * size), all(layout.ranks() * longest * size);
  E* to = mine.data();
  for (index_t i = 0; i < x.extent(2); ++i) {
    for (index_t b = 0; b < shape[0]; ++b) {
      for (index_t h = 0; h < shape[1]; ++h) {
        to = std::copy_n(x.at_index({b, h, i, 0}), shape[3], to);
      }
    }
  }
  communicator.all_gather(bytes_of(mine), bytes_of(all));
  auto whole = Tensor4<E>::uninitialized(shape);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const E* from = all.data() + rank * longest * size;
    for (const IndexRange& range : layout.ranges(rank)) {
      for (index_t i = range.begin; i < range.end; ++i) {
        for (index_t b = 0; b < shape[0]; ++b) {
          for (index_t h = 0; h < shape[1]; ++h, from += shape[3]) {
            std::copy_n(from, shape[3], &whole(b, h, i, 0));
          }
        }
      }
    }
  }
  return whole;
}

/// Attention on the decode path, whose sums depend on all rows of a key/value head: there are few
/// rows, so every rank computes all of them and keeps its own.
template <class In, class KeyElement, class T, class... Functors>
void gathered_attention(Communicator& communicator, const ContextLayout& layout,
                        const TensorView4<const In>& q, const TensorView4<const KeyElement>& k,
                        const TensorView4<const KeyElement>& v, const TensorView4<In>& out,
                        const AttentionOptions<T>& options, const Functors&... functors) {
  const Tensor4<In> all_q = gather_tokens(communicator, layout, q);
  const Tensor4<KeyElement> all_k = gather_tokens(communicator, layout, k),
                            all_v = gather_tokens(communicator, layout, v);
  Tensor3<T> lse({all_q.extent(0), all_q.extent(1), layout.seq()});
  AttentionOptions<T> all_options = options;
  all_options.lse = lse;
  const Tensor4<In> all_out =
      scaled_dot_product_attention(all_q, all_k, all_v, all_options, functors...);
  index_t to = 0;
  for (const IndexRange& range : layout.ranges(communicator.rank())) {
    for (index_t i = range.begin; i < range.end; ++i, ++to) {
      for (index_t b = 0; b < out.extent(0); ++b) {
        for (index_t h = 0; h < out.extent(1); ++h) {
          std::copy_n(&all_out(b, h, i, 0), out.extent(3), out.at_index({b, h, to, 0}));
          if (options.lse) options.lse(b, h, to) = lse(b, h, i);
        }
      }
    }
  }
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
/// documents keep for one of its tokens. It stores two chunks (each as long as the longest range of
/// a rank, at most 2048 tokens) and the running sums of each query. With few queries in all (the
/// decode path) every rank computes all of them and reads all rows of dense masks.
///
/// Throws ValueError on every rank if shapes or options differ between ranks or are invalid on one
/// of them. Refuses weights, scores, their sums, qv, packed sequences, pages, gather, first_key and
/// MaskedRow::mean. A later exception, for example from a functor, calls communicator.fail().
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
        attention.add_rows(range, at, queries, to, functors...);
        at += range.end - range.begin;
      }
      return detail::context_fields<T, Functors...>(layout, queries, keys, values, options);
    });
    const detail::AttentionProblem<T>& problem = attention.problem();
    if (!problem.has_rows()) return;
    detail::run_or_fail(communicator, [&] {
      if (!detail::tiling_of(problem, 0).decode) return attention.run();
      detail::gathered_attention<scalar_t<Q>, scalar_t<K>, T>(communicator, layout, queries, keys,
                                                              values, to, options, functors...);
    });
  }
}

ATTN_NAMESPACE_END
