// StoredView: a view whose element type is known at run time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "attn/core/element.hpp"
#include "attn/core/view.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A view without its element type. Shape (batch, heads, seq, dim), innermost stride 1; strides are
/// in elements. Void: void, or const void for read-only views. Planning and drivers use it so that
/// they are compiled once for all element types; only kernels are compiled per type.
template <class Void>
class StoredView {
 public:
  template <class T>
  StoredView(const TensorView<T, 4>& x)
      : data_(reinterpret_cast<Byte*>(x.data())),
        shape_(x.shape()),
        strides_(x.strides()),
        element_(dtype_of<std::remove_const_t<T>>()),
        element_size_(index_t{sizeof(T)}) {}

  const Shape<4>& shape() const { return shape_; }
  const Shape<4>& strides() const { return strides_; }
  index_t extent(int axis) const { return shape_[static_cast<std::size_t>(axis)]; }
  index_t stride(int axis) const { return strides_[static_cast<std::size_t>(axis)]; }
  DType element() const { return element_; }
  /// In bytes.
  index_t element_size() const { return element_size_; }
  index_t row_bytes() const { return shape_[3] * element_size_; }

  Void* at_index(const Shape<4>& index) const {
    return data_ + element_size_ * (index[0] * strides_[0] + index[1] * strides_[1] +
                                    index[2] * strides_[2] + index[3] * strides_[3]);
  }

 private:
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  Byte* data_;
  Shape<4> shape_, strides_;
  DType element_;
  index_t element_size_;
};

/// The address of the row `rows` rows after p.
template <class Void>
auto* rows_after(Void* p, index_t rows, const StoredView<Void>& x) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  return static_cast<Byte*>(p) + rows * x.stride(2) * x.element_size();
}

}  // namespace detail

ATTN_NAMESPACE_END
