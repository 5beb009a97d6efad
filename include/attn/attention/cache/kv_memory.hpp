// KvMemory: the keys, values and scales of a KV cache, by batch row and shared.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "attn/attention/cache/kv_cache_options.hpp"
#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The kinds of rows of a cache. Only int8 has scales.
enum class KvRow { key, value, key_scale, value_scale };

/// Rows (batch, num_kv_heads, capacity + window - shared, bytes) of up to four kinds. Rows shared
/// by all batch rows, (num_kv_heads, shared, bytes), follow in the same memory.
class KvMemory {
 public:
  KvMemory() = default;
  /// `options` has head_dim_v and element set.
  KvMemory(const KvCacheOptions& options, index_t shared)
      : batch_(options.batch),
        heads_(options.num_kv_heads),
        capacity_(options.capacity + options.window - shared),
        shared_(shared) {
    const auto size = static_cast<index_t>(element_size(*options.element));
    const index_t scale = *options.element == DType::I8 ? index_t{sizeof(float)} : 0;
    const index_t bytes[] = {options.head_dim * size, options.head_dim_v * size, scale, scale};
    for (std::size_t kind = 0; kind < rows_.size(); ++kind) {
      if (bytes[kind] == 0) continue;
      rows_[kind] =
          Tensor2<std::byte>::uninitialized({first_shared() + heads_ * shared, bytes[kind]});
    }
  }

  /// Rows of each batch row and head.
  index_t capacity() const { return capacity_; }
  /// Number of positions shared by all batch rows, and the index of the first of their rows,
  /// counted from the first row of the memory.
  index_t shared() const { return shared_; }
  index_t first_shared() const { return size_of(Shape<3>{batch_, heads_, capacity_}); }

  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const Tensor2<std::byte>& rows : rows_) sum += static_cast<std::size_t>(rows.size());
    return sum;
  }

  /// The rows of a kind that are not shared, with elements of type E; empty if there are none.
  template <class E>
  TensorView4<E> own(KvRow kind) {
    return own_of<E>(rows_[static_cast<std::size_t>(kind)]);
  }
  template <class E>
  TensorView4<const E> own(KvRow kind) const {
    return own_of<const E>(rows_[static_cast<std::size_t>(kind)]);
  }

  /// The shared rows of a kind, head by head, as rows of each batch row.
  template <class E>
  TensorView4<const E> shared_rows(KvRow kind) const {
    const Tensor2<std::byte>& rows = rows_[static_cast<std::size_t>(kind)];
    if (!rows) return {};
    const index_t dim = rows.extent(1) / index_t{sizeof(E)};
    return {reinterpret_cast<const E*>(rows.view().at_index({first_shared(), 0})),
            {batch_, heads_, shared_, dim},
            {0, shared_ * dim, dim, 1}};
  }

  /// Copies the rows of batch row 0 of `from`: its shared rows, then its own rows in [begin, end).
  /// They become the shared rows or, if this memory shares none, the first rows of each batch row.
  void copy_row_0(const KvMemory& from, index_t begin, index_t end) {
    for (std::size_t kind = 0; kind < rows_.size(); ++kind) {
      if (!rows_[kind]) continue;
      const TensorView2<std::byte> to = rows_[kind];
      for (index_t h = 0; h < heads_; ++h) {
        if (shared_ > 0) {
          from.copy_head(kind, h, begin, end, to.at_index({first_shared() + h * shared_, 0}));
          continue;
        }
        for (index_t b = 0; b < batch_ && from.shared_ + end > begin; ++b) {
          from.copy_head(kind, h, begin, end, to.at_index({(b * heads_ + h) * capacity_, 0}));
        }
      }
    }
  }

  /// Calls f(rows, h) for each kind of rows that are not shared and each head.
  template <class F>
  void each_head(F f) {
    for (Tensor2<std::byte>& rows : rows_) {
      if (!rows) continue;
      for (index_t h = 0; h < heads_; ++h) f(own_of<std::byte>(rows), h);
    }
  }

 private:
  template <class E, class Rows>
  TensorView4<E> own_of(Rows& rows) const {
    if (!rows) return {};
    return {reinterpret_cast<E*>(rows.data()),
            {batch_, heads_, capacity_, rows.extent(1) / index_t{sizeof(E)}}};
  }

  void copy_head(std::size_t kind, index_t h, index_t begin, index_t end, std::byte* to) const {
    const TensorView2<const std::byte> rows = rows_[kind];
    const index_t bytes = rows.extent(1), shared = shared_ * bytes;
    std::copy_n(rows.at_index({first_shared() + h * shared_, 0}), shared, to);
    std::copy_n(rows.at_index({h * capacity_ + begin, 0}), (end - begin) * bytes, to + shared);
  }

  index_t batch_ = 0, heads_ = 0, capacity_ = 0, shared_ = 0;
  std::array<Tensor2<std::byte>, 4> rows_;  ///< by KvRow
};

}  // namespace detail

ATTN_NAMESPACE_END
