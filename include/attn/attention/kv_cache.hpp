// KvCache: keys and values of previous positions, for step-by-step decoding.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>

#include "attn/attention/cache/cache_guard.hpp"
#include "attn/attention/cache/kv_storage.hpp"
#include "attn/attention/cache/recurrent_state.hpp"
#include "attn/attention/cache/store_rows.hpp"

ATTN_NAMESPACE_BEGIN

/// Keys (batch, num_kv_heads, size, head_dim) and values (.., head_dim_v) of the last `size`
/// positions. Only the constructor, fork(), clear() of a fork and advance() of a tree allocate.
///
///   cache.append(k, v);
///   scaled_dot_product_attention(q, cache, out, {.mask = causal()});
///
/// That overload is in attention/cached_attention.hpp. q holds the last positions, which is the
/// default alignment of causal() and sliding_window(). All batch rows have the same length.
///
/// With a window, append() forgets all keys but the last `window` before the new ones. Each decode
/// step then sees the same keys as with sliding_window(window, 0) over the whole sequence, because
/// first_position() keeps their positions. The memory has room for capacity + window positions.
/// When the end is reached, the remaining keys move to the front; at least `window` keys were
/// appended since the previous move, so each key is copied at most once on average, and keys() is
/// always one strided view.
///
/// int8 rows: scale = max |x| / 127 for each token and head, value = x / scale rounded to nearest,
/// ties to even. A row with a NaN or an infinity becomes NaN as a whole; other rows are unaffected.
///
/// A cache with state_size > 0 belongs to a recurrent layer. It holds the state after all positions
/// and the state before the last advance(), so that it can be truncated to these two lengths or
/// to 0; and memory for a third state, so that undo_to() loses neither. See advance() for trees.
template <class T>
class KvCache {
 public:
  struct Views {
    TensorView4<T> keys, values;
  };

  /// Throws ValueError for an option out of range.
  explicit KvCache(const KvCacheOptions& options) : storage_(detail::checked_cache<T>(options)) {
    if (options.state_size > 0) state_ = {options.batch, options.state_size};
  }

  /// The effective options: head_dim_v and element are set.
  const KvCacheOptions& options() const { return storage_.options(); }

  /// Number of keys held.
  index_t size() const { return storage_.size(); }
  /// Number of positions appended, including forgotten ones: the position of the next key.
  index_t length() const { return storage_.length(); }
  /// Position of the first key held, keys()(.., 0, ..). Pass it as AttentionOptions::first_key.
  index_t first_position() const { return length() - size(); }

  /// Whether both caches have the same batch, length, size, capacity and window. Heads may differ,
  /// as in caches of different layers.
  bool is_like(const KvCache& other) const {
    const KvCacheOptions &a = options(), &b = other.options();
    return length() == other.length() && size() == other.size() && a.batch == b.batch &&
           a.capacity == b.capacity && a.window == b.window;
  }

  /// A cache of `batch` rows that all continue this one, of one row, with the same capacity. The
  /// keys held are copied once and shared by all rows; attention reads them once for several rows
  /// where it can. Keys of a window and states are copied for each row. Shared keys cannot be
  /// truncated; clear() drops them; attention to them refuses cu_seqlens_q, cu_seqlens_k and
  /// block_table. Throws ValueError if this cache has several rows, or batch is below 1.
  KvCache fork(index_t batch) const { return KvCache(storage_.fork(batch), state_.fork(batch)); }
  /// Number of first positions whose keys all rows share: see fork().
  index_t shared_size() const { return storage_.shared(); }

  /// All keys held, in order of position; valid until the next call that changes the cache. Throws
  /// DTypeError if options().element is not E: use keys<bfloat16>() for DType::BF16 and
  /// keys<std::int8_t>() for the quantised values of DType::I8. Throws ValueError if rows share
  /// keys, which then lie in two places.
  template <class E = T>
  TensorView4<const E> keys() const {
    detail::check_shown<E>("KvCache::keys", *options().element);
    return held<E>("KvCache::keys", detail::KvRow::key);
  }
  template <class E = T>
  TensorView4<const E> values() const {
    detail::check_shown<E>("KvCache::values", *options().element);
    return held<E>("KvCache::values", detail::KvRow::value);
  }
  /// The scales of a cache of DType::I8, (batch, num_kv_heads, size); otherwise empty views. Throws
  /// ValueError if rows share keys.
  TensorView3<const T> key_scales() const {
    return scales(held<T>("KvCache::key_scales", detail::KvRow::key_scale));
  }
  TensorView3<const T> value_scales() const {
    return scales(held<T>("KvCache::value_scales", detail::KvRow::value_scale));
  }
  /// The memory, for attention over a cache whose rows may share keys.
  const detail::KvStorage& storage() const { return storage_; }

  /// Memory of keys and values at full capacity, or of states, in bytes.
  std::size_t bytes() const { return storage_.bytes() + state_.bytes(); }

  /// Appends n positions of a recurrent layer: state() becomes state_before(), and the caller
  /// writes the new state() (batch, state_size), or in a tree state_after() of each token; a larger
  /// tree allocates. With n = 0 all states stay. Throws ValueError for the reasons of extend().
  void advance(index_t n, bool is_tree = false) {
    detail::check_has_state("KvCache::advance", options(), true);
    const index_t before = length(), tree = is_tree ? n : 0;
    state_.reserve_tree(tree);
    storage_.make_room("KvCache::advance", n);
    if (n > 0) state_.advance(before, tree);
  }
  TensorView2<Accumulator<T>> state() { return state_.now(); }
  TensorView2<const Accumulator<T>> state() const { return state_.now(); }
  TensorView2<const Accumulator<T>> state_before() const { return state_.before(); }
  TensorView2<Accumulator<T>> state_after(index_t token) { return state_.after_token(token); }

  /// Appends n positions for the caller to write: returns views (batch, num_kv_heads, n, dim),
  /// uninitialised and from now on part of keys() and values(). Throws ValueError if the cache
  /// would hold more than `capacity` keys, DTypeError if it stores another element than T.
  Views extend(index_t n) {
    detail::check_shown<T>("KvCache::extend", *options().element);
    detail::check_has_state("KvCache::extend", options(), false);
    storage_.make_room("KvCache::extend", n);
    return {storage_.template last<T>(detail::KvRow::key, n),
            storage_.template last<T>(detail::KvRow::value, n)};
  }

  /// Appends a copy of n positions, rounded to options().element. Shapes: k (batch, num_kv_heads,
  /// n, head_dim), v (.., n, head_dim_v), of any strides, not views of this cache. Throws
  /// ShapeError, and ValueError for the reasons of extend().
  template <TensorLike K, TensorLike V>
  void append(const K& k, const V& v, const Execution& execution = {}) {
    ATTN_ASSERT_INPUT(K, T, 4, "KvCache: k", "(batch, num_kv_heads, n, head_dim)", "the cache");
    ATTN_ASSERT_INPUT(V, T, 4, "KvCache: v", "(batch, num_kv_heads, n, head_dim_v)", "the cache");
    const auto from_k = detail::view_as<const T, 4>(k), from_v = detail::view_as<const T, 4>(v);
    const KvCacheOptions& of = options();
    const index_t n = from_k.extent(2);
    detail::check_has_state("KvCache::append", options(), false);
    check_shape("KvCache::append", "k", "(batch, num_kv_heads, n, head_dim)",
                Shape<4>{of.batch, of.num_kv_heads, n, of.head_dim}, from_k.shape());
    check_shape("KvCache::append", "v", "(batch, num_kv_heads, n, head_dim_v)",
                Shape<4>{of.batch, of.num_kv_heads, n, of.head_dim_v}, from_v.shape());
    storage_.make_room("KvCache::append", n);
    detail::store_rows(storage_, from_k, detail::KvRow::key, detail::KvRow::key_scale, execution);
    detail::store_rows(storage_, from_v, detail::KvRow::value, detail::KvRow::value_scale,
                       execution);
  }

  /// Copies rows from a cache with the same element type, bit for bit: what its keys<E>(),
  /// values<E>() and scales returned. Pass empty views for elements without scales. Throws for the
  /// reasons of append(), and DTypeError if the cache stores another element.
  template <class E>
  void append_stored(TensorView4<const E> keys, TensorView4<const E> values,
                     TensorView3<const T> key_scales = {}, TensorView3<const T> value_scales = {}) {
    using detail::KvRow;
    detail::check_shown<E>("KvCache::append_stored", *options().element);
    detail::check_has_state("KvCache::append_stored", options(), false);
    const KvCacheOptions& of = options();
    const index_t n = keys.extent(2);
    const bool has_scales = *of.element == DType::I8;
    const auto check = [&](std::string_view argument, index_t dim, const Shape<4>& found) {
      check_shape("KvCache::append_stored", argument, Shape<4>{of.batch, of.num_kv_heads, n, dim},
                  found);
    };
    check("keys", of.head_dim, keys.shape());
    check("values", of.head_dim_v, values.shape());
    for (const TensorView3<const T>& x : {key_scales, value_scales}) {
      const Shape<3> shape = has_scales ? Shape<3>{of.batch, of.num_kv_heads, n} : Shape<3>{};
      check_shape("KvCache::append_stored", "scales", shape, x.shape());
    }
    storage_.make_room("KvCache::append_stored", n);
    copy(keys, storage_.template last<E>(KvRow::key, n));
    copy(values, storage_.template last<E>(KvRow::value, n));
    if (!has_scales) return;
    copy(key_scales, storage_.template last<T>(KvRow::key_scale, n).select(3, 0));
    copy(value_scales, storage_.template last<T>(KvRow::value_scale, n).select(3, 0));
  }

  /// Removes the last n positions, for example tokens rejected by speculative decoding. Throws
  /// ValueError if fewer than n positions are held, or if the window would then lack keys already
  /// forgotten. Everything that the last extend() added can always be removed.
  void truncate(index_t n) {
    if (n >= 0) state_.truncate_to("KvCache::truncate", length(), length() - n);
    storage_.truncate(n);
  }
  /// Removes the last positions until length() is `length`, by truncate().
  void truncate_to(index_t length) {
    state_.truncate_to("KvCache::truncate_to", this->length(), length);
    storage_.truncate_to(length);
  }
  /// Undoes the last append, extend() or advance(), if any since length() was `length`, by
  /// truncate_to(); state_before(), too, is then what it was.
  void undo_to(index_t length) {
    if (length < this->length() && options().state_size > 0) state_.undo();
    storage_.truncate_to(length);
  }
  /// Whether truncate_to() succeeds.
  bool can_truncate_to(index_t length) const {
    return storage_.can_truncate_to(length) && state_.can_truncate_to(this->length(), length);
  }

  /// Keeps the positions at `path`, increasing indices into the last n positions, the tokens of a
  /// tree, and removes the others of these n. Throws ValueError for other indices, for the reasons
  /// of truncate(n), and, with a state, if advance(n, true) was not the last step.
  void keep_path(index_t n, TensorView1<const index_t> path) {
    state_.check_tree("KvCache::keep_path", n);
    storage_.keep_path(n, path);
    state_.keep_path(path);
  }
  /// Whether keep_path() accepts n.
  bool can_keep_path(index_t n) const {
    return n >= 0 && storage_.can_truncate_to(length() - n) && state_.has_tree(n);
  }

  /// Removes all positions.
  void clear() {
    state_.clear();
    storage_.clear();
  }

  /// Beam reordering: batch row b becomes a copy of the previous row rows(b), for every b; rows may
  /// repeat. Shape: rows (batch). Throws ShapeError, and ValueError for a row outside the batch.
  /// Rows with rows(b) = b are not touched.
  void reorder(TensorView1<const index_t> rows) {
    storage_.reorder(rows);
    state_.reorder(rows);
  }

 private:
  KvCache(detail::KvStorage storage, detail::RecurrentState<Accumulator<T>> state)
      : storage_(std::move(storage)), state_(std::move(state)) {}

  static TensorView3<const T> scales(const TensorView4<const T>& rows) {
    return rows ? rows.select(3, 0) : TensorView3<const T>();
  }
  /// All rows of a kind; throws ValueError if some are shared.
  template <class E>
  TensorView4<const E> held(std::string_view function, detail::KvRow kind) const {
    if (shared_size() == 0) return storage_.template last<E>(kind, size());
    throw ValueError(message(function, "the cache", "hold no keys shared by its rows: see fork()",
                             std::to_string(shared_size())));
  }

  detail::KvStorage storage_;
  detail::RecurrentState<Accumulator<T>> state_;
};

ATTN_NAMESPACE_END
