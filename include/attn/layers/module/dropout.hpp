// Dropout of layers in training, reproducible from seed, step, layer, place and element.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/rows/row_kernels.hpp"
#include "attn/kernels/rows/in_floats.hpp"

ATTN_NAMESPACE_BEGIN

/// Enables dropout for a training step. Set it before forward in the struct that saves activations,
/// saved.dropout = {.seed = 1, .step = n}; backward reads it there.
struct DropoutStep {
  std::uint64_t seed = 0;
  index_t step = 0;
  index_t layer = 0;  ///< set by stacks and models
};

namespace detail {

/// The index of a dropout within a layer.
struct DropoutPlace {
  double p = 0;
  DropoutStep at = {};
  index_t place = 0;

  explicit operator bool() const { return p > 0; }
};

/// Dropouts per layer, and the layer index of modules outside stacks; stacks number their layers
/// from 0.
inline constexpr index_t kAfterAttention = 0, kAfterActivation = 1, kAfterFeedForward = 2,
                         kAfterMemoryAttention = 3, kAfterEmbedding = 4;
inline constexpr index_t kSourceEmbedding = index_t{1} << 20,
                         kTargetEmbedding = kSourceEmbedding + 1;

/// n elements: out = x times 1 / (1 - p) or 0, + residual, which may be nullptr; out may be x or
/// residual.
template <class T>
struct DropoutProblem {
  index_t n;
  const T *x, *residual;
  T* out;
  DropoutPlace place;
};

/// The seed of attention's own dropout in a layer: splitmix64 applied in turn to seed, step, layer
/// and place.
inline std::uint64_t attention_seed(const DropoutPlace& place) {
  const auto mix = [](std::uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  };
  std::uint64_t result = place.at.seed;
  for (index_t part : {place.at.step, place.at.layer, place.place}) {
    result = mix(result ^ static_cast<std::uint64_t>(part));
  }
  return result;
}

template <class In, class Acc>
struct Backend<family::Dropout, In, Acc> {
  Kernel<DropoutProblem<In>> drop;

  static constexpr std::uint64_t kLayout =
      layout_hash({sizeof(Backend), offsetof(Backend, drop), sizeof(DropoutProblem<In>),
                   offsetof(DropoutProblem<In>, n), offsetof(DropoutProblem<In>, x),
                   offsetof(DropoutProblem<In>, residual), offsetof(DropoutProblem<In>, out),
                   offsetof(DropoutProblem<In>, place)});
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/layers/module/dropout.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// out = dropout(x) + residual (which may be empty), all contiguous; out may be x or residual.
/// Throws ShapeError for other strides, ValueError for a p outside [0, 1).
template <class T>
void apply_dropout(const DropoutPlace& place, std::type_identity_t<TensorView3<const T>> x,
                   const TensorView3<T>& out, std::type_identity_t<TensorView3<const T>> residual,
                   const Execution& execution) {
  if (!(place.p >= 0 && place.p < 1)) {
    throw ValueError(message("dropout", "p", "lie in [0, 1)", to_string(place.p)));
  }
  if (!x.is_contiguous() || !out.is_contiguous() || (residual && !residual.is_contiguous())) {
    throw_shape("dropout", "x and out", "be contiguous (these are out's strides)", out.strides());
  }
  if constexpr (Float16Element<T>) {
    const WidenedTensor<3> floats(x, execution), added(residual, execution);
    apply_dropout<float>(place, floats.view(), floats.view(), added.view(), execution);
    convert(floats.view(), out, execution);
  } else {
    backend<family::Dropout, T>(execution).drop({.n = x.size(),
                                                 .x = x.data(),
                                                 .residual = residual.data(),
                                                 .out = out.data(),
                                                 .place = place},
                                                execution);
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
