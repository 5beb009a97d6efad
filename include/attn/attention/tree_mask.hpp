// tree_mask: tokens of a tree of drafts see the past and their ancestors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "attn/attention/functors.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The depth of each token of a tree; tokens without a parent have depth 0. Throws ValueError
/// unless parents(i) lies in -1 .. i - 1.
inline std::vector<index_t> tree_depths(std::string_view function,
                                        TensorView1<const index_t> parents) {
  std::vector<index_t> depths;
  for (index_t i = 0; i < parents.extent(0); ++i) {
    const index_t parent = parents(i);
    if (parent < -1 || parent >= i) {
      throw ValueError(message(function, "parents(" + std::to_string(i) + ")",
                               "lie in -1 .. " + std::to_string(i - 1), std::to_string(parent)));
    }
    depths.push_back(parent < 0 ? 0 : depths[static_cast<std::size_t>(parent)] + 1);
  }
  return depths;
}

class TreeMask {
 public:
  TreeMask(TensorView1<const index_t> parents, index_t past) : n_(parents.extent(0)), past_(past) {
    static_cast<void>(tree_depths("tree_mask", parents));
    if (past < 0) {
      throw ValueError(message("tree_mask", "past", "be at least 0", std::to_string(past)));
    }
    sees_.resize(static_cast<std::size_t>(n_ * n_));
    for (index_t i = 0; i < n_; ++i) {
      for (index_t at = i; at >= 0; at = parents(at))
        sees_[static_cast<std::size_t>(i * n_ + at)] = 1;
    }
  }

  bool operator()(int, int, int i, int j) const {
    const index_t at = j - past_;
    if (at < 0 || at >= n_ || i >= n_) return at < 0;
    return sees_[static_cast<std::size_t>(i * n_ + at)] != 0;
  }
  Visibility classify(index_t, index_t, IndexRange, IndexRange keys) const {
    return keys.end <= past_ ? Visibility::full : Visibility::partial;
  }

  /// Extents (q_len, kv_len) of scores.
  Shape<2> extents() const { return {n_, past_ + n_}; }

 private:
  index_t n_, past_;
  std::vector<unsigned char> sees_;  ///< (n, n), whether a token sees another
};

/// Throws ShapeError unless there is a query for each token, and keys for those and the past.
inline void check_functor(const MaskMod<TreeMask>& mask, const Shape<4>& scores,
                          index_t first_key) {
  check_shape("tree_mask", "scores", "(q_len, first_key + kv_len)", mask.f.extents(),
              Shape<2>{scores[2], first_key + scores[3]});
}

}  // namespace detail

/// A mask_mod for a tree of tokens: token i follows token parents(i), or the past for -1. Query i
/// sees the first `past` keys, its own key and those of its ancestors. Queries are the tokens, and
/// keys the past followed by the tokens; a call of other lengths throws ShapeError if this is its
/// mask. Within `&`, `|` and BlockMask lengths are not checked: further queries see the past alone,
/// and further keys are masked out. Shape: parents (n), which is copied. Throws ValueError unless
/// parents(i) lies in -1 .. i - 1. Masks by position and ALiBi count tokens by their index;
/// GptSession::step_tree() counts them by depth. Source: Miao et al., "SpecInfer: Accelerating
/// Large Language Model Serving with Tree-based Speculative Inference and Verification" (2024),
/// section 4.
inline detail::MaskMod<detail::TreeMask> tree_mask(TensorView1<const index_t> parents,
                                                   index_t past) {
  return mask_mod(detail::TreeMask(parents, past));
}

ATTN_NAMESPACE_END
