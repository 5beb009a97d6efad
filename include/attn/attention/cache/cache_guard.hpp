// CacheGuard: removes appended keys from caches if a call throws.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>
#include <utility>

#include "attn/core/config.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// On destruction, undoes one call that appended to the caches unless commit() was called.
/// Ignores caches of unequal lengths, which the call that appends to them refuses.
template <class Cache>
class CacheGuard {
 public:
  explicit CacheGuard(std::span<Cache> caches) : caches_(caches) {
    if (caches.empty()) return;
    length_ = caches[0].length();
    const auto is_unlike = [&](const Cache& cache) { return !(cache.length() == length_); };
    if (std::any_of(caches.begin(), caches.end(), is_unlike)) caches_ = {};
  }
  /// `cache` may be null.
  explicit CacheGuard(Cache* cache) : CacheGuard({cache, cache == nullptr ? 0u : 1u}) {}
  CacheGuard(const CacheGuard&) = delete;
  CacheGuard& operator=(const CacheGuard&) = delete;
  ~CacheGuard() {
    for (Cache& cache : caches_) cache.undo_to(length_);
  }
  void commit() { caches_ = {}; }

 private:
  std::span<Cache> caches_;
  decltype(std::declval<Cache>().length()) length_ = {};
};

}  // namespace detail

ATTN_NAMESPACE_END
