// KvCache: the keys and values of all positions so far, for decoding step by step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <string>

#include "attn/kernels/convert.hpp"
#include "attn/kernels/quantize_rows.hpp"

ATTN_NAMESPACE_BEGIN

struct KvCacheOptions {
  index_t batch = 1;         ///< rows, each a sequence of its own
  index_t num_kv_heads = 1;  ///< heads of keys and values
  index_t capacity = 0;      ///< most keys held at once
  index_t head_dim = 0;      ///< of a key
  index_t head_dim_v = 0;    ///< head_dim
  index_t window =
      0;  ///< keys kept before added ones: those of sliding_window(window, 0), below capacity; 0: all
  /// What keys and values are stored as; the cache's own type if not given. A cache of float may take DType::BF16, DType::F16 or
  /// DType::I8: half or, with a scale per token and head, about a quarter of the memory, which decoding is limited by.
  /// Queries, products and softmax stay float. See docs/precision.md.
  std::optional<DType> element = {};
};

namespace detail {

/// f(E{}) with the type E of an element that a KvCache<T> may store; false for others.
template <class T, class F>
bool with_cache_element(DType element, const F& f) {
  if constexpr (std::same_as<T, float>) {
    return with_dtype<float, bfloat16, float16, std::int8_t>(element, f);
  } else {
    return with_dtype<T>(element, f);
  }
}

}  // namespace detail

/// Keys (batch, num_kv_heads, size, head_dim) and values (.., head_dim_v) of the last `size` positions, which grow at
/// the end. Memory is allocated by the constructor and by no other call.
///
///   cache.append(k, v);
///   scaled_dot_product_attention(q, cache, out, {.mask = causal()});  // attention/cached_attention.hpp
///
/// q holds the last positions, which is how causal() and sliding_window() take it unless told otherwise. All batch rows
/// have the same length.
///
/// With a window, all but the last `window` keys are forgotten where new ones come: a step then sees what
/// sliding_window(window, 0) over everything shows, and first_key keeps the numbers of what is left. The memory is a line of capacity + window positions. Where its end
/// is reached, the keys still kept move to its front, after at least `window` new ones: a key is copied at most once on
/// average, and keys() always is one strided view.
///
/// Rows of int8: scale = max |x| / 127 of one token and head, codes x / scale to nearest, ties to even. A key or value with a
/// NaN or an infinity becomes NaN whole, and no other does.
template <class T>
class KvCache {
 public:
  struct Views {
    TensorView4<T> keys, values;
  };

  /// Throws ValueError for an option out of its range.
  explicit KvCache(const KvCacheOptions& options) : options_(options) {
    if (options_.head_dim_v == 0) options_.head_dim_v = options_.head_dim;
    constexpr index_t kMost = (std::numeric_limits<index_t>::max)() / 2;
    const auto check = [](std::string_view argument, index_t found, index_t least, index_t most) {
      if (found < least || found > most) throw_range("KvCache", argument, least, most, found);
    };
    check("batch", options_.batch, 1, kMost);
    check("num_kv_heads", options_.num_kv_heads, 1, kMost);
    check("capacity", options_.capacity, 1, kMost);
    check("head_dim", options_.head_dim, 1, kMost / index_t{sizeof(T)});
    check("head_dim_v", options_.head_dim_v, 1, kMost / index_t{sizeof(T)});
    check("window", options_.window, 0, options_.capacity - 1);
    const index_t positions = options_.capacity + options_.window;
    const index_t batch = options_.batch, heads = options_.num_kv_heads;
    if (!options_.element) options_.element = dtype_of<T>();
    check_element(*options_.element);
    const auto size = static_cast<index_t>(element_size(*options_.element));
    const auto allocate = [&](index_t bytes) {
      return Tensor4<std::byte>::uninitialized({batch, heads, positions, bytes});
    };
    keys_ = allocate(options_.head_dim * size);
    values_ = allocate(options_.head_dim_v * size);
    if (has_scales()) {
      key_scales_ = allocate(sizeof(T));
      value_scales_ = allocate(sizeof(T));
    }
    readers_ = Tensor1<index_t>({batch});
  }

  KvCache(const KvCache&) = default;
  KvCache& operator=(const KvCache&) = default;
  /// What was moved from holds no keys and has room for none.
  KvCache(KvCache&& other) noexcept
      : options_(std::exchange(other.options_, kNothing)),
        keys_(std::move(other.keys_)),
        values_(std::move(other.values_)),
        key_scales_(std::move(other.key_scales_)),
        value_scales_(std::move(other.value_scales_)),
        readers_(std::move(other.readers_)),
        begin_(std::exchange(other.begin_, 0)),
        end_(std::exchange(other.end_, 0)),
        length_(std::exchange(other.length_, 0)) {}
  KvCache& operator=(KvCache&& other) noexcept {
    options_ = std::exchange(other.options_, kNothing);
    keys_ = std::move(other.keys_);
    values_ = std::move(other.values_);
    key_scales_ = std::move(other.key_scales_);
    value_scales_ = std::move(other.value_scales_);
    readers_ = std::move(other.readers_);
    begin_ = std::exchange(other.begin_, 0);
    end_ = std::exchange(other.end_, 0);
    length_ = std::exchange(other.length_, 0);
    return *this;
  }
  ~KvCache() = default;

  /// With head_dim_v, window and element as they are in effect.
  const KvCacheOptions& options() const { return options_; }

  /// Keys held.
  index_t size() const { return end_ - begin_; }
  /// Positions so far, forgotten ones included: the position of the next key.
  index_t length() const { return length_; }
  /// Position of keys()(.., 0, ..): AttentionOptions::first_key.
  index_t first_position() const { return length_ - size(); }

  /// Whether both have the same batch, positions and room: how many more one takes, the other does, too. Heads may
  /// differ, as those of different layers.
  bool is_like(const KvCache& other) const {
    const KvCacheOptions &a = options_, &b = other.options_;
    return length_ == other.length_ && size() == other.size() && a.batch == b.batch &&
           a.capacity == b.capacity && a.window == b.window;
  }

  /// All keys held, in the order of positions; valid until the next call that changes the cache. Throws DTypeError where
  /// options().element is not E: keys<bfloat16>() shows those of DType::BF16, keys<std::int8_t>() the codes.
  template <class E = T>
  TensorView4<const E> keys() const {
    check_shown<E>("KvCache::keys");
    return held<E>(keys_, begin_);
  }
  template <class E = T>
  TensorView4<const E> values() const {
    check_shown<E>("KvCache::values");
    return held<E>(values_, begin_);
  }
  /// Of DType::I8, (batch, num_kv_heads, size), by which codes are multiplied; else empty views.
  TensorView3<const T> key_scales() const { return scales(key_scales_, begin_); }
  TensorView3<const T> value_scales() const { return scales(value_scales_, begin_); }

  /// Memory of keys and values, those that might come included.
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const Tensor4<std::byte>* x : {&keys_, &values_, &key_scales_, &value_scales_}) {
      sum += static_cast<std::size_t>(x->size());
    }
    return sum;
  }

  /// Makes room for n more positions: views of (batch, num_kv_heads, n, dim), uninitialised and from now on part of
  /// keys() and values(), for the caller to write. Throws ValueError where more than `capacity` keys would be held, DTypeError
  /// where the cache stores another element than T.
  Views extend(index_t n) {
    check_shown<T>("KvCache::extend");
    make_room("KvCache::extend", n);
    return {held<T>(keys_, end_ - n), held<T>(values_, end_ - n)};
  }

  /// Copies n more positions in, rounded to options().element. Shapes: k (batch, num_kv_heads, n, head_dim), v (.., n,
  /// head_dim_v), of any strides, not views of this cache. Throws ShapeError, and ValueError as extend().
  template <TensorLike K, TensorLike V>
  void append(const K& k, const V& v, const Execution& execution = {}) {
    const TensorView4<const T> from_k = const_view(k), from_v = const_view(v);
    const index_t batch = options_.batch, heads = options_.num_kv_heads, n = from_k.extent(2);
    check_shape("KvCache::append", "k", "(batch, num_kv_heads, n, head_dim)",
                Shape<4>{batch, heads, n, options_.head_dim}, from_k.shape());
    check_shape("KvCache::append", "v", "(batch, num_kv_heads, n, head_dim_v)",
                Shape<4>{batch, heads, n, options_.head_dim_v}, from_v.shape());
    make_room("KvCache::append", n);
    detail::with_cache_element<T>(*options_.element, [&]<class E>(E) {
      const TensorView4<E> to_k = held<E>(keys_, end_ - n), to_v = held<E>(values_, end_ - n);
      if constexpr (std::same_as<E, std::int8_t>) {
        detail::quantize_rows(from_k, to_k, scales(key_scales_, end_ - n), execution);
        detail::quantize_rows(from_v, to_v, scales(value_scales_, end_ - n), execution);
      } else {
        convert(from_k, to_k, execution);
        convert(from_v, to_v, execution);
      }
    });
  }

  /// append() of what keys<E>(), values<E>() and the scales of a like cache showed, bit for bit; views without elements where
  /// there are no scales. Throws as append(), and DTypeError where the cache stores another element.
  template <class E>
  void append_stored(TensorView4<const E> keys, TensorView4<const E> values,
                     TensorView3<const T> key_scales = {}, TensorView3<const T> value_scales = {}) {
    check_shown<E>("KvCache::append_stored");
    const index_t batch = options_.batch, heads = options_.num_kv_heads, n = keys.extent(2);
    const auto check = [&](std::string_view argument, index_t dim, const Shape<4>& found) {
      check_shape("KvCache::append_stored", argument, Shape<4>{batch, heads, n, dim}, found);
    };
    check("keys", options_.head_dim, keys.shape());
    check("values", options_.head_dim_v, values.shape());
    for (const TensorView3<const T>& x : {key_scales, value_scales}) {
      const Shape<3> shape = has_scales() ? Shape<3>{batch, heads, n} : Shape<3>{};
      check_shape("KvCache::append_stored", "scales", shape, x.shape());
    }
    make_room("KvCache::append_stored", n);
    copy(keys, held<E>(keys_, end_ - n));
    copy(values, held<E>(values_, end_ - n));
    if (!has_scales()) return;
    copy(key_scales, scales(key_scales_, end_ - n));
    copy(value_scales, scales(value_scales_, end_ - n));
  }

  /// Forgets the last n positions, as speculative decoding does with rejected ones. Throws ValueError where they are not
  /// held, or where forgotten ones would be missing in the window: what one extend() added can always be taken back.
  void truncate(index_t n) {
    if (n < 0 || n > most_truncated()) {
      throw_range("KvCache::truncate", "n", 0, most_truncated(), n);
    }
    end_ -= n;
    length_ -= n;
  }

  /// truncate() to so many positions.
  void truncate_to(index_t length) {
    const index_t least = length_ - most_truncated();
    if (length < least || length > length_) {
      throw_range("KvCache::truncate_to", "length", least, length_, length);
    }
    truncate(length_ - length);
  }

  /// Forgets everything.
  void clear() { begin_ = end_ = length_ = 0; }

  /// Batch row b becomes what row rows(b) was, for every b; rows may repeat. Shape: rows (batch). Throws ShapeError,
  /// and ValueError for a row outside the batch. A row that stays is not touched.
  void reorder(TensorView1<const index_t> rows) {
    const index_t batch = options_.batch;
    check_shape("KvCache::reorder", "rows", "(batch)", Shape<1>{batch}, rows.shape());
    for (index_t b = 0; b < batch; ++b) {
      if (rows(b) >= 0 && rows(b) < batch) continue;
      throw_range("KvCache::reorder", "rows(" + std::to_string(b) + ")", 0, batch - 1, rows(b));
    }
    // A row may be written once nobody reads its old content any more. Rows that nobody reads come first, each then
    // frees its source; what is left are cycles, which swaps turn.
    readers_.fill(0);
    for (index_t b = 0; b < batch; ++b) readers_(rows(b)) += 1;
    for (index_t b = 0; b < batch; ++b) {
      for (index_t to = b; readers_(to) == 0; to = rows(to)) {
        each_head(rows(to), to,
                  [](std::byte* from, std::byte* into, index_t n) { std::copy_n(from, n, into); });
        readers_(to) = kDone;
        readers_(rows(to)) -= 1;
      }
    }
    for (index_t b = 0; b < batch; ++b) {
      for (index_t to = b; readers_(to) != kDone; to = rows(to)) {
        readers_(to) = kDone;
        if (readers_(rows(to)) == kDone) continue;
        each_head(rows(to), to, [](std::byte* from, std::byte* into, index_t n) {
          std::swap_ranges(from, from + n, into);
        });
      }
    }
  }

 private:
  static constexpr index_t kDone = -1;
  /// Of what was moved from: it holds nothing and has no room.
  static constexpr KvCacheOptions kNothing{.batch = 0, .num_kv_heads = 0, .element = dtype_of<T>()};

  static void check_element(DType element) {
    const bool is_known = detail::with_cache_element<T>(element, [](auto) {});
    if (is_known) return;
    throw ValueError(message("KvCache", "element",
                             std::same_as<T, float> ? "be F32, BF16, F16 or I8"
                                                    : "be " + std::string(name(dtype_of<T>())),
                             name(element)));
  }

  /// That elements are of E.
  template <class E>
  void check_shown(std::string_view function) const {
    if (*options_.element == dtype_of<E>()) return;
    throw DTypeError(message(function, "the element",
                             "be that of the cache, " + std::string(name(*options_.element)),
                             name(dtype_of<E>())));
  }

  bool has_scales() const { return *options_.element == DType::I8; }

  /// Positions from `begin` on of keys_ or values_, which are of E.
  template <class E, class Bytes>
  auto held(Bytes& x, index_t begin) const {
    using Element = std::conditional_t<std::is_const_v<Bytes>, const E, E>;
    const Shape<4>& shape = x.shape();
    return TensorView4<Element>(reinterpret_cast<Element*>(x.data()),
                                {shape[0], shape[1], shape[2], shape[3] / index_t{sizeof(E)}})
        .slice(2, begin, end_);
  }

  /// The same of scales, where there are any.
  template <class Bytes>
  auto scales(Bytes& x, index_t begin) const {
    using View = decltype(held<T>(x, begin).select(3, 0));
    return x ? held<T>(x, begin).select(3, 0) : View();
  }

  index_t most_truncated() const { return size() == length_ ? size() : size() - options_.window; }

  /// Room for n positions at end_, which moves behind them.
  void make_room(std::string_view function, index_t n) {
    const index_t window = options_.window;
    const index_t kept = window == 0 ? size() : (std::min)(size(), window);
    const index_t most = options_.capacity - kept;
    if (n < 0 || n > most) {
      throw_range(function,
                  "n, beside the " + std::to_string(kept) + " kept in a capacity of " +
                      std::to_string(options_.capacity) + ",",
                  0, most, n);
    }
    begin_ = end_ - kept;
    if (end_ + n > keys_.extent(2)) {
      for (Tensor4<std::byte>* x : {&keys_, &values_, &key_scales_, &value_scales_}) {
        if (!*x) continue;
        for (index_t b = 0; b < options_.batch; ++b) {
          for (index_t h = 0; h < options_.num_kv_heads; ++h) {
            std::byte* line = x->view().at_index({b, h, 0, 0});
            std::copy(line + begin_ * x->extent(3), line + end_ * x->extent(3), line);
          }
        }
      }
      begin_ = 0;
      end_ = kept;
    }
    end_ += n;
    length_ += n;
  }

  /// f(first element of row `from`, of row `to`, how many) for the keys and for the values of every head.
  template <class F>
  void each_head(index_t from, index_t to, F f) {
    for (Tensor4<std::byte>* x : {&keys_, &values_, &key_scales_, &value_scales_}) {
      if (!*x) continue;
      for (index_t h = 0; h < options_.num_kv_heads; ++h) {
        f(x->view().at_index({from, h, begin_, 0}), x->view().at_index({to, h, begin_, 0}),
          size() * x->extent(3));
      }
    }
  }

  [[noreturn]] ATTN_COLD static void throw_range(std::string_view function,
                                                 std::string_view argument, index_t least,
                                                 index_t most, index_t found) {
    throw ValueError(message(function, argument,
                             "lie in " + std::to_string(least) + " .. " + std::to_string(most),
                             std::to_string(found)));
  }

  KvCacheOptions options_;
  /// (batch, num_kv_heads, capacity + window, bytes of a row), of which [begin_, end_) are held.
  Tensor4<std::byte> keys_, values_;
  Tensor4<std::byte> key_scales_, value_scales_;  ///< of DType::I8
  Tensor1<index_t> readers_;  ///< of reorder(): rows that still wait for a row's old content
  index_t begin_ = 0, end_ = 0, length_ = 0;
};

namespace detail {

/// Takes back what was added to caches, unless commit() is reached. Caches of unlike lengths, which whoever is to add to
/// them refuses, stay as they are.
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
    for (Cache& cache : caches_) cache.truncate_to(length_);
  }
  void commit() { caches_ = {}; }

 private:
  std::span<Cache> caches_;
  decltype(std::declval<Cache>().length()) length_ = {};
};

}  // namespace detail

ATTN_NAMESPACE_END
