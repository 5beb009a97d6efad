// all-MiniLM-L6-v2: lines of text in, embeddings of 384 numbers out, nearer for nearer meanings; and
// what its heads attend to.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "attn/io.hpp"

#include "wordpiece.hpp"

namespace examples {

// What each head looks at in one line.
struct AttentionMap {
  std::vector<std::string> tokens;  // as the vocabulary spells them, [CLS] and [SEP] included
  attn::Tensor4<float>
      weights;  // (layers, heads, tokens as queries, tokens as keys); rows add up to 1
};

// A BERT encoder of six post-norm layers, whose mean hidden state is the sentence's embedding.
// Sources: Devlin et al., "BERT" (2019); Wang et al., "MiniLM" (2020); Reimers and Gurevych,
// "Sentence-BERT" (2019). const member functions are safe to call from many threads at once.
class MiniLm {
 public:
  static constexpr attn::index_t kWidth = 384;
  static constexpr std::size_t kMaxTokens = 256;  // what the model was trained for; the rest is cut

  // Reads model.safetensors and vocab.txt. Throws attn::IoError, ValueError or ShapeError for
  // weights, std::runtime_error for a vocabulary, that are not those of the model.
  explicit MiniLm(const std::filesystem::path& dir)
      : tokenizer_(dir / "vocab.txt"), file_(dir / "model.safetensors") {
    words_ = file_.view<float, 2>("embeddings.word_embeddings.weight");
    check_shape("embeddings.word_embeddings.weight", words_.shape(),
                {static_cast<attn::index_t>(tokenizer_.vocab_size()), kWidth});
    // A single text is all of segment 0, whose vector is the same at every position.
    const auto segments = file_.view<float, 2>("embeddings.token_type_embeddings.weight");
    check_shape("embeddings.token_type_embeddings.weight", segments.shape(), {2, kWidth});
    positions_ = file_.load<float, 2>("embeddings.position_embeddings.weight");
    check_shape("embeddings.position_embeddings.weight", positions_.shape(), {512, kWidth});
    for (attn::index_t p = 0; p < positions_.extent(0); ++p) {
      for (attn::index_t i = 0; i < kWidth; ++i) positions_(p, i) += segments(0, i);
    }
    attn::load_state_dict(norm_, file_, {.prefix = "embeddings.LayerNorm."});
    for (std::size_t i = 0; i < layers_.size(); ++i) load_layer(i);
  }

  // The embeddings (lines, 384), each of length 1. Lines of similar length are computed together,
  // up to `batch_size` at a time; a line's embedding does not depend on its company.
  attn::Tensor2<float> embed(std::span<const std::string> lines,
                             std::size_t batch_size = 32) const {
    if (batch_size == 0) {
      throw std::invalid_argument("[MiniLm] batch_size must be at least 1; found 0.");
    }
    std::vector<std::vector<std::int32_t>> tokens;
    tokens.reserve(lines.size());
    for (const std::string& line : lines) tokens.push_back(tokenizer_.encode(line, kMaxTokens));
    // In the order of length, so that lines of a batch need little padding.
    std::vector<std::size_t> order(lines.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return tokens[a].size() < tokens[b].size();
    });
    attn::Tensor2<float> out({static_cast<attn::index_t>(lines.size()), kWidth});
    for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
      // At most twice as long as the shortest of the batch: less than half of it is padding.
      const std::size_t longest = 2 * tokens[order[begin]].size();
      const std::size_t limit = begin + std::min(order.size() - begin, batch_size);
      while (end < limit && tokens[order[end]].size() <= longest) ++end;
      embed_batch(tokens, std::span(order).subspan(begin, end - begin), out);
    }
    return out;
  }

  AttentionMap attention(const std::string& line) const {
    const std::vector<std::int32_t> tokens = tokenizer_.encode(line, kMaxTokens);
    const auto seq = static_cast<attn::index_t>(tokens.size());
    AttentionMap map;
    for (const std::int32_t id : tokens) map.tokens.push_back(tokenizer_.piece(id));
    const auto num_layers = static_cast<attn::index_t>(layers_.size());
    map.weights = attn::Tensor4<float>({num_layers, kLayerOptions.nhead, seq, seq});

    attn::Tensor2<std::int32_t> ids({1, seq});
    std::copy(tokens.begin(), tokens.end(), ids.data());
    attn::Tensor3<float> hidden = embed_tokens(ids);
    for (attn::index_t i = 0; i < num_layers; ++i) {
      // A layer's weights are those of a batch of one.
      layers_[static_cast<std::size_t>(i)].forward(
          hidden, hidden, {.weights = map.weights.view().slice(0, i, i + 1)});
    }
    return map;
  }

 private:
  static constexpr attn::EncoderLayerOptions kLayerOptions = {.d_model = kWidth,
                                                              .nhead = 12,
                                                              .dim_feedforward = 1536,
                                                              .activation = attn::Activation::gelu,
                                                              .layer_norm_eps = 1e-12};

  static void check_shape(const std::string& name, const attn::Shape<2>& found,
                          const attn::Shape<2>& expected) {
    if (found == expected) return;
    throw attn::ShapeError(attn::message("MiniLm", "tensor \"" + name + "\"",
                                         "have shape " + attn::to_string(expected),
                                         attn::to_string(found)));
  }

  // BERT keeps query, key and value apart and names the parts in its own way. load_state_dict also
  // finds what lies in the file under a part's name and was not expected there.
  void load_layer(std::size_t index) {
    const std::string prefix = "encoder.layer." + std::to_string(index) + ".";
    attn::EncoderLayer<float>& layer = layers_[index];
    layer = attn::EncoderLayer<float>(kLayerOptions);
    attn::MultiHeadAttention<float>& attention = layer.self_attn;
    const std::string self = prefix + "attention.self.";
    file_.load(self + "query.weight", attention.q_weight());
    file_.load(self + "query.bias", attention.q_bias());
    file_.load(self + "key.weight", attention.k_weight());
    file_.load(self + "key.bias", attention.k_bias());
    file_.load(self + "value.weight", attention.v_weight());
    file_.load(self + "value.bias", attention.v_bias());
    const auto load = [&](auto& part, const std::string& name) {
      attn::load_state_dict(part, file_, {.prefix = prefix + name + "."});
    };
    load(attention.out_proj(), "attention.output.dense");
    load(layer.norm1, "attention.output.LayerNorm");
    load(layer.feed_forward.linear1, "intermediate.dense");
    load(layer.feed_forward.linear2, "output.dense");
    load(layer.norm2, "output.LayerNorm");
    layer.pack();
  }

  // ids (batch, seq) to the first layer's input (batch, seq, 384).
  attn::Tensor3<float> embed_tokens(const attn::Tensor2<std::int32_t>& ids) const {
    attn::Tensor3<float> hidden = attn::embedding(words_, ids);
    for (attn::index_t b = 0; b < hidden.extent(0); ++b) {
      for (attn::index_t t = 0; t < hidden.extent(1); ++t) {
        for (attn::index_t i = 0; i < kWidth; ++i) hidden(b, t, i) += positions_(t, i);
      }
    }
    norm_.forward(hidden, hidden);
    return hidden;
  }

  // Embeds the lines of these indices, the last of which has the most tokens, into their rows of
  // out.
  void embed_batch(std::span<const std::vector<std::int32_t>> tokens,
                   std::span<const std::size_t> indices, attn::Tensor2<float>& out) const {
    const auto batch = static_cast<attn::index_t>(indices.size());
    const auto seq = static_cast<attn::index_t>(tokens[indices.back()].size());
    // Shorter lines are filled up with [PAD], 0, whose keys the mask hides.
    attn::Tensor2<std::int32_t> ids({batch, seq});
    attn::Tensor1<attn::index_t> lengths({batch});
    for (attn::index_t b = 0; b < batch; ++b) {
      const std::vector<std::int32_t>& line = tokens[indices[static_cast<std::size_t>(b)]];
      std::copy(line.begin(), line.end(), &ids(b, 0));
      lengths(b) = static_cast<attn::index_t>(line.size());
    }

    attn::Tensor3<float> hidden = embed_tokens(ids);
    for (const attn::EncoderLayer<float>& layer : layers_) {
      layer.forward(hidden, hidden, {.mask = attn::key_lengths(lengths)});
    }

    for (attn::index_t b = 0; b < batch; ++b) {
      // The sum points where the mean does, so that there is no need to divide by the length. In
      // double, where rounding does not count.
      std::array<double, kWidth> sum{};
      for (attn::index_t t = 0; t < lengths(b); ++t) {
        for (std::size_t i = 0; i < sum.size(); ++i)
          sum[i] += hidden(b, t, static_cast<attn::index_t>(i));
      }
      const double length = std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
      float* row = &out(static_cast<attn::index_t>(indices[static_cast<std::size_t>(b)]), 0);
      std::transform(sum.begin(), sum.end(), row,
                     [&](double x) { return static_cast<float>(x / length); });
    }
  }

  WordPieceTokenizer tokenizer_;
  attn::SafetensorsFile file_;  // stays open: words_ is a view of its memory
  attn::TensorView2<const float> words_;
  attn::Tensor2<float> positions_;
  attn::LayerNorm<float> norm_{kWidth, 1e-12};
  std::array<attn::EncoderLayer<float>, 6> layers_;
};

}  // namespace examples
