// KvStorage: the positions that a KV cache holds, compiled once for all elements.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>

#include "attn/attention/cache/kv_memory.hpp"
#include "attn/attention/cache/reorder_rows.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Rows [begin, end) behind the shared ones: appends, forgets and reorders them. Its errors are
/// those of KvCache.
class KvStorage {
 public:
  /// `options` has head_dim_v and element set.
  explicit KvStorage(const KvCacheOptions& options, index_t shared = 0)
      : options_(options), memory_(options, shared), readers_({options.batch}) {}

  /// A storage of `batch` rows that all hold what this one of one row holds: shared, or copied with
  /// a window, since shared rows are never forgotten; a state has no rows to share.
  KvStorage fork(index_t batch) const {
    check_fork(options_.batch, batch);
    KvCacheOptions options = options_;
    options.batch = batch;
    const bool shares = options.window == 0 && options.state_size == 0;
    KvStorage result(options, shares ? size() : 0);
    result.end_ = size() - result.shared();
    result.length_ = length_;
    result.memory_.copy_row_0(memory_, begin_, end_);
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
  index_t size() const { return shared() + end_ - begin_; }
  index_t length() const { return length_; }
  /// See KvMemory.
  index_t shared() const { return memory_.shared(); }
  index_t first_shared() const { return memory_.first_shared(); }
  std::size_t bytes() const { return memory_.bytes(); }

  /// The last `count` rows of a kind, which are not shared, with elements of type E; empty if the
  /// cache has none of that kind.
  template <class E>
  TensorView4<E> last(KvRow kind, index_t count) {
    return last_of(memory_.template own<E>(kind), count);
  }
  template <class E>
  TensorView4<const E> last(KvRow kind, index_t count) const {
    return last_of(memory_.template own<E>(kind), count);
  }

  /// The shared rows of a kind as rows of each batch row.
  template <class E>
  TensorView4<const E> shared_rows(KvRow kind) const {
    return memory_.template shared_rows<E>(kind);
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
    begin_ = end_ - (kept - shared());
    if (end_ + n > memory_.capacity()) {
      for (index_t b = 0; b < options_.batch; ++b) {
        memory_.each_head([&](const TensorView4<std::byte>& rows, index_t h) {
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
    check_path(path, n);
    for (index_t b = 0; b < options_.batch; ++b) {
      memory_.each_head([&](const TensorView4<std::byte>& rows, index_t h) {
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

  /// Allocates memory if rows are shared: the capacity becomes that of rows which are not.
  void clear() {
    if (shared() > 0) *this = KvStorage(options_);
    begin_ = end_ = length_ = 0;
  }

  void reorder(TensorView1<const index_t> rows) {
    check_reorder(rows, options_.batch);
    reorder_in_place(rows, readers_, [&](index_t from, index_t to, auto move) {
      memory_.each_head([&](const TensorView4<std::byte>& all, index_t h) {
        move(all.at_index({from, h, begin_, 0}), all.at_index({to, h, begin_, 0}),
             (end_ - begin_) * all.extent(3));
      });
    });
  }

 private:
  void swap(KvStorage& other) noexcept {
    const auto members = [](KvStorage& x) {
      return std::tie(x.options_, x.memory_, x.readers_, x.begin_, x.end_, x.length_);
    };
    auto theirs = members(other);
    members(*this).swap(theirs);
  }

  static KvCacheOptions nothing(const KvCacheOptions& options) {
    return {.batch = 0, .num_kv_heads = 0, .element = options.element};
  }

  /// `rows` is empty if the cache has none of a kind.
  template <class E>
  TensorView4<E> last_of(const TensorView4<E>& rows, index_t count) const {
    return rows ? rows.slice(2, end_ - count, end_) : TensorView4<E>();
  }

  /// Shared rows cannot be truncated, since the memory would then lack room for capacity.
  index_t max_truncated() const {
    return size() == length_ ? end_ - begin_ : size() - options_.window;
  }

  KvCacheOptions options_;
  KvMemory memory_;
  Tensor1<index_t> readers_;  ///< of reorder(): rows that still wait for a row's old content
  index_t begin_ = 0, end_ = 0, length_ = 0;
};

}  // namespace detail

ATTN_NAMESPACE_END
