// Tensor: an owning, contiguous, 64-byte aligned array with a fixed number of axes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <initializer_list>

#include "attn/core/argument_types.hpp"
#include "attn/core/buffer.hpp"
#include "attn/core/view.hpp"

ATTN_NAMESPACE_BEGIN

/// Declares a member of TensorView as a member of Tensor: it views the elements of a named tensor.
#define ATTN_VIEWED(parameters, signature, call)                              \
  parameters auto signature& ATTN_LIFETIMEBOUND { return view().call; }       \
  parameters auto signature const& ATTN_LIFETIMEBOUND { return view().call; } \
  parameters auto signature const&& = delete; /* it would view a tensor that is gone */

/// Owns its elements, which start as zero. Copies are deep; a const tensor gives read-only views.
template <class T, int Rank>
class Tensor {
 public:
  using value_type = T;
  static constexpr int rank = Rank;

  Tensor() = default;

  /// All elements are 0. Throws ShapeError for a negative extent or a size past 2^63 - 1,
  /// std::bad_alloc if memory does not suffice.
  explicit Tensor(const Shape<Rank>& shape)
      : buffer_(Buffer<T>::zeros(size_of(shape))), shape_(shape) {}

  /// Takes values in order, last axis fastest. Throws ShapeError unless the sizes agree.
  Tensor(const Shape<Rank>& shape, std::initializer_list<T> values) : Tensor(uninitialized(shape)) {
    if (static_cast<index_t>(values.size()) != size()) {
      throw ShapeError(message("Tensor", "the values", "number " + std::to_string(size()),
                               std::to_string(values.size())));
    }
    std::copy(values.begin(), values.end(), data());
  }

  /// A contiguous copy of a view.
  explicit Tensor(TensorView<const T, Rank> source) : Tensor(uninitialized(source.shape())) {
    copy(source, view());
  }

  Tensor(const Tensor& other) : Tensor(other.view()) {}
  Tensor& operator=(const Tensor& other) {
    if (this != &other) *this = Tensor(other.view());
    return *this;
  }
  /// A moved-from tensor has size 0 and extents 0, like a default-constructed one.
  Tensor(Tensor&& other) noexcept
      : buffer_(std::move(other.buffer_)), shape_(std::exchange(other.shape_, {})) {}
  Tensor& operator=(Tensor&& other) noexcept {
    buffer_ = std::move(other.buffer_);
    shape_ = std::exchange(other.shape_, {});
    return *this;
  }
  ~Tensor() = default;

  /// Uninitialised elements, for results that are about to be overwritten.
  static Tensor uninitialized(const Shape<Rank>& shape) {
    Tensor result;
    result.buffer_ = Buffer<T>(size_of(shape));
    result.shape_ = shape;
    return result;
  }

  /// Zeros that take neither memory nor time before they are touched, if the system supports it:
  /// for weights, which loading replaces.
  static Tensor zero_pages(const Shape<Rank>& shape) {
    Tensor result;
    result.buffer_ = Buffer<T>::zero_pages(size_of(shape));
    result.shape_ = shape;
    return result;
  }

  TensorView<T, Rank> view() ATTN_LIFETIMEBOUND { return {buffer_.data(), shape_}; }
  TensorView<const T, Rank> view() const ATTN_LIFETIMEBOUND { return {buffer_.data(), shape_}; }
  operator TensorView<T, Rank>() ATTN_LIFETIMEBOUND { return view(); }
  operator TensorView<const T, Rank>() const ATTN_LIFETIMEBOUND { return view(); }

  T* data() { return buffer_.data(); }
  const T* data() const { return buffer_.data(); }
  const Shape<Rank>& shape() const { return shape_; }
  index_t extent(int axis) const {
    return shape_[static_cast<std::size_t>(detail::axis_of("Tensor::extent", Rank, axis))];
  }
  index_t size() const { return buffer_.size(); }
  /// False for a default-constructed tensor, which means "none" where one is optional.
  explicit operator bool() const { return buffer_.data() != nullptr; }

  // TensorView's members that return views; deleted for temporary tensors.
  ATTN_VIEWED(, transpose(int a, int b), transpose(a, b))
  ATTN_VIEWED(, slice(int axis, index_t begin, index_t end), slice(axis, begin, end))
  ATTN_VIEWED(, select(int axis, index_t i), select(axis, i))
  ATTN_VIEWED(, unsqueeze(int axis), unsqueeze(axis))
  ATTN_VIEWED(, split(int axis, index_t outer), split(axis, outer))
  ATTN_VIEWED(, merge(int axis), merge(axis))
  ATTN_VIEWED(template <std::size_t N>, reshape(const std::array<index_t, N>& s), reshape(s))
  ATTN_VIEWED(template <std::size_t N>, reshape(const index_t (&s)[N]), reshape(s))
  ATTN_VIEWED(template <std::size_t N>, permute(const int (&axes)[N]), permute(axes))
  ATTN_VIEWED(template <std::size_t N>, expand(const std::array<index_t, N>& s), expand(s))
  ATTN_VIEWED(template <std::size_t N>, expand(const index_t (&s)[N]), expand(s))

  std::span<T> elements() ATTN_LIFETIMEBOUND { return {data(), static_cast<std::size_t>(size())}; }
  std::span<const T> elements() const ATTN_LIFETIMEBOUND {
    return {data(), static_cast<std::size_t>(size())};
  }

  template <class... I>
  T& operator()(I... i) {
    return view()(i...);
  }
  template <class... I>
  const T& operator()(I... i) const {
    return view()(i...);
  }

  void fill(T value) { std::fill_n(data(), size(), value); }

 private:
  Buffer<T> buffer_;
  Shape<Rank> shape_{};
};

#undef ATTN_VIEWED

template <class T>
using Tensor1 = Tensor<T, 1>;
template <class T>
using Tensor2 = Tensor<T, 2>;
template <class T>
using Tensor3 = Tensor<T, 3>;
/// (batch, heads, seq, dim)
template <class T>
using Tensor4 = Tensor<T, 4>;

namespace detail {

/// Copies axis by axis; all spans have the length of `shape`, which is at least 1.
template <class T>
void copy_elements(std::span<const index_t> shape, const T* from,
                   std::span<const index_t> from_strides, T* to,
                   std::span<const index_t> to_strides) {
  const index_t from_stride = from_strides[0], to_stride = to_strides[0];
  if (shape.size() == 1 && from_stride == 1 && to_stride == 1) {
    std::copy_n(from, shape[0], to);
    return;
  }
  for (index_t i = 0; i < shape[0]; ++i) {
    if (shape.size() == 1) {
      to[i * to_stride] = from[i * from_stride];
    } else {
      copy_elements(shape.subspan(1), from + i * from_stride, from_strides.subspan(1),
                    to + i * to_stride, to_strides.subspan(1));
    }
  }
}

}  // namespace detail

/// Copies elements between tensors or views of equal shape and any strides. Throws ShapeError
/// otherwise.
template <TensorLike From, TensorLike To>
void copy(const From& from, To&& to) {
  ATTN_ASSERT_OUTPUT_LIKE(To, From, "copy: to", "from");
  const auto source = const_view(from);
  const auto target = detail::view_as<scalar_t<From>, rank_v<From>>(to);
  check_shape("copy", "to", source.shape(), target.shape());
  if (source.size() == 0) return;
  detail::copy_elements<scalar_t<From>>(source.shape(), source.data(), source.strides(),
                                        target.data(), target.strides());
}

ATTN_NAMESPACE_END
