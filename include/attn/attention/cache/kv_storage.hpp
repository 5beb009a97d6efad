// KvStorage: memory of a KV cache, compiled once for all elements.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "attn/attention/cache/kv_cache_options.hpp"
#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The kinds of rows of a cache. Only int8 has scales.
enum class KvRow { key, value, key_scale, value_scale };

/// Rows (batch, num_kv_heads, capacity + window, bytes) of up to four kinds, of which [begin, end)
/// are held: appends, forgets and reorders them. Its errors are those of KvCache.
class KvStorage {
 public:
  /// `options` has head_dim_v and element set. scale_size: bytes of a scale; 0: no scales.
  KvStorage(const KvCacheOptions& options, index_t scale_size) : options_(options) {
    const auto size = static_cast<index_t>(element_size(*options.element));
    const index_t bytes[] = {options.head_dim * size, options.head_dim_v * size, scale_size,
                             scale_size};
    for (std::size_t kind = 0; kind < rows_.size(); ++kind) {
      if (bytes[kind] == 0) continue;
      rows_[kind] = Tensor4<std::byte>::uninitialized(
          {options.batch, options.num_kv_heads, options.capacity + options.window, bytes[kind]});
    }
    readers_ = Tensor1<index_t>({options.batch});
  }

  KvStorage(const KvStorage&) = default;
  KvStorage& operator=(const KvStorage&) = default;
  /// A moved-from storage holds no keys and has capacity 0.
  KvStorage(KvStorage&& other) noexcept
      : options_(std::exchange(other.options_, nothing(other.options_))),
        rows_(std::move(other.rows_)),
        readers_(std::move(other.readers_)),
        begin_(std::exchange(other.begin_, 0)),
        end_(std::exchange(other.end_, 0)),
        length_(std::exchange(other.length_, 0)) {}
  KvStorage& operator=(KvStorage&& other) noexcept {
    options_ = std::exchange(other.options_, nothing(other.options_));
    rows_ = std::move(other.rows_);
    readers_ = std::move(other.readers_);
    begin_ = std::exchange(other.begin_, 0);
    end_ = std::exchange(other.end_, 0);
    length_ = std::exchange(other.length_, 0);
    return *this;
  }
  ~KvStorage() = default;

  const KvCacheOptions& options() const { return options_; }
  /// Number of positions held, and number of positions appended so far.
  index_t size() const { return end_ - begin_; }
  index_t length() const { return length_; }

  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const Tensor4<std::byte>& rows : rows_) sum += static_cast<std::size_t>(rows.size());
    return sum;
  }

  /// The last `count` rows of a kind, with elements of type E; empty if the cache has none of that
  /// kind.
  template <class E>
  TensorView4<E> last(KvRow kind, index_t count) {
    return last_of<E>(rows_[static_cast<std::size_t>(kind)], count);
  }
  template <class E>
  TensorView4<const E> last(KvRow kind, index_t count) const {
    return last_of<const E>(rows_[static_cast<std::size_t>(kind)], count);
  }

  /// Appends n positions.
  void make_room(std::string_view function, index_t n) {
    const index_t window = options_.window;
    const index_t kept = window == 0 ? size() : (std::min)(size(), window);
    const index_t room = options_.capacity - kept;
    if (n < 0 || n > room) {
      throw_cache_range(function,
                        "n, beside the " + std::to_string(kept) + " kept in a capacity of " +
                            std::to_string(options_.capacity) + ",",
                        0, room, n);
    }
    begin_ = end_ - kept;
    if (end_ + n > options_.capacity + window) {
      for (index_t b = 0; b < options_.batch; ++b) {
        each_head([&](const TensorView4<std::byte>& rows, index_t h) {
          std::byte* line = rows.at_index({b, h, 0, 0});
          std::copy(line + begin_ * rows.extent(3), line + end_ * rows.extent(3), line);
        });
      }
      begin_ = 0;
      end_ = kept;
    }
    end_ += n;
    length_ += n;
  }

  void truncate(index_t n) {
    if (n < 0 || n > max_truncated()) {
      throw_cache_range("KvCache::truncate", "n", 0, max_truncated(), n);
    }
    end_ -= n;
    length_ -= n;
  }

  void truncate_to(index_t length) {
    if (!can_truncate_to(length)) {
      throw_cache_range("KvCache::truncate_to", "length", length_ - max_truncated(), length_,
                        length);
    }
    truncate(length_ - length);
  }

  void keep_path(index_t n, TensorView1<const index_t> path) {
    if (n < 0 || n > max_truncated()) {
      throw_cache_range("KvCache::keep_path", "n", 0, max_truncated(), n);
    }
    const index_t kept = path.extent(0);
    for (index_t i = 0; i < kept; ++i) {
      const index_t lowest = i == 0 ? 0 : path(i - 1) + 1;
      if (path(i) >= lowest && path(i) < n) continue;
      throw_cache_range("KvCache::keep_path", "path(" + std::to_string(i) + ")", lowest, n - 1,
                        path(i));
    }
    for (index_t b = 0; b < options_.batch; ++b) {
      each_head([&](const TensorView4<std::byte>& rows, index_t h) {
        for (index_t i = 0; i < kept; ++i) {
          if (path(i) == i) continue;
          std::copy_n(rows.at_index({b, h, end_ - n + path(i), 0}), rows.extent(3),
                      rows.at_index({b, h, end_ - n + i, 0}));
        }
      });
    }
    truncate(n - kept);
  }

  bool can_truncate_to(index_t length) const {
    return length >= length_ - max_truncated() && length <= length_;
  }

  void clear() { begin_ = end_ = length_ = 0; }

  void reorder(TensorView1<const index_t> rows) {
    const index_t batch = options_.batch;
    check_shape("KvCache::reorder", "rows", "(batch)", Shape<1>{batch}, rows.shape());
    for (index_t b = 0; b < batch; ++b) {
      if (rows(b) >= 0 && rows(b) < batch) continue;
      throw_cache_range("KvCache::reorder", "rows(" + std::to_string(b) + ")", 0, batch - 1,
                        rows(b));
    }
    // In place: a row may be overwritten once no other row still needs its old content. Such rows
    // come first, and each copy may free its source; the remaining rows form cycles, which are
    // swapped.
    readers_.fill(0);
    for (index_t b = 0; b < batch; ++b) readers_(rows(b)) += 1;
    for (index_t b = 0; b < batch; ++b) {
      for (index_t to = b; readers_(to) == 0; to = rows(to)) {
        each_pair(rows(to), to,
                  [](std::byte* from, std::byte* into, index_t n) { std::copy_n(from, n, into); });
        readers_(to) = kDone;
        readers_(rows(to)) -= 1;
      }
    }
    for (index_t b = 0; b < batch; ++b) {
      for (index_t to = b; readers_(to) != kDone; to = rows(to)) {
        readers_(to) = kDone;
        if (readers_(rows(to)) == kDone) continue;
        each_pair(rows(to), to, [](std::byte* from, std::byte* into, index_t n) {
          std::swap_ranges(from, from + n, into);
        });
      }
    }
  }

 private:
  static constexpr index_t kDone = -1;

  static KvCacheOptions nothing(const KvCacheOptions& options) {
    return {.batch = 0, .num_kv_heads = 0, .element = options.element};
  }

  /// `rows` is empty if the cache has none of a kind.
  template <class E, class Rows>
  TensorView4<E> last_of(Rows& rows, index_t count) const {
    if (!rows) return {};
    const Shape<4>& shape = rows.shape();
    return TensorView4<E>(reinterpret_cast<E*>(rows.data()),
                          {shape[0], shape[1], shape[2], shape[3] / index_t{sizeof(E)}})
        .slice(2, end_ - count, end_);
  }

  index_t max_truncated() const { return size() == length_ ? size() : size() - options_.window; }

  /// Calls f(rows, h) for each kind of rows and each head.
  template <class F>
  void each_head(F f) {
    for (Tensor4<std::byte>& rows : rows_) {
      if (!rows) continue;
      for (index_t h = 0; h < options_.num_kv_heads; ++h) f(rows.view(), h);
    }
  }

  /// Calls f(first byte held of batch row `from`, first byte held of row `to`, number of bytes) for
  /// each kind of rows and each head.
  template <class F>
  void each_pair(index_t from, index_t to, F f) {
    each_head([&](const TensorView4<std::byte>& rows, index_t h) {
      f(rows.at_index({from, h, begin_, 0}), rows.at_index({to, h, begin_, 0}),
        size() * rows.extent(3));
    });
  }

  KvCacheOptions options_;
  std::array<Tensor4<std::byte>, 4> rows_;  ///< by KvRow
  Tensor1<index_t> readers_;  ///< of reorder(): rows that still wait for a row's old content
  index_t begin_ = 0, end_ = 0, length_ = 0;
};

}  // namespace detail

ATTN_NAMESPACE_END
