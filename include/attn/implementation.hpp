// Kernel tables of every target, for files compiled with ATTN_COMPILED.
// SPDX-License-Identifier: Apache-2.0
//
// attn/attn.hpp includes this if ATTN_IMPLEMENTATION is defined, in one otherwise empty file of a
// program. Or define ATTN_IMPLEMENTATION_FLOAT, _DOUBLE and _ELEMENTS in one file each, which are
// then compiled in parallel.
#pragma once

#include "attn/core/config.hpp"

#if defined(ATTN_COMPILED_LIBRARY)

#include "attn/attention/forward/parts.hpp"
#include "attn/attention/jvp/sdpa_jvp.hpp"
#include "attn/attention/linear_attention_backward.hpp"
#include "attn/attention/sdpa_backward.hpp"
#include "attn/generation.hpp"
#include "attn/kernels/losses/loss.hpp"
#include "attn/kernels/quantized/quantized.hpp"
#include "attn/kernels/rows/activation_backward.hpp"
#include "attn/kernels/rows/column_sums.hpp"
#include "attn/kernels/rows/norm_backward.hpp"
#include "attn/kernels/rows/softmax_backward.hpp"
#include "attn/layers/module/dropout.hpp"
#include "attn/train/update.hpp"

/// A table for inputs of In and sums of Acc: see attn/kernels/backend.hpp.
#define ATTN_EXPORT_PAIR(Family, In, Acc)                                                      \
  template <>                                                                                  \
  const void* attn::compiled::table<                                                           \
      attn::family::Family, int(attn::dtype_of<In>()), int(attn::dtype_of<Acc>()),             \
      attn::detail::Backend<attn::family::Family, In, Acc>::kLayout>(int isa) {                \
    return &attn::detail::backend<attn::family::Family, In, Acc>(static_cast<attn::Isa>(isa)); \
  }
#define ATTN_EXPORT_TABLE(Family, T) ATTN_EXPORT_PAIR(Family, T, T)
#define ATTN_EXPORT_CONVERSIONS(In, Acc) \
  ATTN_EXPORT_PAIR(Conversions, In, Acc) \
  ATTN_EXPORT_PAIR(Conversions, Acc, In)
#define ATTN_EXPORT_TABLES(T)                   \
  ATTN_EXPORT_TABLE(Products, T)                \
  ATTN_EXPORT_TABLE(Attention, T)               \
  ATTN_EXPORT_TABLE(AttentionParts, T)          \
  ATTN_EXPORT_TABLE(LinearAttention, T)         \
  ATTN_EXPORT_TABLE(LinearAttentionBackward, T) \
  ATTN_EXPORT_TABLE(Softmax, T)                 \
  ATTN_EXPORT_TABLE(Norms, T)                   \
  ATTN_EXPORT_TABLE(Elementwise, T)             \
  ATTN_EXPORT_TABLE(Rotary, T)                  \
  ATTN_EXPORT_TABLE(SoftmaxBackward, T)         \
  ATTN_EXPORT_TABLE(NormsBackward, T)           \
  ATTN_EXPORT_TABLE(ElementwiseBackward, T)     \
  ATTN_EXPORT_TABLE(ColumnSums, T)              \
  ATTN_EXPORT_TABLE(Losses, T)                  \
  ATTN_EXPORT_TABLE(Dropout, T)                 \
  ATTN_EXPORT_TABLE(Optimizers, T)              \
  ATTN_EXPORT_TABLE(AttentionBackward, T)       \
  ATTN_EXPORT_TABLE(AttentionTangents, T)

#if defined(ATTN_IMPLEMENTATION_FLOAT)
ATTN_EXPORT_TABLES(float)
ATTN_EXPORT_TABLE(PartProducts, float)
ATTN_EXPORT_TABLE(QuantizedProducts, float)
#endif

#if defined(ATTN_IMPLEMENTATION_DOUBLE)
ATTN_EXPORT_TABLES(double)
#endif

// Conversions between element types.
#if defined(ATTN_IMPLEMENTATION_ELEMENTS)
ATTN_EXPORT_CONVERSIONS(float, double)
ATTN_EXPORT_CONVERSIONS(attn::bfloat16, float)
ATTN_EXPORT_CONVERSIONS(attn::bfloat16, double)
ATTN_EXPORT_CONVERSIONS(attn::float16, float)
ATTN_EXPORT_CONVERSIONS(attn::float16, double)
ATTN_EXPORT_CONVERSIONS(attn::bfloat16, attn::float16)

// Attention with keys and values of these types. Queries are float or, for 16 bits, of the same
// type.
ATTN_EXPORT_PAIR(Attention, attn::bfloat16, float)
ATTN_EXPORT_PAIR(Attention, attn::float16, float)
ATTN_EXPORT_PAIR(AttentionParts, attn::bfloat16, float)
ATTN_EXPORT_PAIR(AttentionParts, attn::float16, float)
ATTN_EXPORT_PAIR(AttentionTangents, attn::bfloat16, float)
ATTN_EXPORT_PAIR(AttentionTangents, attn::float16, float)
ATTN_EXPORT_PAIR(Attention, std::int8_t, float)
ATTN_EXPORT_PAIR(RowQuantization, float, std::int8_t)

ATTN_EXPORT_PAIR(Products, attn::bfloat16, float)
ATTN_EXPORT_PAIR(Products, attn::float16, float)
#endif

#undef ATTN_EXPORT_TABLES
#undef ATTN_EXPORT_CONVERSIONS
#undef ATTN_EXPORT_TABLE
#undef ATTN_EXPORT_PAIR

#endif
