// CodeScratch: scratch memory for 8-bit queries and keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "attn/core/arithmetic.hpp"
#include "attn/exec/workspace.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Number of consecutive positions whose keys share a mean.
inline constexpr index_t kKeysOfMean = 64;
/// Maximal number of means of one block of keys: 512 keys have at most 9.
inline constexpr index_t kMaxMeans = 16;
/// Maximal number of elements that one step of the products takes: quantised rows are padded with
/// zeros to a multiple.
inline constexpr index_t kMaxCodeStep = 64;

template <class T>
struct CodeScratch {
  std::uint8_t* keys = nullptr;    ///< panels of one block
  T* key_scales = nullptr;         ///< of its columns
  T* means = nullptr;              ///< (score_dim, kMaxMeans)
  T* centered = nullptr;           ///< keys of one mean
  std::int8_t* line = nullptr;     ///< a quantised key
  std::int8_t* queries = nullptr;  ///< rows of a task, in whole tiles
  T* query_scales = nullptr;
  std::int32_t* starts = nullptr;  ///< initial values of the sums of their products

  CodeScratch() = default;
  CodeScratch(ScratchLayout& layout, index_t score_dim, index_t block_kv, index_t height) {
    const index_t row_bytes = round_up(score_dim, kMaxCodeStep);
    keys = layout.take<std::uint8_t>(block_kv * row_bytes);
    key_scales = layout.take<T>(block_kv);
    means = layout.take<T>(score_dim * kMaxMeans);
    centered = layout.take<T>(kKeysOfMean * score_dim);
    line = layout.take<std::int8_t>(row_bytes);
    queries = layout.take<std::int8_t>(height * row_bytes);
    query_scales = layout.take<T>(height);
    starts = layout.take<std::int32_t>(height);
  }
};

}  // namespace detail

ATTN_NAMESPACE_END
