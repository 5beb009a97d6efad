// NamedTensor: a name and a read-only view with run-time type and rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attn/core/element.hpp"
#include "attn/core/view.hpp"
#include "attn/io/quote.hpp"

ATTN_NAMESPACE_BEGIN

/// Refers to elements that must outlive it.
class NamedTensor {
 public:
  /// From a view of any strides, a tensor, or an Eigen matrix. Throws ShapeError for an invalid
  /// shape, ValueError for a null view of elements.
  template <TensorLike X>
    requires TensorElement<scalar_t<X>>
  NamedTensor(std::string name, const X& tensor)
      : name_(std::move(name)), dtype_(dtype_of<scalar_t<X>>()) {
    const auto view = const_view(tensor);
    shape_.assign(view.shape().begin(), view.shape().end());
    strides_.assign(view.strides().begin(), view.strides().end());
    data_ = reinterpret_cast<const std::byte*>(view.data());
    size_ = view.size();
    if (data_ == nullptr && size_ > 0) {
      throw ValueError(message("NamedTensor", detail::concat("tensor ", detail::quote(name_)),
                               "have data", "a null view"));
    }
  }

  template <TensorLike X>
  NamedTensor(std::string name, const X&) : name_(std::move(name)), dtype_{} {
    detail::assert_tensor_element<scalar_t<X>>();
  }

  /// From the bytes of contiguous elements of any type that files may hold, last axis fastest; an
  /// empty shape is a scalar. Throws ShapeError for an invalid shape, ValueError unless the number
  /// of bytes matches.
  NamedTensor(std::string name, DType dtype, std::vector<index_t> shape,
              std::span<const std::byte> bytes)
      : name_(std::move(name)),
        dtype_(dtype),
        shape_(std::move(shape)),
        strides_(shape_.size()),
        data_(bytes.data()),
        size_(size_of(shape_)) {
    // Strides of empty tensors may overflow; nothing is read with them.
    index_t stride = 1;
    for (std::size_t axis = shape_.size(); axis-- > 0 && size_ > 0;) {
      strides_[axis] = stride;
      stride *= shape_[axis];
    }
    const index_t found = static_cast<index_t>(bytes.size() / element_size(dtype));
    if (found != size_ || bytes.size() % element_size(dtype) != 0) {
      throw ValueError(message("NamedTensor", detail::concat("tensor ", detail::quote(name_)),
                               detail::concat("have the bytes of ", size_, " elements of ",
                                              attn::name(dtype_), " ", detail::shape_text(shape_)),
                               detail::concat(bytes.size(), " bytes")));
    }
  }

  const std::string& name() const { return name_; }
  DType dtype() const { return dtype_; }
  const std::vector<index_t>& shape() const { return shape_; }
  /// Number of elements.
  index_t size() const { return size_; }

  /// Throws DTypeError or ShapeError unless T and Rank match the tensor.
  template <TensorElement T, int Rank>
  TensorView<const T, Rank> view() const {
    if (dtype_of<T>() != dtype_) {
      throw DTypeError(message("NamedTensor::view", detail::concat("tensor ", detail::quote(name_)),
                               detail::concat("hold ", attn::name(dtype_of<T>())),
                               attn::name(dtype_)));
    }
    if (shape_.size() != Rank) {
      throw ShapeError(message("NamedTensor::view", detail::concat("tensor ", detail::quote(name_)),
                               detail::concat("have rank ", Rank), detail::shape_text(shape_)));
    }
    Shape<Rank> shape{}, strides{};
    std::copy(shape_.begin(), shape_.end(), shape.begin());
    std::copy(strides_.begin(), strides_.end(), strides.begin());
    return {reinterpret_cast<const T*>(data_), shape, strides};
  }

  /// Writes the elements in order, last axis fastest, to `sink(std::span<const std::byte>)`, in as
  /// few pieces as the strides allow.
  template <class Sink>
  void for_each_run(Sink&& sink) const {
    if (size_ == 0) return;
    // The trailing axes without gaps form one run; the others are counted like an odometer.
    index_t run = 1;
    std::size_t outer = shape_.size();
    while (outer > 0 && (shape_[outer - 1] == 1 || strides_[outer - 1] == run)) {
      run *= shape_[--outer];
    }
    const auto element = static_cast<index_t>(element_size(dtype_));
    std::vector<index_t> position(outer, 0);
    index_t offset = 0;
    for (;;) {
      sink(std::span(data_ + offset * element, static_cast<std::size_t>(run * element)));
      std::size_t axis = outer;
      while (axis > 0 && ++position[axis - 1] == shape_[axis - 1]) {
        --axis;
        offset -= (shape_[axis] - 1) * strides_[axis];
        position[axis] = 0;
      }
      if (axis == 0) return;
      offset += strides_[axis - 1];
    }
  }

 private:
  std::string name_;
  DType dtype_;
  std::vector<index_t> shape_, strides_;
  const std::byte* data_ = nullptr;
  index_t size_ = 0;
};

ATTN_NAMESPACE_END
