// ParameterVisitor: visits a module's parameters under PyTorch's names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>

#include "attn/core/view.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
struct WeightSlot;

/// A reference to a callable f(std::string_view name, TensorView<T, Rank> parameter) for ranks 1 to
/// 3, such as a lambda with `auto`, valid while the callable exists; T is const if the module is. A
/// class instead of a template parameter of every module, so that the names of a module are
/// compiled once instead of once per callable.
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

  /// A visitor that receives weight matrices as slots: f(name, WeightSlot<T>&). See
  /// visit_weights().
  template <class F>
  static ParameterVisitor of_weights(F& f) {
    ParameterVisitor visitor;
    visitor.object_ = std::addressof(f);
    visitor.call_ = [](const void* object, std::string_view name, const void* slot, int) {
      (*static_cast<F*>(const_cast<void*>(object)))(
          name, *static_cast<WeightSlot<T>*>(const_cast<void*>(slot)));
    };
    visitor.slots_ = Slots::all;
    return visitor;
  }
  /// A visitor that receives f(name, WeightSlot<T>&) for a compressed weight and f(name, view) for
  /// all other parameters. F is not itself a visitor of this kind, and outlives this one.
  template <class F>
  static ParameterVisitor of_all(F& f) {
    ParameterVisitor visitor;
    visitor.object_ = std::addressof(f);
    visitor.call_ = [](const void* object, std::string_view name, const void* view, int rank) {
      auto& callee = *static_cast<F*>(const_cast<void*>(object));
      if (rank == 0)
        return void(callee(name, *static_cast<WeightSlot<T>*>(const_cast<void*>(view))));
      if (rank == 1) return void(callee(name, *static_cast<const TensorView<T, 1>*>(view)));
      if (rank == 2) return void(callee(name, *static_cast<const TensorView<T, 2>*>(view)));
      callee(name, *static_cast<const TensorView<T, 3>*>(view));
    };
    visitor.slots_ = Slots::compressed;
    return visitor;
  }
  /// A visitor that removes the parameters for which f(name) is true. See gradients_of().
  template <class F>
  static ParameterVisitor of_names(F& f) {
    ParameterVisitor visitor;
    visitor.object_ = std::addressof(f);
    visitor.call_ = [](const void* object, std::string_view name, const void* goes, int) {
      *static_cast<bool*>(const_cast<void*>(goes)) =
          (*static_cast<F*>(const_cast<void*>(object)))(name);
    };
    visitor.slots_ = Slots::names;
    return visitor;
  }
  bool takes_away() const { return slots_ == Slots::names; }
  /// For a visitor with takes_away(): whether to remove this parameter.
  bool goes(std::string_view name) const {
    bool result = false;
    show(name, &result, 0);
    return result;
  }
  /// Visits a parameter that is a whole tensor, or removes it.
  template <class Owned>
  void visit(std::string_view name, Owned& tensor) const {
    if (!tensor) return;
    if constexpr (!std::is_const_v<Owned>) {
      if (takes_away()) {
        if (goes(name)) tensor = {};
        return;
      }
    }
    (*this)(name, tensor.view());
  }

  bool is_of_weights() const { return slots_ == Slots::all; }
  /// Whether to visit a weight, compressed or not, as a slot.
  bool takes_slot(bool is_compressed) const {
    return slots_ == Slots::all || (slots_ == Slots::compressed && is_compressed);
  }

  template <int Rank>
  void operator()(std::string_view name, const TensorView<T, Rank>& parameter) const {
    static_assert(Rank >= 1 && Rank <= 3);
    if (slots_ != Slots::all && slots_ != Slots::names) show(name, &parameter, Rank);
  }
  /// For a visitor with takes_slot().
  void operator()(std::string_view name, WeightSlot<T>& slot) const { show(name, &slot, 0); }

  /// A visitor of a submodule: "in_proj_weight" under "self_attn." becomes
  /// "self_attn.in_proj_weight". Refers to this visitor and to the prefix.
  ParameterVisitor under(std::string_view prefix) const { return {*this, prefix}; }

 private:
  ParameterVisitor() = default;
  ParameterVisitor(const ParameterVisitor& whole, std::string_view prefix)
      : object_(&whole), prefix_(prefix), slots_(whole.slots_) {}

  void show(std::string_view name, const void* view, int rank) const {
    if (call_ != nullptr) return call_(object_, name, view, rank);
    const ParameterVisitor& whole = *static_cast<const ParameterVisitor*>(object_);
    // On the stack, so that visits do not allocate: each training step visits the model.
    char joined[160];
    const std::size_t size = prefix_.size() + name.size();
    if (size > sizeof joined) return whole.show(std::string(prefix_).append(name), view, rank);
    std::copy(name.begin(), name.end(), std::copy(prefix_.begin(), prefix_.end(), joined));
    whole.show({joined, size}, view, rank);
  }

  const void* object_ = nullptr;  ///< the callable, or the visitor of the enclosing module
  void (*call_)(const void* object, std::string_view name, const void* view, int rank) = nullptr;
  std::string_view prefix_ = {};
  enum class Slots { none, compressed, all, names } slots_ = Slots::none;
};

namespace detail {

template <class T, class Module>
std::type_identity<T> visited_element(void (Module::*)(const ParameterVisitor<T>&));

template <class Module>
struct ParameterElement {
  using type = float;
};
template <class Module>
  requires requires { visited_element(&Module::visit_parameters); }
struct ParameterElement<Module> : decltype(visited_element(&Module::visit_parameters)) {};

/// The element type of a module's parameters; float if visit_parameters() is a template.
template <class Module>
using parameter_t = typename ParameterElement<std::remove_const_t<Module>>::type;

}  // namespace detail

ATTN_NAMESPACE_END
