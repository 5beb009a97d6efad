// GgufType: element types of GGUF tensors, with block sizes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "attn/io/quote.hpp"

ATTN_NAMESPACE_BEGIN

/// The supported types, numbered as in the files. Source: ggml, `docs/gguf.md`, enum ggml_type.
enum class GgufType : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,  ///< 32 values of 4 bits, a scale
  Q4_1 = 3,  ///< 32 values of 4 bits, a scale and an offset
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,   ///< 32 values of 8 bits, a scale
  Q2_K = 10,  ///< 256 values in 16 parts of 16, which have scales and offsets of 4 bits
  Q3_K = 11,  ///< 256 values in 16 parts of 16, which have scales of 6 bits
  Q4_K = 12,  ///< 256 values in 8 parts of 32, which have scales and offsets of 6 bits
  Q5_K = 13,
  Q6_K = 14,    ///< 256 values in 16 parts of 16, which have scales of 8 bits
  IQ4_NL = 20,  ///< 32 indices of 4 bits into a table, a scale
  IQ4_XS = 23,  ///< 256 indices in 8 parts of 32, which have scales of 6 bits
  BF16 = 30,
  MXFP4 = 39,  ///< 32 floats of 4 bits, a power of two as their scale
};

namespace detail {

struct GgufTypeRow {
  std::uint32_t number;
  std::string_view name;
  std::size_t block_elements, block_bytes;  ///< 0, 0: unsupported, known only by name
};

inline constexpr GgufTypeRow kGgufTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},       {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},    {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 0, 0},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144}, {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 0, 0},     {16, "IQ2_XXS", 0, 0},
    {17, "IQ2_XS", 0, 0},     {18, "IQ3_XXS", 0, 0},  {19, "IQ1_S", 0, 0},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 0, 0},    {22, "IQ2_S", 0, 0},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 0, 0},       {25, "I16", 0, 0},
    {26, "I32", 0, 0},        {27, "I64", 0, 0},      {28, "F64", 0, 0},
    {29, "IQ1_M", 0, 0},      {30, "BF16", 1, 2},     {34, "TQ1_0", 0, 0},
    {35, "TQ2_0", 0, 0},      {39, "MXFP4", 32, 17},
};

constexpr const GgufTypeRow* gguf_type_row(std::uint32_t number) {
  for (const GgufTypeRow& row : kGgufTypes) {
    if (row.number == number) return &row;
  }
  return nullptr;
}

/// "Q4_K", or "type 99".
inline std::string gguf_type_name(std::uint32_t number) {
  const GgufTypeRow* row = gguf_type_row(number);
  return row != nullptr ? std::string(row->name) : concat("type ", number);
}

}  // namespace detail

/// Spelled as in ggml.
constexpr std::string_view name(GgufType type) {
  return detail::gguf_type_row(static_cast<std::uint32_t>(type))->name;
}
/// Number of elements of a block, consecutive in a row; 1 for the float types.
constexpr std::size_t block_elements(GgufType type) {
  return detail::gguf_type_row(static_cast<std::uint32_t>(type))->block_elements;
}
/// Bytes of a block.
constexpr std::size_t block_bytes(GgufType type) {
  return detail::gguf_type_row(static_cast<std::uint32_t>(type))->block_bytes;
}

/// The type of that number, if it is supported.
constexpr std::optional<GgufType> gguf_type(std::uint32_t number) {
  const detail::GgufTypeRow* row = detail::gguf_type_row(number);
  if (row == nullptr || row->block_bytes == 0) return std::nullopt;
  return static_cast<GgufType>(number);
}
/// The type of that name, such as "Q8_0", if it is supported.
constexpr std::optional<GgufType> gguf_type(std::string_view name) {
  for (const detail::GgufTypeRow& row : detail::kGgufTypes) {
    if (row.name == name) return gguf_type(row.number);
  }
  return std::nullopt;
}

ATTN_NAMESPACE_END
