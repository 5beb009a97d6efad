// Kernel text: products with quantised weights.
// SPDX-License-Identifier: Apache-2.0

#include "attn/kernels/quantized/quantized_activations.inc.hpp"
#include "attn/kernels/quantized/quantized_floats.inc.hpp"
#include "attn/kernels/quantized/quantized_gemv.inc.hpp"
#include "attn/kernels/quantized/quantized_panels.inc.hpp"
#if defined(ATTN_TARGET_TILES)
#include "attn/kernels/quantized/quantized_tiles.inc.hpp"
#endif

/// How many of k activations share a scale if weights have one scale per row: half of them, or
/// fewer, so that integer sums are exact; a multiple of a tile. A large activation then degrades
/// only its half of the row (bench/precision prints the error of embeddings).
inline index_t row_piece(index_t k) {
  constexpr index_t kTile = 64, kMax = ExpandedPanels::kMaxK;
  const index_t pieces = std::max(index_t{2}, (k + kMax - 1) / kMax);
  return std::max(kTile, detail::round_up((k + pieces - 1) / pieces, kTile));
}

/// Products of `rows`, which are quantised, by stacked weights of one format.
inline void multiply_rows(const detail::GemmProblem<float>& g,
                          std::span<const detail::QuantizedMatrix> parts, const QuantizedRows& rows,
                          const Executor& threads, Workspace& workspace) {
  bool is_in_tiles = false;
#if defined(ATTN_TARGET_TILES)
  is_in_tiles = takes_tiles(g, parts[0].format);
#endif
  if (g.m <= kGemvRows && !is_in_tiles) {
    return multiply_codes(g, parts, rows, threads, workspace);
  }
  Scratch<ExpandedPanels> expanded(workspace, detail::worker_count(threads));
  index_t column = 0;
  for (const detail::QuantizedMatrix& w : parts) {
    const detail::GemmProblem<float> part = columns_of(g, column, w.n);
    column += w.n;
#if defined(ATTN_TARGET_TILES)
    if (is_in_tiles) {
      multiply_int8_tiles(part, w, rows, threads, workspace);
      continue;
    }
#endif
    multiply_panels(part, w, rows, threads, expanded.data());
  }
}

/// Products of 8-bit activations by stacked weights of one format; 16-bit activations are two rows
/// of 8 bits each, the value and its residual.
inline void quantize_and_multiply(std::span<const detail::QuantizedMatrix> parts,
                                  const detail::GemmProblem<float>& g, bool is_int16,
                                  const Executor& executor, Workspace& workspace) {
  if (g.n == 0) return;
  const index_t m = is_int16 ? 2 * g.m : g.m;
  const QuantizedFormat& format = parts[0].format;
  const bool is_row = format.block == 0;
  // Reading and expanding a weight counts as 12 products, once for all rows: decoding SmolLM2 on
  // two threads takes 0.58 of the time (bench/llm_speed llm_decode, median of three pairs).
  const Executor& threads = detail::threads_for(executor, (m / 4 + 3) * g.n * g.k);
  const index_t workers = detail::worker_count(threads);
  QuantizedRows rows{};
  rows.row_bytes = detail::round_up(g.k, index_t{64});
  rows.piece = is_row ? row_piece(g.k) : format.block;
  rows.pieces = (g.k + rows.piece - 1) / rows.piece;
  Scratch<std::int8_t> codes(workspace, m * rows.row_bytes);
  Scratch<float> scales(workspace, 2 * m * rows.pieces);
  Scratch<std::int32_t> starts(workspace, m * rows.pieces);
  const bool has_lines = g.a_k != 1 || is_int16;
  Scratch<float> lines(workspace, has_lines ? workers * g.k : 0);
  rows.codes = codes.data();
  rows.scales = scales.data();
  rows.sums = scales.data() + m * rows.pieces;
  rows.starts = starts.data();
  const int zero = Int8::zero(format.zero, format.has_wide);
  const index_t shared = is_row ? rows.piece : 32;

  constexpr index_t kTaskRows = 16;
  const index_t row_tasks = (g.m + kTaskRows - 1) / kTaskRows;
  const auto run_rows = [&](const auto& task) {
    if (row_tasks == 1) return task(index_t{0}, 0);
    threads.run(row_tasks, task);
  };
  run_rows([&](index_t task, int worker) {
    for (index_t i = task * kTaskRows; i < std::min((task + 1) * kTaskRows, g.m); ++i) {
      float* line = has_lines ? lines.data() + worker * g.k : nullptr;
      quantize_row(g.a + i * g.a_row, g.a_k, g.k, shared, zero, rows, i, line, is_int16);
      if (is_int16) quantize_row(line, 1, g.k, shared, zero, rows, g.m + i, line, false);
    }
  });
  if (!is_int16) return multiply_rows(g, parts, rows, threads, workspace);

  Scratch<float> products(workspace, m * g.n);
  detail::GemmProblem<float> both = g;
  both.m = m;
  both.c = products.data();
  both.c_row = g.n;
  both.alpha = 1;
  both.bias = nullptr;
  both.activation = Activation::none;
  both.beta = 0;
  multiply_rows(both, parts, rows, threads, workspace);
  run_rows([&](index_t task, int) {
    const index_t begin = task * kTaskRows, end = std::min(begin + kTaskRows, g.m);
    for (index_t i = begin; i < end; ++i) {
      const float *first = products.data() + i * g.n, *second = first + g.m * g.n;
      each_vector<float>(g.n, [&](index_t j, auto lanes) {
        store(load(first + j, lanes) + load(second + j, lanes), g.c + i * g.c_row + j, lanes);
      });
    }
    apply_epilogue(g, begin, end, 0, g.n, g.beta != 0);
  });
}

template <bool kInt16>
inline void multiply_integers(const detail::QuantizedProblem& problem, const Executor& executor,
                              Workspace& workspace) {
  if (problem.product.m == 0) return;
  const detail::QuantizedMatrix *part = problem.weights, *end = part + problem.parts;
  for (index_t column = 0; part != end;) {
    const detail::QuantizedMatrix* const first = part;
    index_t n = 0;
    for (; part != end && part->format == first->format; ++part) n += part->n;
    quantize_and_multiply({first, part}, columns_of(problem.product, column, n), kInt16, executor,
                          workspace);
    column += n;
  }
}

template <>
struct TargetTable<detail::Backend<family::QuantizedProducts, float, float>> {
  static constexpr detail::Backend<family::QuantizedProducts, float, float> kTable{
      .multiply_floats = detail::kKernel<multiply_floats>,
      .multiply_int8 = detail::kKernel<multiply_integers<false>>,
      .multiply_int16 = detail::kKernel<multiply_integers<true>>};
};
