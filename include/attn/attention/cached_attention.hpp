// Attention over a KvCache of any element.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/kv_cache.hpp"
#include "attn/attention/sdpa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Throws ValueError for options that give keys another place than that of a cache whose rows share
/// keys.
template <class T>
void refuse_shared_keys(const AttentionOptions<T>& options) {
  const auto check = [](std::string_view argument, bool found) {
    if (!found) return;
    throw ValueError(message("scaled_dot_product_attention", argument,
                             "be none with a cache whose rows share keys: see KvCache::fork()",
                             "some"));
  };
  check("cu_seqlens_q", bool{options.cu_seqlens_q});
  check("cu_seqlens_k", bool{options.cu_seqlens_k});
  check("block_table", bool{options.block_table});
}

/// Calls f(backend, problem) for attention over all keys and values that a cache holds.
template <class T, class F, class... Functors>
void with_cache(const TensorView4<const T>& q, const KvCache<T>& cache, const TensorView4<T>& out,
                AttentionOptions<Accumulator<T>> options, const F& f, const Functors&... functors) {
  using Acc = Accumulator<T>;
  options.first_key = cache.first_position();
  if (cache.shared_size() > 0) refuse_shared_keys(options);
  with_cache_element<T>(*cache.options().element, [&]<class E>(E) {
    const KvStorage& held = cache.storage();
    AttentionProblem<Acc> problem =
        make_problem_with<Acc>(q, held.template all<E>(KvRow::key),
                               held.template all<E>(KvRow::value), out, options, functors...);
    problem.shared = {held.shared(), held.first_shared()};
    if constexpr (std::same_as<T, Acc>) {  // others store no scales
      const auto scales = [](const auto& rows) {
        return rows ? rows.select(3, 0) : TensorView3<const T>();
      };
      problem.k_scales = scales(held.template all<T>(KvRow::key_scale));
      problem.v_scales = scales(held.template all<T>(KvRow::value_scale));
    }
    f(backend<family::Attention, E, Acc>(options.execution), problem);
  });
}

}  // namespace detail

/// out = attention of q (batch, num_heads, q_len, head_dim) over all keys and values in the cache.
/// Equals scaled_dot_product_attention(q, cache.keys(), cache.values(), out, options, functors...)
/// with options.first_key = cache.first_position(), for a cache of any element type: 16-bit and
/// int8 rows are widened in registers or while packing, never copied as a whole. Few queries read
/// the keys that rows share (KvCache::fork()) once for several rows, with the same bits. Throws
/// what that call throws, and ValueError for cu_seqlens_q, cu_seqlens_k and block_table where rows
/// share keys.
template <TensorLike Q, class T, TensorLike Out, class... Functors>
void scaled_dot_product_attention(const Q& q, const KvCache<T>& cache, Out&& out,
                                  const AttentionOptions<Accumulator<T>>& options = {},
                                  const Functors&... functors) {
  detail::assert_call_types<Q, Tensor4<T>, Tensor4<T>, Out, Functors...>();
  if constexpr (detail::CallTypes<Q, Tensor4<T>, Tensor4<T>, Out, Functors...>::is_good) {
    detail::with_cache<T>(
        const_view(q), cache, view_of(out), options,
        [&](const auto& backend, const auto& problem) {
          backend.forward(problem, options.execution);
        },
        functors...);
  }
}

/// Returns the output as a new tensor.
template <TensorLike Q, class T, class... Functors>
Tensor4<T> scaled_dot_product_attention(const Q& q, const KvCache<T>& cache,
                                        const AttentionOptions<Accumulator<T>>& options = {},
                                        const Functors&... functors) {
  detail::assert_call_types<Q, Tensor4<T>, Tensor4<T>, Tensor4<T>&, Functors...>();
  const Shape<4> shape = detail::view_as<const T, 4>(q).shape();
  auto out = Tensor4<T>::uninitialized({shape[0], shape[1], shape[2], cache.options().head_dim_v});
  scaled_dot_product_attention(q, cache, out, options, functors...);
  return out;
}

ATTN_NAMESPACE_END
