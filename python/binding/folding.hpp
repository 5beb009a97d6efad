// Folding: the leading axes of a call as one batch axis, and loops over what does not fold.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "arrays.hpp"

namespace attn_python {

/// Joins the leading axes of several arrays, which they all have, into one batch axis as far as
/// every array allows it without a copy. What is left of them becomes rounds: calls one after
/// another, each with a batch axis.
class Folding {
 public:
  /// `shape`: the leading axes. `strides`: those of each array, 0 where it broadcasts.
  Folding(const Extents& shape, std::span<const Extents> strides) {
    const std::size_t count = strides.size();
    for (int axis = 0; axis < shape.size(); ++axis) {
      if (shape[axis] == 1) continue;
      Axis next{shape[axis], std::vector<index_t>(count)};
      for (std::size_t n = 0; n < count; ++n) next.strides[n] = strides[n][axis];
      if (!axes_.empty() && joins(axes_.back(), next)) {
        next.extent *= axes_.back().extent;
        axes_.back() = std::move(next);
      } else {
        axes_.push_back(std::move(next));
      }
    }
    if (axes_.empty()) axes_.push_back({1, std::vector<index_t>(count)});
  }

  index_t batch() const { return axes_.back().extent; }
  index_t batch_stride(std::size_t array) const { return axes_.back().strides[array]; }

  index_t rounds() const {
    index_t result = 1;
    for (std::size_t axis = 0; axis + 1 < axes_.size(); ++axis) result *= axes_[axis].extent;
    return result;
  }
  /// Where an array begins in this round, in elements.
  index_t offset(std::size_t array, index_t round) const {
    index_t result = 0;
    for (std::size_t axis = axes_.size() - 1; axis-- > 0;) {
      result += round % axes_[axis].extent * axes_[axis].strides[array];
      round /= axes_[axis].extent;
    }
    return result;
  }

 private:
  struct Axis {
    index_t extent;
    std::vector<index_t> strides;
  };

  static bool joins(const Axis& outer, const Axis& inner) {
    for (std::size_t n = 0; n < inner.strides.size(); ++n) {
      if (outer.strides[n] != inner.strides[n] * inner.extent) return false;
    }
    return true;
  }

  std::vector<Axis> axes_;
};

}  // namespace attn_python
