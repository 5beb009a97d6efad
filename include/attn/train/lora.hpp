// Lora: low-rank adapters of weight matrices, with PEFT's names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/core/fill.hpp"
#include "attn/kernels/gemm/gemm.hpp"
#include "attn/layers/module/parameter_visitor.hpp"
#include "attn/train/parameters.hpp"

ATTN_NAMESPACE_BEGIN

struct LoraOptions {
  index_t rank = 8;  ///< rows of A and columns of B
  double alpha = 8;  ///< adapters are scaled by alpha / rank
  /// Whether a weight gets an adapter, by its name; by default all but embeddings and norms. Called
  /// only for matrices whose names end in "weight".
  std::function<bool(std::string_view)> takes = [](std::string_view name) {
    return decays(name) && name.find("embedding") == std::string_view::npos;
  };
  std::uint64_t seed = 0;  ///< seed of the initial A; B is initially 0
};

/// Adapters of the weight matrices W of a model, which runs with W + (alpha / rank) B A. Only
/// A (rank, in) and B (out, rank) are trained: they are the parameters of this module. The model's
/// weights hold the merged sum, so that any layer runs as without adapters, in training and after
/// it. W is stored here, and unmerge() restores it bit by bit. Copies share W.
/// Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021), section 4.1.
template <class T>
class Lora {
 public:
  Lora() = default;

  /// Constructs adapters for the model's present weights W. A is uniform within 1 / sqrt(in), B is
  /// 0, as in PEFT. Throws ValueError for a rank below 1, an alpha that is not finite, and a model
  /// without a weight that options.takes accepts.
  template <class Module>
  explicit Lora(Module& model, const LoraOptions& options = {})
      : scale_(static_cast<T>(options.alpha / static_cast<double>(options.rank))) {
    if (options.rank < 1) {
      throw ValueError(message("Lora", "rank", "be at least 1", std::to_string(options.rank)));
    }
    if (!std::isfinite(options.alpha)) {
      throw ValueError(message("Lora", "alpha", "be finite", std::to_string(options.alpha)));
    }
    detail::RandomNumbers numbers(options.seed);
    std::vector<Tensor2<T>> weights;
    const auto add = [&](std::string_view name, const TensorView2<const T>& weight) {
      if (!name.ends_with(kWeight) || !options.takes(name)) return;
      weights.emplace_back(weight);
      adapters_.push_back({.name = std::string(name),
                           .a = Tensor2<T>({options.rank, weight.extent(1)}),
                           .b = Tensor2<T>({weight.extent(0), options.rank})});
      const double bound = 1 / std::sqrt(static_cast<double>(weight.extent(1)));
      auto draw = [&] { return bound * (2 * numbers.uniform() - 1); };
      for (T& x : adapters_.back().a.elements()) x = static_cast<T>(draw());
    };
    std::as_const(model).visit_parameters(
        [&]<int Rank>(std::string_view name, const TensorView<const T, Rank>& weight) {
          if constexpr (Rank == 2) add(name, weight);
        });
    if (adapters_.empty()) {
      throw ValueError(message("Lora", "takes", "take a weight matrix of the model", "none"));
    }
    weights_ = std::make_shared<const std::vector<Tensor2<T>>>(std::move(weights));
  }

  /// Sets the model's weights to W + (alpha / rank) B A. Call it after each step of an optimizer,
  /// and after loading; packed copies of the weights become stale. Throws ValueError or ShapeError,
  /// before anything is written, unless the model has the weights from which this object was
  /// constructed.
  template <class Module>
  void merge(Module& model, const Execution& execution = {}) const {
    check("Lora::merge", std::as_const(model));
    each(model, [&](std::size_t n, const auto& weight) {
      gemm(adapters_[n].b, adapters_[n].a, weight,
           {.alpha = scale_, .beta = T{1}, .residual = (*weights_)[n].view()}, execution);
    });
  }

  /// Restores the model's weights W, bit by bit. Throws what merge() throws.
  template <class Module>
  void unmerge(Module& model) const {
    check("Lora::unmerge", std::as_const(model));
    each(model, [&](std::size_t n, const auto& weight) { copy((*weights_)[n].view(), weight); });
  }

  /// Adds the gradients of A and B to `gradients`, made by gradients_of(*this), from those of the
  /// merged model: d_B = scale d_W A^T, d_A = scale B^T d_W. Throws what merge() throws.
  template <class Module>
  void backward(const Module& model_gradients, Lora& gradients,
                const Execution& execution = {}) const {
    check("Lora::backward", model_gradients);
    each(model_gradients, [&](std::size_t n, const TensorView2<const T>& d_weight) {
      const Adapter& of = adapters_[n];
      Adapter& to = gradients.adapters_[n];
      const Epilogue<T> add{.alpha = scale_, .beta = T{1}};
      // Either may be frozen.
      if (to.b) gemm(d_weight, of.a.view().transpose(0, 1), to.b, add, execution);
      if (to.a) gemm(of.b.view().transpose(0, 1), d_weight, to.a, add, execution);
    });
  }

  /// PEFT's names: layers.0.linear1.weight has layers.0.linear1.lora_A.weight and .lora_B.weight.
  /// Its files have the prefix "base_model.model." and the model's names in the file:
  /// load_state_dict(lora, file, {.prefix = "base_model.model.", .rename = ..}).
  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

 private:
  static constexpr std::string_view kWeight = "weight";

  struct Adapter {
    std::string name;  ///< of the weight
    Tensor2<T> a, b;
  };

  template <class Self>
  static void visit(Self& self, const auto& f) {
    for (auto& adapter : self.adapters_) {
      const std::string_view name = adapter.name;
      const auto of = f.under(name.substr(0, name.size() - kWeight.size()));
      of.visit("lora_A.weight", adapter.a);
      of.visit("lora_B.weight", adapter.b);
    }
  }

  /// Calls f(n, weight) with the model's weight of each adapter n, in order. Returns how many it
  /// found.
  template <class Module, class F>
  std::size_t each(Module& model, F f) const {
    std::size_t n = 0;
    model.visit_parameters(
        [&]<class X, int Rank>(std::string_view name, const TensorView<X, Rank>& view) {
          if constexpr (Rank == 2) {
            if (n < adapters_.size() && adapters_[n].name == name) f(n++, view);
          }
        });
    return n;
  }

  template <class Module>
  void check(std::string_view function, const Module& model) const {
    const std::size_t found = each(model, [&](std::size_t n, const auto& weight) {
      check_shape(function, adapters_[n].name, (*weights_)[n].shape(), weight.shape());
    });
    if (found == adapters_.size()) return;
    throw ValueError(message(function, "the model", "have the weight " + adapters_[found].name,
                             "a model without it"));
  }

  T scale_ = 0;
  std::vector<Adapter> adapters_;
  std::shared_ptr<const std::vector<Tensor2<T>>> weights_;  ///< W of each adapter
};

ATTN_NAMESPACE_END
