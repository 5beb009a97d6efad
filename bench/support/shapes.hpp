// The measured shapes, in one table for attn_report, attention_bench and bench/peers.
#pragma once

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "attn/core/shape.hpp"

namespace bench {

using attn::index_t;

struct AttentionShape {
  std::string_view name;
  index_t batch, num_heads, num_kv_heads, q_len, kv_len, head_dim;
  bool causal = false;
  index_t window = 0;      ///< keys that a causal query attends to; 0: all
  bool seq_major = false;  ///< keys and values are (batch, seq, heads, dim) in memory

  /// The share of scores that the mask keeps; the first queries of a window have fewer keys.
  constexpr double visible() const {
    if (!causal) return 1;
    if (window == 0) return 0.5;
    const auto keys = static_cast<double>(window), all = static_cast<double>(kv_len);
    return keys * (all - keys / 2) / (all * all);
  }
};

/// Rows sdpa_NAME of attn_report and bench/peers, attention_NAME of attention_bench.
inline constexpr AttentionShape kAttentionShapes[] = {
    {"d64", 1, 8, 8, 2048, 2048, 64},       {"d128", 1, 8, 8, 2048, 2048, 128},
    {"d80", 1, 8, 8, 2048, 2048, 80},       {"512", 1, 12, 12, 512, 512, 64},
    {"4096", 1, 8, 8, 4096, 4096, 64},      {"causal", 1, 8, 8, 4096, 4096, 64, true},
    {"short", 64, 12, 12, 128, 128, 64},    {"decode", 1, 32, 32, 1, 4096, 128},
    {"decode_gqa", 1, 32, 8, 1, 4096, 128},
};

/// Further shapes of attention_bench.
inline constexpr AttentionShape kMoreAttentionShapes[] = {
    {"window", 1, 8, 8, 4096, 4096, 64, true, 256},
    {"gqa", 1, 8, 2, 1024, 1024, 64},
    {"1024", 1, 16, 16, 1024, 1024, 128},
    {"1024_seq_major", 1, 16, 16, 1024, 1024, 128, false, 0, true},
    {"decode_gqa_seq_major", 1, 32, 8, 1, 4096, 128, false, 0, true},
    {"queries_8", 1, 32, 32, 8, 4096, 128},
    {"queries_8_short", 1, 8, 8, 8, 256, 64},
    {"queries_64", 1, 32, 32, 64, 4096, 128},
};

/// (batch, m, k) times (batch, k, n). Packed: the right operand is known in advance.
struct GemmShape {
  std::string_view name;
  index_t batch, m, n, k;
  bool packed = false;
};

inline constexpr GemmShape kGemmShapes[] = {
    {"gemm_1024", 1, 1024, 1024, 1024},
    {"gemm_bert", 1, 128, 3072, 768, true},
    {"batched_16", 512, 16, 16, 16},
    {"batched_128", 96, 128, 64, 128},
};

/// Rows through a weight (4096, 4096), or a smaller one, stored as in PyTorch or packed in advance.
struct LinearShape {
  std::string_view name;
  index_t rows;
  bool packed = false;
  index_t in_features = 4096, out_features = 4096;
};

/// Whether a weight is small enough to stay in the caches from call to call: its row of the report
/// is a time relative to packed weights.
constexpr bool is_cached(const LinearShape& shape) { return shape.in_features < 1024; }

/// Whether reading the weight once limits the speed.
constexpr bool is_read_once(const LinearShape& shape) {
  return !shape.packed && !is_cached(shape) && shape.rows <= 8;
}

inline constexpr LinearShape kLinearShapes[] = {
    {"linear_1", 1},
    {"linear_4", 4},
    {"linear_8", 8},
    {"linear_16", 16},
    {"linear_32", 32},
    {"linear_64", 64},
    {"linear_packed_8", 8, true},
    {"linear_packed_16", 16, true},
    {"linear_packed_32", 32, true},
    {"linear_768_1", 1, false, 768, 768},
    {"linear_768_4", 4, false, 768, 768},
    {"linear_768_16", 16, false, 768, 768},
};

/// Products x W^T with small elements, W packed: "bfloat16", or quantised, with x rounded in the
/// call: "int8" with one scale per row, "q8_0" or "q4_1".
struct SmallGemmShape {
  std::string_view name, element;
  index_t m, n, k;
};

inline constexpr SmallGemmShape kSmallGemmShapes[] = {
    {"gemm_bf16", "bfloat16", 1024, 1024, 1024}, {"gemm_bf16_bert", "bfloat16", 128, 3072, 768},
    {"gemm_int8", "int8", 1024, 1024, 1024},     {"gemm_int8_bert", "int8", 128, 3072, 768},
    {"gemm_q8", "q8_0", 512, 4096, 4096},        {"gemm_q4", "q4_1", 512, 4096, 4096},
    {"gemv_bf16", "bfloat16", 1, 8192, 8192},    {"gemv_int8", "int8", 1, 8192, 8192},
    {"gemv_q8", "q8_0", 1, 8192, 8192},          {"gemv_q4", "q4_1", 1, 8192, 8192},
};

/// Rows of 1024 through an elementwise or row-wise function.
struct RowsShape {
  std::string_view name, function;
  index_t rows, columns = 1024;
};

inline constexpr RowsShape kRowsShapes[] = {
    {"gelu", "gelu", 4096},
    {"silu", "silu", 4096},
    {"gelu_cached", "gelu", 64},
    {"layer_norm", "layer_norm", 4096},
};

/// A self-attention module, or an encoder layer if `hidden` is the width of its feed-forward part.
struct ModuleShape {
  std::string_view name;
  index_t batch, seq, width, heads, hidden = 0;
};

inline constexpr ModuleShape kModuleShapes[] = {
    {"mha_bert", 8, 128, 768, 12},
    {"mha_tutorial", 1, 4, 16, 4},
    {"encoder_bert", 8, 128, 768, 12, 3072},
};

/// Tokens through a mixture of experts whose width inside is `hidden`; each token has `chosen`.
struct ExpertsShape {
  std::string_view name;
  index_t tokens, width, hidden, experts, chosen;
};

inline constexpr ExpertsShape kExpertsShapes[] = {
    {"moe_decode", 1, 1024, 384, 64, 8},
    {"moe_prefill", 512, 1024, 384, 64, 8},
};

/// Forward and backward of attention; also in bench/peers.
inline constexpr AttentionShape kAttentionTrainShapes[] = {
    {"sdpa_train_d64", 1, 8, 8, 2048, 2048, 64},
    {"sdpa_train_causal", 1, 8, 8, 2048, 2048, 64, true},
    {"sdpa_train_d128", 1, 8, 8, 2048, 2048, 128},
    {"sdpa_train_short", 64, 12, 12, 128, 128, 64},
};

/// A step of an encoder layer with dropout 0.1 and AdamW.
inline constexpr ModuleShape kEncoderTrain{"encoder_train", 8, 128, 768, 12, 3072};

/// A step of a GPT with tied embeddings, without dropout, with clipping and AdamW.
struct GptShape {
  std::string_view name;
  index_t batch, seq, vocab, layers, width, heads;
};

/// The model of examples/training/train_gpt.cpp, and GPT-2 of 124 million parameters.
inline constexpr GptShape kGptTrainShapes[] = {
    {"chargpt_train", 12, 64, 84, 4, 128, 4},
    {"gpt2_train", 4, 64, 50257, 12, 768, 12},
};

/// The shape of that name, which must be in the table.
template <class Table>
constexpr const auto& shape_of(const Table& table, std::string_view name) {
  const auto* found = std::find_if(std::begin(table), std::end(table),
                                   [&](const auto& shape) { return shape.name == name; });
  if (found == std::end(table)) throw std::invalid_argument("no shape of this name");
  return *found;
}

}  // namespace bench
