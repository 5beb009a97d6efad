// Saved: a tensor that forward saves for backward; gradients_of().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <string_view>
#include <type_traits>

#include "attn/core/tensor.hpp"
#include "attn/layers/module/parameter_visitor.hpp"

ATTN_NAMESPACE_BEGIN

// View types in a non-deduced context, so that tensors and writable views convert.
template <class T>
using Input3 = std::type_identity_t<TensorView3<const T>>;
template <class T>
using Output3 = std::type_identity_t<TensorView3<T>>;

/// A tensor that forward saves. Its memory grows to the size that calls need and is reused: after
/// the first steps nothing is allocated.
///
/// The producer of a layer's input may write it directly into the memory where the layer saves it:
/// make() returns that memory, and keep() of the same view copies nothing. So a stack of layers
/// stores each activation once.
template <class T, int Rank>
class Saved {
 public:
  /// Returns memory for a tensor of this shape, uninitialised.
  TensorView<T, Rank> make(const Shape<Rank>& shape) {
    if (size_of(shape) > memory_.size()) memory_ = Tensor<T, 1>::uninitialized({size_of(shape)});
    shape_ = shape;
    return {memory_.data(), shape};
  }

  /// Saves a copy of x, or x itself if make() returned it.
  TensorView<const T, Rank> keep(TensorView<const T, Rank> x) {
    if (x.data() != memory_.data() || x.size() == 0) copy(x, make(x.shape()));
    return view();
  }

  TensorView<const T, Rank> view() const { return {memory_.data(), shape_}; }
  TensorView<T, Rank> view() { return {memory_.data(), shape_}; }
  index_t bytes() const { return memory_.size() * index_t{sizeof(T)}; }

 private:
  Tensor<T, 1> memory_;
  Shape<Rank> shape_{};
};

namespace detail {

/// Sets all elements; any strides.
template <class T, int Rank>
void fill(const TensorView<T, Rank>& x, T value) {
  for (index_t i = 0; i < x.extent(0); ++i) {
    if constexpr (Rank > 1) {
      fill(x.select(0, i), value);
    } else {
      x(i) = value;
    }
  }
}

}  // namespace detail

/// Sets every parameter of a module to `value`.
template <class Module>
void fill_parameters(Module& module, double value) {
  module.visit_parameters([&]<class T, int Rank>(std::string_view, TensorView<T, Rank> x) {
    detail::fill(x, static_cast<T>(value));
  });
}

/// Gradients of a module, all 0: a module of the same type whose parameters are the gradients,
/// under the same names. For a 16-bit module they are the gradients of its master weights, a float
/// module with the same options: see parameters_of().
template <class Module>
Module gradients_of(const Module& module) {
  Module gradients = module;
  fill_parameters(gradients, 0);
  return gradients;
}

/// gradients_of() without frozen parameters, those for which trained(name) is false: they take no
/// memory, backward does not compute them, and parameters_of() leaves them out. Parameters stored
/// as one tensor (in_proj_weight if its thirds have names of their own; gate and up of a gated
/// FeedForward) are frozen only if all of them are.
template <class Module, class F>
  requires std::predicate<const F&, std::string_view>
Module gradients_of(const Module& module, const F& trained) {
  Module gradients = module;
  const auto is_frozen = [&](std::string_view name) { return !trained(name); };
  gradients.visit_parameters(ParameterVisitor<detail::parameter_t<Module>>::of_names(is_frozen));
  fill_parameters(gradients, 0);
  return gradients;
}

ATTN_NAMESPACE_END
