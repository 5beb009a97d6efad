// SentenceEncoder: lines of text to vectors, from a sentence-transformers folder or a GGUF file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <numeric>
#include <span>

#include "attn/models/gguf/encoder.hpp"
#include "attn/models/pretrained/bert.hpp"
#include "attn/models/sentence/dense.hpp"
#include "attn/models/sentence/folder.hpp"

ATTN_NAMESPACE_BEGIN

/// Options of SentenceEncoder::encode().
struct EncodeOptions {
  std::string_view prompt = {};  ///< name of the prompt before each line; empty: the default
  bool normalize = false;        ///< normalise vectors even if the folder or file does not
  index_t batch_size = 32;       ///< lines per batch, sorted by length
  Execution execution = {};      ///< threads, scratch, instruction set, precision of products
};

/// An encoder with its tokenizer, whose hidden states are pooled into one vector per line, which
/// dense layers may map to another. quantize() and weight_bytes() accept it like a Bert. const
/// member functions are thread-safe.
///
///   const SentenceEncoder<float> encoder("all-MiniLM-L6-v2");
///   const Tensor2<float> vectors = encoder.encode(lines);
///
/// Source: Reimers and Gurevych, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks"
/// (2019).
template <class T>
class SentenceEncoder {
 public:
  /// Reads config.json and model.safetensors of a model that load_pretrained<Bert<T>>() reads, the
  /// files that SentenceTokenizer reads, and, if they exist, modules.json, the pooling's
  /// config.json, the files of dense layers, sentence_bert_config.json,
  /// config_sentence_transformers.json and tokenizer_config.json. Without modules.json the pooling
  /// is an unnormalised mean.
  ///
  /// Or reads a file *.gguf of architecture bert or nomic-bert, whose weights are dequantised;
  /// vectors are not normalised, and without the key pooling_type the pooling is the mean.
  /// options.ignore_keys names keys that count as missing, with or without their prefix.
  ///
  /// Throws IoError for files that cannot be read or break their format; ValueError, ShapeError or
  /// DTypeError for unknown keys and unsupported values, naming file and key.
  explicit SentenceEncoder(const std::filesystem::path& path, const PretrainedOptions& options = {})
      : SentenceEncoder(path.extension() == ".gguf" ? parts_of(GgufFile(path), options)
                                                    : parts_of(path, options)) {}

  /// The vectors (lines, dim()): a row does not depend on the other lines, on batch_size or
  /// threads. Throws ValueError for an unknown prompt, or a batch_size below 1.
  Tensor2<T> encode(std::span<const std::string> lines, const EncodeOptions& options = {}) const {
    if (options.batch_size < 1) {
      throw ValueError(message("SentenceEncoder", "batch_size", "be at least 1",
                               std::to_string(options.batch_size)));
    }
    const std::string& prompt = prompt_of(options.prompt);
    std::vector<std::vector<std::int32_t>> tokens;
    tokens.reserve(lines.size());
    for (const std::string& line : lines) tokens.push_back(tokens_of(prompt, line));
    std::vector<std::size_t> order(lines.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return tokens[a].size() < tokens[b].size();
    });
    const Pool pool{.first = first_of(prompt),
                    .normalize = options_.normalize || options.normalize};
    Tensor2<T> out({std::ssize(lines), dim()});
    const auto batch = static_cast<std::size_t>(options.batch_size);
    for (std::size_t begin = 0; begin < order.size(); begin += batch) {
      const std::size_t count = (std::min)(batch, order.size() - begin);
      encode_batch(tokens, std::span(order).subspan(begin, count), pool, options.execution, out);
    }
    return out;
  }

  /// Length of a vector.
  index_t dim() const {
    return dense_.empty() ? bert_.hidden_size() : dense_.back().linear.out_features();
  }
  /// Number of tokens of a line, including prompt and special tokens; encode() truncates to
  /// options().max_tokens, see is_cut().
  index_t count_tokens(std::string_view line, std::string_view prompt = {}) const {
    return std::ssize(tokenizer_.encode(prompt_of(prompt) + std::string(line), std::string::npos));
  }
  bool is_cut(std::string_view line, std::string_view prompt = {}) const {
    const auto limit = static_cast<std::size_t>(options_.max_tokens);
    return tokenizer_.encode(prompt_of(prompt) + std::string(line), limit + 1).size() > limit;
  }

  /// The options of the folder.
  const SentenceEncoderOptions& options() const { return options_; }
  const SentenceTokenizer& tokenizer() const { return tokenizer_; }
  const Bert<T>& bert() const { return bert_; }
  /// The layers after the pooling; most folders have none.
  const std::vector<SentenceDense<T>>& dense() const { return dense_; }

  /// The parameters of bert(), without those of dense layers.
  void visit_parameters(const ParameterVisitor<T>& f) { bert_.visit_parameters(f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { bert_.visit_parameters(f); }

 private:
  /// Pooling of one call; `first`: first token of a line in the mean.
  struct Pool {
    index_t first;
    bool normalize;
  };

  /// What a folder or a file holds; `name` stands for it in errors.
  struct Parts {
    SentenceEncoderOptions options;
    SentenceTokenizer tokenizer;
    Bert<T> bert;
    std::vector<SentenceDense<T>> dense;
    std::string name;
  };

  static Parts parts_of(const std::filesystem::path& folder, const PretrainedOptions& options) {
    const detail::SentenceFolder modules = detail::sentence_folder_of(folder);
    Parts parts{.options = modules.options,
                .tokenizer = SentenceTokenizer(modules.transformer),
                .bert = detail::bert_from_folder<T>(modules.transformer, options),
                .dense = {},
                .name = detail::utf8(folder)};
    index_t dim = parts.bert.hidden_size();
    for (const std::filesystem::path& one : modules.dense) {
      parts.dense.push_back(detail::dense_from_folder<T>(one, dim, options));
      dim = parts.dense.back().linear.out_features();
    }
    return parts;
  }

  static Parts parts_of(const GgufFile& file, const PretrainedOptions& options) {
    auto bert = detail::bert_from_gguf<T>(file, options);
    return {.options = detail::gguf_sentence_options(file, options),
            .tokenizer = SentenceTokenizer(file, options.ignore_keys),
            .bert = std::move(bert),
            .dense = {},
            .name = file.file_name()};
  }

  explicit SentenceEncoder(Parts parts)
      : options_(std::move(parts.options)),
        tokenizer_(std::move(parts.tokenizer)),
        bert_(std::move(parts.bert)),
        dense_(std::move(parts.dense)) {
    bert_.pooler = {};  // the pooler of next-sentence prediction, which is not used
    // RoBERTa reserves two positions for padding.
    options_.max_tokens = (std::min)(options_.max_tokens, bert_.embeddings.options().max_positions);
    const index_t known = bert_.embeddings.words.num_embeddings();
    if (tokenizer_.vocab_size() > known) {
      throw ValueError(
          message("SentenceEncoder", detail::quote(parts.name),
                  detail::concat("have at most ", known,
                                 " pieces in its vocabulary, the size of the embedding table"),
                  std::to_string(tokenizer_.vocab_size())));
    }
  }

  const std::string& prompt_of(std::string_view name) const {
    static const std::string kNone;
    if (name.empty()) name = options_.default_prompt;
    if (name.empty()) return kNone;
    const auto found = options_.prompts.find(std::string(name));
    if (found != options_.prompts.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& one : options_.prompts) names.push_back(one.first);
    throw ValueError(message("SentenceEncoder", "prompt",
                             "be one of " + detail::list_text(names, "prompts"),
                             detail::quote(name)));
  }

  std::vector<std::int32_t> tokens_of(const std::string& prompt, const std::string& line) const {
    return tokenizer_.encode(prompt + line, static_cast<std::size_t>(options_.max_tokens));
  }

  /// The first token of the mean: after [CLS], or `<s>`, and after the prompt if these are
  /// excluded.
  index_t first_of(const std::string& prompt) const {
    if (options_.include_prompt || prompt.empty()) return 0;
    return std::ssize(tokens_of(prompt, "")) - tokenizer_.num_behind();
  }

  /// Encodes the lines of these indices into their rows of out. The lines are packed one after
  /// another in one row of tokens, without padding.
  void encode_batch(std::span<const std::vector<std::int32_t>> tokens,
                    std::span<const std::size_t> indices, const Pool& pool,
                    const Execution& execution, Tensor2<T>& out) const {
    const index_t batch = std::ssize(indices);
    Tensor1<index_t> ends({batch + 1});
    for (index_t b = 0; b < batch; ++b) {
      ends(b + 1) = ends(b) + std::ssize(tokens[indices[static_cast<std::size_t>(b)]]);
    }
    Tensor2<std::int32_t> ids({1, ends(batch)});
    for (index_t b = 0; b < batch; ++b) {
      const auto& line = tokens[indices[static_cast<std::size_t>(b)]];
      std::copy(line.begin(), line.end(), ids.data() + ends(b));
    }
    const Tensor3<T> hidden =
        bert_(ids, {.cu_seqlens_q = ends, .cu_seqlens_k = ends, .execution = execution});
    const auto states_of = [&](index_t b) {
      return hidden.view().select(0, 0).slice(0, ends(b), ends(b + 1));
    };
    const auto row_of = [&](index_t b) {
      return out.view().select(0, static_cast<index_t>(indices[static_cast<std::size_t>(b)]));
    };
    if (dense_.empty()) {
      for (index_t b = 0; b < batch; ++b) pool_line(states_of(b), pool, row_of(b));
      return;
    }
    Tensor2<T> vectors({batch, bert_.hidden_size()});
    for (index_t b = 0; b < batch; ++b) {
      pool_line(states_of(b), {.first = pool.first, .normalize = false},
                vectors.view().select(0, b));
    }
    for (const SentenceDense<T>& dense : dense_) vectors = dense(vectors, execution);
    for (index_t b = 0; b < batch; ++b) {
      // The mean of one vector is itself.
      pool_line(vectors.view().slice(0, b, b + 1), {.first = 0, .normalize = pool.normalize},
                row_of(b));
    }
  }

  /// Shapes: states (tokens, features), out (features).
  void pool_line(TensorView2<const T> states, const Pool& pool, TensorView1<T> out) const {
    const bool is_mean = options_.pooling == Pooling::mean;
    const index_t begin = is_mean ? (std::min)(pool.first, states.extent(0)) : 0;
    const index_t end = is_mean ? states.extent(0) : (std::min)(index_t{1}, states.extent(0));
    // In double, where rounding is negligible.
    const index_t features = out.extent(0);
    std::vector<double> sum(static_cast<std::size_t>(features));
    for (index_t t = begin; t < end; ++t) {
      for (index_t i = 0; i < features; ++i) sum[static_cast<std::size_t>(i)] += states(t, i);
    }
    // The sum has the direction of the mean.
    const double divisor =
        pool.normalize ? std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0))
                       : static_cast<double>(end - begin);
    for (index_t i = 0; i < features; ++i) {
      // A prompt that leaves nothing of the line, or no token at all: 0, as in
      // sentence-transformers.
      out(i) = divisor == 0 ? T{0} : static_cast<T>(sum[static_cast<std::size_t>(i)] / divisor);
    }
  }

  SentenceEncoderOptions options_;
  SentenceTokenizer tokenizer_;
  Bert<T> bert_;
  std::vector<SentenceDense<T>> dense_;
};

ATTN_NAMESPACE_END
