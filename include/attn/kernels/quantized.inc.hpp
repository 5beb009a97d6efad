// Kernel text: products with quantised weights, of activations in float or in 8 bits.
// SPDX-License-Identifier: Apache-2.0

#include "attn/kernels/quantized_activations.inc.hpp"
#include "attn/kernels/quantized_floats.inc.hpp"
#include "attn/kernels/quantized_gemv.inc.hpp"
#include "attn/kernels/quantized_panels.inc.hpp"
#if defined(ATTN_TARGET_TILES)
#include "attn/kernels/quantized_tiles.inc.hpp"
#endif

/// The activations, of k, that have a scale beside weights with one scale a row: half of them, or
/// fewer, as many as sums of codes are exact for; whole tiles. What is large takes the codes from
/// half of a row: MiniLM's embeddings of random words lose a third less than by one scale
/// (bench/precision --random).
inline index_t row_piece(index_t k) {
  constexpr index_t kTile = 64, kMax = ExpandedPanels::kMaxK;
  const index_t pieces = std::max(index_t{2}, (k + kMax - 1) / kMax);
  return std::max(kTile, detail::round_up((k + pieces - 1) / pieces, kTile));
}

/// Products of activations in 8 bits by weights of one format, one below the other.
inline void multiply_int8_by(std::span<const detail::QuantizedMatrix> parts,
                             const detail::GemmProblem<float>& g, const Executor& executor,
                             Workspace& workspace) {
  if (g.n == 0) return;
  const QuantizedFormat& format = parts[0].format;
  const bool is_row = format.block == 0;
  // Reading and expanding a weight counts as 12 products, once for all rows: decoding SmolLM2 on
  // two threads takes 0.58 of the time (bench/llm_speed llm_decode, median of three pairs).
  const Executor& threads = detail::threads_for(executor, (g.m / 4 + 3) * g.n * g.k);
  const index_t workers = detail::worker_count(threads);
  QuantizedRows rows{};
  rows.row_bytes = detail::round_up(g.k, index_t{64});
  rows.piece = is_row ? row_piece(g.k) : format.block;
  rows.pieces = (g.k + rows.piece - 1) / rows.piece;
  Scratch<std::int8_t> codes(workspace, g.m * rows.row_bytes);
  Scratch<float> scales(workspace, 2 * g.m * rows.pieces);
  Scratch<std::int32_t> starts(workspace, g.m * rows.pieces);
  Scratch<float> lines(workspace, g.a_k == 1 ? 0 : workers * g.k);
  rows.codes = codes.data();
  rows.scales = scales.data();
  rows.sums = scales.data() + g.m * rows.pieces;
  rows.starts = starts.data();
  const int zero = Int8::zero(format.zero, format.has_wide);
  const index_t shared = is_row ? rows.piece : 32;

  constexpr index_t kTaskRows = 16;
  const auto quantize = [&](index_t task, int worker) {
    for (index_t i = task * kTaskRows; i < std::min((task + 1) * kTaskRows, g.m); ++i) {
      float* line = g.a_k == 1 ? nullptr : lines.data() + worker * g.k;
      quantize_row(g.a + i * g.a_row, g.a_k, g.k, shared, zero, rows, i, line);
    }
  };
  const index_t row_tasks = (g.m + kTaskRows - 1) / kTaskRows;
  if (row_tasks == 1) {
    quantize(0, 0);
  } else {
    threads.run(row_tasks, quantize);
  }

  if (g.m <= kGemvRows) return multiply_codes(g, parts, rows, threads);

  Scratch<ExpandedPanels> expanded(workspace, workers);
  index_t column = 0;
  for (const detail::QuantizedMatrix& w : parts) {
    const detail::GemmProblem<float> part = columns_of(g, column, w.n);
    column += w.n;
#if defined(ATTN_TARGET_TILES)
    if (takes_tiles(part, format)) {
      multiply_int8_tiles(part, w, rows, threads, workspace);
      continue;
    }
#endif
    multiply_panels(part, w, rows, threads, expanded.data());
  }
}

inline void multiply_int8(const detail::QuantizedProblem& problem, const Executor& executor,
                          Workspace& workspace) {
  if (problem.product.m == 0) return;
  const detail::QuantizedMatrix *part = problem.weights, *end = part + problem.parts;
  for (index_t column = 0; part != end;) {
    const detail::QuantizedMatrix* const first = part;
    index_t n = 0;
    for (; part != end && part->format == first->format; ++part) n += part->n;
    multiply_int8_by({first, part}, columns_of(problem.product, column, n), executor, workspace);
    column += n;
  }
}

template <>
struct TargetTable<detail::Backend<family::QuantizedProducts, float, float>> {
  static constexpr detail::Backend<family::QuantizedProducts, float, float> kTable{
      .multiply_floats = detail::kKernel<multiply_floats>,
      .multiply_int8 = detail::kKernel<multiply_int8>};
};
