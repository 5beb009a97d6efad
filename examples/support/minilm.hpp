// all-MiniLM-L6-v2: lines of text in, embeddings of 384 numbers out, nearer for nearer meanings;
// and what its heads attend to.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "attn/io.hpp"
#include "attn/text.hpp"

namespace examples {

// What each head looks at in one line: the tokens as the vocabulary spells them, [CLS] and [SEP] included, and weights
// (layers, heads, tokens as queries, tokens as keys), whose rows add up to 1. `num_tokens` is the count of the whole
// line, more than there are tokens where the line was cut.
struct AttentionMap {
  std::size_t num_tokens = 0;
  std::vector<std::string> tokens;
  attn::Tensor4<float> weights;
};

// A BERT encoder of six post-norm layers, whose mean hidden state is the sentence's embedding.
// Sources: Devlin et al., "BERT" (2019); Wang et al., "MiniLM" (2020); Reimers and Gurevych,
// "Sentence-BERT" (2019). const member functions are safe to call from many threads at once.
class MiniLm {
 public:
  static constexpr attn::index_t kWidth = 384;
  static constexpr std::size_t kMaxTokens = 256;  // what the model was trained for; the rest is cut

  // Reads model.safetensors and vocab.txt. Throws attn::IoError, ValueError or ShapeError for
  // weights, and for a vocabulary, that are not those of the model.
  explicit MiniLm(const std::filesystem::path& dir)
      : tokenizer_(read_tokenizer(dir / "vocab.txt")) {
    // The positions' own indices, and what the model was not trained to use.
    attn::load_state_dict(
        bert_, attn::SafetensorsFile(dir / "model.safetensors"),
        {.rename = attn::bert_name, .ignore = {"embeddings.position_ids", "pooler."}});
    if (bert_.embeddings.words.weight.extent(0) !=
        static_cast<attn::index_t>(tokenizer_.vocab_size())) {
      throw std::runtime_error("[MiniLm] vocab.txt has " + std::to_string(tokenizer_.vocab_size()) +
                               " words, not those of the model.");
    }
    bert_.pack();
  }

  // The embeddings (lines, 384), each of length 1, computed up to `batch_size` lines at a time,
  // those of like length together; a line's embedding does not depend on its company.
  attn::Tensor2<float> embed(std::span<const std::string> lines,
                             std::size_t batch_size = 32) const {
    if (batch_size == 0) {
      throw std::invalid_argument("[MiniLm] batch_size must be at least 1; found 0.");
    }
    std::vector<std::vector<std::int32_t>> tokens;
    tokens.reserve(lines.size());
    for (const std::string& line : lines) tokens.push_back(tokenizer_.encode(line, kMaxTokens));
    std::vector<std::size_t> order(lines.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return tokens[a].size() < tokens[b].size();
    });
    attn::Tensor2<float> out({static_cast<attn::index_t>(lines.size()), kWidth});
    for (std::size_t begin = 0; begin < order.size(); begin += batch_size) {
      const std::size_t count = std::min(batch_size, order.size() - begin);
      embed_batch(tokens, std::span(order).subspan(begin, count), out);
    }
    return out;
  }

  // True if the line has more than kMaxTokens tokens: embed() and attention() read so many of them.
  bool is_cut(const std::string& line) const {
    return tokenizer_.encode(line, kMaxTokens + 1).size() > kMaxTokens;
  }

  AttentionMap attention(const std::string& line) const {
    const std::vector<std::int32_t> tokens = tokenizer_.encode(line, kMaxTokens);
    const auto seq = static_cast<attn::index_t>(tokens.size());
    AttentionMap map;
    map.num_tokens = tokenizer_.encode(line, std::numeric_limits<std::size_t>::max()).size();
    for (const std::int32_t id : tokens) map.tokens.push_back(tokenizer_.piece(id));
    map.weights = attn::Tensor4<float>({kLayers, kHeads, seq, seq});

    attn::Tensor2<std::int32_t> ids({1, seq});
    std::copy(tokens.begin(), tokens.end(), ids.data());
    attn::Tensor3<float> hidden({1, seq, kWidth});
    bert_.embeddings.forward(ids, hidden);
    for (attn::index_t i = 0; i < kLayers; ++i) {
      // A layer's weights are those of a batch of one.
      bert_.encoder.layers[static_cast<std::size_t>(i)].forward(
          hidden, hidden, {.weights = map.weights.view().slice(0, i, i + 1)});
    }
    return map;
  }

 private:
  static constexpr attn::index_t kLayers = 6, kHeads = 12;

  static attn::WordPieceTokenizer read_tokenizer(const std::filesystem::path& path) {
    const attn::MappedFile file(path);
    const auto bytes = file.bytes();
    return attn::WordPieceTokenizer({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                    path.string());
  }

  // Embeds the lines of these indices into their rows of out. They lie one behind the other in one
  // row of tokens: nothing is padding.
  void embed_batch(std::span<const std::vector<std::int32_t>> tokens,
                   std::span<const std::size_t> indices, attn::Tensor2<float>& out) const {
    const auto batch = static_cast<attn::index_t>(indices.size());
    attn::Tensor1<attn::index_t> ends({batch + 1});
    for (attn::index_t b = 0; b < batch; ++b) {
      const auto& line = tokens[indices[static_cast<std::size_t>(b)]];
      ends(b + 1) = ends(b) + static_cast<attn::index_t>(line.size());
    }
    attn::Tensor2<std::int32_t> ids({1, ends(batch)});
    for (attn::index_t b = 0; b < batch; ++b) {
      const auto& line = tokens[indices[static_cast<std::size_t>(b)]];
      std::copy(line.begin(), line.end(), ids.data() + ends(b));
    }
    const attn::Tensor3<float> hidden = bert_(ids, {.cu_seqlens_q = ends, .cu_seqlens_k = ends});

    for (attn::index_t b = 0; b < batch; ++b) {
      // The sum points where the mean does, so that there is no need to divide by the length. In
      // double, where rounding does not count.
      std::array<double, kWidth> sum{};
      for (attn::index_t t = ends(b); t < ends(b + 1); ++t) {
        for (std::size_t i = 0; i < sum.size(); ++i)
          sum[i] += hidden(0, t, static_cast<attn::index_t>(i));
      }
      const double length = std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
      const auto row = static_cast<attn::index_t>(indices[static_cast<std::size_t>(b)]);
      std::transform(sum.begin(), sum.end(), &out(row, 0),
                     [&](double x) { return static_cast<float>(x / length); });
    }
  }

  attn::WordPieceTokenizer tokenizer_;
  attn::Bert<float> bert_{attn::BertOptions{.hidden_size = kWidth,
                                            .num_hidden_layers = kLayers,
                                            .num_attention_heads = kHeads,
                                            .intermediate_size = 1536}};
};

}  // namespace examples
