// Bfloat16Weight: a weight matrix in bfloat16, multiplied by in float.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/exec/execution.hpp"
#include "attn/kernels/quantized.hpp"
#include "attn/layers/compressed_weight.hpp"

ATTN_NAMESPACE_BEGIN

/// A weight in bfloat16 as a module holds it: half of a float's memory. Products are those of gemm() with the weights
/// widened to float, bit for bit, and activations as they are or rounded to bfloat16; so many rows of it at a time are
/// widened as the caches hold.
class Bfloat16Weight final : public CompressedWeight<float> {
 public:
  /// (out, in), each weight rounded to nearest even.
  explicit Bfloat16Weight(Tensor2<bfloat16> weight, bool rounds_activations = false)
      : weight_(std::move(weight)), rounds_activations_(rounds_activations) {}

  Shape<2> shape() const override { return weight_.shape(); }
  void multiply(TensorView2<const float> x, TensorView2<float> c, const Epilogue<float>& epilogue,
                const Execution& execution) const override {
    if (!rounds_activations_) return multiply_exact(x, c, epilogue, execution);
    detail::with_bfloat16_activations(x, execution, [&](TensorView2<const float> rounded) {
      multiply_exact(rounded, c, epilogue, execution);
    });
  }
  void row(index_t index, TensorView1<float> out) const override {
    convert(weight_.view().select(0, index), out);
  }
  index_t bytes() const override { return weight_.size() * index_t{sizeof(bfloat16)}; }
  const Tensor2<bfloat16>& weight() const { return weight_; }

 private:
  static constexpr index_t kWidenedElements = index_t{1} << 18;  // 1 MB

  void multiply_exact(TensorView2<const float> x, TensorView2<float> c,
                      const Epilogue<float>& epilogue, const Execution& execution) const {
    constexpr index_t kPanel = 64;  // whole panels of columns of c, for every instruction set
    const index_t n = weight_.extent(0), k = weight_.extent(1);
    const index_t step =
        (std::max)(kPanel, kWidenedElements / (std::max)(k, index_t{1}) / kPanel * kPanel);
    Scratch<float> memory(execution.scratch(), (std::min)(step, n) * k);
    for (index_t begin = 0; begin < n; begin += step) {
      const index_t end = (std::min)(begin + step, n);
      const TensorView2<float> widened(memory.data(), {end - begin, k});
      convert(weight_.view().slice(0, begin, end), widened, execution);
      Epilogue<float> part = epilogue;
      if (part.bias) part.bias = part.bias.slice(0, begin, end);
      if (part.residual) part.residual = part.residual.slice(1, begin, end);
      gemm(x, widened.transpose(0, 1), c.slice(1, begin, end), part, execution);
    }
  }
  Tensor2<bfloat16> weight_;
  bool rounds_activations_ = false;
};

ATTN_NAMESPACE_END
