// Array: a plain dense array of any rank, the only container of the references.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "attn/core/tensor.hpp"

namespace attn_test {

using Index = std::int64_t;

/// The last axis is contiguous. Reads and writes are checked (std::vector::at).
template <class T>
struct Array {
  std::vector<Index> shape;
  std::vector<T> data;

  Array() = default;
  explicit Array(std::vector<Index> extents) : shape(std::move(extents)) {
    data.resize(static_cast<std::size_t>(
        std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies<>())));
  }
  Array(std::vector<Index> extents, std::vector<T> values)
      : shape(std::move(extents)), data(std::move(values)) {}

  explicit operator bool() const { return !shape.empty(); }
  Index size() const { return static_cast<Index>(data.size()); }
  Index extent(std::size_t axis) const { return shape.at(axis); }

  template <class... I>
  T& operator()(I... i) {
    return data.at(offset({static_cast<Index>(i)...}));
  }
  template <class... I>
  const T& operator()(I... i) const {
    return data.at(offset({static_cast<Index>(i)...}));
  }

  /// The same elements with another shape of the same size.
  Array reshaped(std::vector<Index> extents) const { return {std::move(extents), data}; }

  /// The same elements in another type.
  template <class U>
  Array<U> as() const {
    Array<U> result;
    result.shape = shape;
    for (const auto& x : data) result.data.push_back(static_cast<U>(x));
    return result;
  }

  template <int Rank>
  attn::Shape<Rank> library_shape() const {
    attn::Shape<Rank> result{};
    for (std::size_t a = 0; a < result.size(); ++a) result[a] = shape.at(a);
    return result;
  }
  /// The library's view of these elements.
  template <int Rank>
  attn::TensorView<const T, Rank> view() const {
    return {data.data(), library_shape<Rank>()};
  }
  template <int Rank>
  attn::TensorView<T, Rank> view() {
    return {data.data(), library_shape<Rank>()};
  }

 private:
  std::size_t offset(std::initializer_list<Index> index) const {
    Index at = 0;
    std::size_t axis = 0;
    for (Index i : index) at = at * shape.at(axis++) + i;
    return static_cast<std::size_t>(at);
  }
};

/// The largest finite magnitude; 0 if there is none.
template <class T>
double max_abs(const Array<T>& x) {
  double most = 0;
  for (T value : x.data) {
    if (std::isfinite(value)) most = std::max(most, static_cast<double>(std::abs(value)));
  }
  return most;
}

/// The elements of a view in order, whatever its strides.
template <attn::TensorLike X>
auto to_array(const X& x) {
  const auto view = attn::const_view(x);
  Array<attn::scalar_t<X>> result;
  result.shape.assign(view.shape().begin(), view.shape().end());
  const attn::index_t size = view.size();
  attn::Shape<attn::rank_v<X>> index{};
  for (attn::index_t n = 0; n < size; ++n) {
    result.data.push_back(*view.at_index(index));
    for (std::size_t a = index.size(); a-- > 0;) {
      if (++index[a] < view.shape()[a]) break;
      index[a] = 0;
    }
  }
  return result;
}

/// True if every element is `value`: for outputs that nothing may write.
template <attn::TensorLike X>
bool all_are(const X& x, attn::scalar_t<X> value) {
  const auto all = to_array(x);
  return std::all_of(all.data.begin(), all.data.end(), [&](auto e) { return e == value; });
}

/// "(2, 3)"
inline std::string shape_text(const std::vector<Index>& shape) {
  std::string text = "(";
  for (std::size_t a = 0; a < shape.size(); ++a) {
    text += (a > 0 ? ", " : "") + std::to_string(shape[a]);
  }
  return text + ")";
}

}  // namespace attn_test
