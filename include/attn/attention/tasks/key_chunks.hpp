// KeyChunks: the visibility of a block of keys under the mask functor, by chunks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "attn/attention/key_range.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// For the rows of one tile. Without a BlockTable all chunks have the same visibility.
struct KeyChunks {
  /// A multiple of every panel's width. Blocks of keys begin at multiples of it.
  static constexpr index_t kKeys = 64;
  static constexpr index_t kMaxBlockKV = 64 * kKeys;

  index_t first_key = 0;              ///< of the block, where chunk 0 begins
  std::uint64_t empty = 0, full = 0;  ///< bit c is that of chunk c

  bool has_empty() const { return empty != 0; }
  void set_all_full() { full = ~std::uint64_t{0}; }

  /// The end of the chunk that holds key j.
  static index_t chunk_end(index_t j) { return (j / kKeys + 1) * kKeys; }

  /// Adds the chunk that holds key j.
  void add(index_t j, Visibility visibility) {
    const std::uint64_t bit = std::uint64_t{1} << ((j - first_key) / kKeys);
    if (visibility == Visibility::empty) empty |= bit;
    if (visibility == Visibility::full) full |= bit;
  }

  /// Calls f(range, visibility) for `keys` in order, cut where the visibility changes.
  template <class F>
  void for_each_run(KeyRange keys, F f) const {
    if (empty == 0 && (full == 0 || full == ~std::uint64_t{0})) {
      return f(keys, full == 0 ? Visibility::partial : Visibility::full);
    }
    for (index_t j = keys.begin; j < keys.end;) {
      const Visibility visibility = at(j);
      index_t end = chunk_end(j);
      while (end < keys.end && at(end) == visibility) end += kKeys;
      end = (std::min)(end, keys.end);
      f(KeyRange{j, end}, visibility);
      j = end;
    }
  }

  /// Calls f(range) for the parts of `keys` that are not empty, in order.
  template <class F>
  void for_each_seen(KeyRange keys, F f) const {
    if (empty == 0) return f(keys);
    KeyRange seen{keys.begin, keys.begin};
    for_each_run(keys, [&](KeyRange run, Visibility visibility) {
      if (visibility != Visibility::empty) {
        if (seen.begin == seen.end) seen.begin = run.begin;
        seen.end = run.end;
        return;
      }
      if (seen.begin < seen.end) f(seen);
      seen = {run.end, run.end};
    });
    if (seen.begin < seen.end) f(seen);
  }

  /// Whether none of `keys` is seen.
  bool is_empty(KeyRange keys) const {
    bool any = false;
    for_each_seen(keys, [&](KeyRange seen) { any = any || seen.begin < seen.end; });
    return !any;
  }

 private:
  Visibility at(index_t j) const {
    const index_t chunk = (j - first_key) / kKeys;
    return (empty >> chunk & 1) != 0  ? Visibility::empty
           : (full >> chunk & 1) != 0 ? Visibility::full
                                      : Visibility::partial;
  }
};

}  // namespace detail

ATTN_NAMESPACE_END
