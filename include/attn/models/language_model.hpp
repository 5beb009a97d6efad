// LanguageModel: decoder, tokenizer and chat template from a GGUF file or a folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

#include "attn/models/gguf/gated_delta.hpp"
#include "attn/models/gguf/names.hpp"
#include "attn/models/gguf/options.hpp"
#include "attn/models/gguf/tokenizer.hpp"
#include "attn/models/gguf/weights.hpp"
#include "attn/models/pretrained/gpt.hpp"
#include "attn/models/pretrained/tokenizer.hpp"
#include "attn/models/quantize.hpp"

ATTN_NAMESPACE_BEGIN

struct LanguageModelOptions {
  index_t max_positions = 0;  ///< positions in the rotary table; 0: the file's
  /// Pack weights for faster prefill and, in float, decoding, which stores a second copy of each
  /// (see Gpt::pack()).
  bool pack = true;
  /// Precision of calls that use the packed copies: see Linear::pack().
  MatmulPrecision matmul_precision = MatmulPrecision::highest;
  /// Format of float weights, as in quantize(); if not given they stay float. Quantised weights of
  /// a GGUF file keep their format.
  std::optional<WeightFormat> weights = {};
  /// Dequantise the weights of a GGUF file to float, as training and Lora require.
  bool dequantize = false;
  /// Format of activations in products with quantised weights. int8 becomes int16 (the value and
  /// its residual) for the query, key and value projections of a GGUF file. int8 and int16 become
  /// bf16 with bfloat16 weights and exact with float16 weights. Attention scores, norms and other
  /// operations are float.
  ActivationFormat activations = ActivationFormat::exact;
  std::optional<ChatTemplate> chat_template = {};  ///< replaces the file's chat template
  /// Keys to accept of config.json (see PretrainedOptions), or metadata keys of a GGUF file to
  /// treat as missing, with or without the architecture's name: "llama.logit_scale" or
  /// "logit_scale". Other unknown or unsupported keys are errors.
  std::vector<std::string> ignore_keys = {};
};

/// A decoder with its tokenizer, ready to generate text: a GGUF file of an architecture in
/// detail::kGgufArchitectures (llama, which Mistral uses, qwen2, qwen3, gemma ..), or a folder that
/// load_pretrained<Gpt<float>>() reads. Quantised weights keep the size that they have in the file.
/// Without options.weights, float16 and bfloat16 weights become float: 4 bytes a parameter and 4
/// more for the packed copy.
///
///   const LanguageModel model("SmolLM2-135M-Instruct.Q4_1.gguf");
///   GptSession<float> session(model.gpt(), 1, 4096);
///   const auto ids = model.encode_chat({{{"user", "Name three primary colors."}}});
///   const GeneratedText answer = generate_text(model, session, ids, {.max_new_tokens = 100});
class LanguageModel {
 public:
  /// Loads a GGUF file, or a folder in the format of Hugging Face's transformers: config.json, the
  /// weights and tokenizer.json; see load_pretrained() and pretrained_text(). Throws IoError for a
  /// file that cannot be read or breaks the format; ValueError, ShapeError or DTypeError for
  /// another architecture, for unsupported values, or for parts that do not fit together, naming
  /// file and tensor or key.
  explicit LanguageModel(const std::filesystem::path& path,
                         const LanguageModelOptions& options = {}) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      load_folder(path, options);
    } else {
      load_file(GgufFile(path), options);
    }
  }

  explicit LanguageModel(const GgufFile& file, const LanguageModelOptions& options = {}) {
    load_file(file, options);
  }

  const Gpt<float>& gpt() const { return gpt_; }
  Gpt<float>& gpt() { return gpt_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  /// The number of positions with rotary angles: the longest context.
  index_t max_positions() const { return max_positions_; }
  /// Tokens that end an answer.
  const std::vector<index_t>& end_tokens() const { return special_.ends; }
  bool is_end(index_t id) const { return special_.is_end(id); }
  /// Throws ValueError if there is none, or an unknown one.
  const ChatTemplate& chat_template() const {
    if (chat_template_) return *chat_template_;
    throw ValueError(message(
        "LanguageModel", "the model's chat template",
        "be one that ChatTemplate::recognise() knows (LanguageModelOptions::chat_template sets "
        "one of your own, as ChatTemplate(function); chat --raw continues a text without one)",
        "another or none"));
  }
  bool has_chat_template() const { return chat_template_.has_value(); }

  /// Encodes a text to be continued: control tokens spelled out in it become these tokens, and the
  /// file determines whether the first one is its beginning-of-text token.
  std::vector<index_t> encode_raw(std::string_view text) const {
    std::vector<index_t> ids = tokenizer_.encode(text, true);
    if (special_.add_bos) ids.insert(ids.begin(), *special_.bos);
    return ids;
  }
  /// Encodes a conversation and the beginning of an answer to it. Throws what chat_template()
  /// throws.
  std::vector<index_t> encode_chat(std::span<const ChatMessage> messages) const {
    return tokenizer_.encode(chat_template().render(messages));
  }

 private:
  static void check(const LanguageModelOptions& options) {
    if (options.max_positions >= 0) return;
    throw ValueError(message("LanguageModel", "max_positions", "be at least 0",
                             std::to_string(options.max_positions)));
  }

  void load_file(const GgufFile& file, const LanguageModelOptions& options) {
    check(options);
    tokenizer_ = gguf_tokenizer(file, options.ignore_keys);
    special_ = gguf_special_tokens(file, tokenizer_, options.ignore_keys);
    if (special_.behind) {
      throw ValueError(message(
          "LanguageModel",
          detail::concat(detail::quote(file.file_name()), ": key \"tokenizer.ggml.add_eos_token\""),
          "be false or missing, because an answer continues the text "
          "(ignore_keys accepts the key)",
          "true"));
    }
    const GptOptions gpt_options =
        detail::gguf_gpt_options(file, options.max_positions, options.ignore_keys);
    if (gpt_options.vocab_size != tokenizer_.vocab_size()) {
      throw ShapeError(message(
          "LanguageModel", detail::concat(detail::quote(file.file_name()), ": token_embd.weight"),
          detail::concat("have one row per token, ", tokenizer_.vocab_size()),
          std::to_string(gpt_options.vocab_size)));
    }
    chat_template_ = gguf_chat_template(file, tokenizer_, special_);
    gpt_ = Gpt<float>(gpt_options);
    load_weights(file, options);
    finish(options);
  }

  void load_folder(const std::filesystem::path& folder, const LanguageModelOptions& options) {
    check(options);
    gpt_ = detail::gpt_from_folder<float>(folder, {.max_positions = options.max_positions,
                                                   .pack = false,
                                                   .ignore_keys = options.ignore_keys});
    PretrainedText text = pretrained_text(folder, gpt_.vocab_size());
    if (text.tokenizer.vocab_size() > gpt_.vocab_size()) {
      throw ShapeError(message(
          "LanguageModel", detail::quote(detail::utf8(folder / "tokenizer.json")),
          detail::concat("have at most one token per row of the model, ", gpt_.vocab_size()),
          std::to_string(text.tokenizer.vocab_size())));
    }
    if (text.special.behind) {
      throw ValueError(message(
          "LanguageModel", detail::quote(detail::utf8(folder / "tokenizer.json")),
          "have a post_processor that adds no token after texts, because answers continue them",
          detail::quote(text.tokenizer.piece(*text.special.behind))));
    }
    tokenizer_ = std::move(text.tokenizer);
    special_ = std::move(text.special);
    chat_template_ = std::move(text.chat_template);
    finish(options);
  }

  void finish(const LanguageModelOptions& options) {
    max_positions_ = gpt_.options().max_positions;
    if (options.chat_template) chat_template_ = options.chat_template;
    if (chat_template_) {
      const auto end = tokenizer_.token(chat_template_->end_of_message());
      if (end) special_.add_end(*end);
    }
    if (options.weights) {
      ActivationFormat activations = options.activations;
      if (detail::is_integer(activations)) {
        if (*options.weights == WeightFormat::bf16) activations = ActivationFormat::bf16;
        if (*options.weights == WeightFormat::f16) activations = ActivationFormat::exact;
      }
      quantize(gpt_, {.weights = *options.weights, .activations = activations});
    }
    if (options.pack) gpt_.pack(options.matmul_precision);
  }

  /// Projections of queries, keys and values lose the most accuracy in 8 bits, and have few
  /// weights: an eighth of SmolLM2's.
  static ActivationFormat activations_of(std::string_view name, ActivationFormat activations) {
    const bool makes_heads =
        name.find(".self_attn.") != name.npos && name.find(".out_proj.") == name.npos;
    return makes_heads && activations == ActivationFormat::int8 ? ActivationFormat::int16
                                                                : activations;
  }

  void load_weights(const GgufFile& file, const LanguageModelOptions& options) {
    const std::span<const GgufName> own_names = detail::gguf_architecture(file).names;
    std::vector<std::string> used;
    const auto names_of = [&](const GgufPart& part) {
      return detail::gguf_tensors_of(file, part.tensor);
    };
    const auto keeps_codes = [&](const GgufPart& part) {
      return !options.dequantize &&
             detail::is_quantized(detail::gguf_type_of(file, names_of(part)));
    };
    // The tensor of a parameter, made in `memory` if two tensors hold it.
    std::vector<std::byte> memory;
    const auto tensor_of = [&](const GgufPart& part, std::span<const index_t> shape) {
      const std::vector<std::string> names = names_of(part);
      if (names.size() == 1) return gguf_tensor(file, part, shape);
      return detail::gguf_delta_projection(file.tensor(names[0]), file.tensor(names[1]),
                                           gpt_.options().layer.gated_delta, memory);
    };
    const auto release = [&](const GgufPart& part) {
      for (const std::string& name : names_of(part)) file.release(name);
    };
    const auto load = [](const GgufTensor& tensor, const auto& out) {
      dequantize_gguf(tensor.type, tensor.bytes,
                      {out.data(), static_cast<std::size_t>(out.size())});
    };
    std::set<std::string, std::less<>> matrices;
    visit_weights<float>(
        gpt_, [&](std::string_view name, WeightSlot<float>&) { matrices.emplace(name); });
    gpt_.visit_parameters([&]<int Rank>(std::string_view name, TensorView<float, Rank> out) {
      const GgufPart part = gguf_part(name, own_names);
      if constexpr (Rank == 2) {
        constexpr std::string_view kJoint = ".attn_kv_b.weight";
        if (part.tensor.ends_with(kJoint) && !file.contains(part.tensor)) {
          const std::string block = part.tensor.substr(0, part.tensor.size() - kJoint.size());
          const std::string keys = block + ".attn_k_b.weight", values = block + ".attn_v_b.weight";
          detail::load_gguf_kv_b(file, keys, values, out);
          used.insert(used.end(), {keys, values});
          return;
        }
      }
      for (std::string& one : names_of(part)) used.push_back(std::move(one));
      if (keeps_codes(part) && matrices.contains(name)) return;
      load(tensor_of(part, out.shape()), out);
      if constexpr (Rank == 1) detail::set_gguf_a_log(file, part.tensor, out);
      release(part);
    });
    visit_weights<float>(gpt_, [&](std::string_view name, WeightSlot<float>& slot) {
      const GgufPart part = gguf_part(name, own_names);
      if (!keeps_codes(part)) return;
      const GgufTensor tensor = tensor_of(part, slot.shape);
      slot.compress(std::make_shared<const QuantizedWeight>(
          detail::quantized_weights(tensor.type, slot.shape[0], slot.shape[1], tensor.bytes),
          activations_of(name, options.activations)));
      release(part);
    });
    // A matrix that shares a product with a float matrix is float, too.
    visit_weights<float>(gpt_, [&](std::string_view name, WeightSlot<float>& slot) {
      if (!slot.dense) return;
      const GgufPart part = gguf_part(name, own_names);
      if (keeps_codes(part)) load(tensor_of(part, slot.shape), slot.dense);
    });
    // Used in the rotary embedding.
    for (const std::string_view name :
         {detail::kGgufFrequencyFactors, detail::kGgufShortFactors, detail::kGgufLongFactors}) {
      used.emplace_back(name);
    }
    std::sort(used.begin(), used.end());
    std::vector<std::string> unused;
    for (const std::string& name : file.names()) {
      if (!std::binary_search(used.begin(), used.end(), name)) unused.push_back(name);
    }
    if (unused.empty()) return;
    throw ValueError(message("LanguageModel", detail::quote(file.file_name()),
                             "contain only tensors of its architecture",
                             detail::list_text(unused, "others")));
  }

  Tokenizer tokenizer_;
  SpecialTokens special_;
  std::optional<ChatTemplate> chat_template_;
  index_t max_positions_ = 0;
  Gpt<float> gpt_;
};

ATTN_NAMESPACE_END
