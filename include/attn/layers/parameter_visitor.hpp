// ParameterVisitor: what the parameters of a module are shown to, one by one, under PyTorch's names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <type_traits>

#include "attn/core/view.hpp"

ATTN_NAMESPACE_BEGIN

/// A reference to a callable f(std::string_view name, TensorView<T, Rank> parameter) for ranks 1 to 3, such as a lambda
/// with `auto`, valid while the callable lives; T is const where the module is. A type of its own and not a template
/// parameter of every module, so that a module's names are compiled once and not once a callable.
template <class T>
class ParameterVisitor {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, ParameterVisitor>)
  ParameterVisitor(F&& f)  // NOLINT(bugprone-forwarding-reference-overload)
      : object_(std::addressof(f)),
        call_([](const void* object, std::string_view name, const void* view, int rank) {
          auto& callee = *static_cast<std::remove_reference_t<F>*>(const_cast<void*>(object));
          if (rank == 1) return void(callee(name, *static_cast<const TensorView<T, 1>*>(view)));
          if (rank == 2) return void(callee(name, *static_cast<const TensorView<T, 2>*>(view)));
          callee(name, *static_cast<const TensorView<T, 3>*>(view));
        }) {}

  template <int Rank>
  void operator()(std::string_view name, const TensorView<T, Rank>& parameter) const {
    static_assert(Rank >= 1 && Rank <= 3);
    show(name, &parameter, Rank);
  }

  /// The visitor of a part: "in_proj_weight" under "self_attn." is "self_attn.in_proj_weight". Refers to this one and to
  /// the prefix.
  ParameterVisitor under(std::string_view prefix) const { return {*this, prefix}; }

 private:
  ParameterVisitor(const ParameterVisitor& whole, std::string_view prefix)
      : object_(&whole), prefix_(prefix) {}

  void show(std::string_view name, const void* view, int rank) const {
    if (call_ != nullptr) return call_(object_, name, view, rank);
    static_cast<const ParameterVisitor*>(object_)->show(std::string(prefix_).append(name), view,
                                                        rank);
  }

  const void* object_;  ///< the callable, or the visitor of the whole
  void (*call_)(const void* object, std::string_view name, const void* view, int rank) = nullptr;
  std::string_view prefix_ = {};
};

ATTN_NAMESPACE_END
