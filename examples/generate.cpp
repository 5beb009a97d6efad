// generate: an untrained GPT completes a rhyme that it has never seen. Two of its attention layers
// look up what followed the last words earlier in the text, as trained ones do.
#include <cmath>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <attn/attn.hpp>

#include "support/command_line.hpp"

namespace {

using attn::index_t;

// "The House That Jack Built", verses 1 to `verses` of 11.
std::string rhyme(int verses) {
  const std::vector<std::string> parts = {"the house that Jack built .",
                                          "the malt that lay in",
                                          "the rat that ate",
                                          "the cat that killed",
                                          "the dog that worried",
                                          "the cow with the crumpled horn that tossed",
                                          "the maiden all forlorn that milked",
                                          "the man all tattered and torn that kissed",
                                          "the priest all shaven and shorn that married",
                                          "the cock that crowed in the morn that woke",
                                          "the farmer sowing his corn that kept"};
  std::string text;
  for (int verse = 0; verse < verses; ++verse) {
    text += "This is ";
    for (int part = verse; part >= 0; --part) text += parts[static_cast<std::size_t>(part)] + " ";
  }
  return text;
}

// Words and their ids.
class Vocabulary {
 public:
  explicit Vocabulary(const std::string& text) {
    std::istringstream in(text);
    for (std::string word; in >> word;) {
      if (ids_.emplace(word, size()).second) words_.push_back(word);
    }
  }
  index_t size() const { return std::ssize(words_); }
  index_t id(const std::string& word) const { return ids_.at(word); }
  std::string text(const std::vector<index_t>& ids) const {
    std::string text;
    for (index_t id : ids) text += " " + words_[static_cast<std::size_t>(id)];
    return text;
  }
  // The same tokens (rows, words) in every row.
  attn::Tensor2<index_t> encode(const std::string& text, index_t rows) const {
    std::vector<index_t> ids;
    std::istringstream in(text);
    for (std::string word; in >> word;) ids.push_back(id(word));
    attn::Tensor2<index_t> tokens({rows, std::ssize(ids)});
    for (index_t i = 0; i < tokens.size(); ++i)
      tokens.data()[i] = ids[static_cast<std::size_t>(i % std::ssize(ids))];
    return tokens;
  }

 private:
  std::map<std::string, index_t> ids_;
  std::vector<std::string> words_;
};

// A token is a vector of context + 1 slots of one element per word: slot 0 holds the word itself,
// slot d the word d tokens before it. Head d - 1 of the first layer copies that word: its relative
// position bias masks out all other tokens. One head of the second layer compares the last words
// (the query) with the words before each token (the keys) and returns that token (the value). The
// result goes to slot 0, which tied weights read as logits. Such pairs of layers form in training:
// Olsson et al., "In-context learning and induction heads" (2022).
struct InductionGpt {
  InductionGpt(index_t vocab_size, index_t context)
      : bias({context + 1, 2 * context + 3}), model(options(vocab_size, context)) {
    const index_t V = vocab_size, head_dim = context * V;
    for (index_t word = 0; word < V; ++word) model.embedding.words.weight(word, word) = 1;
    for (index_t d = 1; d <= context; ++d) {
      for (index_t j = 0; j < bias.extent(1); ++j) {
        bias(d - 1, j) = j == context + 1 - d ? 0.f : -1e4f;  // the column of distance -d
      }
    }
    auto& first = model.blocks.layers[0];
    auto& second = model.blocks.layers[1];
    // A norm divides by the root mean square, which is known: a used slot holds one 1.
    const auto dim = static_cast<float>((context + 1) * V);
    first.norm1.weight.fill(std::sqrt(1 / dim));
    second.norm1.weight.fill(std::sqrt(static_cast<float>(context + 1) / dim));
    for (index_t x = 0; x < V; ++x) {
      first.self_attn.v_weight()(x, x) = second.self_attn.v_weight()(x, x) = 1;
      for (index_t d = 1; d <= context; ++d) {
        const index_t slot = d * V + x, slot_before = slot - V;
        first.self_attn.out_proj().weight(slot, (d - 1) * V + x) = 1;
        // A nearer word outweighs all that are further back.
        second.self_attn.q_weight()(context * head_dim + slot_before, slot_before) =
            5 * std::exp2(static_cast<float>(context - d));
        second.self_attn.k_weight()(slot_before, slot) = 1;
      }
      // Logits are 60 times the share of a word among the words that followed: other words have
      // probability 0.
      second.self_attn.out_proj().weight(x, context * V + x) = 60;
    }
  }

  static attn::GptOptions options(index_t vocab_size, index_t context) {
    attn::GptOptions options{.vocab_size = vocab_size, .num_layers = 2};
    options.layer = {.d_model = (context + 1) * vocab_size,
                     .nhead = context + 1,
                     .dim_feedforward = 1,  // of zeros
                     .norm_first = true,
                     .bias = false,
                     .norm = attn::NormKind::rms};
    options.layer.attention = {
        .num_kv_heads = 1, .head_dim = context * vocab_size, .head_dim_v = vocab_size, .scale = 1};
    options.positions = attn::Positions::none;
    options.norm = false;
    return options;
  }

  // The options of every call.
  attn::AttentionOptions<float> call() const {
    attn::AttentionOptions<float> options;
    options.relative_bias = bias;
    return options;
  }

  attn::Tensor2<float> bias;
  attn::Gpt<float> model;
};

int run() {
  const Vocabulary words(rhyme(11));
  const index_t stop = words.id(".");

  // Three words of context give the next verse, since all of its pieces occur in the text.
  const std::string start = "This is the farmer sowing his corn that kept the cock";
  const InductionGpt three(words.size(), 3);
  attn::GptSession<float> session(three.model, 1, 1000, three.call());
  const auto verse = attn::generate(session, words.encode(rhyme(10) + start, 1),
                                    {.max_new_tokens = 100, .stop_tokens = {stop}});
  const std::string told = start + words.text(verse[0]) + " ";
  const bool is_right = rhyme(10) + told == rhyme(11);
  std::printf("%s ..%s\n(%s)\n\n", start.c_str(), words.text(verse[0]).c_str(),
              is_right ? "as it is told" : "not as it is told");

  // One word of context, and sampling where the text continues in several ways, give new verses.
  const InductionGpt one(words.size(), 1);
  constexpr index_t kRows = 4;
  attn::GptSession<float> sampled(one.model, kRows, 1000, one.call());
  const auto verses =
      attn::generate(sampled, words.encode(rhyme(10) + "This is", kRows),
                     {.max_new_tokens = 100,
                      .stop_tokens = {stop},
                      .sampling = attn::SamplingOptions{.temperature = 3, .top_k = 8, .seed = 1}});
  for (const auto& row : verses) std::printf("This is%s\n", words.text(row).c_str());

  // The most likely continuations and their probabilities.
  attn::GptSession<float> beams(one.model, kRows, 1000, one.call());
  const auto found = attn::beam_search(
      beams, words.encode(rhyme(10) + "This is", 1),
      {.num_beams = kRows, .max_new_tokens = 100, .stop_tokens = {stop}, .length_penalty = 0});
  std::printf("\n");
  for (const auto& hypothesis : found[0]) {
    std::printf("%5.2f  This is%s\n", std::exp(hypothesis.log_probability),
                words.text(hypothesis.tokens).c_str());
  }
  return is_right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Continues a rhyme with a GPT whose weights are set by hand.");
  return examples::run_program(app, "generate", argc, argv, run);
}
