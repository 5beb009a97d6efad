// Parameters with their gradients by name, and parameter groups.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/kernels/rows/convert.hpp"
#include "attn/layers/module/saved.hpp"

ATTN_NAMESPACE_BEGIN

/// Elements of one parameter and of its gradient, contiguous.
template <class T>
struct TrainedParameter {
  std::string name;
  T *value, *gradient;
  index_t size;
  /// Set on a model's first parameter: notifies the model that its parameters change, so that
  /// packed copies are no longer used.
  std::function<void()> touch = {};
  /// In mixed precision: rounds this master weight into the 16-bit model's parameter.
  std::function<void(const Execution&)> publish = {};
  /// Set on a model's first parameter: rounds frozen parameters, after loading.
  std::function<void(const Execution&)> publish_frozen = {};
};

/// Parameters that an optimizer updates with the same options.
struct ParameterGroup {
  /// Whether a parameter, by its name, is in the group. It belongs to the first group that accepts
  /// it; a parameter in no group is not updated.
  std::function<bool(std::string_view)> takes;
  double learning_rate = 1;  ///< multiplies that of step()
  double weight_decay = 0;
};

/// Whether weight decay applies to a parameter in most recipes: not to norms and biases.
inline bool decays(std::string_view name) {
  return !name.ends_with("bias") && name.find("norm") == std::string_view::npos;
}

namespace detail {

/// Calls f(name, view) for a module's parameters. Throws ShapeError for one that is not contiguous.
template <class Module, class F>
void each_parameter(Module& module, F f) {
  module.visit_parameters([&]<class T, int Rank>(std::string_view name, TensorView<T, Rank> view) {
    if (!view.is_contiguous()) {
      throw_shape("parameters_of", name, "be contiguous (these are the strides)", view.strides());
    }
    f(name, view);
  });
}

}  // namespace detail

/// A model's parameters with their `gradients`, made by gradients_of(model), in the model's order.
/// Parameters without a gradient are frozen and left out. Refers to both modules, which must not
/// move. Throws ValueError if there is no gradient at all, or one without a parameter of the same
/// name and size in the model.
template <class T, class Module>
std::vector<TrainedParameter<T>> parameters_of(Module& model, Module& gradients) {
  std::vector<TrainedParameter<T>> found;
  detail::each_parameter(gradients, [&](std::string_view name, const auto& view) {
    found.push_back({.name = std::string(name),
                     .value = nullptr,
                     .gradient = view.data(),
                     .size = view.size()});
  });
  std::size_t at = 0;
  detail::each_parameter(model, [&](std::string_view name, const auto& view) {
    if (at == found.size() || found[at].name != name || found[at].size != view.size()) return;
    found[at++].value = view.data();
  });
  if (at != found.size() || found.empty()) {
    throw ValueError(message("parameters_of", "gradients", "be gradients_of() the model",
                             found.empty() ? "none" : "another parameter, " + found[at].name));
  }
  // visit_parameters() of a mutable model counts as a write: packed copies become stale.
  found.front().touch = [&model] { model.visit_parameters([](std::string_view, auto) {}); };
  return found;
}

/// For mixed precision: the parameters of `masters`, a float module, with their gradients. Each
/// parameter of `model`, a 16-bit module with the same options, is set to its master weight rounded
/// to nearest even, now and after each step of an optimizer. Backward of `model` adds to
/// `gradients`; checkpoints hold the master weights. Refers to all three. Throws ValueError unless
/// their parameters have the same names and sizes. Source: Micikevicius et al., "Mixed Precision
/// Training" (2018), section 3.1.
template <class T, class Module, class Model>
std::vector<TrainedParameter<T>> parameters_of(Module& masters, Module& gradients, Model& model) {
  std::vector<TrainedParameter<T>> result = parameters_of<T>(masters, gradients);
  const auto fail = [](const std::string& found) {
    throw ValueError(
        message("parameters_of", "model", "have the parameters of its masters", found));
  };
  std::vector<TrainedParameter<T>> all;  // including frozen ones
  detail::each_parameter(masters, [&](std::string_view name, const auto& view) {
    all.push_back({.name = std::string(name),
                   .value = view.data(),
                   .gradient = nullptr,
                   .size = view.size()});
  });
  std::vector<std::function<void(const Execution&)>> frozen;
  std::size_t at = 0, trained = 0;
  detail::each_parameter(
      model, [&]<class E, int Rank>(std::string_view name, TensorView<E, Rank> view) {
        static_assert(Float16Element<E>, "parameters_of: the model must be of bfloat16 or float16");
        if (at == all.size() || all[at].name != name || all[at].size != view.size()) {
          fail("another, " + std::string(name));
        }
        const TrainedParameter<T>& master = all[at++];
        const Shape<1> size{master.size};
        const auto publish = [value = TensorView1<const T>(master.value, size),
                              rounded = TensorView1<E>(view.data(), size)](const Execution& on) {
          convert(value, rounded, on);
        };
        publish({});
        if (trained < result.size() && result[trained].name == name) {
          result[trained++].publish = publish;
        } else {
          frozen.emplace_back(publish);
        }
      });
  if (at != all.size()) fail("fewer");
  result.front().touch = [touch_masters = result.front().touch, &model] {
    touch_masters();
    model.visit_parameters([](std::string_view, auto) {});
  };
  if (!frozen.empty()) {
    result.front().publish_frozen = [frozen](const Execution& on) {
      for (const auto& publish : frozen) publish(on);
    };
  }
  return result;
}

ATTN_NAMESPACE_END
