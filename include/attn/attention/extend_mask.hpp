// extend_mask: any mask as a dense bias, extended by unmasked keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/call/problem_checks.hpp"

ATTN_NAMESPACE_BEGIN

/// out (batch, num_heads, q_len, kv_len + appended): -inf where `mask` masks out a key, otherwise
/// the sum of its additive parts; 0 for the appended keys. Implements PyTorch's add_bias_kv and
/// add_zero_attn, whose keys are never masked. This is a copy, because no view can express it.
/// Throws what scaled_dot_product_attention throws.
template <class T>
void extend_mask(const Mask& mask, const QueryOffset& offset, index_t appended,
                 TensorView4<T> out) {
  using Dense = Mask::Dense;
  const index_t batch = out.extent(0), heads = out.extent(1), q_len = out.extent(2);
  if (appended < 0 || appended > out.extent(3)) {
    throw ValueError(message("extend_mask", "appended",
                             "lie in 0 .. " + std::to_string(out.extent(3)),
                             std::to_string(appended)));
  }
  const index_t kv_len = out.extent(3) - appended;
  const Shape<4> scores{batch, heads, q_len, kv_len};
  detail::check_mask<T>(mask, scores, [&scores](index_t b) {
    return detail::SequenceLengths{.b = b, .q_len = scores[2], .kv_len = scores[3]};
  });
  detail::check_offset(offset, batch);
  constexpr T kMinusInf = -std::numeric_limits<T>::infinity();
  for (index_t b = 0; b < batch; ++b) {
    for (index_t h = 0; h < heads; ++h) {
      for (index_t i = 0; i < q_len; ++i) {
        const detail::KeyRange seen =
            detail::keys_seen(mask, offset, {.b = b, .q_len = q_len, .kv_len = kv_len}, i);
        for (index_t j = kv_len; j < out.extent(3); ++j) out(b, h, i, j) = T{0};
        for (index_t j = 0; j < kv_len; ++j) {
          T value = 0;
          bool masked = j < seen.begin || j >= seen.end;
          for (int part = 0; part < mask.num_dense; ++part) {
            const Dense& dense = mask.dense[static_cast<std::size_t>(part)];
            const auto& s = dense.strides;
            const index_t at = b * s[0] + h * s[1] + i * s[2] + j * s[3];
            if (dense.kind != Dense::Kind::add) {
              const bool kept =
                  static_cast<const bool*>(dense.data)[at] == (dense.kind == Dense::Kind::keep);
              masked = masked || !kept;
            } else {
              const T bias = dense.element == Dense::Element::f32
                                 ? static_cast<T>(static_cast<const float*>(dense.data)[at])
                                 : static_cast<T>(static_cast<const double*>(dense.data)[at]);
              masked = masked || bias == kMinusInf;
              value += bias;
            }
          }
          // Select, do not add: the bias of a masked key may be NaN.
          out(b, h, i, j) = masked ? kMinusInf : value;
        }
      }
    }
  }
}

ATTN_NAMESPACE_END
