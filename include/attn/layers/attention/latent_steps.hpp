// Steps of latent attention: its options, their checks, and tokens read from a cache.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "attn/attention/cached_attention.hpp"
#include "attn/layers/attention/head_steps.hpp"
#include "attn/layers/attention/multi_head_attention_checks.hpp"

ATTN_NAMESPACE_BEGIN

/// Options of LatentAttention. In config.json of DeepSeek-V2 and V3 head_dim is qk_nope_head_dim,
/// rotary_dim qk_rope_head_dim and head_dim_v v_head_dim.
struct LatentAttentionOptions {
  index_t embed_dim = 0;     ///< features of x and of the result
  index_t num_heads = 1;     ///< query heads
  index_t q_lora_rank = 0;   ///< features between the two projections of queries; 0: one projection
  index_t kv_lora_rank = 0;  ///< features of the latent that keys and values are computed from
  index_t head_dim = 0;      ///< features of queries and keys of a head without rotary
  index_t rotary_dim = 0;    ///< further features with rotary, whose keys all heads share
  index_t head_dim_v = 0;    ///< features of values of a head; 0: head_dim
  bool bias = false;         ///< of the projections from x and of the output projection
  double norm_eps = 1e-6;    ///< epsilon of the RMS norms after the projections from x
  std::optional<double> scale = {};          ///< default 1 / sqrt(head_dim + rotary_dim)
  std::optional<RotaryOptions> rotary = {};  ///< of the rotary_dim features
  double dropout = 0;  ///< of attention weights in training; calls have their own
};

namespace detail {

/// Returns the options with every default filled in. Throws ValueError for options that contradict
/// each other.
inline LatentAttentionOptions resolved_latent(LatentAttentionOptions o) {
  if (o.head_dim_v == 0) o.head_dim_v = o.head_dim;
  constexpr index_t kMax = index_t{1} << 30;  // products of two do not overflow
  const std::pair<std::string_view, index_t> counts[] = {
      {"embed_dim", o.embed_dim}, {"num_heads", o.num_heads},   {"kv_lora_rank", o.kv_lora_rank},
      {"head_dim", o.head_dim},   {"rotary_dim", o.rotary_dim}, {"head_dim_v", o.head_dim_v}};
  const auto check = [](bool good, std::string_view argument, std::string_view expected,
                        const std::string& found) {
    if (!good) throw ValueError(message("LatentAttention", argument, expected, found));
  };
  for (const auto& [name, count] : counts) {
    check(count > 0 && count <= kMax, name, "lie in 1 .. 2^30", std::to_string(count));
  }
  check(o.q_lora_rank >= 0 && o.q_lora_rank <= kMax, "q_lora_rank", "lie in 0 .. 2^30",
        std::to_string(o.q_lora_rank));
  if (!o.scale) o.scale = 1 / std::sqrt(static_cast<double>(o.head_dim + o.rotary_dim));
  if (o.rotary) {
    o.rotary = resolved_rotary(*std::move(o.rotary), o.rotary_dim);
    check(o.rotary->dim == o.rotary_dim, "rotary.dim",
          "be rotary_dim = " + std::to_string(o.rotary_dim), std::to_string(o.rotary->dim));
    check(o.rotary->scaling.query_beta == 0, "rotary.scaling.query_beta", "be 0", "another value");
  }
  return o;
}

/// MultiHeadAttention options for its checks: one key/value head, rotary keys, latent values.
inline MultiHeadAttentionOptions latent_as_heads(const LatentAttentionOptions& o) {
  return {.embed_dim = o.embed_dim,
          .num_heads = o.num_heads,
          .kdim = o.embed_dim,
          .vdim = o.embed_dim,
          .num_kv_heads = 1,
          .head_dim = o.rotary_dim,
          .head_dim_v = o.kv_lora_rank,
          .rotary = o.rotary};
}

/// Throws ShapeError or ValueError unless a call fits the options.
template <class T>
void check_latent_call(const LatentAttentionOptions& o, const TensorView3<const T>& x,
                       const Shape<3>& out, const AttentionOptions<Accumulator<T>>& options,
                       const MultiHeadAttentionCall<T>& call) {
  check_attention_call(latent_as_heads(o), o.embed_dim, x, x, x, out, options, call,
                       "LatentAttention");
  const auto refuse = [](bool given, std::string_view argument, std::string_view expected,
                         std::string_view found) {
    if (given) throw ValueError(message("LatentAttention", argument, expected, found));
  };
  refuse(!call.append, "append", "be true", "false");
  refuse(static_cast<bool>(options.qv), "qv", "be none: the layer sets it", "one");
  refuse(static_cast<bool>(options.gather), "gather", "be none", "some");
  refuse(static_cast<bool>(options.block_table), "block_table", "be none", "one");
}

/// to = all keys or values that a cache of one head holds, (batch, size, dim), as T.
template <class T>
void read_cached(const KvCache<T>& cache, bool keys, const TensorView3<T>& to,
                 const Execution& execution) {
  const KvStorage& held = cache.storage();
  const index_t shared = held.shared(), size = cache.size();
  const KvRow kind = keys ? KvRow::key : KvRow::value;
  const KvRow scale = keys ? KvRow::key_scale : KvRow::value_scale;
  with_cache_element<T>(*cache.options().element, [&]<class E>(E) {
    const auto read = [&](const TensorView3<const E>& from,
                          [[maybe_unused]] const TensorView4<const T>& scales,
                          const TensorView3<T>& part) {
      if constexpr (std::same_as<E, std::int8_t>) {
        const index_t n = part.extent(1);
        for_rows(execution.threads(), part.extent(0) * n, part.extent(2), [&](index_t row) {
          const index_t b = row / n, j = row % n;
          for (index_t i = 0; i < part.extent(2); ++i) {
            part(b, j, i) =
                static_cast<T>(scales(b, 0, j, 0) * static_cast<Accumulator<T>>(from(b, j, i)));
          }
        });
      } else {
        convert(from, part, execution);
      }
    };
    read(held.template shared_rows<E>(kind).select(1, 0), held.template shared_rows<T>(scale),
         to.slice(1, 0, shared));
    read(held.template last<E>(kind, size - shared).select(1, 0),
         held.template last<T>(scale, size - shared), to.slice(1, shared, size));
  });
}

/// scaled_dot_product_attention() of q, some of `all_heads` heads that share the keys, with the
/// bits of a call on all of them.
template <class T, class... Functors>
void attend_some_heads(index_t all_heads, const TensorView4<const T>& q,
                       const TensorView4<const T>& k, const TensorView4<const T>& v,
                       const TensorView4<T>& out, const AttentionOptions<Accumulator<T>>& options,
                       const Functors&... functors) {
  using Acc = Accumulator<T>;
  assert_call_types<Tensor4<T>, Tensor4<T>, Tensor4<T>, Tensor4<T>&, Functors...>();
  if constexpr (CallTypes<Tensor4<T>, Tensor4<T>, Tensor4<T>, Tensor4<T>&, Functors...>::is_good) {
    AttentionProblem<Acc> problem = make_problem_with<Acc>(q, k, v, out, options, functors...);
    problem.tiled_heads_per_kv_head = all_heads;
    backend<family::Attention, T, Acc>(options.execution).forward(problem, options.execution);
  }
}

/// Attends to all keys and values that a cache holds.
template <class T, class... Functors>
void attend_some_heads(index_t all_heads, const TensorView4<const T>& q, const KvCache<T>& cache,
                       const TensorView4<T>& out, const AttentionOptions<Accumulator<T>>& options,
                       const Functors&... functors) {
  assert_call_types<Tensor4<T>, Tensor4<T>, Tensor4<T>, Tensor4<T>&, Functors...>();
  if constexpr (CallTypes<Tensor4<T>, Tensor4<T>, Tensor4<T>, Tensor4<T>&, Functors...>::is_good) {
    with_cache<T>(
        q, cache, out, options,
        [&](const auto& backend, auto& problem) {
          problem.tiled_heads_per_kv_head = all_heads;
          backend.forward(problem, options.execution);
        },
        functors...);
  }
}

/// k (batch, num_heads, seq, head_dim + rotary_dim) = the head_dim features that begin each head of
/// kv (batch, seq, num_heads * features of a head), and the shared ones (batch, seq, rotary_dim).
template <class T>
void join_keys(const TensorView3<const T>& kv, const TensorView3<const T>& shared,
               const TensorView4<T>& k, const Execution& execution) {
  const index_t heads = k.extent(1), seq = k.extent(2), rotary_dim = shared.extent(2);
  const index_t head_dim = k.extent(3) - rotary_dim, width = kv.extent(2) / heads;
  for_rows(execution.threads(), k.extent(0) * seq, heads * k.extent(3), [&](index_t row) {
    const index_t b = row / seq, j = row % seq;
    const T *from = kv.at_index({b, j, 0}), *turned = shared.at_index({b, j, 0});
    for (index_t h = 0; h < heads; ++h) {
      T* to = k.at_index({b, h, j, 0});
      std::copy_n(from + h * width, head_dim, to);
      std::copy_n(turned, rotary_dim, to + head_dim);
    }
  });
}

}  // namespace detail

ATTN_NAMESPACE_END
