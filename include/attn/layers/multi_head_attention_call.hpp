// MultiHeadAttentionCall: what one call of the module is told beside AttentionOptions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <span>

#include "attn/attention/cache_guard.hpp"
#include "attn/attention/kv_cache.hpp"

ATTN_NAMESPACE_BEGIN

/// What a call of the module can be told beside AttentionOptions.
template <class T>
struct MultiHeadAttentionCall {
  TensorView3<const T> residual = {};  ///< added to the result, which has its shape
  /// Rotary: where the tokens of query, and of key, stand, (batch, seq). If not given, keys stand
  /// from first_key on, or behind those of the cache, and the last query at the last key, whatever
  /// lengths and offset say; both are counted from the beginning of their packed sequence.
  TensorView2<const index_t> position_ids = {};
  /// Attention runs over all that it holds, and this call's keys become the last of it.
  KvCache<T>* cache = nullptr;
  bool append =
      true;  ///< false: key and value are not read; attention runs over what the cache holds
  /// Instead of `cache`: of each batch row its own, of one row and of any length. Row b is computed
  /// as in a call of its own, batch row 0, but for the projections, which read their weights once
  /// for all rows. Options then hold nothing that has an extent of rows, queries or keys.
  std::span<KvCache<T>* const> row_caches = {};
};

namespace detail {

/// CacheGuard of every cache of a call.
template <class T>
class CallGuard {
 public:
  explicit CallGuard(const MultiHeadAttentionCall<T>& call) : of_cache_(call.cache) {
    for (KvCache<T>* cache : call.row_caches) of_rows_.emplace_back(cache);
  }
  /// Of conversations, each of one cache per layer.
  explicit CallGuard(std::span<const std::span<KvCache<T>>> conversations)
      : of_cache_(static_cast<KvCache<T>*>(nullptr)) {
    for (const std::span<KvCache<T>> caches : conversations) of_rows_.emplace_back(caches);
  }
  void commit() {
    of_cache_.commit();
    for (CacheGuard<KvCache<T>>& guard : of_rows_) guard.commit();
  }

 private:
  CacheGuard<KvCache<T>> of_cache_;
  std::list<CacheGuard<KvCache<T>>> of_rows_;  ///< which allocates nothing where there are none
};

}  // namespace detail

ATTN_NAMESPACE_END
