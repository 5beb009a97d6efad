// MultiHeadAttentionCall: options of one call beyond AttentionOptions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <span>

#include "attn/attention/cache/cache_guard.hpp"
#include "attn/attention/kv_cache.hpp"

ATTN_NAMESPACE_BEGIN

/// Options of one call of the module beyond AttentionOptions.
template <class T>
struct MultiHeadAttentionCall {
  TensorView3<const T> residual = {};  ///< added to the output, of the same shape
  /// Positions of the tokens of query and of key for rotary, (batch, seq). By default keys have
  /// consecutive positions from first_key on, or after the cache's last, and the last query has the
  /// position of the last key, whatever lengths and offset are; in packed sequences both count from
  /// the start of the sequence.
  TensorView2<const index_t> position_ids = {};
  /// Appends the keys and values of this call, then attends to all keys of the cache.
  KvCache<T>* cache = nullptr;
  /// false: ignore key and value; attend only to the cache.
  bool append = true;
  /// Instead of `cache`: one cache per batch row, each of batch 1 and any length. The result equals
  /// one call per row (with batch index 0), but projections read their weights once for all rows.
  /// Options must not hold tensors with an axis of batch rows, queries or keys.
  std::span<KvCache<T>* const> row_caches = {};
  /// With `cache`: the tokens are a tree, in which token i follows token parents(i), a number from
  /// -1 to i - 1, or for -1 those in the cache. Each token attends to these, to itself and to its
  /// ancestors, with the bits of a call that has no other tokens; its position is its depth in the
  /// tree, which position_ids must give for rotary. The cache then holds all tokens, and the cache
  /// of a recurrent layer the state after each: see KvCache::keep_path(). Shape (q_len). Needs
  /// causal() or sliding_window(left, 0). Refused with functors, dropout, options that hold an axis
  /// of queries or keys, and caches with a window.
  TensorView1<const index_t> parents = {};

  ATTN_REFUSE_OTHER_ELEMENTS(MultiHeadAttentionCall)
};

namespace detail {

/// CacheGuard for every cache of a call.
template <class T>
class CallGuard {
 public:
  explicit CallGuard(const MultiHeadAttentionCall<T>& call) : of_cache_(call.cache) {
    for (KvCache<T>* cache : call.row_caches) of_rows_.emplace_back(cache);
  }
  /// For several conversations, each with one cache per layer.
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
  std::list<CacheGuard<KvCache<T>>> of_rows_;  ///< does not allocate if there are none
};

}  // namespace detail

ATTN_NAMESPACE_END
