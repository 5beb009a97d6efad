// Strides of reshaped, permuted and broadcast views, for any rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

using Extents = std::span<const index_t>;

[[noreturn]] ATTN_COLD inline void throw_axes(std::string_view function, std::string_view expected,
                                              Extents shape, Extents strides) {
  throw ShapeError(message(function, "the axes", expected,
                           "strides " + to_string(strides) + " of " + to_string(shape)));
}

/// Replaces the one extent of -1 in `target` so that the sizes agree. Throws ShapeError if that is
/// impossible.
inline void complete_shape(std::string_view function, Extents shape, std::span<index_t> target) {
  const index_t size = size_of(shape);
  index_t* open = nullptr;
  const std::string asked = to_string(Extents(target));
  index_t known = 1;
  bool is_good = true;
  for (index_t& extent : target) {
    if (extent == -1 && open == nullptr) {
      open = &extent;
    } else {
      is_good = is_good && extent >= 0 && !__builtin_mul_overflow(known, extent, &known);
    }
  }
  if (is_good && open != nullptr && known > 0 && size % known == 0) {
    *open = size / known;
    known = size;
  } else if (open != nullptr) {
    is_good = false;
  }
  if (!is_good || known != size) {
    throw ShapeError(message(function, "the shape",
                             "have the " + std::to_string(size) + " elements of " +
                                 to_string(shape) + ", -1 at most once",
                             asked));
  }
}

/// The strides with which `target`, of the same size, views the elements in the same order. Throws
/// ShapeError if there are none.
inline void reshape_strides(Extents shape, Extents strides, Extents target,
                            std::span<index_t> result) {
  if (size_of(shape) == 0) {
    std::fill(result.begin(), result.end(), 0);
    return;
  }
  // Axes that lie one stride apart are joined into runs, which are then split into the new axes,
  // from the last on.
  std::size_t from = shape.size();
  index_t rest = 1, step = 1;
  for (std::size_t to = target.size(); to-- > 0;) {
    if (target[to] != 1 && rest == 1) {
      while (shape[from - 1] == 1) --from;
      rest = shape[--from];
      step = strides[from];
      while (from > 0 && (shape[from - 1] == 1 || strides[from - 1] == step * rest)) {
        rest *= shape[--from];
      }
    }
    if (rest % target[to] != 0) {
      throw_axes("TensorView::reshape",
                 "allow a view of shape " + to_string(target) +
                     " without a copy; reshape a Tensor of the view",
                 shape, strides);
    }
    result[to] = step;
    step *= target[to];
    rest /= target[to];
  }
}

/// Throws ShapeError unless each of 0 .. axes.size() - 1 occurs once.
inline void check_permutation(Extents axes) {
  bool is_good = true;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    is_good = is_good && axes[a] >= 0 && static_cast<std::size_t>(axes[a]) < axes.size() &&
              std::find(axes.begin(), axes.begin() + static_cast<std::ptrdiff_t>(a), axes[a]) ==
                  axes.begin() + static_cast<std::ptrdiff_t>(a);
  }
  if (is_good) return;
  throw ShapeError(message("TensorView::permute", "the axes",
                           "be 0 to " + std::to_string(axes.size() - 1) + ", each once",
                           to_string(axes)));
}

/// The strides that broadcast a view to `target`, aligned at the last axis. Throws ShapeError
/// unless each extent equals that of `target` or is 1.
inline void expand_strides(std::string_view function, std::string_view argument, Extents shape,
                           Extents strides, Extents target, std::span<index_t> result) {
  bool is_good = shape.size() <= target.size();
  const std::size_t added = is_good ? target.size() - shape.size() : 0;
  std::fill(result.begin(), result.end(), 0);
  for (std::size_t a = 0; is_good && a < shape.size(); ++a) {
    is_good = shape[a] == target[added + a] || shape[a] == 1;
    if (shape[a] != 1) result[added + a] = strides[a];
  }
  if (is_good && size_of(target) >= 0) return;
  throw ShapeError(
      message(function, argument, "broadcast to " + to_string(target), to_string(shape)));
}

[[noreturn]] ATTN_COLD inline void throw_position(Extents shape, Extents found) {
  throw ShapeError(
      message("TensorView", "the index", "lie within " + to_string(shape), to_string(found)));
}

}  // namespace detail

ATTN_NAMESPACE_END
