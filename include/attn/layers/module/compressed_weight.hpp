// CompressedWeight: a weight matrix in quantised or 16-bit form.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "attn/kernels/gemm/gemm.hpp"
#include "attn/kernels/rows/in_floats.hpp"
#include "attn/layers/module/parameter_visitor.hpp"

ATTN_NAMESPACE_BEGIN

/// A compressed matrix W (out, in) that can be multiplied and whose rows can be read. Const calls
/// are thread-safe; a module shares it with its copies.
template <class T>
class CompressedWeight {
 public:
  virtual ~CompressedWeight() = default;

  /// (out, in)
  virtual Shape<2> shape() const = 0;
  /// c = x W^T with an epilogue, as gemm(). Shapes: x (rows, in), c (rows, out). Throws ShapeError.
  virtual void multiply(TensorView2<const T> x, TensorView2<T> c, const Epilogue<T>& epilogue,
                        const Execution& execution) const = 0;
  /// Multiplies by `parts` stacked along the rows, this one first: c (rows, sum of out).
  virtual void multiply_parts(std::span<const std::shared_ptr<const CompressedWeight>> parts,
                              TensorView2<const T> x, TensorView2<T> c, const Epilogue<T>& epilogue,
                              const Execution& execution) const {
    index_t begin = 0;
    for (const auto& part : parts) {
      const index_t end = begin + part->shape()[0];
      Epilogue<T> own = epilogue;
      if (own.bias) own.bias = own.bias.slice(0, begin, end);
      if (own.residual) own.residual = own.residual.slice(1, begin, end);
      part->multiply(x, c.slice(1, begin, end), own, execution);
      begin = end;
    }
  }
  /// Decompresses row `index` of W for an embedding: `out` (in).
  virtual void row(index_t index, TensorView1<T> out) const = 0;
  /// Memory in bytes.
  virtual index_t bytes() const = 0;
};

/// Access to a weight of a module during a visit; T is const if the module is. A compressed weight
/// of a 16-bit module multiplies in float.
template <class T>
struct WeightSlot {
  using Form = std::shared_ptr<const CompressedWeight<Accumulator<std::remove_const_t<T>>>>;

  Shape<2> shape = {};                      ///< (out, in)
  TensorView2<T> dense = {};                ///< empty where the weight is compressed
  index_t bytes = 0;                        ///< memory of the weight
  Form form = nullptr;                      ///< nullptr where the weight is dense
  std::function<void(Form)> compress = {};  ///< replaces the dense weight; empty for const modules
};

namespace detail {

/// The compressed forms of a matrix that is visited in row parts; used once all parts are present.
template <class T>
class CompressedParts {
 public:
  explicit operator bool() const { return !parts_.empty() && missing_ == 0; }

  /// Sets part `at` of `count`, of `shape`. Returns true if it was the last missing one.
  bool set(std::size_t at, std::size_t count, const Shape<2>& shape,
           std::shared_ptr<const CompressedWeight<T>> form) {
    check_shape("compress", "weight", "(out, in)", shape, form->shape());
    if (parts_.empty()) {
      parts_.resize(count);
      missing_ = count;
    }
    if (parts_[at] == nullptr) --missing_;
    parts_[at] = std::move(form);
    return missing_ == 0;
  }

  std::span<const std::shared_ptr<const CompressedWeight<T>>> parts() const { return parts_; }
  index_t bytes() const {
    index_t total = 0;
    for (const auto& part : parts_) total += part->bytes();
    return total;
  }

 private:
  std::vector<std::shared_ptr<const CompressedWeight<T>>> parts_;
  std::size_t missing_ = 0;
};

/// linear() with stacked parts, into T or Accumulator<T>. 16-bit tensors are widened, and the
/// result is rounded once.
template <class T, int Rank, class To>
void linear_parts(const TensorView<const T, Rank>& x,
                  std::span<const std::shared_ptr<const CompressedWeight<Accumulator<T>>>> parts,
                  TensorView1<const T> bias, const TensorView<To, Rank>& out, Activation activation,
                  const TensorView<const T, Rank>& residual, const Execution& execution) {
  auto expected = x.shape();
  check_features("linear", expected, parts[0]->shape()[1]);
  expected.back() = 0;
  for (const auto& part : parts) expected.back() += part->shape()[0];
  check_shape("linear", "out", expected, out.shape());
  if (residual) check_shape("linear", "residual", expected, residual.shape());
  if constexpr (!std::same_as<T, Accumulator<T>>) {
    const WidenedTensor<Rank> in(x, execution), added(residual, execution);
    const WidenedTensor<1> wide_bias(bias, execution);
    const WidenedTensor<Rank> sums(std::same_as<To, T> ? expected : Shape<Rank>{}, execution);
    const auto multiply = [&](const TensorView<float, Rank>& to) {
      linear_parts<float, Rank>(in.view(), parts, wide_bias.view(), to, activation, added.view(),
                                execution);
    };
    if constexpr (std::same_as<To, T>) {
      multiply(sums.view());
      convert(sums.view(), out, execution);
    } else {
      multiply(out);
    }
  } else {
    each_joined(
        [&](const auto& in, const auto& to, const auto& added) {
          Epilogue<T> epilogue{.bias = bias, .activation = activation};
          if (residual) {
            epilogue.beta = T{1};
            epilogue.residual = added.rows();
          }
          parts[0]->multiply_parts(parts, in.rows(), to.rows(), epilogue, execution);
        },
        x, out, residual ? residual : TensorView<const T, Rank>(out));
  }
}

[[noreturn]] ATTN_COLD inline void throw_compressed(std::string_view module) {
  throw ValueError(message(module, "the weight",
                           "be a tensor, to be shown, trained, loaded or saved (save_quantized() "
                           "writes a quantised module)",
                           "quantised blocks"));
}

}  // namespace detail

/// Calls f(name, WeightSlot<T>&) for every weight matrix of a module, under the names of its
/// parameters.
template <class T, class Module, class F>
void visit_weights(Module& module, F&& f) {
  module.visit_parameters(ParameterVisitor<T>::of_weights(f));
}

ATTN_NAMESPACE_END
