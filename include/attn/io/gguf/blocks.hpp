// Dequantisation of GGUF blocks, bit for bit as ggml.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>

#include "attn/core/element.hpp"
#include "attn/io/gguf/types.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

constexpr int gguf_u8(std::byte b) { return std::to_integer<int>(b); }

/// A float16 or bfloat16 at `from`, aligned or not.
template <Float16Element T>
float gguf_float(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <Float16Element T>
void put_gguf_float(float value, std::byte* to) {
  const T narrow(value);
  std::memcpy(to, &narrow, sizeof narrow);
}

/// 32 quantised values of 4 bits, the low halves of 16 bytes before the high ones; with `high`, 32
/// more bits, a fifth bit for each value.
inline std::array<int, 32> gguf_nibbles(const std::byte* from, const std::byte* high) {
  std::array<int, 32> codes;
  for (std::size_t i = 0; i < 16; ++i) {
    codes[i] = gguf_u8(from[i]) & 15;
    codes[i + 16] = gguf_u8(from[i]) >> 4;
  }
  if (high != nullptr) {
    for (std::size_t i = 0; i < 32; ++i) codes[i] |= (gguf_u8(high[i / 8]) >> (i % 8) & 1) << 4;
  }
  return codes;
}

/// Scale and offset, 6 bits each, of part `j` of a block of Q4_K or Q5_K. Parts 0 .. 3 use the low
/// bits of the first 8 of 12 bytes; parts 4 .. 7 use 4 bits each of the last 4 bytes, and the high
/// bits of the first 8.
struct GgufScale {
  int scale, offset;
};
inline GgufScale gguf_scale(const std::byte* from, std::size_t j) {
  const auto at = [&](std::size_t i) { return gguf_u8(from[i]); };
  if (j < 4) return {at(j) & 63, at(j + 4) & 63};
  return {(at(j + 4) & 15) | (at(j - 4) >> 6) << 4, at(j + 4) >> 4 | (at(j) >> 6) << 4};
}

/// The numbers of 4 bits of MXFP4, doubled; with the scale 2^(byte - 128). Source: OCP Microscaling
/// Formats (MX) Specification 1.0 (2023), section 5.3.
inline constexpr std::array<std::int8_t, 16> kMxfp4Values{0, 1,  2,  3,  4,  6,  8,  12,
                                                          0, -1, -2, -3, -4, -6, -8, -12};
inline float mxfp4_scale(std::byte exponent) { return std::ldexp(1.0f, gguf_u8(exponent) - 128); }

/// The numbers of IQ4_NL and IQ4_XS.
inline constexpr std::array<std::int8_t, 16> kIq4Values{-127, -104, -83, -65, -49, -35, -22, -10,
                                                        1,    13,   25,  38,  53,  69,  89,  113};

/// The signed scale of part j of a block of IQ4_XS, and of one of Q3_K, from its 12 bytes.
inline int iq4_xs_scale(const std::byte* block, std::size_t j) {
  const int low = gguf_u8(block[4 + j / 2]) >> (4 * (j % 2)) & 15;
  const int high = gguf_u8(block[2 + j / 4]) >> (2 * (j % 4)) & 3;
  return (low | high << 4) - 32;
}
inline int q3_k_scale(const std::byte* from, std::size_t j) {
  const int low = gguf_u8(from[j % 8]) >> (j < 8 ? 0 : 4) & 15;
  const int high = gguf_u8(from[8 + j % 4]) >> (2 * (j / 4)) & 3;
  return (low | high << 4) - 32;
}

/// Quantised value i, of 2 bits, of a block of Q2_K or Q3_K from its 64 bytes.
inline int two_bit_code(const std::byte* from, std::size_t i) {
  return gguf_u8(from[32 * (i / 128) + i % 32]) >> (2 * (i / 32 % 4)) & 3;
}
/// 4 + the quantised value i of a block of Q3_K.
inline int q3_k_code(const std::byte* block, std::size_t i) {
  return two_bit_code(block + 32, i) | (gguf_u8(block[i % 32]) >> (i / 32) & 1) << 2;
}

// Products below are exact in float: a float16 has 11 bits, scales and quantised
// values at most 12 more. So only the addition of the offset rounds, and neither the order of
// products nor a fused multiply-add changes a bit.

template <GgufType kType>
void gguf_block(const std::byte* from, float* out) {
  if constexpr (kType == GgufType::F32) {
    std::memcpy(out, from, sizeof(float));
  } else if constexpr (kType == GgufType::F16) {
    *out = gguf_float<float16>(from);
  } else if constexpr (kType == GgufType::BF16) {
    *out = gguf_float<bfloat16>(from);
  } else if constexpr (kType == GgufType::Q8_0) {
    const float d = gguf_float<float16>(from);
    for (std::size_t i = 0; i < 32; ++i) {
      out[i] = d * static_cast<float>(static_cast<std::int8_t>(from[2 + i]));
    }
  } else if constexpr (kType == GgufType::Q4_0 || kType == GgufType::Q5_0) {
    constexpr bool kFive = kType == GgufType::Q5_0;
    const float d = gguf_float<float16>(from);
    const auto codes = gguf_nibbles(from + (kFive ? 6 : 2), kFive ? from + 2 : nullptr);
    for (std::size_t i = 0; i < 32; ++i)
      out[i] = d * static_cast<float>(codes[i] - (kFive ? 16 : 8));
  } else if constexpr (kType == GgufType::Q4_1 || kType == GgufType::Q5_1) {
    constexpr bool kFive = kType == GgufType::Q5_1;
    const float d = gguf_float<float16>(from), m = gguf_float<float16>(from + 2);
    const auto codes = gguf_nibbles(from + (kFive ? 8 : 4), kFive ? from + 4 : nullptr);
    for (std::size_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(codes[i]) + m;
  } else if constexpr (kType == GgufType::Q4_K || kType == GgufType::Q5_K) {
    constexpr bool kFive = kType == GgufType::Q5_K;
    const float d = gguf_float<float16>(from), d_offset = gguf_float<float16>(from + 2);
    const std::byte *high = from + 16, *low = from + (kFive ? 48 : 16);
    for (std::size_t j = 0; j < 8; ++j) {
      const auto [scale, offset] = gguf_scale(from + 4, j);
      const float step = d * static_cast<float>(scale), m = d_offset * static_cast<float>(offset);
      for (std::size_t i = 0; i < 32; ++i) {
        int code = gguf_u8(low[32 * (j / 2) + i]) >> (j % 2 == 0 ? 0 : 4) & 15;
        if constexpr (kFive) code |= (gguf_u8(high[i]) >> j & 1) << 4;
        out[32 * j + i] = step * static_cast<float>(code) - m;
      }
    }
  } else if constexpr (kType == GgufType::MXFP4 || kType == GgufType::IQ4_NL) {
    constexpr bool kFloats = kType == GgufType::MXFP4;
    const float d = kFloats ? mxfp4_scale(*from) : gguf_float<float16>(from);
    const auto codes = gguf_nibbles(from + (kFloats ? 1 : 2), nullptr);
    for (std::size_t i = 0; i < 32; ++i) {
      const auto code = static_cast<std::size_t>(codes[i]);
      out[i] = d * static_cast<float>(kFloats ? kMxfp4Values[code] : kIq4Values[code]);
    }
  } else if constexpr (kType == GgufType::IQ4_XS) {
    const float d = gguf_float<float16>(from);
    for (std::size_t j = 0; j < 8; ++j) {
      const float step = d * static_cast<float>(iq4_xs_scale(from, j));
      const auto codes = gguf_nibbles(from + 8 + 16 * j, nullptr);
      for (std::size_t i = 0; i < 32; ++i) {
        out[32 * j + i] = step * static_cast<float>(kIq4Values[static_cast<std::size_t>(codes[i])]);
      }
    }
  } else if constexpr (kType == GgufType::Q2_K) {
    const float d = gguf_float<float16>(from + 80), d_offset = gguf_float<float16>(from + 82);
    for (std::size_t i = 0; i < 256; ++i) {
      const int both = gguf_u8(from[i / 16]);
      out[i] = d * static_cast<float>(both & 15) * static_cast<float>(two_bit_code(from + 16, i)) -
               d_offset * static_cast<float>(both >> 4);
    }
  } else if constexpr (kType == GgufType::Q3_K) {
    const float d = gguf_float<float16>(from + 108);
    for (std::size_t i = 0; i < 256; ++i) {
      out[i] = d * static_cast<float>(q3_k_scale(from + 96, i / 16)) *
               static_cast<float>(q3_k_code(from, i) - 4);
    }
  } else {
    static_assert(kType == GgufType::Q6_K);
    const std::byte *high = from + 128, *scales = from + 192;
    const float d = gguf_float<float16>(from + 208);
    for (std::size_t j = 0; j < 8; ++j) {  // runs of 32; four runs share 64 bytes
      const std::size_t half = j / 4, quarter = j % 4;
      for (std::size_t i = 0; i < 32; ++i) {
        const int low =
            gguf_u8(from[64 * half + 32 * (quarter % 2) + i]) >> (quarter < 2 ? 0 : 4) & 15;
        const int top = gguf_u8(high[32 * half + i]) >> (2 * quarter) & 3;
        const auto scale = static_cast<std::int8_t>(scales[2 * j + i / 16]);
        out[32 * j + i] = d * static_cast<float>(scale) * static_cast<float>((low | top << 4) - 32);
      }
    }
  }
}

/// Calls f(std::integral_constant<GgufType, type>).
template <class F>
auto with_gguf_type(GgufType type, F&& f) {
  switch (type) {
#define ATTN_GGUF_CASE(T) \
  case GgufType::T:       \
    return f(std::integral_constant<GgufType, GgufType::T>{});
    ATTN_GGUF_CASE(F32)
    ATTN_GGUF_CASE(F16)
    ATTN_GGUF_CASE(Q4_0)
    ATTN_GGUF_CASE(Q4_1)
    ATTN_GGUF_CASE(Q5_0)
    ATTN_GGUF_CASE(Q5_1)
    ATTN_GGUF_CASE(Q8_0)
    ATTN_GGUF_CASE(Q2_K)
    ATTN_GGUF_CASE(Q3_K)
    ATTN_GGUF_CASE(Q4_K)
    ATTN_GGUF_CASE(Q5_K)
    ATTN_GGUF_CASE(Q6_K)
    ATTN_GGUF_CASE(IQ4_NL)
    ATTN_GGUF_CASE(IQ4_XS)
    ATTN_GGUF_CASE(BF16)
    ATTN_GGUF_CASE(MXFP4)
#undef ATTN_GGUF_CASE
  }
  __builtin_unreachable();
}

}  // namespace detail

/// Dequantises whole blocks: out(i) for every element that `blocks` hold. Throws ShapeError unless
/// the sizes agree. Sources: ggml's layouts (`ggml-common.h`); the results are those of the Python
/// package gguf, bit for bit.
inline void dequantize_gguf(GgufType type, std::span<const std::byte> blocks,
                            std::span<float> out) {
  const std::size_t elements = block_elements(type), bytes = block_bytes(type);
  if (blocks.size() % bytes != 0 || out.size() != blocks.size() / bytes * elements) {
    throw ShapeError(message(
        "dequantize_gguf", "out",
        detail::concat("have ", elements, " elements for each ", bytes, " bytes of ", name(type)),
        detail::concat(out.size(), " for ", blocks.size(), " bytes")));
  }
  detail::with_gguf_type(type, [&](auto constant) {
    for (std::size_t n = 0; n < blocks.size() / bytes; ++n) {
      detail::gguf_block<constant.value>(blocks.data() + n * bytes, out.data() + n * elements);
    }
  });
}

ATTN_NAMESPACE_END
