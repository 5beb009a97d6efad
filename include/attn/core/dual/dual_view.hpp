// DualView: a tensor and its tangent; loops over their rows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/dual/dual.hpp"
#include "attn/core/view.hpp"

ATTN_NAMESPACE_BEGIN

/// A tensor and its tangent, of the same shape.
template <class T, int Rank = 3>
struct DualView {
  TensorView<T, Rank> value, tangent;

  operator DualView<const T, Rank>() const
    requires(!std::is_const_v<T>)
  {
    return {value, tangent};
  }
  DualView slice(int axis, index_t begin, index_t end) const {
    return {value.slice(axis, begin, end), tangent.slice(axis, begin, end)};
  }
  /// (.., n) as (rows, n): see TensorView::rows().
  DualView<T, 2> rows() const { return {value.rows(), tangent.rows()}; }
};

namespace detail {

/// A row of a DualView with unit innermost stride, whose elements are read and written as Dual.
template <class T>
struct DualRow {
  using Number = Dual<std::remove_const_t<T>>;
  T *value, *tangent;

  Number operator[](index_t i) const { return {value[i], tangent[i]}; }
  void set(index_t i, const Number& x) const { value[i] = x.value, tangent[i] = x.derivative; }
  void add(index_t i, const Number& x) const { value[i] += x.value, tangent[i] += x.derivative; }
};

}  // namespace detail

ATTN_NAMESPACE_END
