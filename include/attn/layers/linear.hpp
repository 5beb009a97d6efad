// linear, Linear: x W^T + b.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/kernels/gemm/gemm.hpp"
#include "attn/layers/module/compressed_weight.hpp"
#include "attn/layers/module/parameter_version.hpp"
#include "attn/layers/module/parameter_visitor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// linear() with `weight` (out, in), or with `packed` if that is not nullptr; writes T or, without
/// a residual, Accumulator<T>.
template <class T, int Rank, class To>
void linear_rows(const TensorView<const T, Rank>& x, const TensorView2<const T>& weight,
                 const PackedWeights<T>* packed, TensorView1<const T> bias,
                 const TensorView<To, Rank>& out, Activation activation,
                 const TensorView<const T, Rank>& residual, const Execution& execution) {
  const Shape<2> out_in = packed != nullptr ? Shape<2>{packed->n(), packed->k()} : weight.shape();
  auto expected = x.shape();
  check_shape("linear", "weight", "(out, in)", Shape<2>{out_in[0], expected.back()}, out_in);
  expected.back() = out_in[0];
  check_shape("linear", "out", expected, out.shape());
  if (bias && (bias.extent(0) != out_in[0] || !bias.is_contiguous())) {
    throw_shape("linear", "bias",
                "be contiguous with shape (out) = (" + std::to_string(out_in[0]) + ")",
                bias.shape());
  }
  if (residual) check_shape("linear", "residual", expected, residual.shape());
  const auto multiply = [&](const auto& in, const auto& to, const Epilogue<T>& epilogue) {
    if (packed != nullptr) {
      gemm(in.rows(), *packed, to.rows(), epilogue, execution);
    } else {
      gemm(in.rows(), weight.transpose(0, 1), to.rows(), epilogue, execution);
    }
  };
  Epilogue<T> epilogue{.bias = bias, .activation = activation};
  if constexpr (std::same_as<To, T>) {
    each_joined(
        [&](const auto& in, const auto& to, const auto& added) {
          if (residual) {
            epilogue.beta = T{1};
            epilogue.residual = added.rows();
          }
          multiply(in, to, epilogue);
        },
        x, out, residual ? residual : TensorView<const T, Rank>(out));
  } else {
    each_joined([&](const auto& in, const auto& to) { multiply(in, to, epilogue); }, x, out);
  }
}

/// The element type that linear() of T writes to an Out: T, or Accumulator<T> if Out has that type.
template <class T, class Out>
using linear_result_t =
    std::conditional_t<std::same_as<scalar_t<Out>, Accumulator<T>>, Accumulator<T>, T>;

}  // namespace detail

/// out = activation(x weight^T + bias) + residual. Shapes: x (.., in), weight (out, in) as PyTorch
/// stores it, bias (out) or empty, out and residual (.., out); leading axes may have any strides.
/// Pass a weight (in, out) as weight.transpose(0, 1). If x has 16 bits, out may be float, without a
/// residual: the sums are then not rounded. Throws ShapeError.
template <TensorLike X, TensorLike W, TensorLike Out,
          TensorLike B = TensorView1<const detail::floating_t<X>>>
void linear(const X& x, const W& weight, const B& bias, Out&& out,
            Activation activation = Activation::none,
            TensorView<const detail::floating_t<X>, rank_v<X>> residual = {},
            const Execution& execution = {}) {
  using T = detail::floating_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_FLOATING(X, "linear: x");
  ATTN_ASSERT_INPUT(W, scalar_t<X>, 2, "linear: weight", "(out, in)", "x");
  ATTN_ASSERT_INPUT(B, T, 1, "linear: bias", "(out)", "x");
  using To = detail::linear_result_t<T, Out>;
  ATTN_ASSERT_OUTPUT(Out, To, kRank, "linear: out", "(.., out)", "x");
  detail::linear_rows<T, kRank, To>(
      detail::view_as<const T, kRank>(x), detail::view_as<const T, 2>(weight), nullptr,
      detail::view_as<const T, 1>(bias), detail::view_as<To, kRank>(out), activation, residual,
      execution);
}

/// Takes weights packed in advance: PackedWeights(weight.transpose(0, 1)).
template <TensorLike X, TensorLike Out, TensorLike B = TensorView1<const detail::floating_t<X>>>
void linear(const X& x, const PackedWeights<detail::floating_t<X>>& weight, const B& bias,
            Out&& out, Activation activation = Activation::none,
            TensorView<const detail::floating_t<X>, rank_v<X>> residual = {},
            const Execution& execution = {}) {
  using T = detail::floating_t<X>;
  constexpr int kRank = rank_v<X>;
  ATTN_ASSERT_FLOATING(X, "linear: x");
  ATTN_ASSERT_INPUT(B, T, 1, "linear: bias", "(out)", "x");
  using To = detail::linear_result_t<T, Out>;
  ATTN_ASSERT_OUTPUT(Out, To, kRank, "linear: out", "(.., out)", "x");
  detail::linear_rows<T, kRank, To>(
      detail::view_as<const T, kRank>(x), {}, &weight, detail::view_as<const T, 1>(bias),
      detail::view_as<To, kRank>(out), activation, residual, execution);
}

/// Returns the result as a new tensor.
template <TensorLike X, TensorLike W, TensorLike B = TensorView1<const detail::floating_t<X>>>
auto linear(const X& x, const W& weight, const B& bias = {},
            Activation activation = Activation::none, const Execution& execution = {}) {
  using T = detail::floating_t<X>;
  ATTN_ASSERT_FLOATING(X, "linear: x");
  ATTN_ASSERT_INPUT(W, scalar_t<X>, 2, "linear: weight", "(out, in)", "x");
  ATTN_ASSERT_INPUT(B, T, 1, "linear: bias", "(out)", "x");
  const auto from = detail::view_as<const T, rank_v<X>>(x);
  const auto by = detail::view_as<const T, 2>(weight);
  auto shape = from.shape();
  shape.back() = by.extent(0);
  auto out = Tensor<T, rank_v<X>>::uninitialized(shape);
  linear(from, by, detail::view_as<const T, 1>(bias), out, activation, {}, execution);
  return out;
}

/// PyTorch's nn.Linear options.
struct LinearOptions {
  index_t in_features = 0;   ///< features of x
  index_t out_features = 0;  ///< features of the output
  bool bias = true;          ///< whether it has a bias
};

/// PyTorch's nn.Linear: parameters weight (out, in) and bias (out), zero until loaded. After
/// pack(), calls use a packed copy of the weight instead of packing it in each call, provided that
/// they run in the MatmulPrecision given to pack(). Visiting the parameters of a mutable module, as
/// load_state_dict() does, makes the copy stale: it is not used until pack() is called again. After
/// writing `weight` directly, call touch() or pack(). quantize() (attn/models/quantize.hpp)
/// replaces the weight by a compressed form; `weight` is empty then.
template <class T>
class Linear {
 public:
  Linear() = default;
  /// Throws ShapeError for negative numbers.
  explicit Linear(const LinearOptions& options)
      : weight(Tensor2<T>::zero_pages({options.out_features, options.in_features})) {
    if (options.bias) bias = Tensor1<T>({options.out_features});
  }
  Linear(index_t in_features, index_t out_features, bool with_bias = true)
      : Linear(LinearOptions{
            .in_features = in_features, .out_features = out_features, .bias = with_bias}) {}

  template <TensorLike X>
  Tensor<T, rank_v<X>> operator()(const X& x, Activation activation = Activation::none,
                                  const Execution& execution = {}) const {
    ATTN_ASSERT_ELEMENTS(X, T, "Linear: x", "the layer");
    const auto from = detail::view_as<const T, rank_v<X>>(x);
    auto shape = from.shape();
    shape.back() = out_features();
    auto out = Tensor<T, rank_v<X>>::uninitialized(shape);
    forward(from, out, activation, {}, execution);
    return out;
  }

  /// See linear(): `out` may be float if T has 16 bits.
  template <TensorLike X, TensorLike Out>
  void forward(const X& x, Out&& out, Activation activation = Activation::none,
               TensorView<const T, rank_v<X>> residual = {},
               const Execution& execution = {}) const {
    ATTN_ASSERT_ELEMENTS(X, T, "Linear: x", "the layer");
    constexpr int kRank = rank_v<X>;
    using To = detail::linear_result_t<T, Out>;
    ATTN_ASSERT_OUTPUT(Out, To, kRank, "Linear: out", "(.., out)", "x");
    const auto from = detail::view_as<const T, kRank>(x);
    const auto to = detail::view_as<To, kRank>(out);
    check_features("Linear", from.shape(), in_features());
    if (compressed_) {
      detail::linear_parts<T, kRank>(from, compressed_.parts(), bias.view(), to, activation,
                                     residual, execution);
      return;
    }
    if (const PackedWeights<T>* packed = packed_.find(version_, execution)) {
      linear(from, *packed, bias.view(), to, activation, residual, execution);
    } else {
      linear(from, weight, bias.view(), to, activation, residual, execution);
    }
  }

  index_t in_features() const {
    return compressed_ ? compressed_.parts()[0]->shape()[1] : weight.extent(1);
  }
  index_t out_features() const {
    if (!compressed_) return weight.extent(0);
    index_t total = 0;
    for (const auto& part : compressed_.parts()) total += part->shape()[0];
    return total;
  }

  /// Does nothing if the weight is compressed.
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    if (weight) packed_ = {weight, version_, precision};
  }

  /// Marks the packed copy as stale after, or before, `weight` is written.
  void touch() { version_.touch(); }

  void visit_parameters(const ParameterVisitor<T>& f) { visit_parts(f, {""}); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit_parts(f, {""}); }

  /// Visits weight and bias in parts of equal numbers of rows, each under its own prefix.
  void visit_parts(const ParameterVisitor<T>& f, std::initializer_list<std::string_view> prefixes) {
    touch();
    visit(*this, f, prefixes);
  }
  void visit_parts(const ParameterVisitor<const T>& f,
                   std::initializer_list<std::string_view> prefixes) const {
    visit(*this, f, prefixes);
  }

  Tensor2<T> weight;  ///< (out, in); empty if compressed
  Tensor1<T> bias;    ///< (out), or empty

 private:
  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f,
                    std::initializer_list<std::string_view> prefixes) {
    if constexpr (!std::is_const_v<Self>) {
      if (f.takes_away()) return take_away(self, f, prefixes);
    }
    const std::size_t count = prefixes.size();
    const bool has_weight = self.weight || self.compressed_;
    const index_t rows =
        (has_weight ? self.out_features() : self.bias.extent(0)) / static_cast<index_t>(count);
    for (std::size_t n = 0; n < count; ++n) {
      const auto part = f.under(prefixes.begin()[n]);
      const index_t begin = static_cast<index_t>(n) * rows, end = begin + rows;
      if (f.takes_slot(static_cast<bool>(self.compressed_))) {
        show_slot(self, part, n, count, rows);
      } else {
        if (self.compressed_) detail::throw_compressed("Linear");
        if (self.weight) part("weight", self.weight.view().slice(0, begin, end));
      }
      if (self.bias) part("bias", self.bias.view().slice(0, begin, end));
    }
  }

  /// Removes weight or bias if all of its parts are to be removed.
  static void take_away(Linear& self, const ParameterVisitor<T>& f,
                        std::initializer_list<std::string_view> prefixes) {
    const auto all_go = [&](std::string_view name) {
      return std::all_of(prefixes.begin(), prefixes.end(),
                         [&](std::string_view prefix) { return f.under(prefix).goes(name); });
    };
    if (self.weight && all_go("weight")) self.weight = {};
    if (self.bias && all_go("bias")) self.bias = {};
  }

  template <class Self, class Visited>
  static void show_slot(Self& self, const ParameterVisitor<Visited>& f, std::size_t n,
                        std::size_t count, index_t rows) {
    const index_t begin = static_cast<index_t>(n) * rows;
    WeightSlot<Visited> slot{.shape = {rows, self.in_features()}};
    if (self.compressed_) {
      slot.form = self.compressed_.parts()[n];
      slot.bytes = slot.form->bytes();
    } else {
      slot.dense = self.weight.view().slice(0, begin, begin + rows);
      slot.bytes = slot.dense.size() * index_t{sizeof(T)};
    }
    if constexpr (!std::is_const_v<Self>) {
      slot.compress = [&self, n, count, shape = slot.shape](auto form) {
        if (!self.compressed_.set(n, count, shape, std::move(form))) return;
        self.weight = {};
        self.packed_ = {};
      };
    }
    f("weight", slot);
  }

  detail::ParameterVersion version_;
  detail::PackedCopy<T> packed_;
  detail::CompressedParts<Accumulator<T>> compressed_;  ///< one, or as many as visit_parts() visits
};

ATTN_NAMESPACE_END
