// explain(): the plan of an attention call, without running it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>

#include "attn/attention/sdpa.hpp"
#include "attn/attention/tasks/task_rows.hpp"

ATTN_NAMESPACE_BEGIN

/// The kernels that compute the rows of one key/value head.
enum class AttentionPath {
  tiled,   ///< keys packed in panels, tiles of queries: limited by arithmetic
  decode,  ///< few queries, one pass over unpacked keys and values: limited by memory
  mixed,   ///< packed sequences of both kinds
};

/// The plan that the call executes and the amount of work.
struct AttentionExplanation {
  Isa isa;
  DType element;                 ///< of keys and values; with isa, selects the backend
  AttentionPrecision precision;  ///< arithmetic of q . k; exact if nothing takes the tiled path
  /// What products of floats run as; highest if nothing takes the tiled path.
  MatmulPrecision matmul_precision;
  /// The register tile of scores (rows x columns) on the tiled path.
  index_t product_queries, product_keys;
  AttentionPath path;
  AttentionPlan plan;
  index_t tile_rows;  ///< queries of one tile, at most
  index_t block_kv;   ///< keys of one block
  /// Pairs of a query tile and a key block. empty: fully masked, never read; full: nothing masked;
  /// partial: some keys masked, or unknown without reading the mask.
  index_t empty = 0, partial = 0, full = 0;
  double flops = 0;   ///< of both products, over the keys in trimmed blocks
  double bytes = 0;   ///< queries, unmasked keys and values, and outputs, once each
  bool fused = true;  ///< false: weights for their average are written to the workspace first
  bool two_pass =
      false;  ///< scores are computed twice: for prob_mod, scores, weights or column sums

  /// The plan in words, one fact per line.
  std::string text() const {
    constexpr std::string_view kPaths[] = {"tiled", "decode", "mixed"};
    const auto with = [](double value, const char* unit) {
      char text[32];
      std::snprintf(text, sizeof(text), "%.4g ", value);
      return std::string(text) + unit;
    };
    std::string text = "path       ";
    text.append(kPaths[static_cast<int>(path)]).append(" on ").append(name(isa));
    text += fused ? ", fused" : ", weights in the workspace";
    if (two_pass) text += ", scores computed twice";
    text.append("\nbackend    ").append(name(isa)).append(" of ").append(name(element));
    if (precision.is_int8()) text += ", q and k quantised to 8 bits";
    if (matmul_precision != MatmulPrecision::highest) {
      text.append(" in ").append(name(matmul_precision)).append(" precision");
    }
    text +=
        ", products of " + std::to_string(product_queries) + " x " + std::to_string(product_keys);
    text += "\ntasks      " + std::to_string(plan.tasks) + " on " +
            std::to_string(plan.concurrency) + " threads, " + std::to_string(plan.kv_splits) +
            " of them over split keys, " + std::to_string(plan.heads_per_task) +
            (plan.heads_per_task == 1 ? " key/value head each" : " key/value heads each") +
            "\ntiles      " + std::to_string(tile_rows) + " queries x " + std::to_string(block_kv) +
            " keys" + "\nblocks     " + std::to_string(empty) + " empty, " +
            std::to_string(partial) + " partial, " + std::to_string(full) + " full" +
            "\nwork       " + with(flops * 1e-9, "GFLOP, ") + with(bytes * 1e-6, "MB") +
            "\nworkspace  " + with(static_cast<double>(plan.workspace_bytes) * 1e-6, "MB\n");
    return text;
  }
};

namespace detail {

/// Counts the blocks of one key/value head.
template <class T>
ATTN_COLD void count_blocks(const AttentionProblem<T>& problem, const SequenceTiling& tiling,
                            index_t b, index_t kv_head, std::vector<QueryRow<T>>& memory,
                            AttentionExplanation& explanation) {
  memory.resize(static_cast<std::size_t>(tiling.rows));
  const TaskRows<T> rows(problem, {b, kv_head, 0, tiling.rows}, memory.data(), !tiling.decode);
  const bool has_mask = problem.options.mask.num_dense > 0 || problem.functors.mask;
  const double d = static_cast<double>(problem.head_dim() + problem.head_dim_v()),
               products = static_cast<double>(problem.score_dim() + problem.head_dim_v()),
               of_query = static_cast<double>(problem.score_dim() - problem.head_dim()) + d;
  const index_t step = tiling.block_kv;
  for (index_t r = 0; r < tiling.rows; r += explanation.tile_rows) {
    const index_t height = (std::min)(tiling.rows - r, explanation.tile_rows);
    for (index_t first = 0; first < tiling.kv_len; first += step) {
      const KeyRange block{first, (std::min)(first + step, tiling.kv_len)};
      const KeyRange seen = rows.seen_by(r, height, block);
      KeyChunks chunks{.first_key = first};
      if (seen.begin < seen.end) chunks = rows.chunks(r, height, first, seen);
      if (seen.begin >= seen.end || chunks.is_empty(seen)) {
        explanation.empty += 1;
        continue;
      }
      bool all = seen.begin == block.begin && seen.end == block.end;
      for (index_t x = r; x < r + height; ++x) {
        all = all && rows[x].keys.begin <= block.begin && rows[x].keys.end >= block.end;
      }
      if (has_mask) {
        chunks.for_each_run(seen, [&](KeyRange, Visibility visibility) {
          all = all && visibility == Visibility::full;
        });
      }
      (all ? explanation.full : explanation.partial) += 1;
      chunks.for_each_seen(seen, [&](KeyRange keys) {
        explanation.flops += 2 * products * static_cast<double>(height * (keys.end - keys.begin));
      });
    }
  }
  const KeyRange seen = rows.seen({0, tiling.kv_len});
  const index_t keys = (std::max)(seen.end - seen.begin, index_t{0});
  explanation.bytes +=
      static_cast<double>(problem.q.element_size()) * of_query * static_cast<double>(tiling.rows) +
      static_cast<double>(problem.k.element_size()) * d * static_cast<double>(keys);
}

}  // namespace detail

/// Returns the plan that scaled_dot_product_attention(q, k, v, options, functors...) executes and
/// the amount of work. Uses shapes, options, a BlockMask and classify() of a mask functor; reads no
/// element of q, k, v or of dense masks. Throws what the call itself throws.
template <TensorLike Q, TensorLike K, TensorLike V, class... Functors>
ATTN_COLD AttentionExplanation explain(
    const Q& q, const K& k, const V& v,
    const AttentionOptions<Accumulator<scalar_t<Q>>>& options = {}, const Functors&... functors) {
  using T = Accumulator<scalar_t<Q>>;
  detail::assert_call_types<Q, K, V, Tensor4<scalar_t<Q>>&, Functors...>();
  const Shape<4> shape = const_view(q).shape();
  const TensorView4<scalar_t<Q>> out(nullptr,
                                     {shape[0], shape[1], shape[2], const_view(v).extent(3)});
  const detail::AttentionProblem<T> problem = detail::make_problem_with<T>(
      const_view(q), const_view(k), const_view(v), out, options, functors...);
  const AttentionPlan plan(problem, options.execution.threads());

  bool decode = false, tiled = false;
  for (index_t b = 0; b < problem.batch(); ++b) {
    (detail::tiling_of(problem, b).decode ? decode : tiled) = true;
  }
  const Isa isa = options.execution.instruction_set();
  const auto& backend = detail::backend<family::Attention, scalar_t<K>, T>(isa);
  const index_t tile_rows =
      detail::takes_pairs(problem, isa) ? detail::kPairRows : backend.tile_rows;
  AttentionExplanation explanation{
      .isa = isa,
      .element = dtype_of<scalar_t<K>>(),
      .precision = tiled && problem.has_codes() ? options.precision : AttentionPrecision::exact,
      .matmul_precision = tiled && detail::float_parts(problem) > 0
                              ? options.execution.matmul_precision_used()
                              : MatmulPrecision::highest,
      .product_queries = tile_rows,
      .product_keys = backend.tile_keys,
      .path = decode && tiled ? AttentionPath::mixed
              : decode        ? AttentionPath::decode
                              : AttentionPath::tiled,
      .plan = plan,
      .tile_rows = tiled ? tile_rows : detail::kMaxDecodeRows,
      .block_kv = plan.max_block_kv};
  explanation.fused = plan.scores_elements == 0;
  explanation.two_pass = options.scores || options.weights || options.average_weights ||
                         options.column_sums || static_cast<bool>(problem.functors.prob);
  std::vector<detail::QueryRow<T>> memory;
  for (index_t b = 0; b < problem.batch(); ++b) {
    for (index_t kv_head = 0; kv_head < problem.num_kv_heads(); ++kv_head) {
      detail::count_blocks(problem, detail::tiling_of(problem, b), b, kv_head, memory, explanation);
    }
  }
  return explanation;
}

ATTN_NAMESPACE_END
