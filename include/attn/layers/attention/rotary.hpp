// rotary_embedding: rotates pairs of coordinates by position.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "attn/core/tensor.hpp"
#include "attn/kernels/rows/in_floats.hpp"
#include "attn/layers/attention/rotary_options.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// After the checks; innermost strides are 1, out may be x.
template <class T>
struct RotaryProblem {
  TensorView4<const T> x;
  TensorView2<const Accumulator<T>> cos, sin;
  TensorView2<const index_t> positions;
  RotaryPairs pairs;
  TensorView4<T> out;
  bool turns_back = false;  ///< rotates by the negative angles, for backward
};

template <class In, class Acc>
struct Backend<family::Rotary, In, Acc> {
  Kernel<RotaryProblem<In>> rotary;

  using Rotary = RotaryProblem<In>;
  static constexpr std::uint64_t kLayout =
      layout_hash({sizeof(Backend), sizeof(Rotary), offsetof(Rotary, x), offsetof(Rotary, cos),
                   offsetof(Rotary, sin), offsetof(Rotary, positions), offsetof(Rotary, pairs),
                   offsetof(Rotary, out), offsetof(Rotary, turns_back)});
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/layers/attention/rotary.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
void check_rotary(const RotaryProblem<T>& problem) {
  const auto& [x, cos, sin, positions, pairs, out, turns_back] = problem;
  const std::string_view function = "rotary_embedding";
  check_shape(function, "out", x.shape(), out.shape());
  check_shape(function, "sin", "(max_position, rotary_dim / 2)", cos.shape(), sin.shape());
  if (2 * cos.extent(1) > x.extent(3)) {
    throw_shape(function, "cos",
                "have shape (max_position, rotary_dim / 2) with rotary_dim at most head_dim = " +
                    std::to_string(x.extent(3)),
                cos.shape());
  }
  check_shape(function, "position_ids", "(batch, seq)", Shape<2>{x.extent(0), x.extent(2)},
              positions.shape());
  const auto check_stride = [&](std::string_view argument, index_t extent, const auto& strides) {
    if (extent <= 1 || strides.back() == 1) return;
    throw_shape(function, argument, "have innermost stride 1 (these are the strides)", strides);
  };
  check_stride("x", x.extent(3), x.strides());
  check_stride("out", x.extent(3), out.strides());
  check_stride("cos", cos.extent(1), cos.strides());
  check_stride("sin", sin.extent(1), sin.strides());
  for (index_t b = 0; b < positions.extent(0); ++b) {
    for (index_t i = 0; i < positions.extent(1); ++i) {
      if (positions(b, i) >= 0 && positions(b, i) < cos.extent(0)) continue;
      throw ValueError(message(function, "position_ids" + to_string(Shape<2>{b, i}),
                               "lie in 0 .. " + std::to_string(cos.extent(0) - 1),
                               std::to_string(positions(b, i))));
    }
  }
}

/// After the checks.
template <class T>
void rotary(const RotaryProblem<T>& problem, const Execution& execution) {
  const auto& kernel = backend<family::Rotary, Accumulator<T>>(execution).rotary;
  if constexpr (Float16Element<T>) {
    const auto& [x, cos, sin, positions, pairs, out, turns_back] = problem;
    for (index_t b = 0; b < x.extent(0); ++b) {
      for (index_t h = 0; h < x.extent(1); ++h) {
        const TensorView2<const index_t> at = positions.slice(0, b, b + 1);
        in_floats(
            [&](index_t first, const auto& result, const auto& floats, const Execution& alone) {
              kernel({.x = floats.unsqueeze(0).unsqueeze(0),
                      .cos = problem.cos,
                      .sin = problem.sin,
                      .positions = at.slice(1, first, first + floats.extent(0)),
                      .pairs = problem.pairs,
                      .out = result.unsqueeze(0).unsqueeze(0),
                      .turns_back = problem.turns_back},
                     alone);
            },
            execution, out.select(0, b).select(0, h), x.select(0, b).select(0, h));
      }
    }
  } else {
    kernel(problem, execution);
  }
}

}  // namespace detail

/// Rotates each pair (u, v) of coordinates to (u cos - v sin, v cos + u sin).
///
/// Shapes: x and out (batch, heads, seq, head_dim), cos and sin (max_position, rotary_dim / 2),
/// position_ids (batch, seq) with elements of 0 .. max_position - 1: row position_ids(b, i) of cos
/// and sin holds the angles of token i, one for each pair, as Accumulator<scalar of x>. Coordinates
/// from rotary_dim on are copied. Any strides with a unit innermost one; out may be x. Throws
/// ShapeError or ValueError before anything is written. Source: Su et al., "RoFormer: Enhanced
/// Transformer with Rotary Position Embedding" (2021), equation 34.
template <TensorLike X, TensorLike Cos, TensorLike Sin, TensorLike Ids, TensorLike Out>
void rotary_embedding(const X& x, const Cos& cos, const Sin& sin, const Ids& position_ids,
                      Out&& out, RotaryPairs pairs = RotaryPairs::halves,
                      const Execution& execution = {}) {
  using T = detail::floating_t<X>;
  using Angle = Accumulator<T>;
  ATTN_ASSERT_FLOATING(X, "rotary_embedding: x");
  ATTN_ASSERT_AXES(X, 4, "rotary_embedding: x", "(batch, heads, seq, head_dim)");
  ATTN_ASSERT_INPUT(Cos, Angle, 2, "rotary_embedding: cos", "(max_position, rotary_dim / 2)",
                    "x (of float where they have 16 bits)");
  ATTN_ASSERT_INPUT_LIKE(Sin, Cos, "rotary_embedding: sin", "cos");
  ATTN_ASSERT_INPUT(Ids, index_t, 2, "rotary_embedding: position_ids", "(batch, seq)",
                    "positions, index_t");
  ATTN_ASSERT_OUTPUT_LIKE(Out, X, "rotary_embedding: out", "x");
  const detail::RotaryProblem<T> problem{
      .x = detail::view_as<const T, 4>(x),
      .cos = detail::view_as<const Angle, 2>(cos),
      .sin = detail::view_as<const Angle, 2>(sin),
      .positions = detail::view_as<const index_t, 2>(position_ids),
      .pairs = pairs,
      .out = detail::view_as<T, 4>(out)};
  detail::check_rotary(problem);
  detail::rotary(problem, execution);
}

/// Returns the result as a new tensor.
template <TensorLike X, TensorLike Cos, TensorLike Sin, TensorLike Ids>
auto rotary_embedding(const X& x, const Cos& cos, const Sin& sin, const Ids& position_ids,
                      RotaryPairs pairs = RotaryPairs::halves, const Execution& execution = {}) {
  auto out = Tensor<scalar_t<X>, rank_v<X>>::uninitialized(const_view(x).shape());
  rotary_embedding(x, cos, sin, position_ids, out, pairs, execution);
  return out;
}

/// cos and sin (positions, rotary_dim / 2) of position times frequency, computed in double and
/// rounded once.
template <class T>
struct RotaryTable {
  /// `options` must have `dim` set. Covers all positions; if angles depend on the length, those up
  /// to original_max_positions.
  explicit RotaryTable(const RotaryOptions& options)
      : RotaryTable(depends_on_length(options.scaling.kind)
                        ? (std::min)(options.max_positions, options.scaling.original_max_positions)
                        : options.max_positions,
                    rotary_frequencies(options)) {}

  /// For positions from 0 on.
  RotaryTable(index_t positions, const RotaryFrequencies& frequencies)
      : cos({positions, std::ssize(frequencies.values)}), sin(cos.shape()) {
    for (index_t p = 0; p < positions; ++p) set(p, p, frequencies);
  }

  void set(index_t row, index_t position, const RotaryFrequencies& frequencies) {
    for (index_t j = 0; j < cos.extent(1); ++j) {
      const double angle =
          static_cast<double>(position) * frequencies.values[static_cast<std::size_t>(j)];
      cos(row, j) = static_cast<T>(frequencies.attention_factor * std::cos(angle));
      sin(row, j) = static_cast<T>(frequencies.attention_factor * std::sin(angle));
    }
  }

  Tensor2<T> cos, sin;
};

namespace detail {

/// Calls f(b_begin, b_end, table, of_q, of_k), for all batch rows at once with the given positions.
/// If angles depend on the length and a position lies beyond original_max_positions, calls it row
/// by row with a table of the tokens of that row, queries before keys. rotary_embedding() checks
/// the positions.
template <class T, class F>
void for_rotary_rows(const RotaryOptions& options, const RotaryTable<T>& table,
                     const TensorView2<const index_t>& of_q, const TensorView2<const index_t>& of_k,
                     F f) {
  const index_t batch = of_q.extent(0), q_len = of_q.extent(1), kv_len = of_k.extent(1);
  const auto length = [&](index_t b) {
    index_t last = 0;
    for (index_t i = 0; i < q_len; ++i) last = (std::max)(last, of_q(b, i));
    for (index_t j = 0; j < kv_len; ++j) last = (std::max)(last, of_k(b, j));
    return (std::min)(last + 1, options.max_positions);
  };
  bool is_long = false;
  if (depends_on_length(options.scaling.kind)) {
    for (index_t b = 0; b < batch; ++b) is_long = is_long || length(b) > table.cos.extent(0);
  }
  if (!is_long) return f(index_t{0}, batch, table, of_q, of_k);
  Tensor1<index_t> rows({q_len + kv_len});
  for (index_t b = 0; b < batch; ++b) {
    const RotaryFrequencies frequencies = rotary_frequencies(options, length(b));
    RotaryTable<T> own(index_t{0}, frequencies);
    own.cos = own.sin = Tensor2<T>({q_len + kv_len, own.cos.extent(1)});
    for (index_t n = 0; n < q_len + kv_len; ++n) {
      const index_t position = n < q_len ? of_q(b, n) : of_k(b, n - q_len);
      // A position one past the end is refused where the table is read.
      const bool exists = position >= 0 && position < options.max_positions;
      rows(n) = exists ? n : position < 0 ? position : q_len + kv_len;
      if (exists) own.set(n, position, frequencies);
    }
    const TensorView1<const index_t> all = rows;
    f(b, b + 1, own, all.slice(0, 0, q_len).unsqueeze(0),
      all.slice(0, q_len, q_len + kv_len).unsqueeze(0));
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
