// StoredTensor: a named tensor of a file, the shapes it fits and the errors that name it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "attn/core/view.hpp"
#include "attn/io/quote.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A tensor that a member function of a file's class reads.
struct StoredTensor {
  std::string_view reader;  ///< the class, for errors
  std::string_view file, name;
  std::span<const index_t> shape;  ///< empty for a scalar, which also has shape (1)

  std::string error(std::string_view function, std::string_view expected,
                    std::string_view found) const {
    return message(concat(reader, "::", function), concat(quote(file), ": tensor ", quote(name)),
                   expected, found);
  }

  /// Throws ShapeError unless the tensor has `Rank` axes.
  template <int Rank>
  Shape<Rank> shape_as(std::string_view function) const {
    if (Rank == 1 && shape.empty()) return {1};
    if (shape.size() != Rank) {
      throw ShapeError(
          error(function, concat("have rank ", Rank), concat("shape ", shape_text(shape))));
    }
    Shape<Rank> result{};
    std::copy(shape.begin(), shape.end(), result.begin());
    return result;
  }

  /// Throws ShapeError unless the tensor has the shape `wanted`.
  void check_shape(std::string_view function, std::span<const index_t> wanted) const {
    const index_t one[] = {1};
    const std::span<const index_t> stored = shape.empty() ? one : shape;
    if (std::equal(stored.begin(), stored.end(), wanted.begin(), wanted.end())) return;
    throw ShapeError(error(function, concat("have shape ", shape_text(wanted)), shape_text(shape)));
  }

  /// A view of `bytes`, which lie `offset` bytes into the file. Throws ValueError if they are not
  /// aligned for T.
  template <class T, int Rank>
  TensorView<const T, Rank> view_as(std::span<const std::byte> bytes, std::uint64_t offset) const {
    const Shape<Rank> extents = shape_as<Rank>("view");
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(T) != 0) {
      throw ValueError(error(
          "view",
          concat("lie on a multiple of ", alignof(T), " bytes to be viewed (load() copies it)"),
          concat("an offset of ", offset)));
    }
    return {reinterpret_cast<const T*>(bytes.data()), extents};
  }
};

}  // namespace detail

ATTN_NAMESPACE_END
