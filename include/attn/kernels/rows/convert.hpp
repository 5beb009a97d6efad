// convert(): tensors between float, double, bfloat16 and float16.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/tensor.hpp"
#include "attn/kernels/backend.hpp"
#include "attn/simd/vec/vec.hpp"

ATTN_NAMESPACE_BEGIN

/// Element types that convert() accepts.
template <class T>
concept FloatElement = std::same_as<T, float> || std::same_as<T, double> || Float16Element<T>;

namespace detail {

/// Rows of n elements.
template <class From, class To>
struct ConversionProblem {
  TensorView2<const From> from;
  TensorView2<To> to;
};

/// In is the type that is read, Acc the type that is written.
template <class In, class Acc>
struct Backend<family::Conversions, In, Acc> {
  Kernel<ConversionProblem<In, Acc>> convert;

  using Problem = ConversionProblem<In, Acc>;
  static constexpr std::uint64_t kLayout =
      layout_hash({sizeof(Backend), offsetof(Backend, convert), sizeof(Problem),
                   offsetof(Problem, from), offsetof(Problem, to)});
};

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/rows/convert.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// An axis with stride 1 in both views; the last axis if there is none.
template <class From, class To, int Rank>
int joint_axis(const TensorView<From, Rank>& from, const TensorView<To, Rank>& to) {
  for (int a = Rank - 1; a >= 0; --a) {
    if (from.extent(a) > 1 && from.stride(a) == 1 && to.stride(a) == 1) return a;
  }
  return Rank - 1;
}

template <class From, class To, int Rank>
void convert_views(const TensorView<const From, Rank>& from, const TensorView<To, Rank>& to,
                   const Execution& execution) {
  const auto& kernel = backend<family::Conversions, From, To>(execution).convert;
  if (from.is_contiguous() && to.is_contiguous()) {
    const Shape<2> row{1, from.size()};
    return kernel({{from.data(), row}, {to.data(), row}}, execution);
  }
  if constexpr (Rank == 1) {
    kernel({from.unsqueeze(0), to.unsqueeze(0)}, execution);
  } else {
    const int axis = joint_axis(from, to);
    each_joined(
        [&](const auto& source, const auto& target) {
          kernel({source.rows(), target.rows()}, execution);
        },
        from.transpose(axis, Rank - 1), to.transpose(axis, Rank - 1));
  }
}

}  // namespace detail

/// to = from, element by element: tensors or views of equal shape and any strides, of float,
/// double, bfloat16 or float16, which do not overlap. Widening is exact; narrowing rounds once, to
/// nearest even, with the result of bfloat16(x): the same bits on every instruction set. Throws
/// ShapeError unless shapes agree.
template <TensorLike From, TensorLike To>
void convert(const From& from, To&& to, const Execution& execution = {}) {
  constexpr bool are_floats = FloatElement<scalar_t<From>> && FloatElement<scalar_t<To>>;
  static_assert(are_floats, "convert: the elements must be float, double, bfloat16 or float16");
  ATTN_ASSERT_AXES_OF(To, From, "convert: to", "from");
  ATTN_ASSERT_WRITABLE(To, "convert: to");
  if constexpr (are_floats) {
    const auto source = const_view(from);
    const auto target = detail::view_as<scalar_t<To>, rank_v<From>>(to);
    check_shape("convert", "to", source.shape(), target.shape());
    if (source.size() == 0) return;
    if constexpr (std::same_as<scalar_t<From>, scalar_t<To>>) {
      copy(source, target);
    } else {
      detail::convert_views(source, target, execution);
    }
  }
}

/// Returns the result as a new tensor: convert<bfloat16>(x).
template <FloatElement To, TensorLike From>
Tensor<To, rank_v<From>> convert(const From& from, const Execution& execution = {}) {
  auto to = Tensor<To, rank_v<From>>::uninitialized(const_view(from).shape());
  convert(from, to, execution);
  return to;
}

ATTN_NAMESPACE_END
