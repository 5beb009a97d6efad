// finetune_chat: trains SmolLM2 to answer like a help centre, and prints its answers before and
// after.
//
//   sh examples/fetch_llm.sh          (once)
//   finetune_chat
//
// Trains adapters of rank 8 (LoRA) on pairs of question and answer; the loss counts the tokens of
// the answers only, and the weights of the model do not change. One question of each answer is held
// out. --save writes the adapters under PEFT's names to a file of 10 MB, which --load reads.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <attn/generation/generate_text.hpp>
#include <attn/train.hpp>

#include "support/check_writable.hpp"
#include "support/command_line.hpp"
#include "support/model_dir.hpp"

namespace {

using attn::index_t;

constexpr std::size_t kAdapterBytes = 10'000'000;  // of rank 8, in float

struct Options {
  std::string data = FINETUNE_DATA_DIR;
  std::string save = "finetune_chat.safetensors";
  std::optional<std::string> load;
  index_t steps = 40, batch = 4, seed = 1;
  double rate = 5e-4;
};

struct Pair {
  std::string question, answer;
};

struct Data {
  std::vector<Pair> learned, held_out;
};

// help_questions.txt holds a question, a tab and its answer; the last question of each answer is
// held out.
Data read_data(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "help_questions.txt";
  std::ifstream in(path, std::ios::binary);
  std::vector<Pair> pairs;
  for (std::string line; std::getline(in, line);) {
    const std::size_t tab = line.find('\t');
    if (tab == std::string::npos) throw examples::UsageError("no tab in the pair '" + line + "'");
    pairs.push_back({line.substr(0, tab), line.substr(tab + 1)});
  }
  if (pairs.empty()) throw examples::UsageError("cannot read " + path.string());
  Data data;
  for (std::size_t n = 0; n < pairs.size(); ++n) {
    const bool is_last = n + 1 == pairs.size() || pairs[n + 1].answer != pairs[n].answer;
    (is_last ? data.held_out : data.learned).push_back(pairs[n]);
  }
  if (data.learned.empty()) {
    throw examples::UsageError(path.string() +
                               " needs two consecutive questions with the same answer");
  }
  return data;
}

std::string ask(const attn::LanguageModel& model, const std::string& question) {
  attn::GptSession<float> session(model.gpt(), 1, 256);
  const attn::ChatMessage message{"user", question};
  return attn::generate_text(model, session, model.encode_chat({&message, 1}),
                             {.max_new_tokens = 48})
      .text;
}

class Tuning {
 public:
  explicit Tuning(attn::LanguageModel& model, const Options& options)
      : model_(model),
        gradients_(attn::gradients_of(model.gpt(), attn::LoraOptions().takes)),
        lora_(model.gpt(),
              {.rank = 8, .alpha = 16, .seed = static_cast<std::uint64_t>(options.seed)}),
        rate_{.kind = attn::Schedule::Kind::cosine,
              .peak = options.rate,
              .warm_up = 5,
              .steps = options.steps} {}

  // The loss of one step: nats per token of the answers.
  double step(const std::vector<Pair>& pairs, index_t n) {
    attn::fill_parameters(gradients_, 0);
    attn::clear_gradients(adapters_);
    const double loss = forward(pairs, true);
    attn::backward(model_.gpt(), logits_, saved_, gradients_);
    lora_.backward(gradients_, lora_gradients_);
    const double norm = attn::gradient_norm(adapters_);
    adam_.step(rate_.at(n), {}, attn::clip_factor(norm, 1));
    lora_.merge(model_.gpt());
    return loss;
  }

  double loss(const std::vector<Pair>& pairs) { return forward(pairs, false); }

  void save(const std::string& path) const {
    attn::save_state_dict(path, lora_, {.prefix = kPrefix});
  }
  void load(const attn::SafetensorsFile& file) {
    attn::load_state_dict(lora_, file, {.prefix = kPrefix});
    lora_.merge(model_.gpt());
  }

 private:
  static constexpr const char* kPrefix = "base_model.model.";

  // Rows of question and answer, padded at the end. Each token predicts the next one; tokens before
  // and after the answer do not count.
  double forward(const std::vector<Pair>& pairs, bool wants_gradient) {
    constexpr index_t kIgnored = -100;
    std::vector<std::vector<index_t>> rows;
    std::vector<index_t> answer_at;
    index_t longest = 0;
    for (const Pair& pair : pairs) {
      const attn::ChatMessage message{"user", pair.question};
      std::vector<index_t> row = model_.encode_chat({&message, 1});
      answer_at.push_back(std::ssize(row));
      for (const index_t id : model_.tokenizer().encode(pair.answer)) row.push_back(id);
      row.push_back(model_.end_tokens().front());
      longest = std::max(longest, std::ssize(row));
      rows.push_back(std::move(row));
    }
    const index_t count = std::ssize(rows), seq = longest - 1, vocab = model_.gpt().vocab_size();
    attn::Tensor2<index_t> ids({count, seq});
    attn::Tensor1<index_t> targets({count * seq});
    for (index_t b = 0; b < count; ++b) {
      const std::vector<index_t>& row = rows[static_cast<std::size_t>(b)];
      for (index_t i = 0; i < seq; ++i) {
        const bool is_there = i + 1 < std::ssize(row);
        const bool is_answer = is_there && i + 1 >= answer_at[static_cast<std::size_t>(b)];
        ids(b, i) = is_there ? row[static_cast<std::size_t>(i)] : 0;
        targets(b * seq + i) = is_answer ? row[static_cast<std::size_t>(i + 1)] : kIgnored;
      }
    }
    logits_ = attn::Tensor3<float>::uninitialized({count, seq, vocab});
    const attn::TensorView2<float> of_rows(logits_.data(), {count * seq, vocab});
    if (!wants_gradient) {
      model_.gpt().forward(ids, logits_);
      return attn::cross_entropy(of_rows, targets, {.ignore_index = kIgnored});
    }
    attn::forward(model_.gpt(), ids, logits_, saved_);
    return attn::cross_entropy_backward(of_rows, targets, of_rows, {.ignore_index = kIgnored});
  }

  attn::LanguageModel& model_;
  attn::Gpt<float> gradients_;
  attn::Lora<float> lora_;
  attn::Lora<float> lora_gradients_ = attn::gradients_of(lora_);
  std::vector<attn::TrainedParameter<float>> adapters_ =
      attn::parameters_of<float>(lora_, lora_gradients_);
  attn::Adam<float> adam_{adapters_, {}};
  attn::Schedule rate_;
  attn::GptSaved<float> saved_;
  attn::Tensor3<float> logits_;
};

void print_answers(const attn::LanguageModel& model, const std::vector<Pair>& pairs) {
  for (const Pair& pair : pairs) {
    std::printf("  %s\n", examples::printable(pair.question).c_str());
    std::istringstream answer(ask(model, pair.question));
    for (std::string line; std::getline(answer, line);) {
      std::printf("    %s\n", examples::printable(line).c_str());
    }
  }
  std::fflush(stdout);
}

void run(const Options& options) {
  if (!options.load) examples::check_writable(options.save, kAdapterBytes);
  if (!examples::llm_is_present()) throw examples::UsageError(examples::missing_llm_message());
  const Data data = read_data(options.data);
  std::optional<attn::SafetensorsFile> adapters;
  if (options.load) adapters.emplace(*options.load);
  attn::LanguageModel model(examples::llm_path(),
                            {.max_positions = 512, .pack = false, .dequantize = true});
  std::mt19937_64 random(static_cast<std::uint64_t>(options.seed));
  std::vector<Pair> shown, measured;
  std::sample(data.held_out.begin(), data.held_out.end(), std::back_inserter(measured), 12, random);
  shown.assign(measured.begin(), measured.begin() + std::min<index_t>(3, std::ssize(measured)));
  Tuning tuning(model, options);
  std::printf("%s to learn from; held out: %s of asking, of which it measures %zu\n",
              examples::counted(data.learned.size(), "pair").c_str(),
              examples::counted(data.held_out.size(), "way").c_str(), measured.size());
  std::printf("\nBefore: %.2f nats a token of the answers\n", tuning.loss(measured));
  print_answers(model, shown);
  if (adapters) {
    tuning.load(*adapters);
    std::printf("\nWith %s: %.2f nats a token\n", examples::printable(*options.load).c_str(),
                tuning.loss(measured));
    return print_answers(model, shown);
  }
  std::printf("\n");
  const auto start = std::chrono::steady_clock::now();
  double sum = 0;
  index_t summed = 0;
  for (index_t n = 1; n <= options.steps; ++n) {
    std::vector<Pair> drawn;
    std::sample(data.learned.begin(), data.learned.end(), std::back_inserter(drawn), options.batch,
                random);
    sum += tuning.step(drawn, n);
    ++summed;
    if (n % 10 != 0 && n != options.steps) continue;
    std::printf("step %3td, %3.0f s: loss %.2f\n", n,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                sum / static_cast<double>(summed));
    std::fflush(stdout);
    sum = 0;
    summed = 0;
  }
  std::printf("\nAfter: %.2f nats a token\n", tuning.loss(measured));
  print_answers(model, shown);
  tuning.save(options.save);
  std::printf("\nThe adapters are in %s.\n", examples::printable(options.save).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Tunes SmolLM2-135M-Instruct by low-rank adapters to answer as a help centre does.");
  app.footer("Needs SmolLM2-135M-Instruct: sh examples/fetch_llm.sh");
  examples::add_number(app, "--steps", options.steps, index_t{1}, "Training steps");
  examples::add_number(app, "--batch", options.batch, index_t{1}, "Pairs per step");
  examples::add_number(app, "--seed", options.seed, index_t{0}, "Seed of the random numbers");
  examples::add_real(app, "--rate", options.rate, {.open = true}, "Peak learning rate");
  auto* save = app.add_option("--save", options.save, "Write the adapters to this file");
  app.add_option("--load", options.load, "Load adapters from this file instead of training")
      ->excludes(save);
  app.add_option("--data", options.data, "Folder of help_questions.txt");
  return examples::run_program(app, "finetune_chat", argc, argv, [&] { run(options); });
}
