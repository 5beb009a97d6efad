// BlockMask: a mask functor whose blocks are classified once, for many calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <ostream>
#include <string>
#include <vector>

#include "attn/attention/functors.hpp"
#include "attn/exec/row_ranges.hpp"

ATTN_NAMESPACE_BEGIN

/// BlockMask(mask_mod(f), shape, {.q_block = 128, .kv_block = 128})
struct BlockMaskOptions {
  index_t q_block = 64;  ///< queries of one block, a power of two
  /// Keys of one block, a power of two. Attention skips whole chunks of 64 keys.
  index_t kv_block = 64;
  /// The threads that classify, and the instruction set for which f is compiled.
  Execution execution = {};
};

namespace detail {

/// Throws ShapeError or ValueError; returns the table without its blocks.
ATTN_COLD inline BlockTable checked_block_table(const Shape<4>& shape,
                                                const BlockMaskOptions& options) {
  if (std::any_of(shape.begin(), shape.end(), [](index_t extent) {
        return extent < 0 || extent > (std::numeric_limits<int>::max)();
      })) {
    throw_shape("BlockMask", "shape", "have extents of 0 .. 2^31 - 1", shape);
  }
  const auto shift_of = [](std::string_view argument, index_t size) {
    if (size < 1 || !std::has_single_bit(static_cast<std::size_t>(size))) {
      throw ValueError(message("BlockMask", argument, "be a power of two", to_string(size)));
    }
    return std::countr_zero(static_cast<std::size_t>(size));
  };
  return {.shape = shape,
          .q_shift = shift_of("q_block", options.q_block),
          .kv_shift = shift_of("kv_block", options.kv_block)};
}

/// One line for each block of queries, one character for each block of keys.
ATTN_COLD inline std::string picture_of(const BlockTable& table) {
  constexpr std::string_view kCharacters = ".+#";  // empty, partial, full
  const auto [batch, heads, q_blocks, kv_blocks] = table.grid();
  std::string text;
  const Visibility* block = table.blocks;
  for (index_t b = 0; b < batch; ++b) {
    for (index_t h = 0; h < heads; ++h) {
      if (batch * heads > 1) {
        text += join(
            {text.empty() ? "" : "\n", "batch ", to_string(b), ", head ", to_string(h), ":\n"});
      }
      for (index_t q = 0; q < q_blocks; ++q) {
        if (q > 0) text += '\n';
        for (index_t kv = 0; kv < kv_blocks; ++kv) {
          text += kCharacters[static_cast<std::size_t>(*block++)];
        }
      }
    }
  }
  return text;
}

/// Throws ShapeError unless the table covers scores of shape (batch, num_heads, q_len, kv_len).
inline void check_block_table(const BlockTable& table, const Shape<4>& scores, index_t first_key) {
  const Shape<4> needed{scores[0], scores[1], scores[2], first_key + scores[3]};
  const Shape<4>& found = table.shape;
  const bool broadcasts =
      (found[0] == 1 || found[0] == needed[0]) && (found[1] == 1 || found[1] == needed[1]);
  if (broadcasts && found[2] >= needed[2] && found[3] >= needed[3]) return;
  throw_other_shape("scaled_dot_product_attention", "the BlockMask",
                    "(batch or 1, num_heads or 1, at least q_len, at least first_key + kv_len)",
                    needed, found);
}

}  // namespace detail

/// A mask_mod that knows which blocks of queries and keys are empty, full or partial. Computed once
/// by calling f for pairs of every block, then given to any number of calls in place of
/// mask_mod(f), forward and backward, with the same results to the bit. Empty blocks are skipped,
/// and f is called in partial blocks alone. Corresponds to create_block_mask of PyTorch's
/// FlexAttention.
///
///   const BlockMask mask(mask_mod(f), {1, 1, q_len, kv_len});
///   scaled_dot_product_attention(q, k, v, {}, mask);
template <class F>
class BlockMask {
 public:
  /// shape: (batch, num_heads, q_len, kv_len) of the calls. Batch or heads of 1 broadcast: f is
  /// then called with 0 for them. q_len and kv_len may be longer than those of a call; kv_len
  /// counts from position 0, also where a call has a first_key. What f refers to must not change
  /// afterwards. Where f has classify(), f is called only for blocks for which classify() returns
  /// partial. Throws ShapeError or ValueError.
  BlockMask(const detail::MaskMod<F>& mask, const Shape<4>& shape,
            const BlockMaskOptions& options = {})
      : mask_(mask), table_(detail::checked_block_table(shape, options)) {
    static_assert(std::is_invocable_v<const F&, int, int, int, int>,
                  "BlockMask: the functor must be callable as f(b, h, i, j) and not be `mutable`");
    if constexpr (std::is_invocable_v<const F&, int, int, int, int>) classify(options);
  }

  /// (batch, num_heads, q_len, kv_len) as given.
  const Shape<4>& shape() const { return table_.shape; }
  /// The number of blocks: (batch, num_heads, q_blocks, kv_blocks).
  Shape<4> grid() const { return table_.grid(); }
  /// The blocks, with the shape of grid().
  TensorView4<const Visibility> blocks() const { return {blocks_.data(), grid()}; }
  /// The number of empty, partial or full blocks.
  index_t count(Visibility visibility) const {
    return std::count(blocks_.begin(), blocks_.end(), visibility);
  }

  const detail::MaskMod<F>& functor() const { return mask_; }
  /// A view that lives as long as this.
  detail::BlockTable table() const {
    detail::BlockTable table = table_;
    table.blocks = blocks_.data();
    return table;
  }

 private:
  void classify(const BlockMaskOptions& options) {
    const Shape<4> grid = table_.grid();
    blocks_.resize(static_cast<std::size_t>(size_of(grid)));
    // Uses the loop of attention calls, so that f rounds in the same way.
    const auto apply = detail::table_of<detail::FunctorLoop<float, detail::MaskMod<F>>>(
                           options.execution.instruction_set())
                           .apply;
    const index_t rows = grid[0] * grid[1] * grid[2];
    detail::for_rows(
        options.execution.threads(), rows, options.q_block * shape()[3], [&](index_t row) {
          const index_t q = row % grid[2], h = row / grid[2] % grid[1], b = row / grid[2] / grid[1];
          for (index_t kv = 0; kv < grid[3]; ++kv) {
            blocks_[static_cast<std::size_t>(row * grid[3] + kv)] = classify_block(
                apply, b, h,
                {q * options.q_block, (std::min)((q + 1) * options.q_block, shape()[2])},
                {kv * options.kv_block, (std::min)((kv + 1) * options.kv_block, shape()[3])});
          }
        });
  }

  Visibility classify_block(decltype(detail::RowFunctor<float>::apply) apply, index_t b, index_t h,
                            IndexRange queries, IndexRange keys) const {
    const Visibility known = detail::visibility(mask_.f, b, h, queries, keys);
    if (known != Visibility::partial) return known;
    constexpr index_t kPiece = 256;
    float row[kPiece];
    bool some = false, all = true;
    for (index_t i = queries.begin; i < queries.end; ++i) {
      for (index_t j = keys.begin; j < keys.end; j += kPiece) {
        const index_t n = (std::min)(keys.end - j, kPiece);
        std::fill_n(row, n, 0.0f);
        apply(&mask_.f, n, row, b, h, i, j);
        const index_t visible = std::count(row, row + n, 0.0f);
        some = some || visible > 0;
        all = all && visible == n;
        if (some && !all) return Visibility::partial;
      }
    }
    return all ? Visibility::full : Visibility::empty;
  }

  detail::MaskMod<F> mask_;
  detail::BlockTable table_;  ///< without blocks: each copy of a BlockMask has its own
  std::vector<Visibility> blocks_;
};

/// A line for each block of queries with a character for each block of keys: a dot where it is
/// empty, + partial, # full. Several heads follow one another, each below its name.
template <class F>
std::string to_string(const BlockMask<F>& mask) {
  return detail::picture_of(mask.table());
}

/// Prints to_string(mask) to a stream.
template <class F>
std::ostream& operator<<(std::ostream& stream, const BlockMask<F>& mask) {
  return stream << to_string(mask);
}

namespace detail {

/// A BlockMask is a mask_mod.
template <class F>
inline constexpr bool is_mod<MaskMod, BlockMask<F>> = true;

template <class T, class F>
void bind(Isa isa, const BlockMask<F>& mask, RowFunctors<T>& functors) {
  bind(isa, mask.functor(), functors);
  functors.blocks = mask.table();
}

template <class F>
void check_functor(const BlockMask<F>& mask, const Shape<4>& scores, index_t first_key) {
  check_block_table(mask.table(), scores, first_key);
}

}  // namespace detail

ATTN_NAMESPACE_END
