// rotary_embedding: turns pairs of coordinates of queries and keys by angles that grow with the position.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "attn/core/tensor.hpp"
#include "attn/kernels/backend.hpp"
#include "attn/simd/vec.hpp"

ATTN_NAMESPACE_BEGIN

/// Which coordinates turn together. Models differ: the wrong one gives plausible nonsense.
enum class RotaryPairs {
  halves,       ///< (j, j + rotary_dim / 2), as Llama and GPT-NeoX have it
  interleaved,  ///< (2 j, 2 j + 1), as the paper and GPT-J have it
};

namespace detail {

/// Checked; innermost strides are 1, out may be x.
template <class T>
struct RotaryProblem {
  TensorView4<const T> x;
  TensorView2<const T> cos, sin;
  TensorView2<const index_t> positions;
  RotaryPairs pairs;
  TensorView4<T> out;
  bool turns_back = false;  ///< by the angles' negatives, as backward does
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

#define ATTN_KERNEL_TEXT "attn/layers/rotary.inc.hpp"
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

}  // namespace detail

/// Turns each pair (u, v) of coordinates into (u cos - v sin, v cos + u sin).
///
/// Shapes: x and out (batch, heads, seq, head_dim), cos and sin (max_position, rotary_dim / 2), position_ids (batch, seq)
/// with elements of 0 .. max_position - 1: row position_ids(b, i) of cos and sin holds the angles of token i, one for each
/// pair. Coordinates from rotary_dim on stay as they are. Any strides with a unit innermost one; out may be x.
/// Throws ShapeError or ValueError, before anything is written.
/// Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021), equation 34.
template <TensorLike X, TensorLike Cos, TensorLike Sin, TensorLike Ids, TensorLike Out>
  requires std::same_as<scalar_t<Ids>, index_t>
void rotary_embedding(const X& x, const Cos& cos, const Sin& sin, const Ids& position_ids,
                      Out&& out, RotaryPairs pairs = RotaryPairs::halves,
                      const Execution& execution = {}) {
  using T = scalar_t<X>;
  const detail::RotaryProblem<T> problem{const_view(x),
                                         const_view(cos),
                                         const_view(sin),
                                         const_view(position_ids),
                                         pairs,
                                         view_of(out),
                                         false};
  detail::check_rotary(problem);
  detail::backend<family::Rotary, T>(execution).rotary(problem, execution);
}

/// The same into a new tensor.
template <TensorLike X, TensorLike Cos, TensorLike Sin, TensorLike Ids>
  requires std::same_as<scalar_t<Ids>, index_t>
Tensor4<scalar_t<X>> rotary_embedding(const X& x, const Cos& cos, const Sin& sin,
                                      const Ids& position_ids,
                                      RotaryPairs pairs = RotaryPairs::halves,
                                      const Execution& execution = {}) {
  auto out = Tensor4<scalar_t<X>>::uninitialized(const_view(x).shape());
  rotary_embedding(x, cos, sin, position_ids, out, pairs, execution);
  return out;
}

/// What a rotary embedding turns, and how far.
struct RotaryOptions {
  index_t dim = 0;  ///< the first coordinates of a head, which turn; 0: head_dim
  RotaryPairs pairs = RotaryPairs::halves;  ///< which coordinates turn together
  double theta = 10000;                     ///< base of the frequencies
  index_t max_positions = 4096;             ///< positions from 0 that the table holds
};

/// cos and sin (max_position, rotary_dim / 2) of position theta^(-2 j / rotary_dim), in double before they are rounded.
template <class T>
struct RotaryTable {
  RotaryTable(index_t max_positions, index_t rotary_dim, double theta)
      : cos({max_positions, rotary_dim / 2}), sin({max_positions, rotary_dim / 2}) {
    for (index_t j = 0; j < rotary_dim / 2; ++j) {
      const double frequency =
          std::pow(theta, -2 * static_cast<double>(j) / static_cast<double>(rotary_dim));
      for (index_t p = 0; p < max_positions; ++p) {
        cos(p, j) = static_cast<T>(std::cos(static_cast<double>(p) * frequency));
        sin(p, j) = static_cast<T>(std::sin(static_cast<double>(p) * frequency));
      }
    }
  }

  Tensor2<T> cos, sin;
};

ATTN_NAMESPACE_END
