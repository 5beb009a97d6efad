// Backend table of attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/call/problem.hpp"
#include "attn/kernels/backend.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // for std::optional

/// A layout_hash() of all types that an AttentionProblem refers to, part of the names of tables in
/// attn::compiled.
template <class T>
constexpr std::uint64_t options_layout() {
  using Options = AttentionOptions<T>;
  using Dense = Mask::Dense;
  return layout_hash({sizeof(Options),
                      offsetof(Options, mask),
                      offsetof(Options, scale),
                      offsetof(Options, softcap),
                      offsetof(Options, offset),
                      offsetof(Options, first_key),
                      offsetof(Options, alibi_slopes),
                      offsetof(Options, batch_alibi_slopes),
                      offsetof(Options, relative_bias),
                      offsetof(Options, sinks),
                      offsetof(Options, qv),
                      offsetof(Options, masked_row),
                      offsetof(Options, dropout),
                      offsetof(Options, precision),
                      offsetof(Options, cu_seqlens_q),
                      offsetof(Options, cu_seqlens_k),
                      offsetof(Options, block_table),
                      offsetof(Options, gather),
                      offsetof(Options, gather_block),
                      offsetof(Options, scores),
                      offsetof(Options, score_stage),
                      offsetof(Options, weights),
                      offsetof(Options, weight_heads),
                      offsetof(Options, average_weights),
                      offsetof(Options, column_sums),
                      offsetof(Options, max_logits),
                      offsetof(Options, lse),
                      offsetof(Options, execution),
                      sizeof(AttentionPrecision),
                      AttentionPrecision::code_products_offset(),
                      sizeof(Mask),
                      offsetof(Mask, dense),
                      offsetof(Mask, num_dense),
                      offsetof(Mask, causal),
                      offsetof(Mask, left),
                      offsetof(Mask, right),
                      offsetof(Mask, key_lengths),
                      offsetof(Mask, query_lengths),
                      offsetof(Mask, left_padding),
                      offsetof(Mask, prefix_lengths),
                      offsetof(Mask, chunk),
                      offsetof(Mask, documents),
                      sizeof(Dense),
                      offsetof(Dense, kind),
                      offsetof(Dense, element),
                      offsetof(Dense, data),
                      offsetof(Dense, shape),
                      offsetof(Dense, strides),
                      sizeof(QueryOffset),
                      offsetof(QueryOffset, kind),
                      offsetof(QueryOffset, value),
                      offsetof(QueryOffset, values),
                      sizeof(Dropout),
                      offsetof(Dropout, p),
                      offsetof(Dropout, seed)});
}

/// In is the element type of keys and values; int8 keys and values have scales. Queries and outputs
/// have type In or Acc.
template <class In, class Acc>
struct Backend<family::Attention, In, Acc> {
  index_t tile_rows, tile_keys;  ///< of scores, on the tiled path
  Kernel<AttentionProblem<Acc>> forward;

  using Problem = AttentionProblem<Acc>;
  using Functors = RowFunctors<Acc>;
  static constexpr std::uint64_t kLayout = layout_hash({sizeof(Backend),
                                                        offsetof(Backend, tile_rows),
                                                        offsetof(Backend, tile_keys),
                                                        offsetof(Backend, forward),
                                                        sizeof(Problem),
                                                        offsetof(Problem, q),
                                                        offsetof(Problem, k),
                                                        offsetof(Problem, v),
                                                        offsetof(Problem, out),
                                                        offsetof(Problem, scale),
                                                        offsetof(Problem, scores),
                                                        offsetof(Problem, heads_per_kv_head),
                                                        offsetof(Problem, alibi_slopes),
                                                        offsetof(Problem, functors),
                                                        offsetof(Problem, k_scales),
                                                        offsetof(Problem, v_scales),
                                                        offsetof(Problem, shared),
                                                        sizeof(Functors),
                                                        offsetof(Functors, score),
                                                        offsetof(Functors, mask),
                                                        offsetof(Functors, prob),
                                                        offsetof(Functors, classify),
                                                        offsetof(Functors, blocks),
                                                        sizeof(BlockTable),
                                                        offsetof(BlockTable, blocks),
                                                        offsetof(BlockTable, shape),
                                                        offsetof(BlockTable, q_shift),
                                                        offsetof(BlockTable, kv_shift),
                                                        options_layout<Acc>()});
};

#pragma GCC diagnostic pop

}  // namespace detail

ATTN_NAMESPACE_END
