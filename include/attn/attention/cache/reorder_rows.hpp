// reorder_in_place(): row b of a batch becomes a copy of another row, without further memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "attn/attention/cache/kv_cache_options.hpp"
#include "attn/core/view.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Checks KvCache::reorder(rows).
inline void check_reorder(TensorView1<const index_t> rows, index_t batch) {
  check_shape("KvCache::reorder", "rows", "(batch)", Shape<1>{batch}, rows.shape());
  for (index_t b = 0; b < batch; ++b) {
    if (rows(b) >= 0 && rows(b) < batch) continue;
    throw_cache_range("KvCache::reorder", "rows(" + std::to_string(b) + ")", 0, batch - 1, rows(b));
  }
}

/// Row b becomes a copy of the previous row rows(b), for every b. each_part(from, to, move) calls
/// move(first byte, first byte, number of bytes) for each part of rows `from` and `to`. `readers`
/// (batch) is scratch: rows that still wait for a row's old content.
template <class EachPart>
void reorder_in_place(TensorView1<const index_t> rows, const TensorView1<index_t>& readers,
                      const EachPart& each_part) {
  constexpr index_t kDone = -1;
  const index_t batch = rows.extent(0);
  // A row may be overwritten once no other row still needs its old content. Such rows come first,
  // and each copy may free its source; the remaining rows form cycles, which are swapped.
  for (index_t b = 0; b < batch; ++b) readers(b) = 0;
  for (index_t b = 0; b < batch; ++b) readers(rows(b)) += 1;
  for (index_t b = 0; b < batch; ++b) {
    for (index_t to = b; readers(to) == 0; to = rows(to)) {
      each_part(rows(to), to, [](const std::byte* from, std::byte* into, index_t n) {
        std::copy_n(from, n, into);
      });
      readers(to) = kDone;
      readers(rows(to)) -= 1;
    }
  }
  for (index_t b = 0; b < batch; ++b) {
    for (index_t to = b; readers(to) != kDone; to = rows(to)) {
      readers(to) = kDone;
      if (readers(rows(to)) == kDone) continue;
      each_part(rows(to), to, [](std::byte* from, std::byte* into, index_t n) {
        std::swap_ranges(from, from + n, into);
      });
    }
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
