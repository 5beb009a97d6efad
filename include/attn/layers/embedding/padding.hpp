// find_padding: marks the padding tokens of a batch, for key_padding_mask().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// out = ids == pad_id, (batch, seq): true is padding. key_padding_mask(out) is the pad mask of the
/// tutorials, causal() their subsequent mask, and `key_padding_mask(out) & causal()` both. Throws
/// ShapeError.
template <TensorLike Ids, TensorLike Out>
void find_padding(const Ids& ids, index_t pad_id, Out&& out) {
  using Id = detail::id_t<Ids>;
  ATTN_ASSERT_IDS(Ids, "find_padding: ids");
  ATTN_ASSERT_OUTPUT(Out, bool, 2, "find_padding: out", "(batch, seq)", "a mask, bool");
  const auto from = detail::view_as<const Id, 2>(ids);
  const auto to = detail::view_as<bool, 2>(out);
  check_shape("find_padding", "out", from.shape(), to.shape());
  for (index_t b = 0; b < from.extent(0); ++b) {
    for (index_t i = 0; i < from.extent(1); ++i) to(b, i) = std::cmp_equal(from(b, i), pad_id);
  }
}

template <TensorLike Ids>
Tensor2<bool> find_padding(const Ids& ids, index_t pad_id) {
  ATTN_ASSERT_IDS(Ids, "find_padding: ids");
  const auto from = detail::view_as<const detail::id_t<Ids>, 2>(ids);
  auto out = Tensor2<bool>::uninitialized(from.shape());
  find_padding(from, pad_id, out);
  return out;
}

ATTN_NAMESPACE_END
