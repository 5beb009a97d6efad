// LanguageModel: a decoder with its tokenizer and chat template, all from one GGUF file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/gguf_tokenizer.hpp"
#include "attn/models/gpt.hpp"

ATTN_NAMESPACE_BEGIN

struct LanguageModelOptions {
  /// Positions that there are angles for; 0: the file's context length.
  index_t max_positions = 0;
  /// Lays weights out for the kernels: faster prefill, by a second copy of each (see Gpt::pack()).
  bool pack = true;
  /// Instead of the file's own.
  std::optional<ChatTemplate> chat_template = {};
};

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

/// A language model of the Llama family, ready to be asked. Weights of any type that GgufFile reads
/// become float when it is loaded: 4 bytes a parameter, and 4 more for those that are packed.
/// (SmolLM2-135M: 1.2 GB for a file of 98 MB.)
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
    load(file);
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
  void load(const GgufFile& file) {
    std::vector<std::string> used;
    gpt_.visit_parameters([&]<int Rank>(std::string_view name, TensorView<float, Rank> out) {
      file.load(used.emplace_back(gguf_name(name)), out);
    });
    std::sort(used.begin(), used.end());
    std::vector<std::string> unused;
    for (const std::string& name : file.names()) {
      if (!std::binary_search(used.begin(), used.end(), name)) unused.push_back(name);
    }
    if (unused.empty()) return;
    throw ValueError(message("LanguageModel", detail::quote(file.file_name()),
                             "hold the tensors of a llama model and no others",
                             detail::list_text(unused, "others")));
  }

  BpeTokenizer tokenizer_;
  SpecialTokens special_;
  std::optional<ChatTemplate> chat_template_;
  index_t max_positions_ = 0;
  Gpt<float> gpt_;
};

ATTN_NAMESPACE_END
