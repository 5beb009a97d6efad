// Checks of single arguments of an attention call: lengths, masks, offsets, pages, heads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "attn/attention/call/problem.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

// Not inlined: of each check below, only the condition is inlined.
[[noreturn]] ATTN_COLD inline void throw_argument(std::string_view argument,
                                                  std::string_view expected,
                                                  std::span<const index_t> found) {
  throw_shape("scaled_dot_product_attention", argument, expected, found);
}
[[noreturn]] ATTN_COLD inline void throw_value(std::string_view argument, std::string_view expected,
                                               std::string_view found) {
  throw ValueError(message("scaled_dot_product_attention", argument, expected, found));
}
[[noreturn]] ATTN_COLD inline void throw_mask_element(std::string_view expected,
                                                      std::string_view found) {
  throw DTypeError(message("scaled_dot_product_attention", "an additive mask",
                           join({"have the element type of q, ", expected}), found));
}
[[noreturn]] ATTN_COLD inline void throw_entry(const char* argument, index_t at, index_t lowest,
                                               index_t highest, index_t found) {
  throw_value(join({argument, "(", to_string(at), ")"}),
              join({"lie in ", to_string(lowest), " .. ", to_string(highest)}), to_string(found));
}

template <std::size_t N>
void check_extents(std::string_view argument, std::string_view axes,
                   const std::array<index_t, N>& expected, const std::array<index_t, N>& found) {
  check_shape("scaled_dot_product_attention", argument, axes, expected, found);
}

/// Checks lengths with one entry per batch row, each in 0 .. max_length(b).
template <class MaxLength>
void check_lengths(const char* argument, const TensorView1<const index_t>& lengths, index_t batch,
                   MaxLength max_length) {
  if (!lengths) return;
  check_extents(argument, "(batch)", Shape<1>{batch}, lengths.shape());
  for (index_t b = 0; b < batch; ++b) {
    if (lengths(b) < 0 || lengths(b) > max_length(b))
      throw_entry(argument, b, 0, max_length(b), lengths(b));
  }
}

/// Checks that `starts` increases from 0 to `total`. Returns the longest distance between two
/// starts, counting positions from `first` on.
ATTN_ONCE_A_CALL inline index_t check_starts(const char* argument,
                                             const TensorView1<const index_t>& starts,
                                             index_t total, index_t first = 0) {
  const index_t last = starts.extent(0) - 1;
  if (last < 0) throw_argument(argument, "have shape (batch + 1)", starts.shape());
  if (starts(0) != 0) throw_entry(argument, 0, 0, 0, starts(0));
  if (last == 0 && total != 0) throw_entry(argument, 0, total, total, 0);
  index_t longest = 0;
  for (index_t b = 0; b < last; ++b) {
    const index_t lowest = b + 1 == last ? total : starts(b);
    if (starts(b + 1) < lowest || starts(b + 1) > total) {
      throw_entry(argument, b + 1, lowest, total, starts(b + 1));
    }
    longest = (std::max)(longest, starts(b + 1) - (std::max)(starts(b), first));
  }
  return longest;
}

/// Checks a mask against scores of shape (batch, num_heads, q_len, kv_len); batch row b has
/// lengths(b) keys.
template <class T, class Lengths>
ATTN_ONCE_A_CALL void check_mask(const Mask& mask, const Shape<4>& scores, Lengths lengths) {
  const index_t batch = scores[0];
  for (int i = 0; i < mask.num_dense; ++i) {
    const Mask::Dense& part = mask.dense[static_cast<std::size_t>(i)];
    constexpr bool kFloat = sizeof(T) == 4;
    constexpr auto kElement = kFloat ? Mask::Dense::Element::f32 : Mask::Dense::Element::f64;
    if (part.kind == Mask::Dense::Kind::add && part.element != kElement) {
      throw_mask_element(kFloat ? "float" : "double", kFloat ? "double" : "float");
    }
    for (std::size_t axis = 0; axis < 4; ++axis) {
      if (part.shape[axis] == 1 || part.shape[axis] == scores[axis]) continue;
      throw_argument("mask",
                     join({"broadcast to (batch, num_heads, q_len, kv_len) = ", to_string(scores)}),
                     part.shape);
    }
  }
  const auto keys = [&](index_t b) { return lengths(b).total_kv_len(); };
  check_lengths("key_lengths", mask.key_lengths, batch, keys);
  check_lengths("query_lengths", mask.query_lengths, batch,
                [&](index_t b) { return lengths(b).q_len; });
  check_lengths("left_padding", mask.left_padding, batch, keys);
  check_lengths("prefix_lm", mask.prefix_lengths, batch, keys);
  if (const auto& ids = mask.documents) {
    index_t numbered = 0;
    for (index_t b = 0; b < batch; ++b) numbered = (std::max)(numbered, keys(b));
    check_extents("documents", "(batch or 1, first_key + kv_len)",
                  Shape<2>{ids.extent(0) == 1 ? 1 : batch, numbered}, ids.shape());
    for (index_t b = 0; b < ids.extent(0); ++b) {
      for (index_t j = 1; j < numbered; ++j) {
        if (ids(b, j) < ids(b, j - 1)) {
          throw_value("documents", "have ids that do not decrease along a row",
                      join({to_string(ids(b, j)), " after ", to_string(ids(b, j - 1))}));
        }
      }
    }
  }
}

/// Bounds offsets, so that adding lengths and windows to them does not overflow and an open window
/// covers every key.
inline void check_offset(const QueryOffset& offset, index_t batch) {
  constexpr index_t kMax = Mask::kUnbounded / 2;
  if (offset.value < -kMax || offset.value > kMax) {
    throw_value("query_offset", "lie in -2^60 .. 2^60", to_string(offset.value));
  }
  if (offset.kind != QueryOffset::Kind::per_row) return;
  check_extents("query_offsets", "(batch)", Shape<1>{batch}, offset.values.shape());
  for (index_t b = 0; b < batch; ++b) {
    if (offset.values(b) < -kMax || offset.values(b) > kMax) {
      throw_entry("query_offsets", b, -kMax, kMax, offset.values(b));
    }
  }
}

/// Checks the block_table of a call with paged keys: shape (batch, pages), and every entry in use
/// is a valid page. Returns (batch, kv_len).
template <class T>
ATTN_ONCE_A_CALL Shape<2> check_pages(const StoredView<const void>& k,
                                      const AttentionOptions<T>& options) {
  const TensorView2<const index_t>& table = options.block_table;
  const index_t batch = table.extent(0), pages = table.extent(1), size = k.extent(2);
  if (options.cu_seqlens_k) {
    throw_value("cu_seqlens_k", "not be given with a block_table", "both");
  }
  const auto& lengths = options.mask.key_lengths;
  const index_t first = options.first_key;
  check_lengths("key_lengths", lengths, batch, [&](index_t) { return first + pages * size; });
  for (index_t b = 0; b < batch; ++b) {
    if (size == 0) break;  // no key is read
    const index_t used =
        lengths ? ((std::max)(lengths(b) - first, index_t{0}) + size - 1) / size : pages;
    for (index_t page = 0; page < used; ++page) {
      const index_t found = table(b, page);
      if (found < 0 || found >= k.extent(0)) {
        throw_entry("block_table", b * pages + page, 0, k.extent(0) - 1, found);
      }
    }
  }
  return {batch, pages * size};
}

/// Returns how many heads `chosen` names, each at most once; all heads if it is not given.
inline index_t check_chosen(const TensorView1<const index_t>& chosen, index_t heads) {
  if (!chosen) return heads;
  for (index_t n = 0; n < chosen.extent(0); ++n) {
    if (chosen(n) < 0 || chosen(n) >= heads) {
      throw_entry("weight_heads", n, 0, heads - 1, chosen(n));
    }
    for (index_t other = 0; other < n; ++other) {
      if (chosen(other) == chosen(n)) {
        throw_value("weight_heads", "name each head at most once",
                    join({to_string(chosen(n)), " twice"}));
      }
    }
  }
  return chosen.extent(0);
}

/// Functors take positions as int. Throws ValueError if a position does not fit.
inline void check_positions(const Shape<4>& scores, index_t first_key) {
  const index_t largest =
      (std::max)(*std::max_element(scores.begin(), scores.end()), first_key + scores[3]);
  if (largest > (std::numeric_limits<int>::max)()) {
    throw_value("functors",
                "be given with batch, num_heads, q_len and first_key + kv_len below 2^31",
                to_string(largest));
  }
}

/// Bounds first_key, so that adding lengths does not overflow. Refuses MaskedRow::mean, which needs
/// the values of all keys, also those before first_key.
template <class T>
void check_first_key(const AttentionOptions<T>& options) {
  constexpr index_t kMax = Mask::kUnbounded / 2;
  if (options.first_key < 0 || options.first_key > kMax) {
    throw_value("first_key", "lie in 0 .. 2^60", to_string(options.first_key));
  }
  if (options.first_key > 0 && options.masked_row == MaskedRow::mean) {
    throw_value("first_key", "be 0 with MaskedRow::mean, which needs the masked values, too",
                to_string(options.first_key));
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
