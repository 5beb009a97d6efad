// Kernel text: activations to 8 bits, with scales and sums per group.
// SPDX-License-Identifier: Apache-2.0

/// Rows of 8-bit activations, padded with zeros to whole groups; and, per row and piece (a block of
/// weights), the terms that its sums need.
struct QuantizedRows {
  std::int8_t* codes;
  index_t row_bytes;      ///< from one row to the next
  index_t piece, pieces;  ///< number of k in a piece, and of pieces in a row
  float* scales;          ///< (row, piece)
  float* sums;            ///< scale times the sum of values, which offsets are multiplied by
  std::int32_t* starts;   ///< -zero times the sum of values
};

/// Quantises one row of k activations at `x`, x_k apart. Each `shared` consecutive ones have one
/// scale. With `has_rest`, the residual is written to `line`, which may be x.
inline void quantize_row(const float* x, index_t x_k, index_t k, index_t shared, int zero,
                         const QuantizedRows& rows, index_t row, float* line, bool has_rest) {
  using V = Vec<float>;
  std::int8_t* codes = rows.codes + row * rows.row_bytes;
  if (x_k != 1) {
    for (index_t i = 0; i < k; ++i) line[i] = x[i * x_k];
    x = line;
  }
  for (index_t begin = 0; begin < k; begin += shared) {
    const index_t n = std::min(shared, k - begin);
    V largest_lanes = V::all(0), check = V::all(0);
    each_vector<float>(n, [&](index_t i, auto lanes) {
      const V v = load(x + begin + i, lanes);
      largest_lanes = max(largest_lanes, max(v, V::all(0) - v));
      check = fma(v, V::all(0), check);  // NaN if one is not finite
    });
    const bool is_finite = sum(check) == 0;
    const float largest = is_finite ? max_lane(largest_lanes) : 0, step = largest / 127;
    const bool is_zero = step < std::numeric_limits<float>::min();
    const float scale = !is_finite ? std::numeric_limits<float>::quiet_NaN() : is_zero ? 0 : step;
    const V factor = V::all(is_zero ? 0 : 127 / largest), by = V::all(-scale);
    for (index_t at = begin; at < begin + n; at += rows.piece) {
      const index_t size = std::min(rows.piece, begin + n - at);
      V total = V::all(0);
      index_t i = 0;
      for (; i + V::kLanes <= size; i += V::kLanes) {
        const V v = V::load(x + at + i), code = is_zero ? V::all(0) : round(v * factor);
        total = total + code;
        Int8::narrow(code, codes + at + i);
        if (has_rest) fma(code, by, v).store(line + at + i);
      }
      if (i < size) {
        const V v = V::load(x + at + i, size - i);
        const V code = is_zero ? V::all(0) : round(v * factor);
        total = total + code;
        if (has_rest) fma(code, by, v).store(line + at + i, size - i);
        std::int8_t tail[V::kLanes];
        Int8::narrow(code, tail);
        std::memcpy(codes + at + i, tail, static_cast<std::size_t>(size - i));
      }
      const float codes_sum = sum(total);  // exact: at most 127 times 1024
      const index_t piece = row * rows.pieces + at / rows.piece;
      rows.scales[piece] = scale;
      rows.sums[piece] = scale * codes_sum;
      rows.starts[piece] = -zero * static_cast<std::int32_t>(codes_sum);
    }
  }
  for (index_t i = k; i < rows.row_bytes; ++i) codes[i] = 0;
}
