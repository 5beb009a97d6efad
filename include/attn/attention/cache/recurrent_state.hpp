// RecurrentState: the numbers that a recurrent layer keeps between calls, after its last steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Numbers (batch, size) after the last step and before it, so that the last step can be taken
/// back. A step writes to a third state: if the step fails, both are still there.
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
  std::size_t bytes() const { return 3 * static_cast<std::size_t>(now_.size()) * sizeof(A); }

  /// Begins a step after `length` positions: now() becomes before(), and now() is to be written.
  void advance(index_t length) {
    std::swap(before_, older_);
    std::swap(now_, before_);
    length_older_ = std::exchange(length_before_, length);
  }
  /// Undoes the last advance(): all states are those before it.
  void undo() {
    std::swap(now_, before_);
    std::swap(before_, older_);
    length_before_ = length_older_;
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
    length_before_ = 0;
    if (to == 0) clear();
  }
  void clear() {
    now_.fill(A{0});
    length_before_ = 0;
  }

  /// See KvCache::reorder(); rows are checked.
  void reorder(TensorView1<const index_t> rows) {
    if (now_.size() == 0) return;
    for (index_t b = 0; b < rows.extent(0); ++b) {
      copy(std::as_const(now_).view().select(0, rows(b)), before_.view().select(0, b));
    }
    std::swap(now_, before_);
    length_before_ = 0;
  }

 private:
  Tensor2<A> now_, before_, older_;  ///< older_: before the step that led to before_
  index_t length_before_ = 0;        ///< of before_; 0 if that is no state
  index_t length_older_ = 0;         ///< length_before_ before the last step
};

}  // namespace detail

ATTN_NAMESPACE_END
