// in_floats(): rows of 16-bit elements through kernels of float.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <tuple>

#include "attn/kernels/rows/convert.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Calls f(first, out, inputs.., execution) for ranges of rows from row `first` on, with each input
/// widened to float and a float buffer for out, which f writes and which is then rounded into out's
/// rows. Inputs have as many rows as out, of any length; out may be one of them. Ranges run on the
/// threads of `execution`, each call of f on one thread. If out has no columns, nothing is stored.
template <class F, Float16Element E, class... In>
void in_floats(const F& f, const Execution& execution, const TensorView2<E>& out,
               const TensorView2<const In>&... inputs) {
  constexpr index_t kFloats = index_t{1}
                              << 14;  // per range: 64 KB, fits in L2, and enough work to hide calls
  const index_t rows = out.extent(0);
  // At least 1: even rows without elements may have a result, such as an empty sum.
  const index_t length =
      (std::max)(index_t{1}, out.extent(1) + (index_t{0} + ... + inputs.extent(1)));
  if (rows == 0) return;
  const index_t height = std::clamp(kFloats / length, index_t{1}, rows);
  const Executor& threads = threads_for(execution.threads(), 16 * rows * length);
  const Scratch<float> memory(execution.scratch(), worker_count(threads) * height * length);
  const Isa isa = execution.instruction_set();
  threads.run((rows + height - 1) / height, [&](index_t task, int worker) {
    const SerialExecutor one;
    const Execution alone{.executor = &one, .isa = isa};
    const index_t first = task * height, end = (std::min)(first + height, rows);
    float* at = memory.data() + worker * height * length;
    const auto take = [&](index_t columns) {
      const TensorView2<float> floats(at, {end - first, columns});
      at += floats.size();
      return floats;
    };
    const auto widened = [&](const auto& rows_of) {
      const TensorView2<float> floats = take(rows_of.extent(1));
      convert(rows_of.slice(0, first, end), floats, alone);
      return TensorView2<const float>(floats);
    };
    const TensorView2<float> result = take(out.extent(1));
    // Braced lists are evaluated in order.
    const std::array<TensorView2<const float>, sizeof...(In)> floats{widened(inputs)...};
    std::apply([&](const auto&... x) { f(first, result, x..., alone); }, floats);
    convert(result, out.slice(0, first, end), alone);
  });
}

/// A vector widened to float in scratch memory; data() is nullptr if the vector is empty.
class WidenedVector {
 public:
  template <Float16Element E>
  WidenedVector(const TensorView1<const E>& x, const Execution& execution)
      : floats_(execution.scratch(), x.size()) {
    for (index_t i = 0; i < x.size(); ++i) floats_.data()[i] = x(i);
  }

  const float* data() const { return floats_.data(); }

 private:
  Scratch<float> floats_;
};

/// A tensor widened to float in scratch memory, contiguous. An empty view (one not given) stays an
/// empty view of the same shape.
template <int Rank>
class WidenedTensor {
 public:
  /// Not written yet.
  WidenedTensor(const Shape<Rank>& shape, const Execution& execution)
      : floats_(execution.scratch(), size_of(shape)), view_(floats_.data(), shape) {}
  template <FloatElement E>
  WidenedTensor(const TensorView<const E, Rank>& x, const Execution& execution)
      : WidenedTensor(x.shape(), execution) {
    if (x) convert(x, view_, execution);
    if (!x) view_ = {nullptr, x.shape()};
  }

  const TensorView<float, Rank>& view() const { return view_; }

 private:
  Scratch<float> floats_;
  TensorView<float, Rank> view_;
};

}  // namespace detail

ATTN_NAMESPACE_END
