// What a GGUF file's keys ask of a Gpt: its options, and the names of its tensors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/io/gguf.hpp"
#include "attn/models/gpt.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The options of a model of architecture "llama", from a file's keys and tensors.
inline GptOptions gguf_gpt_options(const GgufFile& file, index_t max_positions) {
  const auto fail = [&](std::string_view what, std::string_view expected, std::string_view found) {
    throw ValueError(
        message("LanguageModel", concat(quote(file.file_name()), ": ", what), expected, found));
  };
  const auto architecture = file.get<std::string_view>("general.architecture");
  if (architecture != "llama") fail("general.architecture", "be llama", quote(architecture));
  const auto key = [&](std::string_view name) { return concat(architecture, ".", name); };
  const auto count = [&](std::string_view name, std::optional<index_t> otherwise = {}) {
    const std::string full = key(name);
    const index_t value =
        !otherwise || file.has(full) ? index_t{file.get<std::uint32_t>(full)} : *otherwise;
    if (value < 1 || value > index_t{1} << 24) {
      fail(concat("key ", quote(full)), "lie in 1 .. 2^24", std::to_string(value));
    }
    return value;
  };
  for (const std::string_view name : {"expert_count", "attention.sliding_window"}) {
    if (file.get<std::uint64_t>(key(name), 0) == 0) continue;
    fail(concat("key ", quote(key(name))), "be 0 or missing",
         std::to_string(file.get<std::uint64_t>(key(name))));
  }
  if (const auto scaling = file.get<std::string_view>(key("rope.scaling.type"), "none");
      scaling != "none") {
    fail(concat("key ", quote(key("rope.scaling.type"))), "be none", quote(scaling));
  }
  GptOptions options;
  const index_t dim = count("embedding_length"), heads = count("attention.head_count");
  if (dim % heads != 0 && !file.has(key("attention.key_length"))) {
    fail("the number of heads", concat("divide ", dim), std::to_string(heads));
  }
  const std::string embedding = "token_embd.weight";
  options.vocab_size = file.shape(embedding).empty() ? 0 : file.shape(embedding)[0];
  options.num_layers = count("block_count");
  options.tied = !file.contains("output.weight");
  options.positions = Positions::none;
  options.max_positions = max_positions > 0 ? max_positions : count("context_length");
  options.layer = {.d_model = dim,
                   .nhead = heads,
                   .dim_feedforward = count("feed_forward_length"),
                   .activation = Activation::silu,
                   .layer_norm_eps = file.get<float>(key("attention.layer_norm_rms_epsilon")),
                   .norm_first = true,
                   .bias = false,
                   .gated = true,
                   .norm = NormKind::rms};
  MultiHeadAttentionOptions& attention = options.layer.attention;
  attention.num_kv_heads = count("attention.head_count_kv", heads);
  attention.head_dim = count("attention.key_length", std::max(dim / heads, index_t{1}));
  attention.head_dim_v = count("attention.value_length", attention.head_dim);
  attention.separate_in_proj = true;
  // The files of this architecture have the rows of q and k in the order of the paper.
  attention.rotary = RotaryOptions{.dim = count("rope.dimension_count", attention.head_dim),
                                   .pairs = RotaryPairs::interleaved,
                                   .theta = file.get<float>(key("rope.freq_base"), 10000.0f),
                                   .max_positions = options.max_positions};
  if (!(attention.rotary->theta > 0) || !(options.layer.layer_norm_eps >= 0)) {
    fail("rope.freq_base and the norms' epsilon", "be positive",
         concat(to_string(attention.rotary->theta), " and ",
                to_string(options.layer.layer_norm_eps)));
  }
  // What is missing or of another shape is found before memory is taken for it.
  const index_t q = heads * attention.head_dim;
  const auto check = [&](const std::string& name, std::initializer_list<index_t> shape) {
    file.check(name, std::span(shape.begin(), shape.size()));
  };
  check(embedding, {options.vocab_size, dim});
  for (index_t n = 0; n < options.num_layers; ++n) {
    const auto weight = [&](std::string_view name) {
      return concat("blk.", n, ".", name, ".weight");
    };
    check(weight("attn_q"), {q, dim});
    check(weight("attn_k"), {attention.num_kv_heads * attention.head_dim, dim});
    check(weight("attn_v"), {attention.num_kv_heads * attention.head_dim_v, dim});
    check(weight("attn_output"), {dim, heads * attention.head_dim_v});
    check(weight("ffn_gate"), {options.layer.dim_feedforward, dim});
  }
  return options;
}

}  // namespace detail

/// The name that GGUF files have for a parameter of Gpt.
inline std::string gguf_name(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"embedding.words.", "token_embd."}, {"lm_head.", "output."},
      {"blocks.norm.", "output_norm."},    {"blocks.layers.", "blk."},
      {".self_attn.q_proj_", ".attn_q."},  {".self_attn.k_proj_", ".attn_k."},
      {".self_attn.v_proj_", ".attn_v."},  {".self_attn.out_proj.", ".attn_output."},
      {".norm1.", ".attn_norm."},          {".norm2.", ".ffn_norm."},
      {".gate_proj.", ".ffn_gate."},       {".up_proj.", ".ffn_up."},
      {".down_proj.", ".ffn_down."},
  };
  std::string result(name);
  for (const auto& [ours, theirs] : kNames) {
    if (const std::size_t at = result.find(ours); at != std::string::npos) {
      result.replace(at, ours.size(), theirs);
    }
  }
  return result;
}

ATTN_NAMESPACE_END
