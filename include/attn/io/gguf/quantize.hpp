// quantize_gguf: float to GGUF blocks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <vector>

#include "attn/io/gguf/blocks.hpp"
#include "attn/io/stored_elements.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// x y rounded to float. The product of two floats is exact in double; this prevents a fused
/// multiply-add, which could round to another value.
inline float rounded_product(float x, float y) {
  return static_cast<float>(static_cast<double>(x) * static_cast<double>(y));
}

/// 1 / d, or 0 if that is not finite: then all values are 0, as is the float16 nearest to d.
inline float inverse_scale(float d) {
  const float inverse = 1 / d;
  return std::isfinite(inverse) ? inverse : 0;
}

/// Writes the quantised values, of 4 or 5 bits, of a block.
inline void put_gguf_codes(const std::array<int, 32>& codes, std::byte* high, std::byte* to) {
  for (std::size_t i = 0; i < 16; ++i) {
    to[i] = static_cast<std::byte>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
  }
  for (std::size_t i = 0; high != nullptr && i < 32; ++i) {
    if (i % 8 == 0) high[i / 8] = std::byte{0};
    high[i / 8] |= static_cast<std::byte>((codes[i] >> 4) << (i % 8));
  }
}

/// x truncated to an integer in 0 .. most; 0 for NaN, which occurs in a block with an infinite
/// scale.
inline int gguf_code(float x, int most) {
  return x > 0 ? static_cast<int>((std::min)(x, static_cast<float>(most))) : 0;
}

template <GgufType kType>
void quantize_gguf_block(const float* from, std::byte* to) {
  if constexpr (kType == GgufType::F32) {
    std::memcpy(to, from, sizeof(float));
  } else if constexpr (kType == GgufType::F16) {
    put_gguf_float<float16>(*from, to);
  } else if constexpr (kType == GgufType::BF16) {
    put_gguf_float<bfloat16>(*from, to);
  } else if constexpr (kType == GgufType::Q8_0) {
    float most = 0;
    for (std::size_t i = 0; i < 32; ++i) most = (std::max)(most, std::abs(from[i]));
    const float d = most / 127, inverse = inverse_scale(d);
    put_gguf_float<float16>(d, to);
    for (std::size_t i = 0; i < 32; ++i) {
      const float code = std::round(rounded_product(from[i], inverse));
      to[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(code));
    }
  } else if constexpr (kType == GgufType::Q4_0 || kType == GgufType::Q5_0) {
    constexpr bool kFive = kType == GgufType::Q5_0;
    constexpr float kMiddle = kFive ? 16 : 8;
    // The first element of the greatest magnitude becomes 0, which represents it exactly,
    // whatever its sign.
    const float most = *std::max_element(
        from, from + 32, [](float a, float b) { return std::abs(a) < std::abs(b); });
    const float d = most / -kMiddle, inverse = inverse_scale(d);
    std::array<int, 32> codes;
    for (std::size_t i = 0; i < 32; ++i) {
      codes[i] = gguf_code(rounded_product(from[i], inverse) + (kMiddle + 0.5f), kFive ? 31 : 15);
    }
    put_gguf_float<float16>(d, to);
    put_gguf_codes(codes, kFive ? to + 2 : nullptr, to + (kFive ? 6 : 2));
  } else {
    static_assert(kType == GgufType::Q4_1 || kType == GgufType::Q5_1);
    constexpr bool kFive = kType == GgufType::Q5_1;
    constexpr int kMax = kFive ? 31 : 15;
    const auto [least, most] = std::minmax_element(from, from + 32);
    const float d = (*most - *least) / kMax, inverse = inverse_scale(d);
    std::array<int, 32> codes;
    for (std::size_t i = 0; i < 32; ++i) {
      codes[i] = gguf_code(rounded_product(from[i] - *least, inverse) + 0.5f, kMax);
    }
    put_gguf_float<float16>(d, to);
    put_gguf_float<float16>(*least, to + 2);
    put_gguf_codes(codes, kFive ? to + 4 : nullptr, to + (kFive ? 8 : 4));
  }
}

/// Whether the scale of a block, and its offset if it has one, are finite.
template <GgufType kType>
bool has_finite_scale(const std::byte* block) {
  constexpr bool kHasOffset = kType == GgufType::Q4_1 || kType == GgufType::Q5_1;
  return std::isfinite(gguf_float<float16>(block)) &&
         (!kHasOffset || std::isfinite(gguf_float<float16>(block + sizeof(float16))));
}

}  // namespace detail

/// Whether quantize_gguf() supports this type.
constexpr bool can_quantize(GgufType type) {
  constexpr GgufType kTypes[] = {GgufType::F32,  GgufType::F16,  GgufType::BF16, GgufType::Q8_0,
                                 GgufType::Q4_0, GgufType::Q4_1, GgufType::Q5_0, GgufType::Q5_1};
  return std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes);
}

/// Quantises `values`, which must be finite for quantised types, into blocks. Throws ValueError for
/// an unsupported type, for values that are not finite, for a block whose scale or offset overflows
/// float16 and for a finite value that F16 or BF16 would round to infinity; ShapeError unless there
/// are whole blocks.
inline std::vector<std::byte> quantize_gguf(GgufType type, std::span<const float> values) {
  if (!can_quantize(type)) {
    throw ValueError(message("quantize_gguf", "type",
                             "be F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0 or Q5_1", name(type)));
  }
  const std::size_t elements = block_elements(type), bytes = block_bytes(type);
  if (values.size() % elements != 0) {
    throw ShapeError(message("quantize_gguf", "values",
                             detail::concat("fill blocks of ", elements, " (", name(type), ")"),
                             detail::concat(values.size(), " of them")));
  }
  if (elements > 1) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i])) continue;
      throw ValueError(
          message("quantize_gguf", "values", "be finite",
                  detail::concat(to_string(static_cast<double>(values[i])), " at element ", i)));
    }
  }
  if (type == GgufType::F16) detail::check_overflow<float16>("quantize_gguf", "values", values);
  if (type == GgufType::BF16) detail::check_overflow<bfloat16>("quantize_gguf", "values", values);
  std::vector<std::byte> result(values.size() / elements * bytes);
  detail::with_gguf_type(type, [&](auto constant) {
    if constexpr (can_quantize(constant.value)) {
      for (std::size_t n = 0; n < values.size() / elements; ++n) {
        std::byte* block = result.data() + n * bytes;
        detail::quantize_gguf_block<constant.value>(values.data() + n * elements, block);
        if constexpr (block_elements(constant.value) > 1) {
          if (detail::has_finite_scale<constant.value>(block)) continue;
          throw ValueError(message(
              "quantize_gguf", "values", "have scales and offsets of at most 65504 (float16)",
              detail::concat("a larger one in the block that begins with element ", n * elements)));
        }
      }
    }
  });
  return result;
}

ATTN_NAMESPACE_END
