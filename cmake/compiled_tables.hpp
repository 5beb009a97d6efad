// ATTN_EXPORT_TABLES(T): what attn::compiled offers for elements of T; ATTN_EXPORT_CONVERSIONS(In, Acc): what it offers
// between two elements. See attn/kernels/backend.hpp.
#pragma once

#include "attn/attention/sdpa_backward.hpp"
#include "attn/attn.hpp"
#include "attn/kernels/activation_backward.hpp"
#include "attn/kernels/column_sums.hpp"
#include "attn/kernels/loss.hpp"
#include "attn/kernels/norm_backward.hpp"
#include "attn/kernels/quantized.hpp"
#include "attn/kernels/softmax_backward.hpp"
#include "attn/layers/dropout.hpp"
#include "attn/train/update.hpp"

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
#define ATTN_EXPORT_TABLES(T)               \
  ATTN_EXPORT_TABLE(Products, T)            \
  ATTN_EXPORT_TABLE(Attention, T)           \
  ATTN_EXPORT_TABLE(LinearAttention, T)     \
  ATTN_EXPORT_TABLE(Softmax, T)             \
  ATTN_EXPORT_TABLE(Norms, T)               \
  ATTN_EXPORT_TABLE(Elementwise, T)         \
  ATTN_EXPORT_TABLE(Rotary, T)              \
  ATTN_EXPORT_TABLE(SoftmaxBackward, T)     \
  ATTN_EXPORT_TABLE(NormsBackward, T)       \
  ATTN_EXPORT_TABLE(ElementwiseBackward, T) \
  ATTN_EXPORT_TABLE(ColumnSums, T)          \
  ATTN_EXPORT_TABLE(Losses, T)              \
  ATTN_EXPORT_TABLE(Dropout, T)             \
  ATTN_EXPORT_TABLE(Optimizers, T)          \
  ATTN_EXPORT_TABLE(AttentionBackward, T)
