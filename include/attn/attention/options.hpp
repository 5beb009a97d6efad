// AttentionOptions: everything that one attention call can be told, as an aggregate.
#pragma once

#include <cstdint>

#include "attn/attention/mask.hpp"
#include "attn/kernels/execution.hpp"

ATTN_NAMESPACE_BEGIN

/// Where queries stand among the keys: query i has position i + offset, for causal, windows and ALiBi alike.
struct QueryOffset {
  enum class Kind { bottom_right, top_left, fixed };
  Kind kind = Kind::bottom_right;
  index_t value = 0;
};

/// The last query stands at the last key: offset = kv_len - q_len, with key lengths per batch row.
inline constexpr QueryOffset bottom_right{QueryOffset::Kind::bottom_right, 0};
/// The first query stands at the first key, as PyTorch's is_causal has it: offset = 0.
inline constexpr QueryOffset top_left{QueryOffset::Kind::top_left, 0};
/// An offset of one's own, which may be negative.
constexpr QueryOffset query_offset(index_t value) { return {QueryOffset::Kind::fixed, value}; }

namespace detail {

/// Keys [begin, end).
struct KeyRange {
  index_t begin, end;
};

inline index_t keys_of(const Mask& mask, index_t b, index_t kv_len) {
  return mask.key_lengths ? mask.key_lengths(b) : kv_len;
}

/// Position of query i among the keys of batch row b.
inline index_t position(const Mask& mask, QueryOffset offset, index_t b, index_t i, index_t q_len,
                        index_t kv_len) {
  switch (offset.kind) {
    case QueryOffset::Kind::bottom_right:
      return i + keys_of(mask, b, kv_len) - q_len;
    case QueryOffset::Kind::top_left:
      return i;
    default:
      return i + offset.value;
  }
}

/// What causality, window and lengths leave of the keys: always one interval. Dense parts come on top.
inline KeyRange keys_seen(const Mask& mask, QueryOffset offset, index_t b, index_t i, index_t q_len,
                          index_t kv_len) {
  const index_t p = position(mask, offset, b, i, q_len, kv_len);
  KeyRange range{0, keys_of(mask, b, kv_len)};
  if (mask.causal) range.end = std::min(range.end, p + 1);
  range.end = std::max(std::min(range.end, p + mask.right + 1), index_t{0});
  range.begin = std::min(std::max(range.begin, p - mask.left), range.end);
  return range;
}

}  // namespace detail

/// What a query that sees no key gets.
enum class MaskedRow {
  zero,  ///< output 0, weights 0, lse -inf
  mean,  ///< the mean of all values, as filling scores with -1e9 gives
};

/// Attention dropout, reproducible: what is dropped follows from seed, batch row, head, query and key alone,
/// whatever the tiling, the threads and the instruction set. Source: Salmon et al., "Parallel random numbers:
/// as easy as 1, 2, 3" (2011), Philox 4x32-10.
struct Dropout {
  double p = 0;  ///< probability that a weight becomes 0, in [0, 1); what stays is divided by 1 - p
  std::uint64_t seed = 0;
};

/// scaled_dot_product_attention(q, k, v, {.mask = causal(), .scale = 0.125})
template <class T>
struct AttentionOptions {
  Mask mask = {};
  std::optional<double> scale = {};  ///< any finite number; 1 / sqrt(head_dim) if not given
  double softcap = 0;                ///< score = softcap tanh(score / softcap); 0: none
  QueryOffset offset = bottom_right;
  TensorView1<const T> alibi_slopes = {};  ///< (num_heads): score -= slope |position - j|
  TensorView1<const T> sinks =
      {};  ///< (num_heads): one more logit in the denominator, without a value
  MaskedRow masked_row = MaskedRow::zero;
  Dropout dropout = {};         ///< on the weights that multiply v; `weights` shows them before
  TensorView4<T> weights = {};  ///< out: softmax weights (batch, num_heads, q_len, kv_len)
  TensorView3<T> lse =
      {};  ///< out: natural log of the sum of exponentials (batch, num_heads, q_len)
  Execution execution = {};
};

ATTN_NAMESPACE_END
