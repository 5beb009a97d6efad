// Bert from GGUF files of architecture bert and nomic-bert.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/gguf/keys.hpp"
#include "attn/models/gguf/rotary.hpp"
#include "attn/models/pretrained/encoders/encoder_type.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A GGUF file as load_state_dict() reads it, which dequantises its tensors.
class GgufTensorFile {
 public:
  /// `file` must outlive it.
  explicit GgufTensorFile(const GgufFile& file) : file_(file) {}

  const std::string& file_name() const { return file_.file_name(); }
  std::vector<std::string> names() const { return file_.names(); }
  bool contains(std::string_view name) const { return file_.contains(name); }
  const std::vector<index_t>& shape(std::string_view name) const { return file_.shape(name); }
  DType dtype(std::string_view) const { return DType::F32; }
  template <class T>
  void check(std::string_view name, std::span<const index_t> shape) const {
    file_.check(name, shape);
  }
  template <class T, int Rank>
  void load(std::string_view name, const TensorView<T, Rank>& out) const {
    if constexpr (std::same_as<T, float>) {
      file_.load(name, out);
    } else {
      convert(file_.load<Rank>(name), out);
    }
    file_.release(name);
  }

 private:
  const GgufFile& file_;
};

/// Where GGUF files hold the parameters of Bert.
inline LoadOptions gguf_bert_names() {
  return {.rename = rename_by({{"embeddings.words.", "token_embd."},
                               {"embeddings.positions.", "position_embd."},
                               {"embeddings.token_types.", "token_types."},
                               {"embeddings.norm.", "token_embd_norm."},
                               {"encoder.layers.", "blk."},
                               {".self_attn.in_proj_", ".attn_qkv."},
                               {".self_attn.q_proj_", ".attn_q."},
                               {".self_attn.k_proj_", ".attn_k."},
                               {".self_attn.v_proj_", ".attn_v."},
                               {".self_attn.out_proj.", ".attn_output."},
                               {".norm1.", ".attn_output_norm."},
                               {".norm2.", ".layer_output_norm."},
                               {".linear1.", ".ffn_up."},
                               {".linear2.", ".ffn_down."},
                               {".gate_proj.", ".ffn_gate."},
                               {".up_proj.", ".ffn_up."},
                               {".down_proj.", ".ffn_down."}})};
}

/// Keys of these architectures that do not affect Bert's options, and keys of which attn supports
/// only one value.
inline const GgufUnreadKeys& gguf_unread_encoder_keys() {
  static const GgufUnreadKeys kKeys = {
      {"vocab_size", {}},              // the number of rows of token_embd.weight
      {"context_length", {}},          // read by SentenceEncoder
      {"pooling_type", {}},            // read by SentenceEncoder
      {"rope.scaling.finetuned", {}},  // a note on training
      {"attention.causal", {0}},
      {"moe_every_n_layers", {0}},
      {"expert_count", {0}},
      {"expert_used_count", {0}},
  };
  return kKeys;
}

/// The options of nomic-bert beyond those of bert: rotary embedding and a gated feed-forward.
inline void complete_nomic_bert(const GgufFile& file, const GgufKeys& keys, index_t max_positions,
                                BertOptions& options) {
  const index_t head_dim = options.hidden_size / options.num_attention_heads;
  const index_t positions = max_positions > 0 ? max_positions : keys.count("context_length");
  options.positions = Positions::none;
  options.max_position_embeddings = positions;
  options.hidden_act = Activation::silu;
  TransformerLayerOptions& layer = options.encoder.layer;
  layer.gated = true;
  layer.bias = false;
  layer.norm_bias = true;
  layer.attention.bias = false;
  layer.attention.rotary = gguf_rotary(file, keys, RotaryPairs::halves, head_dim, positions);
  if (max_positions > 0) return;
  GptOptions sizes{.vocab_size = options.vocab_size, .num_layers = options.num_hidden_layers};
  sizes.layer = options.encoder_options().layer;
  sizes.max_positions = positions;
  check_positions(sizes, [&](const std::string& expected, const std::string& found) {
    keys.fail("context_length", expected, found);
  });
}

/// The options of a file of architecture bert or nomic-bert. Throws ValueError, naming file and
/// key, for unknown keys and unsupported values; keys in `ignore_keys` count as missing.
inline BertOptions gguf_bert_options(const GgufFile& file, const PretrainedOptions& given) {
  const auto name = file.get<std::string_view>("general.architecture");
  const bool is_nomic = name == "nomic-bert";
  if (name != "bert" && !is_nomic) {
    throw ValueError(message("SentenceEncoder",
                             concat(quote(file.file_name()), ": key \"general.architecture\""),
                             "be bert or nomic-bert", quote(name)));
  }
  const GgufKeys keys(file, std::string(name) + ".", "SentenceEncoder", given.ignore_keys);
  const auto rows_of = [&](std::string_view tensor) {
    return file.contains(tensor) && !file.shape(tensor).empty() ? file.shape(tensor)[0] : 0;
  };
  BertOptions options{.vocab_size = rows_of("token_embd.weight"),
                      .hidden_size = keys.count("embedding_length"),
                      .num_hidden_layers = keys.count("block_count"),
                      .num_attention_heads = keys.count("attention.head_count"),
                      .intermediate_size = keys.count("feed_forward_length"),
                      .max_position_embeddings = rows_of("position_embd.weight"),
                      .type_vocab_size = rows_of("token_types.weight"),
                      .layer_norm_eps = keys.not_negative("attention.layer_norm_epsilon"),
                      .hidden_dropout_prob = 0};
  const index_t dim = options.hidden_size, heads = options.num_attention_heads;
  if (dim % heads != 0) {
    keys.fail("attention.head_count", concat("divide ", dim), std::to_string(heads));
  }
  const auto check_same = [&](std::string_view key, index_t expected) {
    if (const index_t found = keys.count(key, expected); found != expected) {
      keys.fail(key, concat("be ", expected, " or missing"), std::to_string(found));
    }
  };
  check_same("attention.head_count_kv", heads);
  check_same("attention.key_length", dim / heads);
  check_same("attention.value_length", dim / heads);
  options.encoder.layer.attention.separate_in_proj = !file.contains("blk.0.attn_qkv.weight");
  if (is_nomic) complete_nomic_bert(file, keys, given.max_positions, options);
  keys.check_all_read(gguf_unread_encoder_keys());
  // A missing tensor or another shape is found before the memory of all is allocated.
  file.check("token_embd.weight", Shape<2>{options.vocab_size, dim});
  for (const std::string_view table : {"position_embd.weight", "token_types.weight"}) {
    if (file.contains(table)) file.check(table, Shape<2>{rows_of(table), dim});
  }
  for (index_t n = 0; n < options.num_hidden_layers; ++n) {
    file.check(concat("blk.", n, ".attn_output.weight"), Shape<2>{dim, dim});
    file.check(concat("blk.", n, ".ffn_up.weight"), Shape<2>{options.intermediate_size, dim});
  }
  return options;
}

/// Throws what gguf_bert_options() and load_state_dict() throw.
template <class T>
Bert<T> bert_from_gguf(const GgufFile& file, const PretrainedOptions& options) {
  return load_model<T, Bert<T>>(gguf_bert_options(file, options), GgufTensorFile(file),
                                gguf_bert_names(), options);
}

}  // namespace detail

ATTN_NAMESPACE_END
