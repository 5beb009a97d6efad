// KvCacheOptions: shape, window and element of a KV cache, and their checks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "attn/core/element.hpp"
#include "attn/core/shape.hpp"
#include "attn/core/view.hpp"

ATTN_NAMESPACE_BEGIN

struct KvCacheOptions {
  index_t batch = 1;         ///< rows, each an independent sequence
  index_t num_kv_heads = 1;  ///< key/value heads
  index_t capacity = 0;      ///< maximum number of keys held
  index_t head_dim = 0;      ///< dimension of a key
  index_t head_dim_v = 0;    ///< dimension of a value; 0: head_dim
  /// Keys kept when new ones are appended, enough for sliding_window(window, 0); must be below
  /// capacity; 0 keeps all.
  index_t window = 0;
  /// Element type in which keys and values are stored; default: the type of the cache. A cache of
  /// float may use DType::BF16, DType::F16 or DType::I8: half or, with a scale per token and head,
  /// about a quarter of the memory, whose bandwidth limits decoding. Queries, products and softmax
  /// stay float. See docs/precision.md.
  std::optional<DType> element = {};
  /// Numbers of a recurrent layer's state per row, which the cache then holds instead of keys and
  /// values: see KvCache::advance(). They are not rounded to `element`.
  index_t state_size = 0;
};

namespace detail {

/// Calls f(E{}) with the type E of an element that a KvCache<T> may store; returns false for
/// others.
template <class T, class F>
bool with_cache_element(DType element, const F& f) {
  if constexpr (std::same_as<T, float>) {
    return with_dtype<float, bfloat16, float16, std::int8_t>(element, f);
  } else {
    return with_dtype<T>(element, f);
  }
}

[[noreturn]] ATTN_COLD inline void throw_cache_range(std::string_view function,
                                                     std::string_view argument, index_t lowest,
                                                     index_t highest, index_t found) {
  throw ValueError(message(function, argument,
                           "lie in " + std::to_string(lowest) + " .. " + std::to_string(highest),
                           std::to_string(found)));
}

/// Checks KvCache::fork(batch) of a cache of `rows` batch rows.
inline void check_fork(index_t rows, index_t batch) {
  constexpr index_t kMax = (std::numeric_limits<index_t>::max)() / 2;
  if (rows != 1) throw_cache_range("KvCache::fork", "the batch of the cache", 1, 1, rows);
  if (batch < 1 || batch > kMax) throw_cache_range("KvCache::fork", "batch", 1, kMax, batch);
}

/// Throws ValueError unless a cache holds a state or, if that is not `expected`, keys and values.
inline void check_has_state(std::string_view function, const KvCacheOptions& options,
                            bool expected) {
  if ((options.state_size > 0) == expected) return;
  throw ValueError(message(function, "state_size", expected ? "be positive" : "be 0",
                           std::to_string(options.state_size)));
}

/// Checks the path of KvCache::keep_path(n, path).
inline void check_path(TensorView1<const index_t> path, index_t n) {
  for (index_t i = 0; i < path.extent(0); ++i) {
    const index_t lowest = i == 0 ? 0 : path(i - 1) + 1;
    if (path(i) >= lowest && path(i) < n) continue;
    throw_cache_range("KvCache::keep_path", "path(" + std::to_string(i) + ")", lowest, n - 1,
                      path(i));
  }
}

/// Throws DTypeError unless a cache stores elements of type E.
template <class E>
void check_shown(std::string_view function, DType element) {
  if (element == dtype_of<E>()) return;
  throw DTypeError(message(function, "the element",
                           "be that of the cache, " + std::string(name(element)),
                           name(dtype_of<E>())));
}

/// Checks the options and sets head_dim_v and element; with a state, there are no heads.
template <class T>
KvCacheOptions checked_cache(KvCacheOptions options) {
  const bool has_state = options.state_size != 0;
  if (has_state) options.num_kv_heads = options.head_dim = options.head_dim_v = 0;
  if (options.head_dim_v == 0) options.head_dim_v = options.head_dim;
  if (!options.element) options.element = dtype_of<T>();
  constexpr index_t kMax = (std::numeric_limits<index_t>::max)() / 2;
  const auto check = [](std::string_view argument, index_t found, index_t lowest, index_t highest) {
    if (found < lowest || found > highest) {
      throw_cache_range("KvCache", argument, lowest, highest, found);
    }
  };
  check("batch", options.batch, 1, kMax);
  check("capacity", options.capacity, 1, kMax);
  if (has_state) {
    check("state_size", options.state_size, 1,
          kMax / index_t{sizeof(Accumulator<T>)} / options.batch);
    check("window, with a state,", options.window, 0, 0);
  } else {
    check("num_kv_heads", options.num_kv_heads, 1, kMax);
    check("head_dim", options.head_dim, 1, kMax / index_t{sizeof(T)});
    check("head_dim_v", options.head_dim_v, 1, kMax / index_t{sizeof(T)});
    check("window", options.window, 0, options.capacity - 1);
  }
  if (!with_cache_element<T>(*options.element, [](auto) {})) {
    throw ValueError(message("KvCache", "element",
                             std::same_as<T, float> ? "be F32, BF16, F16 or I8"
                                                    : "be " + std::string(name(dtype_of<T>())),
                             name(*options.element)));
  }
  return options;
}

}  // namespace detail

ATTN_NAMESPACE_END
