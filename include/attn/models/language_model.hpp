// LanguageModel: a decoder with its tokenizer and chat template, all from one GGUF file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/gguf_options.hpp"
#include "attn/models/gguf_tokenizer.hpp"
#include "attn/models/gguf_weights.hpp"

ATTN_NAMESPACE_BEGIN

struct LanguageModelOptions {
  /// Positions that there are angles for; 0: the file's context length.
  index_t max_positions = 0;
  /// Lays weights out for the kernels: faster prefill, by a second copy of each (see Gpt::pack()).
  bool pack = true;
  /// What activations become before they meet quantised weights. The scores of attention, norms and what is between are
  /// float throughout.
  ActivationFormat activations = ActivationFormat::exact;
  /// Instead of the file's own.
  std::optional<ChatTemplate> chat_template = {};
};

/// A language model of the Llama family (llama, mistral, qwen2, qwen3, gemma), ready to be asked. Quantised weights stay as small as they
/// are in the file; those in float16 and bfloat16 become float, 4 bytes a parameter and 4 more for
/// the packed copy.
///
///   const LanguageModel model("SmolLM2-135M-Instruct.Q4_1.gguf");
///   GptSession<float> session(model.gpt(), 1, 4096);
///   const auto ids = model.encode_chat({{{"user", "Name three primary colors."}}});
///   const GeneratedText answer = generate_text(model, session, ids, {.max_new_tokens = 100});
class LanguageModel {
 public:
  /// Throws IoError for a file that cannot be read or breaks the format; ValueError, ShapeError or
  /// DTypeError for one that is another architecture's, or whose parts do not fit together, naming
  /// file and tensor.
  explicit LanguageModel(const std::filesystem::path& path,
                         const LanguageModelOptions& options = {})
      : LanguageModel(GgufFile(path), options) {}

  explicit LanguageModel(const GgufFile& file, const LanguageModelOptions& options = {})
      : tokenizer_(gguf_tokenizer(file)),
        special_(gguf_special_tokens(file, tokenizer_)),
        chat_template_(options.chat_template),
        max_positions_(options.max_positions) {
    if (max_positions_ < 0) {
      throw ValueError(message("LanguageModel", "max_positions", "be at least 0",
                               std::to_string(max_positions_)));
    }
    const GptOptions gpt_options = detail::gguf_gpt_options(file, max_positions_);
    max_positions_ = gpt_options.max_positions;
    if (gpt_options.vocab_size != tokenizer_.vocab_size()) {
      throw ShapeError(message(
          "LanguageModel", detail::concat(detail::quote(file.file_name()), ": token_embd.weight"),
          detail::concat("have a row for each of ", tokenizer_.vocab_size(), " tokens"),
          std::to_string(gpt_options.vocab_size)));
    }
    if (!chat_template_) chat_template_ = gguf_chat_template(file, tokenizer_, special_);
    if (chat_template_) {
      const auto end = tokenizer_.token(chat_template_->end_of_message());
      if (end &&
          std::find(special_.ends.begin(), special_.ends.end(), *end) == special_.ends.end()) {
        special_.ends.push_back(*end);
      }
    }
    gpt_ = Gpt<float>(gpt_options);
    load(file, options.activations);
    if (options.pack) gpt_.pack();
  }

  const Gpt<float>& gpt() const { return gpt_; }
  const BpeTokenizer& tokenizer() const { return tokenizer_; }
  /// Positions that there are angles for: the longest context.
  index_t max_positions() const { return max_positions_; }
  /// The tokens that end an answer.
  const std::vector<index_t>& end_tokens() const { return special_.ends; }
  bool is_end(index_t id) const {
    return std::find(special_.ends.begin(), special_.ends.end(), id) != special_.ends.end();
  }
  /// Throws ValueError where the file has none, or one that is not recognised.
  const ChatTemplate& chat_template() const {
    if (chat_template_) return *chat_template_;
    throw ValueError(message("LanguageModel", "the file's chat template",
                             "be ChatML's or Llama 3's (with --raw a text is continued as it is; "
                             "LanguageModelOptions::chat_template takes one of your own)",
                             "another or none"));
  }
  bool has_chat_template() const { return chat_template_.has_value(); }

  /// Ids of a text to be continued as it is: control tokens written out in it are these tokens, and
  /// the file says whether the first is its beginning-of-text token.
  std::vector<index_t> encode_raw(std::string_view text) const {
    std::vector<index_t> ids = tokenizer_.encode(text, true);
    if (special_.add_bos) ids.insert(ids.begin(), *special_.bos);
    return ids;
  }
  /// Ids of a conversation, and of the beginning of an answer to it. Throws as chat_template().
  std::vector<index_t> encode_chat(std::span<const ChatMessage> messages) const {
    return tokenizer_.encode(chat_template().render(messages));
  }

 private:
  void load(const GgufFile& file, ActivationFormat activations) {
    std::vector<std::string> used;
    gpt_.visit_parameters([&]<int Rank>(std::string_view name, TensorView<float, Rank> out) {
      const std::string& theirs = used.emplace_back(gguf_name(name));
      file.check(theirs, out.shape());
      if (!detail::is_quantized(file.tensor(theirs).type)) file.load(theirs, out);
    });
    visit_weights<float>(gpt_, [&](std::string_view name, WeightSlot<float>& slot) {
      const GgufTensor tensor = file.tensor(gguf_name(name));
      if (!detail::is_quantized(tensor.type)) return;
      slot.compress(std::make_shared<const QuantizedWeight>(
          detail::quantized_weights(tensor.type, slot.shape[0], slot.shape[1], tensor.bytes),
          activations));
    });
    // What shares a product with a matrix of floats is one too.
    visit_weights<float>(gpt_, [&](std::string_view name, WeightSlot<float>& slot) {
      const std::string theirs = gguf_name(name);
      if (slot.dense && detail::is_quantized(file.tensor(theirs).type)) {
        file.load(theirs, slot.dense);
      }
    });
    used.emplace_back(detail::kGgufFrequencyFactors);  // which are in the rotary embeddings
    std::sort(used.begin(), used.end());
    std::vector<std::string> unused;
    for (const std::string& name : file.names()) {
      if (!std::binary_search(used.begin(), used.end(), name)) unused.push_back(name);
    }
    if (unused.empty()) return;
    throw ValueError(message("LanguageModel", detail::quote(file.file_name()),
                             "hold the tensors of its architecture and no others",
                             detail::list_text(unused, "others")));
  }

  BpeTokenizer tokenizer_;
  SpecialTokens special_;
  std::optional<ChatTemplate> chat_template_;
  index_t max_positions_ = 0;
  Gpt<float> gpt_;
};

ATTN_NAMESPACE_END
