// TinyLlama: a llama with a few thousand weights as a GGUF file, and its results by plain loops.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "attn/io/gguf/writer.hpp"
#include "attn/text/tokenizer.hpp"

#include "support/files/temp_folder.hpp"
#include "support/random.hpp"

namespace attn_test {

/// Two layers of width 32: 4 query heads, 2 key/value heads of 8, feed-forward 64, 262 tokens (all
/// bytes, four merges, <|im_start|> and <|im_end|>). Weights have the types in the file; the tables
/// hold the dequantised weights. With architecture qwen2, q, k and v have biases, which logits()
/// ignores.
struct TinyLlama {
  static constexpr Index kDim = 32, kHeads = 4, kKvHeads = 2, kHeadDim = 8, kHidden = 64,
                         kLayers = 2, kVocab = 262;
  static constexpr double kEpsilon = 1e-5, kTheta = 5000;

  explicit TinyLlama(std::uint64_t seed, bool tied = true,
                     const std::string& architecture = "llama") {
    Random random(seed);
    add(random, "token_embd.weight", {kVocab, kDim}, attn::GgufType::Q8_0, 1);
    add(random, "output_norm.weight", {kDim}, attn::GgufType::F32, 1);
    if (!tied) add(random, "output.weight", {kVocab, kDim}, attn::GgufType::F16, 1);
    for (Index n = 0; n < kLayers; ++n) {
      const auto name = [&](std::string_view part) {
        return attn::detail::concat("blk.", n, ".", part, ".weight");
      };
      add(random, name("attn_norm"), {kDim}, attn::GgufType::F32, 1);
      add(random, name("ffn_norm"), {kDim}, attn::GgufType::F32, 1);
      add(random, name("attn_q"), {kHeads * kHeadDim, kDim}, attn::GgufType::Q4_1, 0.3);
      add(random, name("attn_k"), {kKvHeads * kHeadDim, kDim}, attn::GgufType::Q5_0, 0.3);
      add(random, name("attn_v"), {kKvHeads * kHeadDim, kDim}, attn::GgufType::Q5_1, 0.3);
      for (const auto& [part, width] :
           {std::pair("attn_q", kHeads * kHeadDim), std::pair("attn_k", kKvHeads * kHeadDim),
            std::pair("attn_v", kKvHeads * kHeadDim)}) {
        if (architecture != "qwen2") continue;
        add(random, attn::detail::concat("blk.", n, ".", part, ".bias"), {width},
            attn::GgufType::F32, 1);
      }
      add(random, name("attn_output"), {kDim, kHeads * kHeadDim}, attn::GgufType::BF16, 0.3);
      add(random, name("ffn_gate"), {kHidden, kDim}, attn::GgufType::Q4_0, 0.3);
      add(random, name("ffn_up"), {kHidden, kDim}, attn::GgufType::Q8_0, 0.3);
      add(random, name("ffn_down"), {kDim, kHidden}, attn::GgufType::F32, 0.3);
    }
    metadata.set("general.architecture", architecture);
    const auto number = [&](std::string_view key, Index value) {
      metadata.set(attn::detail::concat(architecture, ".", key), static_cast<std::uint32_t>(value));
    };
    number("block_count", kLayers);
    number("context_length", 128);
    number("embedding_length", kDim);
    number("feed_forward_length", kHidden);
    number("attention.head_count", kHeads);
    number("attention.head_count_kv", kKvHeads);
    metadata.set(architecture + ".attention.layer_norm_rms_epsilon", static_cast<float>(kEpsilon));
    metadata.set(architecture + ".rope.freq_base", static_cast<float>(kTheta));
    metadata.set("tokenizer.ggml.model", std::string("gpt2"));
    metadata.set("tokenizer.ggml.pre", std::string("smollm"));
    std::vector<std::string> tokens;
    for (const std::int32_t letter : attn::detail::byte_letters())
      attn::append_utf8(letter, tokens.emplace_back());
    tokens.insert(tokens.end(),
                  {"he", "ll", "\u0120w", "\u00c3\u00a9", "<|im_start|>", "<|im_end|>"});
    std::vector<std::int32_t> kinds(256 + 4, 1);
    kinds.insert(kinds.end(), {3, 3});
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.token_type", kinds);
    metadata.set("tokenizer.ggml.merges",
                 std::vector<std::string>{"h e", "l l", "\u0120 w", "\u00c3 \u00a9"});
    metadata.set("tokenizer.ggml.bos_token_id", std::uint32_t{260});
    metadata.set("tokenizer.ggml.eos_token_id", std::uint32_t{261});
    metadata.set("tokenizer.chat_template",
                 std::string("{% for message in messages %}{{'<|im_start|>' + message['role'] + "
                             "'\n' + message['content'] + '<|im_end|>' + "
                             "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
                             "'<|im_start|>assistant\n' }}{% endif %}"));
  }

  std::filesystem::path save(const TempFolder& folder) const {
    std::vector<attn::NamedGgufTensor> list;
    for (const std::string& name : order) {
      const Weight& weight = weights.at(name);
      list.push_back({name, {weight.type, weight.shape, weight.blocks}});
    }
    attn::save_gguf(folder / "tiny.gguf", metadata, list);
    return folder / "tiny.gguf";
  }

  /// Changes of the arithmetic by keys of a file.
  struct Arithmetic {
    /// Angles per position, one for each pair of a head; empty: those of kTheta.
    std::vector<double> frequencies = {};
    double rotary_factor = 1;  ///< of cos and sin
    double scale = 1 / std::sqrt(static_cast<double>(kHeadDim));
    double softcap = 0, logit_softcap = 0;  ///< 0: none
  };

  /// Logits (seq, vocab) of the tokens, in double. Source: Touvron et al., "LLaMA" (2023), section
  /// 2.2.
  std::vector<std::vector<double>> logits(const std::vector<attn::index_t>& ids) const {
    return logits(ids, Arithmetic{});
  }
  std::vector<std::vector<double>> logits(const std::vector<attn::index_t>& ids,
                                          const Arithmetic& arithmetic) const {
    using Row = std::vector<double>;
    const auto size = [](Index n) { return static_cast<std::size_t>(n); };
    std::vector<Row> x;
    for (const attn::index_t id : ids) {
      const std::vector<float>& table = weights.at("token_embd.weight").values;
      x.emplace_back(table.begin() + id * kDim, table.begin() + (id + 1) * kDim);
    }
    const auto norm = [&](const Row& row, const std::string& name) {
      double sum = 0;
      for (const double v : row) sum += v * v;
      Row out(row);
      for (std::size_t i = 0; i < row.size(); ++i) {
        out[i] *= static_cast<double>(weights.at(name).values[i]) /
                  std::sqrt(sum / static_cast<double>(row.size()) + kEpsilon);
      }
      return out;
    };
    const auto multiply = [&](const Row& row, const std::string& name) {
      const Weight& w = weights.at(name);
      Row out(size(w.shape[0]));
      for (std::size_t o = 0; o < out.size(); ++o) {
        for (std::size_t i = 0; i < row.size(); ++i)
          out[o] += row[i] * static_cast<double>(w.values[o * row.size() + i]);
      }
      return out;
    };
    const auto turn = [&](Row& row, std::size_t position) {
      for (std::size_t at = 0; at < row.size(); at += 2) {
        const std::size_t in_head = at % size(kHeadDim);
        const double pair = static_cast<double>(in_head) / static_cast<double>(kHeadDim);
        const double frequency = arithmetic.frequencies.empty()
                                     ? std::pow(kTheta, -pair)
                                     : arithmetic.frequencies[in_head / 2];
        const double angle = static_cast<double>(position) * frequency;
        const double u = arithmetic.rotary_factor * row[at],
                     v = arithmetic.rotary_factor * row[at + 1];
        row[at] = u * std::cos(angle) - v * std::sin(angle);
        row[at + 1] = v * std::cos(angle) + u * std::sin(angle);
      }
    };
    const auto cap = [](double score, double most) {
      return most > 0 ? most * std::tanh(score / most) : score;
    };
    for (Index n = 0; n < kLayers; ++n) {
      const auto name = [&](std::string_view part) {
        return attn::detail::concat("blk.", n, ".", part, ".weight");
      };
      std::vector<Row> q, k, v;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const Row h = norm(x[i], name("attn_norm"));
        q.push_back(multiply(h, name("attn_q")));
        k.push_back(multiply(h, name("attn_k")));
        v.push_back(multiply(h, name("attn_v")));
        turn(q.back(), i);
        turn(k.back(), i);
      }
      for (std::size_t i = 0; i < x.size(); ++i) {
        Row context(size(kHeads * kHeadDim));
        for (std::size_t head = 0; head < size(kHeads); ++head) {
          const std::size_t at = head * size(kHeadDim),
                            kv = head / size(kHeads / kKvHeads) * size(kHeadDim);
          Row p(i + 1);
          double total = 0;
          for (std::size_t j = 0; j <= i; ++j) {
            double dot = 0;
            for (std::size_t d = 0; d < size(kHeadDim); ++d) dot += q[i][at + d] * k[j][kv + d];
            total += p[j] = std::exp(cap(arithmetic.scale * dot, arithmetic.softcap));
          }
          for (std::size_t j = 0; j <= i; ++j) {
            for (std::size_t d = 0; d < size(kHeadDim); ++d)
              context[at + d] += p[j] / total * v[j][kv + d];
          }
        }
        const Row added = multiply(context, name("attn_output"));
        for (std::size_t d = 0; d < added.size(); ++d) x[i][d] += added[d];
        const Row h = norm(x[i], name("ffn_norm"));
        Row gate = multiply(h, name("ffn_gate"));
        const Row up = multiply(h, name("ffn_up"));
        for (std::size_t d = 0; d < gate.size(); ++d) gate[d] *= up[d] / (1 + std::exp(-gate[d]));
        const Row down = multiply(gate, name("ffn_down"));
        for (std::size_t d = 0; d < down.size(); ++d) x[i][d] += down[d];
      }
    }
    std::vector<Row> result;
    for (const Row& row : x) {
      result.push_back(multiply(norm(row, "output_norm.weight"), weights.contains("output.weight")
                                                                     ? "output.weight"
                                                                     : "token_embd.weight"));
      for (double& logit : result.back()) logit = cap(logit, arithmetic.logit_softcap);
    }
    return result;
  }

  struct Weight {
    attn::GgufType type;
    std::vector<attn::index_t> shape;
    std::vector<std::byte> blocks;
    std::vector<float> values;
  };
  std::map<std::string, Weight> weights;
  std::vector<std::string> order;
  attn::GgufMetadata metadata;

 private:
  void add(Random& random, const std::string& name, std::vector<attn::index_t> shape,
           attn::GgufType type, double scale) {
    std::vector<float> values(static_cast<std::size_t>(attn::size_of(shape)));
    for (float& value : values) value = static_cast<float>(scale * random.normal());
    std::vector<std::byte> blocks = attn::quantize_gguf(type, values);
    attn::dequantize_gguf(type, blocks, values);
    weights[name] = {type, std::move(shape), std::move(blocks), std::move(values)};
    order.push_back(name);
  }
};

}  // namespace attn_test
