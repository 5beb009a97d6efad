// Arrays of Python, read without a copy and made for the caller's framework.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <string>
#include <string_view>
#include <vector>

#include "attn/core/element.hpp"
#include "attn/core/tensor.hpp"

namespace attn_python {

namespace nb = nanobind;
using attn::DType;
using attn::index_t;

/// Up to kMaxAxes extents or strides, without an allocation.
class Extents {
 public:
  static constexpr int kMaxAxes = 8;

  Extents() = default;
  Extents(std::initializer_list<index_t> values) {
    for (const index_t value : values) push_back(value);
  }

  int size() const { return size_; }
  index_t& operator[](int axis) { return values_[static_cast<std::size_t>(axis)]; }
  index_t operator[](int axis) const { return values_[static_cast<std::size_t>(axis)]; }
  /// Throws ValueError for more than kMaxAxes axes.
  void push_back(index_t value);
  /// The last extent is back(0).
  index_t& back(int from_last) { return (*this)[size_ - 1 - from_last]; }
  index_t back(int from_last) const { return (*this)[size_ - 1 - from_last]; }
  /// The first `count` of them.
  Extents first(int count) const;
  index_t product() const;
  std::string text() const;

 private:
  std::array<index_t, kMaxAxes> values_{};
  int size_ = 0;
};

Extents contiguous_strides(const Extents& shape);

/// The name of a type in numpy and PyTorch.
const char* python_name(DType dtype);

/// Who owns the arrays of a call, and gets its results.
enum class Framework { numpy, torch };

/// A view of an array of Python. It keeps the memory alive; destroy it with the GIL held.
struct Array {
  const void* data = nullptr;  ///< not null, even without elements
  DType dtype = DType::F32;
  Extents shape, strides;  ///< strides in elements
  Framework framework = Framework::numpy;

  int rank() const { return shape.size(); }
  template <class T>
  const T* elements() const {
    return static_cast<const T*>(data);
  }

  std::shared_ptr<const void> owner;  ///< a Py_buffer, a DLPack tensor or a copy
  nb::object object;                  ///< of Python, whose memory it is
};

/// The argument `name` of `function`. Throws TypeError for anything but an array in this machine's
/// memory, ValueError for a tensor of PyTorch whose gradient would be lost.
Array read(nb::handle x, std::string_view function, std::string_view name);

/// `x`, or a contiguous copy.
Array contiguous(const Array& x);

/// `x`, or a copy whose last stride is 1.
Array with_unit_stride(Array x);

/// `x`, or a contiguous copy with elements T, float or double, from floating-point elements of any
/// size. Throws TypeError.
template <class T>
Array converted(const Array& x, std::string_view function, std::string_view name);

/// The integers of an array or a sequence, in the order of its axes. Throws TypeError.
std::vector<index_t> read_integers(nb::handle x, std::string_view function, std::string_view name);

/// A new contiguous array, not initialised.
struct Result {
  nb::object object;
  void* data = nullptr;
  template <class T>
  T* elements() const {
    return static_cast<T*>(data);
  }
};
Result make(Framework framework, DType dtype, const Extents& shape);

/// A view of `Rank` axes; the array must have as many.
template <class T, int Rank>
attn::TensorView<const T, Rank> view(const Array& x) {
  attn::Shape<Rank> shape{}, strides{};
  for (int axis = 0; axis < Rank; ++axis) {
    shape[static_cast<std::size_t>(axis)] = x.shape[axis];
    strides[static_cast<std::size_t>(axis)] = x.strides[axis];
  }
  return {x.elements<T>(), shape, strides};
}

/// Throws TypeError: "[function] name must expected; found found."
[[noreturn]] void throw_type(std::string_view function, std::string_view name,
                             std::string_view expected, std::string_view found);
[[noreturn]] void throw_value(std::string_view function, std::string_view name,
                              std::string_view expected, std::string_view found);

/// Calls f(T{}) with the floating-point type of `x`. Throws TypeError for another.
template <class F>
auto with_floats(const Array& x, std::string_view function, std::string_view name, F&& f) {
  switch (x.dtype) {
    case DType::F32:
      return f(float{});
    case DType::F64:
      return f(double{});
    case DType::BF16:
      return f(attn::bfloat16{});
    case DType::F16:
      return f(attn::float16{});
    default:
      throw_type(function, name, "hold float32, float64, bfloat16 or float16",
                 python_name(x.dtype));
  }
}

/// Throws TypeError unless `x` has the elements of `first`, the argument called `whose`.
void check_same_elements(const Array& x, const Array& first, std::string_view function,
                         std::string_view name, std::string_view whose);

}  // namespace attn_python
