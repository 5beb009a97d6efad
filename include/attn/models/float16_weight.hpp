// Float16Weight, store_weights: weight matrices in bfloat16 or float16.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "attn/exec/execution.hpp"
#include "attn/io/state_dict.hpp"
#include "attn/kernels/quantized/quantized.hpp"
#include "attn/layers/module/compressed_weight.hpp"

ATTN_NAMESPACE_BEGIN

/// A 16-bit weight in a float module: half the memory of float. Products equal those of gemm() with
/// the weights widened to float, bit for bit, with activations as they are or rounded to bfloat16;
/// rows are widened in groups that fit in the caches. If calls run on an instruction set with pair
/// products, a bfloat16 weight for rounded activations is stored in pairs: then products equal
/// those of gemm() of bfloat16 into float.
template <Float16Element E>
class Float16Weight final : public CompressedWeight<float> {
 public:
  /// `weight`: (out, in). Throws ValueError for an instruction set that the machine lacks.
  explicit Float16Weight(Tensor2<E> weight, bool rounds_activations = false,
                         std::optional<Isa> isa = {})
      : shape_(weight.shape()), rounds_activations_(rounds_activations) {
    if constexpr (std::same_as<E, bfloat16>) {
      if (rounds_activations && weight.size() > 0 &&
          detail::backend<family::Products, E, float>({.isa = isa}).multiplies_pairs()) {
        packed_ = PackedWeights<E>(weight.view().transpose(0, 1), isa);
        return;
      }
    }
    weight_ = std::move(weight);
  }

  Shape<2> shape() const override { return shape_; }
  void multiply(TensorView2<const float> x, TensorView2<float> c, const Epilogue<float>& epilogue,
                const Execution& execution) const override {
    if (!rounds_activations_) return multiply_exact(x, c, epilogue, execution);
    if constexpr (std::same_as<E, bfloat16>) {
      if (packed_.serves(execution)) return multiply_pairs(x, c, epilogue, execution);
    }
    detail::with_bfloat16_activations(x, execution, [&](TensorView2<const float> rounded) {
      multiply_exact(rounded, c, epilogue, execution);
    });
  }
  void row(index_t index, TensorView1<float> out) const override {
    const Execution execution;
    widen(index, out.unsqueeze(0), execution);
  }
  std::shared_ptr<const CompressedWeight> rows(index_t begin, index_t end) const override {
    auto part = Tensor2<E>::uninitialized({end - begin, shape_[1]});
    if (packed_) {
      packed_.unpack(begin, part);
    } else {
      copy(weight_.view().slice(0, begin, end), part.view());
    }
    const auto isa = packed_ ? std::optional<Isa>(packed_.isa()) : std::nullopt;
    return std::make_shared<const Float16Weight>(std::move(part), rounds_activations_, isa);
  }
  index_t bytes() const override {
    return (packed_ ? packed_.size() : weight_.size()) * index_t{sizeof(E)};
  }
  /// The weight (out, in). A packed weight is unpacked into `unpacked`.
  TensorView2<const E> weight(Tensor2<E>& unpacked) const {
    if (!packed_) return weight_;
    unpacked = Tensor2<E>::uninitialized(shape_);
    packed_.unpack(0, unpacked);
    return unpacked;
  }

 private:
  static constexpr index_t kWidenedElements = index_t{1} << 18;  // 1 MB

  /// Widens the rows from `first` on.
  void widen(index_t first, TensorView2<float> to, const Execution& execution) const {
    if (!packed_) {
      return convert(weight_.view().slice(0, first, first + to.extent(0)), to, execution);
    }
    Scratch<E> memory(execution.scratch(), to.size());
    const TensorView2<E> rows(memory.data(), to.shape());
    packed_.unpack(first, rows);
    convert(rows, to, execution);
  }

  void multiply_pairs(TensorView2<const float> x, TensorView2<float> c,
                      const Epilogue<float>& epilogue, const Execution& execution) const {
    check_shape("gemm", "a", Shape<2>{x.extent(0), shape_[1]}, x.shape());
    Scratch<E> memory(execution.scratch(), x.size());
    const TensorView2<E> rounded(memory.data(), x.shape());
    convert(x, rounded, execution);
    detail::gemm_sums<E>(rounded, {}, packed_.data(), shape_[0], c, epilogue, execution);
  }

  void multiply_exact(TensorView2<const float> x, TensorView2<float> c,
                      const Epilogue<float>& epilogue, const Execution& execution) const {
    constexpr index_t kPanel = 64;  // whole panels of columns of c, for every instruction set
    const auto [n, k] = shape_;
    const index_t step =
        (std::max)(kPanel, kWidenedElements / (std::max)(k, index_t{1}) / kPanel * kPanel);
    Scratch<float> memory(execution.scratch(), (std::min)(step, n) * k);
    for (index_t begin = 0; begin < n; begin += step) {
      const index_t end = (std::min)(begin + step, n);
      const TensorView2<float> widened(memory.data(), {end - begin, k});
      widen(begin, widened, execution);
      Epilogue<float> part = epilogue;
      if (part.bias) part.bias = part.bias.slice(0, begin, end);
      if (part.residual) part.residual = part.residual.slice(1, begin, end);
      gemm(x, widened.transpose(0, 1), c.slice(1, begin, end), part, execution);
    }
  }

  Shape<2> shape_;
  Tensor2<E> weight_;        ///< empty if packed_ is not
  PackedWeights<E> packed_;  ///< of the transposed weight
  bool rounds_activations_ = false;
};

/// Converts each weight matrix of a float or 16-bit module, including word tables, to `element`:
/// BF16 or F16, each number rounded once to nearest even; F32 leaves them. Norms, biases and
/// position tables stay unchanged. rounds_activations: products with these weights round the
/// activations to bfloat16. The float weights are freed: such a module cannot be trained;
/// save_quantized() writes it. Weights that are already compressed stay. Throws ValueError, and
/// changes nothing, for other element types and for a finite weight that would round to infinity.
template <class Module>
void store_weights(Module& module, DType element, bool rounds_activations = false) {
  const auto store = [&]<class E>(E) {
    using T = detail::parameter_t<Module>;
    visit_weights<T>(module, [&](std::string_view name, WeightSlot<T>& slot) {
      if (!slot.dense) return;
      const Tensor2<T> weight(slot.dense);
      detail::check_overflow<E>("store_weights", name, std::span<const T>(weight.elements()));
    });
    visit_weights<T>(module, [=](std::string_view, WeightSlot<T>& slot) {
      if (!slot.dense) return;
      slot.compress(
          std::make_shared<const Float16Weight<E>>(convert<E>(slot.dense), rounds_activations));
    });
  };
  if (element == DType::F32 || detail::with_dtype<bfloat16, float16>(element, store)) return;
  throw ValueError(
      message("store_weights", "element", "be F32, BF16 or F16", std::string(name(element))));
}

/// load_state_dict() into a float module that then stores its weight matrices as `weights`: see
/// store_weights(). Throws the errors of load_state_dict() and store_weights().
template <class Module, TensorFile File>
LoadReport load_state_dict(Module& module, const File& file, const LoadOptions& options,
                           DType weights) {
  LoadReport report = load_state_dict(module, file, options);
  store_weights(module, weights);
  return report;
}

ATTN_NAMESPACE_END
