// Extra outputs: a call with other options for them; largest logits, averages over heads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/rows/row_kernels.hpp"
#include "attn/exec/row_ranges.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The call with other options, to which the result refers.
template <class T>
AttentionProblem<T> with_options(const AttentionProblem<T>& call,
                                 const AttentionOptions<T>& options) {
  return {.q = call.q,
          .k = call.k,
          .v = call.v,
          .out = call.out,
          .options = options,
          .scale = call.scale,
          .scores = call.scores,
          .heads_per_kv_head = call.heads_per_kv_head,
          .tiled_heads_per_kv_head = call.tiled_heads_per_kv_head,
          .alibi_slopes = call.alibi_slopes,
          .functors = call.functors,
          .k_scales = call.k_scales,
          .v_scales = call.v_scales,
          .gathered = call.gathered,
          .shared = call.shared};
}

/// What the fully masked queries of a head add to the column sum of each unpadded key: 1 / keys
/// each with MaskedRow::mean, otherwise 0.
template <class T>
ATTN_COLD T sum_of_masked_rows(const AttentionProblem<T>& problem, const RowState<T>* states,
                               index_t b, index_t h) {
  if (problem.options.masked_row == MaskedRow::zero || problem.sink(b, h) > kMinusInf<T>)
    return T{0};
  states += problem.row_at(b, h, 0);
  const index_t rows = std::count_if(states, states + problem.lengths(b).q_len,
                                     [](const RowState<T>& row) { return row.row_sum == T{0}; });
  const KeyRange keys = problem.unpadded_keys(b);
  return static_cast<T>(rows) / static_cast<T>(keys.end - keys.begin);
}

/// Sets the column sums of `keys`, for all heads of a key/value head, to what fully masked queries
/// add.
template <class T>
ATTN_COLD void start_column_sums(const AttentionProblem<T>& problem, const RowState<T>* states,
                                 index_t b, index_t kv_head, KeyRange keys) {
  const KeyRange unpadded = problem.unpadded_keys(b);
  const index_t heads = problem.heads_per_kv_head;
  for (index_t h = kv_head * heads; h < (kv_head + 1) * heads; ++h) {
    const T masked = sum_of_masked_rows(problem, states, b, h);
    for (index_t j = keys.begin; j < keys.end; ++j) {
      const bool is_unpadded = j >= unpadded.begin && j < unpadded.end;
      problem.options.column_sums(b, h, j) = is_unpadded ? masked : T{0};
    }
  }
}

/// Computes max_logits from the states of all rows.
template <class T>
ATTN_COLD void take_max_logits(const AttentionProblem<T>& problem, const RowState<T>* states) {
  for (index_t b = 0; b < problem.batch(); ++b) {
    for (index_t h = 0; h < problem.num_heads(); ++h) {
      T row_max = kMinusInf<T>;
      for (index_t i = 0; i < problem.lengths(b).q_len; ++i) {
        row_max = (std::max)(row_max, states[problem.row_at(b, h, i)].row_max);
      }
      problem.options.max_logits(b, h) = row_max;
    }
  }
}

/// Computes average_weights from the weights.
template <class T>
ATTN_COLD void average_heads(const AttentionProblem<T>& problem, const Executor& threads) {
  const index_t heads = problem.scores[1], q_len = problem.scores[2], kv_len = problem.scores[3];
  const AttentionOptions<T>& options = problem.options;
  for_rows(threads, problem.batch() * q_len, heads * kv_len, [&](index_t row) {
    const index_t b = row / q_len, i = row % q_len;
    for (index_t j = 0; j < kv_len; ++j) options.average_weights(b, i, j) = T{0};
    for (index_t h = 0; h < heads; ++h) {
      const T* weights = options.weights.at_index({b, h, i, 0});
      for (index_t j = 0; j < kv_len; ++j) options.average_weights(b, i, j) += weights[j];
    }
    for (index_t j = 0; j < kv_len; ++j) options.average_weights(b, i, j) /= static_cast<T>(heads);
  });
}

/// Copies the heads that wanted.weight_heads names from the weights of all heads.
template <class T>
ATTN_COLD void copy_chosen(const TensorView4<T>& all, const AttentionOptions<T>& wanted) {
  const auto [batch, heads, q_len, kv_len] = wanted.weights.shape();
  for (index_t b = 0; b < batch; ++b) {
    for (index_t n = 0; n < heads; ++n) {
      for (index_t i = 0; i < q_len; ++i) {
        std::copy_n(all.at_index({b, wanted.weight_heads(n), i, 0}), kv_len,
                    wanted.weights.at_index({b, n, i, 0}));
      }
    }
  }
}

/// Fills the rows of weights or scores beyond the length of a packed sequence.
template <class T>
ATTN_COLD void fill_padding(const AttentionProblem<T>& problem, const TensorView4<T>& matrix,
                            T value) {
  if (!matrix || !problem.packed()) return;
  const auto [batch, heads, q_len, kv_len] = matrix.shape();
  for (index_t b = 0; b < batch; ++b) {
    for (index_t h = 0; h < heads; ++h) {
      for (index_t i = problem.lengths(b).q_len; i < q_len; ++i) {
        std::fill_n(matrix.at_index({b, h, i, 0}), kv_len, value);
      }
    }
  }
}

/// Writes the outputs on request of a call without queries: sums are 0, maxima -inf.
template <class T>
ATTN_COLD void fill_without_rows(const AttentionOptions<T>& options) {
  const auto fill = [](const auto& rows, T value) {
    for (index_t a = 0; a < rows.extent(0); ++a) {
      for (index_t b = 0; b < rows.extent(1); ++b) {
        for (index_t c = 0; c < rows.extent(2); ++c) rows(a, b, c) = value;
      }
    }
  };
  if (options.average_weights) fill(options.average_weights, T{0});
  if (options.column_sums) fill(options.column_sums, T{0});
  if (options.max_logits) fill(options.max_logits.unsqueeze(2), kMinusInf<T>);
}

}  // namespace detail

ATTN_NAMESPACE_END
