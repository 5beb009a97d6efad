// checked_gather(): checks gathered keys and refuses options that they do not support.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/call/argument_checks.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Throws ValueError for options that need all keys of a query side by side.
template <class T>
ATTN_COLD void refuse_beside_gather(const AttentionOptions<T>& options) {
  const auto refuse = [](std::string_view argument, bool given) {
    if (given) throw_value(argument, "not be given with gather", "both");
  };
  refuse("a dense mask", options.mask.num_dense > 0);
  refuse("alibi_slopes", static_cast<bool>(options.alibi_slopes));
  refuse("batch_alibi_slopes", static_cast<bool>(options.batch_alibi_slopes));
  refuse("relative_bias", static_cast<bool>(options.relative_bias));
  refuse("MaskedRow::mean", options.masked_row == MaskedRow::mean);
  refuse("dropout", options.dropout.p > 0);
  refuse("AttentionPrecision::int8", options.precision.is_int8());
  refuse("cu_seqlens_q", static_cast<bool>(options.cu_seqlens_q));
  refuse("scores", static_cast<bool>(options.scores));
  refuse("weights", static_cast<bool>(options.weights));
  refuse("average_weights", static_cast<bool>(options.average_weights));
  refuse("column_sums", static_cast<bool>(options.column_sums));
  refuse("max_logits", static_cast<bool>(options.max_logits));
}

/// Index of the first element of the list at `start` that neither continues positions in
/// [first, last] in order nor the -1 after them; the length of the list if there is none.
inline index_t first_misplaced(const TensorView4<const index_t>& lists, const Shape<4>& start,
                               index_t first, index_t last) {
  const index_t count = lists.extent(3), stride = lists.stride(3);
  if (count == 0) return 0;
  const index_t* list = lists.at_index(start);
  index_t j = 0, lowest = first;
  for (; j < count && list[j * stride] >= lowest && list[j * stride] <= last; ++j) {
    lowest = list[j * stride] + 1;
  }
  while (j < count && list[j * stride] == -1) ++j;
  return j;
}

/// The gathered keys of a call with scores of shape (batch, num_heads, q_len, kv_len).
template <class T>
ATTN_ONCE_A_CALL GatheredKeys checked_gather(const AttentionOptions<T>& options,
                                             const Shape<4>& scores, index_t num_kv_heads) {
  refuse_beside_gather(options);
  const TensorView4<const index_t>& lists = options.gather;
  const index_t block = options.gather_block;
  if (block < 1) throw_value("gather_block", "be at least 1", to_string(block));
  const index_t blocks = scores[2] / block + (scores[2] % block == 0 ? 0 : 1);
  check_extents(
      "gather", "(batch, num_kv_heads or 1, q_len / gather_block rounded up, keys)",
      Shape<4>{scores[0], lists.extent(1) == 1 ? 1 : num_kv_heads, blocks, lists.extent(3)},
      lists.shape());
  const index_t first = options.first_key, last = first + scores[3] - 1;
  for (index_t row = 0; row < scores[0] * lists.extent(1) * blocks; ++row) {
    const index_t b = row / blocks / lists.extent(1), h = row / blocks % lists.extent(1);
    const Shape<4> start{b, h, row % blocks, 0};
    const index_t j = first_misplaced(lists, start, first, last);
    if (j == lists.extent(3)) continue;
    const Shape<4> at{b, h, row % blocks, j};
    throw_value("gather",
                join({"have positions in ", to_string(first), " .. ", to_string(last),
                      " that increase along a row, then -1"}),
                join({to_string(*lists.at_index(at)), " at ", to_string(at)}));
  }
  return {.positions = lists,
          .block = block,
          .num_kv_heads = num_kv_heads,
          .heads_per_kv_head = scores[1] / (std::max)(num_kv_heads, index_t{1}),
          .q_len = scores[2],
          .kv_len = scores[3],
          .first_key = first};
}

}  // namespace detail

ATTN_NAMESPACE_END
