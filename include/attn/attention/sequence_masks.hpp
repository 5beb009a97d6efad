// Masks by lengths, padding, prefixes, chunks and documents: a key interval per query.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/mask.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Also true for an Eigen vector and Rank 1, although view_of() gives a matrix for it.
template <class X, int Rank>
inline constexpr bool has_rank =
    std::convertible_to<const X&, TensorView<const scalar_t<X>, Rank>> || rank_v<X> == Rank;

/// An empty view if elements or axes differ, which the static_assert of the caller reports.
template <int Rank, class X>
TensorView<const index_t, Rank> index_view(const X& x) {
  if constexpr (std::convertible_to<const X&, TensorView<const index_t, Rank>>) {
    return x;
  } else if constexpr (rank_v<X> == Rank && has_elements<X, index_t>) {
    return const_view(x);
  } else {
    return {};
  }
}

/// A Mask whose `field` views x and that masks out nothing else.
template <int Rank, class X>
Mask mask_of(TensorView<const index_t, Rank> Mask::*field, const X& x) {
  Mask mask;
  mask.*field = index_view<Rank>(x);
  return mask;
}

}  // namespace detail

// Below, kv_len is first_key + the number of keys given (AttentionOptions::first_key).

/// Batch row b has lengths(b) keys, 0 .. kv_len; keys beyond are never read. Shape (batch).
template <TensorLike X>
Mask key_lengths(const X& lengths) {
  static_assert(detail::has_rank<X, 1>, "key_lengths takes lengths, (batch)");
  ATTN_ASSERT_INDICES(X, "key_lengths: lengths");
  return detail::mask_of<1>(&Mask::key_lengths, lengths);
}
template <TemporaryTensor X>
Mask key_lengths(X&&) = delete;  // the mask would view a temporary tensor

/// Batch row b has lengths(b) queries, 0 .. q_len; queries beyond are fully masked. Shape (batch).
template <TensorLike X>
Mask query_lengths(const X& lengths) {
  static_assert(detail::has_rank<X, 1>, "query_lengths takes lengths, (batch)");
  ATTN_ASSERT_INDICES(X, "query_lengths: lengths");
  return detail::mask_of<1>(&Mask::query_lengths, lengths);
}
template <TemporaryTensor X>
Mask query_lengths(X&&) = delete;  // the mask would view a temporary tensor

/// The first padding(b) keys of batch row b are padding, 0 .. kv_len: masked out and never read.
/// Shape (batch).
template <TensorLike X>
Mask left_padding(const X& padding) {
  static_assert(detail::has_rank<X, 1>, "left_padding takes numbers of keys, (batch)");
  ATTN_ASSERT_INDICES(X, "left_padding: padding");
  return detail::mask_of<1>(&Mask::left_padding, padding);
}
template <TemporaryTensor X>
Mask left_padding(X&&) = delete;  // the mask would view a temporary tensor

/// Prefix LM: every query sees the first lengths(b) keys and those up to its own position. Shape
/// (batch).
template <TensorLike X>
Mask prefix_lm(const X& lengths) {
  static_assert(detail::has_rank<X, 1>, "prefix_lm takes lengths, (batch)");
  ATTN_ASSERT_INDICES(X, "prefix_lm: lengths");
  return detail::mask_of<1>(&Mask::prefix_lengths, lengths);
}
template <TemporaryTensor X>
Mask prefix_lm(X&&) = delete;  // the mask would view a temporary tensor

/// Position p sees the keys of its own chunk, [p / size * size, p / size * size + size); often
/// combined with causal(). Throws ValueError for size < 1.
inline Mask chunked(index_t size) {
  if (size < 1) {
    throw ValueError(message("chunked", "size", "be at least 1", std::to_string(size)));
  }
  Mask mask;
  mask.chunk = (std::min)(size, Mask::kUnbounded);
  return mask;
}

/// Packed sequences: position p sees the keys j with ids(b, j) = ids(b, p). Shape (batch, kv_len)
/// or (1, kv_len). Ids must not decrease along a row; for ids in any order use a mask_mod.
template <TensorLike X>
Mask documents(const X& ids) {
  static_assert(detail::has_rank<X, 2>, "documents takes ids, (batch, kv_len)");
  ATTN_ASSERT_INDICES(X, "documents: ids");
  return detail::mask_of<2>(&Mask::documents, ids);
}
template <TemporaryTensor X>
Mask documents(X&&) = delete;  // the mask would view a temporary tensor

/// Returns ids for documents() from the lengths of sequences packed one after another: lengths 2
/// and 3 give 0 0 1 1 1. Shape (1, sum of the lengths), which broadcasts. Throws ValueError for a
/// negative length.
inline Tensor2<index_t> documents_of(std::span<const index_t> lengths) {
  index_t total = 0;
  for (index_t length : lengths) {
    if (length < 0 || __builtin_add_overflow(total, length, &total)) {
      throw ValueError(message("documents_of", "every length",
                               "be at least 0, their sum below 2^63", std::to_string(length)));
    }
  }
  Tensor2<index_t> ids({1, total});
  index_t at = 0, id = 0;
  for (index_t length : lengths) {
    for (index_t i = 0; i < length; ++i) ids(0, at++) = id;
    ++id;
  }
  return ids;
}
inline Tensor2<index_t> documents_of(std::initializer_list<index_t> lengths) {
  return documents_of(std::span(lengths.begin(), lengths.size()));
}
/// Takes the lengths as a tensor (n).
template <TensorLike X>
Tensor2<index_t> documents_of(const X& lengths) {
  static_assert(detail::has_rank<X, 1>, "documents_of takes lengths, (documents)");
  ATTN_ASSERT_INDICES(X, "documents_of: lengths");
  const Tensor1<index_t> dense(detail::index_view<1>(lengths));
  return documents_of(dense.elements());
}

ATTN_NAMESPACE_END
