// AttentionOptions: the options of one attention call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "attn/attention/key_range.hpp"
#include "attn/attention/precision.hpp"
#include "attn/core/argument_types.hpp"
#include "attn/exec/execution.hpp"

ATTN_NAMESPACE_BEGIN

/// The output of a fully masked query.
enum class MaskedRow {
  zero,  ///< output 0, weights 0, lse -inf
  /// Averages v over all unpadded keys, masked or not: what filling scores with -1e9 gives; lse is
  /// -inf.
  mean,
};

/// Reproducible attention dropout: the mask depends only on seed, batch row, head, query and key,
/// not on tiling, threads or instruction set. Source: Salmon et al., "Parallel random numbers: as
/// easy as 1, 2, 3" (2011), Philox 4x32-10.
struct Dropout {
  double p = 0;  ///< probability of dropping a weight, in [0, 1); kept weights are divided by 1 - p
  std::uint64_t seed = 0;  ///< seed of the mask
};

/// Stage of the scores that a call returns.
enum class ScoreStage {
  scaled,      ///< scale q k^T
  softcapped,  ///< after score_mod and softcap
  masked,      ///< input of softmax: with biases, -inf where masked out
};

/// scaled_dot_product_attention(q, k, v, {.mask = causal(), .scale = 0.125})
template <class T>
struct AttentionOptions {
  MaskOf<T> mask = {};  ///< keys that each query attends to; default: all
  /// Any finite number; default 1 / sqrt(head_dim), and 1 / sqrt(head_dim + head_dim_v) with qv.
  std::optional<double> scale = {};
  double softcap = 0;  ///< score = softcap tanh(score / softcap); 0: none
  /// Position of the first query relative to the keys, for causal masks, windows and ALiBi.
  QueryOffset offset = bottom_right;
  /// Position of the first key in k and v: key j has position first_key + j. Masks by position,
  /// lengths, chunks, prefixes, documents, ALiBi, relative bias, dropout and functors take
  /// positions, and kv_len in the offset is first_key + the number of keys given. 0 .. 2^60. Set it
  /// for a cache that forgot its first keys (KvCache::first_position()), and to process a sequence
  /// in pieces. Dense masks, weights, scores and column_sums have the extent of the keys given;
  /// documents have first_key + kv_len.
  index_t first_key = 0;
  OptionView<const T, 1> alibi_slopes = {};        ///< (num_heads): score -= slope |position - j|
  OptionView<const T, 2> batch_alibi_slopes = {};  ///< (batch, num_heads), instead of alibi_slopes
  /// (num_heads, 2 n + 1): score += relative_bias(h, n + clamp(j - position, -n, n));
  /// t5_relative_bias() makes T5's.
  OptionView<const T, 2> relative_bias = {};
  /// (num_heads): one logit per head that is added to the denominator and has no value.
  OptionView<const T, 1> sinks = {};
  /// (batch, num_heads, q_len, head_dim_v), innermost stride 1: score = scale (q . k + qv . v). For
  /// multi-head latent attention (MLA), where k holds only rotary features and v the latent ones.
  /// Source: FlashAttention 3, `qv`.
  OptionView<const T, 4> qv = {};
  MaskedRow masked_row = MaskedRow::zero;  ///< output of fully masked queries
  /// Applied to the weights that multiply v, but not to the output `weights`.
  Dropout dropout = {};
  AttentionPrecision precision = AttentionPrecision::exact;  ///< arithmetic of q k^T

  /// Packed sequences: sequence b has queries [cu_seqlens_q(b), cu_seqlens_q(b + 1)) of q, out and
  /// lse, whose batch extent is 1, and keys [cu_seqlens_k(b), cu_seqlens_k(b + 1)) of k and v.
  /// Shape (batch + 1), increasing from 0 to the length of q and of k. Give both or neither; with a
  /// block_table, only cu_seqlens_q. With a first_key, cu_seqlens_k increases to first_key + the
  /// length of k: a sequence that began before first_key lacks its first keys.
  OptionView<const index_t, 1> cu_seqlens_q = {};
  OptionView<const index_t, 1> cu_seqlens_k = {};  ///< see cu_seqlens_q
  /// Paged keys and values: key j of batch row b is row j % page_size of page block_table(b, j /
  /// page_size) of k (num_pages, num_kv_heads, page_size, head_dim) and v. Shape (batch, pages);
  /// kv_len = pages * page_size, which key_lengths() shortens; entries beyond the lengths are not
  /// read.
  OptionView<const index_t, 2> block_table = {};
  /// Gathered keys: queries [n gather_block, (n + 1) gather_block) of the heads that share a
  /// key/value head see the keys at positions gather(b, kv_head, n, ..) alone; no other key is
  /// read. Shape (batch, num_kv_heads or 1, q_len / gather_block rounded up, keys); positions
  /// increase, and -1 fills up the end of a row; top_k_keys() makes them. Composes with masks by
  /// position, lengths and documents, softcap, sinks, qv, lse, first_key, caches and pages; other
  /// options are refused.
  OptionView<const index_t, 4> gather = {};
  index_t gather_block = 1;  ///< queries that share a row of gather

  // Outputs on request. With packed sequences, q_len and kv_len are those of the longest one, and
  // elements beyond a sequence are 0 (scores: -inf).
  /// Scores (batch, num_heads, q_len, kv_len). Stages before the masks read every key up to the key
  /// lengths.
  OptionView<T, 4> scores = {};
  ScoreStage score_stage = ScoreStage::masked;  ///< stage that `scores` returns
  /// Softmax weights (batch, num_heads, q_len, kv_len), before prob_mod and dropout.
  OptionView<T, 4> weights = {};
  /// The heads that `weights` returns, each at most once: shape (n); weights then has shape (batch,
  /// n, q_len, kv_len). Default: all heads.
  OptionView<const index_t, 1> weight_heads = {};
  /// Mean of the weights over heads (batch, q_len, kv_len).
  OptionView<T, 3> average_weights = {};
  /// Sum of the weights over queries (batch, num_heads, kv_len).
  OptionView<T, 3> column_sums = {};
  /// Largest unmasked score (batch, num_heads); -inf if all are masked.
  OptionView<T, 2> max_logits = {};
  /// Natural logarithm of the sum of exponentials, including sinks (batch, num_heads, q_len); for
  /// packed sequences (1, num_heads, total).
  OptionView<T, 3> lse = {};
  Execution execution = {};  ///< threads, scratch and instruction set

  ATTN_REFUSE_OTHER_ELEMENTS(AttentionOptions)
};

ATTN_NAMESPACE_END
