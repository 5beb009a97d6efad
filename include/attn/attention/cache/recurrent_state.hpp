// RecurrentState: the numbers that a recurrent layer keeps between calls, after its last steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Numbers (batch, size) after the last step and before it, so that the last step can be taken
/// back. A step writes to a third state: if the step fails, both are still there. If the tokens of
/// the last step are a tree, the state after each of them is kept, too.
template <class A>
class RecurrentState {
 public:
  RecurrentState() = default;
  RecurrentState(index_t batch, index_t size)
      : now_(Tensor2<A>::zero_pages({batch, size})), before_(now_), older_(now_) {}

  /// A state of `batch` rows that all equal the one row of this one.
  RecurrentState fork(index_t batch) const {
    if (now_.size() == 0) return {};
    RecurrentState result(batch, now_.extent(1));
    for (index_t b = 0; b < batch; ++b) {
      copy(now().select(0, 0), result.now_.view().select(0, b));
      copy(before().select(0, 0), result.before_.view().select(0, b));
    }
    result.length_before_ = length_before_;
    return result;
  }

  TensorView2<A> now() { return now_.view(); }
  TensorView2<const A> now() const { return now_.view(); }
  TensorView2<const A> before() const { return before_.view(); }
  /// The state after token i of a tree, the last step.
  TensorView2<A> after_token(index_t i) {
    return i + 1 == tree_ ? now() : inner_[static_cast<std::size_t>(i)].view();
  }
  std::size_t bytes() const {
    return (3 + inner_.size()) * static_cast<std::size_t>(now_.size()) * sizeof(A);
  }

  /// Allocates memory for a tree of n tokens.
  void reserve_tree(index_t n) {
    while (std::ssize(inner_) < n - 1) inner_.push_back(Tensor2<A>::zero_pages(now_.shape()));
  }
  /// Begins a step after `length` positions: now() becomes before(), and now() is to be written.
  /// With `tree`, the step is a tree of so many tokens, reserved, and each after_token() is to be
  /// written; those of an earlier tree are lost.
  void advance(index_t length, index_t tree = 0) {
    std::swap(before_, older_);
    std::swap(now_, before_);
    length_older_ = std::exchange(length_before_, length);
    tree_older_ = tree > 0 ? 0 : tree_;
    tree_ = tree;
  }
  /// Undoes the last advance(): all states are those before it.
  void undo() {
    std::swap(now_, before_);
    std::swap(before_, older_);
    length_before_ = length_older_;
    tree_ = tree_older_;
  }

  /// Whether the state after `to` of `length` positions is kept: after all of them, before the last
  /// step, and of none. True without numbers.
  bool can_truncate_to(index_t length, index_t to) const {
    return now_.size() == 0 || to == length || to == length_before_ || to == 0;
  }
  /// Throws ValueError for a state that is not kept.
  void truncate_to(std::string_view function, index_t length, index_t to) {
    if (!can_truncate_to(length, to)) {
      throw ValueError(message(function, "the remaining positions",
                               "be those of a state that a recurrent layer keeps: all, those "
                               "before the last step, or 0",
                               std::to_string(to)));
    }
    if (to == length) return;
    if (to == length_before_) std::swap(now_, before_);
    length_before_ = tree_ = 0;
    if (to == 0) clear();
  }
  void clear() {
    now_.fill(A{0});
    length_before_ = tree_ = 0;
  }

  /// Whether the last step is a tree of n tokens. True without numbers.
  bool has_tree(index_t n) const { return now_.size() == 0 || n == tree_; }
  /// Throws ValueError unless has_tree(n).
  void check_tree(std::string_view function, index_t n) const {
    if (has_tree(n)) return;
    throw ValueError(message(function, "n, with a state,",
                             "be the number of tokens in the last step, a tree",
                             std::to_string(n)));
  }
  /// now() becomes the state after the last token of a path in the last step's tree, if there is a
  /// tree, or with an empty path the state before it.
  void keep_path(TensorView1<const index_t> path) {
    if (tree_ == 0) return;
    const index_t last = path.size() == 0 ? -1 : path(path.size() - 1);
    if (last < 0) {
      std::swap(now_, before_);
      length_before_ = 0;
    } else if (last + 1 < tree_) {
      std::swap(now_, inner_[static_cast<std::size_t>(last)]);
    }
    tree_ = 0;
  }

  /// See KvCache::reorder(); rows are checked.
  void reorder(TensorView1<const index_t> rows) {
    if (now_.size() == 0) return;
    for (index_t b = 0; b < rows.extent(0); ++b) {
      copy(std::as_const(now_).view().select(0, rows(b)), before_.view().select(0, b));
    }
    std::swap(now_, before_);
    length_before_ = tree_ = 0;
  }

 private:
  Tensor2<A> now_, before_, older_;  ///< older_: before the step that led to before_
  std::vector<Tensor2<A>> inner_;    ///< after each token of a tree but the last
  index_t length_before_ = 0;        ///< of before_; 0 if that is no state
  index_t length_older_ = 0;         ///< length_before_ before the last step
  index_t tree_ = 0;                 ///< tokens of the last step if that is a tree, otherwise 0
  index_t tree_older_ = 0;           ///< tree_ before the last step
};

}  // namespace detail

ATTN_NAMESPACE_END
