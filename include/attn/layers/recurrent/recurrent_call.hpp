// Calls of recurrent layers: their states in caches, and the attention options that they refuse.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "attn/layers/attention/multi_head_attention_checks.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Throws ValueError for options of a stack's attention that change which tokens a token sees, or
/// that ask for outputs: a recurrent layer sees all tokens before its own.
template <class A, class... Functors>
void check_recurrent_options(const AttentionOptions<A>& options, const Functors&...) {
  const auto check = [](bool good, std::string_view argument, std::string_view expected,
                        std::string_view found) {
    if (!good) {
      throw ValueError(message("EncoderLayer", argument,
                               std::string(expected).append(" with recurrent layers"), found));
    }
  };
  check(sizeof...(Functors) == 0, "functors", "be none", std::to_string(sizeof...(Functors)));
  refuse_extents("EncoderLayer", "options with recurrent layers", options);
  const Mask& mask = options.mask;
  constexpr std::string_view kCausal = "be causal() alone";
  check(mask.causal, "mask", kCausal, "one that is not causal");
  check(mask.left == Mask::kUnbounded && mask.right == Mask::kUnbounded, "mask", kCausal,
        "a sliding window");
  check(mask.chunk == 0, "mask", kCausal, "chunks");
  check(options.offset.kind == QueryOffset::Kind::bottom_right, "offset", "be bottom_right",
        options.offset.kind == QueryOffset::Kind::top_left ? "top_left"
                                                           : std::to_string(options.offset.value));
  check(options.first_key == 0, "first_key", "be 0", std::to_string(options.first_key));
}

/// Throws ShapeError or ValueError unless x (batch, seq, dim) and a call fit a recurrent layer with
/// `state_size` numbers per row.
template <class T>
void check_recurrent_call(std::string_view function, index_t dim, index_t state_size,
                          const Shape<3>& x, const Shape<3>& out,
                          const MultiHeadAttentionCall<T>& call) {
  const index_t batch = x[0];
  check_shape(function, "x", "(batch, seq, d_model)", Shape<3>{batch, x[1], dim}, x);
  check_shape(function, "out", x, out);
  if (call.residual) check_shape(function, "residual", x, call.residual.shape());
  const auto check = [function](bool good, std::string_view argument, std::string_view expected,
                                std::string_view found) {
    if (!good) throw ValueError(message(function, argument, expected, found));
  };
  check(call.append, "append", "be true", "false");
  const auto check_cache = [&](const KvCache<T>& cache, index_t rows) {
    check_shape(function, "cache", "(batch, state_size)", Shape<2>{rows, state_size},
                Shape<2>{cache.options().batch, cache.options().state_size});
  };
  if (call.cache != nullptr) check_cache(*call.cache, batch);
  if (call.parents) {
    check(call.cache != nullptr, "parents", "be none without a cache", "some");
    check_shape(function, "parents", "(seq)", Shape<1>{x[1]}, call.parents.shape());
    static_cast<void>(tree_depths(function, call.parents));
  }
  if (call.row_caches.empty()) return;
  check(call.cache == nullptr, "row_caches", "be none with a cache", "some");
  check(std::ssize(call.row_caches) == batch, "row_caches",
        "be one per batch row, " + std::to_string(batch), std::to_string(call.row_caches.size()));
  for (auto cache = call.row_caches.begin(); cache != call.row_caches.end(); ++cache) {
    check(*cache != nullptr && std::find(call.row_caches.begin(), cache, *cache) == cache,
          "row_caches", "be a cache of its own for each batch row", "a repeated or null one");
    check_cache(**cache, 1);
  }
}

/// Throws ShapeError unless the arguments of backward have the shape of x.
template <class T>
void check_recurrent_backward(std::string_view function, const Shape<3>& x,
                              const TensorView3<const T>& d_out, const TensorView3<T>& d_x,
                              const TensorView3<const T>& residual) {
  check_shape(function, "d_out", x, d_out.shape());
  check_shape(function, "d_x", x, d_x.shape());
  if (residual) check_shape(function, "residual", x, residual.shape());
}

/// The states of the rows of one call, or of one token of a tree.
template <class T>
class RowStates {
 public:
  /// Appends `seq` positions to the caches.
  RowStates(const MultiHeadAttentionCall<T>& call, index_t seq) : call_(call) {
    if (call.cache != nullptr) call.cache->advance(seq, static_cast<bool>(call.parents));
    for (KvCache<T>* cache : call.row_caches) cache->advance(seq);
  }

  bool has_row_caches() const { return !call_.row_caches.empty(); }

  /// Calls f(begin, end, states) for all `seq` tokens of the call together or, in a tree, for each
  /// alone: it then starts from the state after its parent, with the bits of a call of its own.
  template <class F>
  void for_runs(index_t seq, const F& f) const {
    if (!call_.parents) return f(index_t{0}, seq, *this);
    RowStates one = *this;
    for (one.token_ = 0; one.token_ < seq; ++one.token_) f(one.token_, one.token_ + 1, one);
  }

  /// Row b's state (state_size) before the tokens and, to be written, after them; empty without a
  /// cache. Without b: those (batch, state_size) of all rows, empty without a cache that they
  /// share.
  TensorView1<const Accumulator<T>> before(index_t b) const {
    if (call_.cache != nullptr) return before().select(0, b);
    if (call_.row_caches.empty()) return {};
    return call_.row_caches[static_cast<std::size_t>(b)]->state_before().select(0, 0);
  }
  TensorView1<Accumulator<T>> after(index_t b) const {
    if (call_.cache != nullptr) return after().select(0, b);
    if (call_.row_caches.empty()) return {};
    return call_.row_caches[static_cast<std::size_t>(b)]->state().select(0, 0);
  }
  TensorView2<const Accumulator<T>> before() const {
    if (call_.cache == nullptr) return {};
    const index_t parent = token_ < 0 ? -1 : call_.parents(token_);
    return parent < 0 ? call_.cache->state_before() : call_.cache->state_after(parent);
  }
  TensorView2<Accumulator<T>> after() const {
    if (call_.cache == nullptr) return {};
    return token_ < 0 ? call_.cache->state() : call_.cache->state_after(token_);
  }

 private:
  const MultiHeadAttentionCall<T>& call_;
  index_t token_ = -1;  ///< of a tree; -1: all tokens
};

}  // namespace detail

ATTN_NAMESPACE_END
