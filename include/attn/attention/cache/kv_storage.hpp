// KvStorage: memory of a KV cache, compiled once for all elements.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>

#include "attn/attention/cache/kv_cache_options.hpp"
#include "attn/attention/cache/reorder_rows.hpp"
#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The kinds of rows of a cache. Only int8 has scales.
enum class KvRow { key, value, key_scale, value_scale };

/// Rows (batch, num_kv_heads, capacity + window - shared, bytes) of up to four kinds, of which
/// [begin, end) are held: appends, forgets and reorders them. In the same memory, the rows
/// (num_kv_heads, shared, bytes) follow with which every batch row begins. Its errors are those of
/// KvCache.
class KvStorage {
 public:
  /// `options` has head_dim_v and element set.
  explicit KvStorage(const KvCacheOptions& options, index_t shared = 0)
      : options_(options), shared_(shared) {
    const auto size = static_cast<index_t>(element_size(*options.element));
    const index_t scale = *options.element == DType::I8 ? index_t{sizeof(float)} : 0;
    const index_t bytes[] = {options.head_dim * size, options.head_dim_v * size, scale, scale};
    for (std::size_t kind = 0; kind < rows_.size(); ++kind) {
      if (bytes[kind] == 0) continue;
      rows_[kind] = Tensor2<std::byte>::uninitialized(
          {first_shared() + options.num_kv_heads * shared, bytes[kind]});
    }
    readers_ = Tensor1<index_t>({options.batch});
  }

  /// A storage of `batch` rows that all hold what this one of one row holds: shared, or copied with
  /// a window, since shared rows are never forgotten; a state has no rows to share.
  KvStorage fork(index_t batch) const {
    check_fork(options_.batch, batch);
    KvCacheOptions options = options_;
    options.batch = batch;
    const bool shares = options.window == 0 && options.state_size == 0;
    KvStorage result(options, shares ? size() : 0);
    result.end_ = size() - result.shared_;
    result.length_ = length_;
    for (std::size_t kind = 0; kind < rows_.size(); ++kind) {
      if (!rows_[kind]) continue;
      Tensor2<std::byte>& to = result.rows_[kind];
      for (index_t h = 0; h < options.num_kv_heads; ++h) {
        if (result.shared_ > 0) {
          copy_head(kind, h, to.view().at_index({result.first_shared() + h * result.shared_, 0}));
        }
        for (index_t b = 0; b < batch && result.end_ > 0; ++b) {
          copy_head(kind, h, result.own<std::byte>(to).at_index({b, h, 0, 0}));
        }
      }
    }
    return result;
  }

  KvStorage(const KvStorage&) = default;
  KvStorage& operator=(const KvStorage&) = default;
  /// A moved-from storage holds no keys and has capacity 0.
  KvStorage(KvStorage&& other) noexcept : options_(nothing(other.options_)) { swap(other); }
  KvStorage& operator=(KvStorage&& other) noexcept {
    KvStorage moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~KvStorage() = default;

  const KvCacheOptions& options() const { return options_; }
  /// Number of positions held, and number of positions appended so far.
  index_t size() const { return shared_ + end_ - begin_; }
  index_t length() const { return length_; }
  /// Number of positions shared by all batch rows, and the index of the first of their rows,
  /// counted from the first row of the storage.
  index_t shared() const { return shared_; }
  index_t first_shared() const {
    return size_of(Shape<3>{options_.batch, options_.num_kv_heads, own_capacity()});
  }

  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const Tensor2<std::byte>& rows : rows_) sum += static_cast<std::size_t>(rows.size());
    return sum;
  }

  /// The last `count` rows of a kind, which are not shared, with elements of type E; empty if the
  /// cache has none of that kind.
  template <class E>
  TensorView4<E> last(KvRow kind, index_t count) {
    return last_of<E>(rows_[static_cast<std::size_t>(kind)], count);
  }
  template <class E>
  TensorView4<const E> last(KvRow kind, index_t count) const {
    return last_of<const E>(rows_[static_cast<std::size_t>(kind)], count);
  }

  /// The shared rows of a kind, one head after the other, as rows of each batch row.
  template <class E>
  TensorView4<const E> shared_rows(KvRow kind) const {
    const Tensor2<std::byte>& rows = rows_[static_cast<std::size_t>(kind)];
    if (!rows) return {};
    const index_t dim = rows.extent(1) / index_t{sizeof(E)};
    return {reinterpret_cast<const E*>(rows.view().at_index({first_shared(), 0})),
            {options_.batch, options_.num_kv_heads, shared_, dim},
            {0, shared_ * dim, dim, 1}};
  }

  /// All rows held, for AttentionProblem::shared: row j of the view is row j - shared() of the
  /// memory from its first element on.
  template <class E>
  TensorView4<const E> all(KvRow kind) const {
    const TensorView4<const E> own = last<E>(kind, end_ - begin_);
    if (!own) return {};
    return {own.data(), {own.extent(0), own.extent(1), size(), own.extent(3)}, own.strides()};
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
    begin_ = end_ - (kept - shared_);
    if (end_ + n > own_capacity()) {
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

  bool can_truncate_to(index_t length) const {
    return length >= length_ - max_truncated() && length <= length_;
  }

  /// Allocates memory if rows are shared: the capacity becomes that of rows which are not.
  void clear() {
    if (shared_ > 0) *this = KvStorage(options_);
    begin_ = end_ = length_ = 0;
  }

  void reorder(TensorView1<const index_t> rows) {
    check_reorder(rows, options_.batch);
    reorder_in_place(rows, readers_, [&](index_t from, index_t to, auto move) {
      each_head([&](const TensorView4<std::byte>& all, index_t h) {
        move(all.at_index({from, h, begin_, 0}), all.at_index({to, h, begin_, 0}),
             (end_ - begin_) * all.extent(3));
      });
    });
  }

 private:
  void swap(KvStorage& other) noexcept {
    const auto members = [](KvStorage& x) {
      return std::tie(x.options_, x.rows_, x.readers_, x.shared_, x.begin_, x.end_, x.length_);
    };
    auto theirs = members(other);
    members(*this).swap(theirs);
  }

  static KvCacheOptions nothing(const KvCacheOptions& options) {
    return {.batch = 0, .num_kv_heads = 0, .element = options.element};
  }

  /// Rows of each batch row and head.
  index_t own_capacity() const { return options_.capacity + options_.window - shared_; }

  /// The rows of a kind that are not shared.
  template <class E, class Rows>
  TensorView4<E> own(Rows& rows) const {
    return {reinterpret_cast<E*>(rows.data()),
            {options_.batch, options_.num_kv_heads, own_capacity(),
             rows.extent(1) / index_t{sizeof(E)}}};
  }

  /// `rows` is empty if the cache has none of a kind.
  template <class E, class Rows>
  TensorView4<E> last_of(Rows& rows, index_t count) const {
    return rows ? own<E>(rows).slice(2, end_ - count, end_) : TensorView4<E>();
  }

  /// Copies all rows of a kind and head that batch row 0 holds.
  void copy_head(std::size_t kind, index_t h, std::byte* to) const {
    const TensorView2<const std::byte> rows = rows_[kind];
    const index_t bytes = rows.extent(1), end = shared_ * bytes;
    std::copy_n(rows.at_index({first_shared() + h * shared_, 0}), end, to);
    std::copy_n(rows.at_index({h * own_capacity() + begin_, 0}), (end_ - begin_) * bytes, to + end);
  }

  /// Shared rows cannot be truncated, since the memory would then lack room for capacity.
  index_t max_truncated() const {
    return size() == length_ ? end_ - begin_ : size() - options_.window;
  }

  /// Calls f(rows, h) for each kind of rows and each head.
  template <class F>
  void each_head(F f) {
    for (Tensor2<std::byte>& rows : rows_) {
      if (!rows) continue;
      for (index_t h = 0; h < options_.num_kv_heads; ++h) f(own<std::byte>(rows), h);
    }
  }

  KvCacheOptions options_;
  std::array<Tensor2<std::byte>, 4> rows_;  ///< by KvRow
  Tensor1<index_t> readers_;  ///< of reorder(): rows that still wait for a row's old content
  index_t shared_ = 0, begin_ = 0, end_ = 0, length_ = 0;
};

}  // namespace detail

ATTN_NAMESPACE_END
