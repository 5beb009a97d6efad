// ContextLayout: which tokens of a sequence each rank holds.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "attn/attention/functors.hpp"
#include "attn/core/tensor.hpp"
#include "attn/distributed/communicator.hpp"

ATTN_NAMESPACE_BEGIN

/// Assigns the tokens of a sequence to ranks. A rank stores its tokens contiguously, in order.
class ContextLayout {
 public:
  enum class Kind {
    contiguous,  ///< rank r has part r of `ranks` parts
    /// Rank r has parts r and 2 ranks - 1 - r of 2 ranks parts: an early and a late one, so that
    /// all ranks have the same work under a causal mask.
    zigzag,
  };

  /// Parts differ by at most one token; they may be empty. Throws ValueError for seq below 0 or
  /// ranks below 1.
  ContextLayout(index_t seq, int ranks, Kind kind = Kind::contiguous)
      : seq_(seq), ranks_(ranks), kind_(kind) {
    if (seq < 0) {
      throw ValueError(message("ContextLayout", "seq", "be at least 0", to_string(seq)));
    }
    if (ranks < 1) {
      throw ValueError(
          message("ContextLayout", "ranks", "be at least 1", to_string(std::ptrdiff_t{ranks})));
    }
  }

  index_t seq() const { return seq_; }
  int ranks() const { return ranks_; }
  Kind kind() const { return kind_; }

  /// The tokens of a rank: two ranges in order, either of which may be empty. ranges(), size() and
  /// local_tokens() throw ValueError for a rank outside the layout.
  std::array<IndexRange, 2> ranges(int rank) const {
    detail::check_rank("ContextLayout", "rank", rank, ranks_);
    if (kind_ == Kind::contiguous) {
      const IndexRange range = part(rank, ranks_);
      return {range, {range.end, range.end}};
    }
    const index_t parts = index_t{2} * ranks_;
    return {part(rank, parts), part(parts - 1 - rank, parts)};
  }

  /// The number of tokens of a rank.
  index_t size(int rank) const {
    const auto [a, b] = ranges(rank);
    return a.end - a.begin + (b.end - b.begin);
  }

 private:
  IndexRange part(index_t n, index_t parts) const {
    const index_t whole = seq_ / parts, rest = seq_ % parts;
    const auto begin = [&](index_t p) { return whole * p + (std::min)(p, rest); };
    return {begin(n), begin(n + 1)};
  }

  index_t seq_;
  int ranks_;
  Kind kind_;
};

namespace detail {

/// Calls f(part, at, n) for each part of `tokens` that lies in range n of `rank`. The part begins
/// with token `at` of the rank.
template <class F>
void for_parts(const ContextLayout& layout, int rank, const IndexRange& tokens, const F& f) {
  const std::array<IndexRange, 2> ranges = layout.ranges(rank);
  index_t at = 0;
  for (std::size_t n = 0; n < ranges.size(); ++n) {
    const IndexRange part = intersection(ranges[n], tokens);
    if (!is_empty(part)) f(part, at + part.begin - ranges[n].begin, n);
    at += ranges[n].end - ranges[n].begin;
  }
}

}  // namespace detail

/// Returns a copy of the tokens of `rank` of x (batch, heads, seq, dim). Throws ShapeError unless
/// seq is that of the layout.
template <TensorLike X>
Tensor4<scalar_t<X>> local_tokens(const ContextLayout& layout, int rank, const X& x) {
  ATTN_ASSERT_AXES(X, 4, "local_tokens: x", "(batch, heads, seq, dim)");
  const auto all = const_view(x);
  const auto [batch, heads, seq, dim] = all.shape();
  check_shape("local_tokens", "x", "(batch, heads, seq, dim)",
              Shape<4>{batch, heads, layout.seq(), dim}, all.shape());
  auto local = Tensor4<scalar_t<X>>::uninitialized({batch, heads, layout.size(rank), dim});
  index_t to = 0;
  for (const IndexRange& range : layout.ranges(rank)) {
    for (index_t i = range.begin; i < range.end; ++i, ++to) {
      for (index_t b = 0; b < all.extent(0); ++b) {
        for (index_t h = 0; h < all.extent(1); ++h) {
          for (index_t c = 0; c < all.extent(3); ++c) local(b, h, to, c) = all(b, h, i, c);
        }
      }
    }
  }
  return local;
}

ATTN_NAMESPACE_END
