// find_padding: which tokens of a batch are padding, for key_padding_mask().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// out = ids == pad_id, (batch, seq): true = padding. key_padding_mask(out) is the tutorials' pad mask, causal() their
/// subsequent mask, and `key_padding_mask(out) & causal()` both. Throws ShapeError.
template <TensorLike Ids, TensorLike Out>
  requires std::integral<scalar_t<Ids>>
void find_padding(const Ids& ids, index_t pad_id, Out&& out) {
  static_assert(rank_v<Ids> == 2, "ids are (batch, seq)");
  const auto from = const_view(ids);
  const TensorView2<bool> to = view_of(out);
  check_shape("find_padding", "out", from.shape(), to.shape());
  for (index_t b = 0; b < from.extent(0); ++b) {
    for (index_t i = 0; i < from.extent(1); ++i) to(b, i) = std::cmp_equal(from(b, i), pad_id);
  }
}

template <TensorLike Ids>
  requires std::integral<scalar_t<Ids>>
Tensor2<bool> find_padding(const Ids& ids, index_t pad_id) {
  auto out = Tensor2<bool>::uninitialized(const_view(ids).shape());
  find_padding(ids, pad_id, out);
  return out;
}

ATTN_NAMESPACE_END
