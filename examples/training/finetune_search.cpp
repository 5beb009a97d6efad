// finetune_search: trains all-MiniLM-L6-v2 to find the line of a help centre that answers a
// question; prints the ranks of held-out lines before and after.
//
//   sh examples/fetch_model.sh        (once)
//   finetune_search
//
// Trains adapters of rank 8 (LoRA) on pairs of question and line with an in-batch contrastive loss:
// each question should be nearer to its own line than to the lines of the others. The held-out
// lines are in no training pair.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <attn/models/sentence_encoder.hpp>
#include <attn/train.hpp>

#include "support/command_line.hpp"
#include "support/model_dir.hpp"

namespace {

using attn::index_t;
using Encoder = attn::SentenceEncoder<float>;

struct Options {
  std::string data = FINETUNE_DATA_DIR;
  index_t steps = 40, seeds = 3;
  double rate = 1e-3;
};

// A line and the questions that it answers.
struct Answer {
  std::string line;
  std::vector<std::string> questions;
};

struct Data {
  std::vector<Answer> learned, held_out;
  std::vector<std::string> lines;  // all lines that are searched
};

std::vector<std::string> read_lines(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(std::move(line));
  if (lines.empty()) throw examples::UsageError("cannot read " + path.string());
  return lines;
}

// help_questions.txt holds a question, a tab and its line; every sixth line is held out.
Data read_data(const std::filesystem::path& dir) {
  Data data;
  data.lines = read_lines(dir / "help_center.txt");
  std::vector<Answer> answers;
  for (const std::string& pair : read_lines(dir / "help_questions.txt")) {
    const std::size_t tab = pair.find('\t');
    if (tab == std::string::npos) throw examples::UsageError("no tab in the pair '" + pair + "'");
    const std::string line = pair.substr(tab + 1);
    if (answers.empty() || answers.back().line != line) answers.push_back({line, {}});
    answers.back().questions.push_back(pair.substr(0, tab));
  }
  for (std::size_t n = 0; n < answers.size(); ++n) {
    (n % 6 == 5 ? data.held_out : data.learned).push_back(answers[n]);
  }
  return data;
}

// The rank at which each question of the held-out lines finds its line, from 1 on.
std::vector<index_t> ranks(const Encoder& model, const Data& data) {
  const attn::Tensor2<float> lines = model.encode(data.lines, {.normalize = true});
  std::vector<index_t> result;
  for (const Answer& answer : data.held_out) {
    const attn::Tensor2<float> questions = model.encode(answer.questions, {.normalize = true});
    const attn::Tensor2<float> scores = attn::linear(questions, lines);  // cosines: norms are 1
    const index_t right =
        std::find(data.lines.begin(), data.lines.end(), answer.line) - data.lines.begin();
    for (index_t q = 0; q < scores.extent(0); ++q) {
      const float* row = &scores(q, 0);
      result.push_back(1 + std::count_if(row, row + scores.extent(1),
                                         [&](float other) { return other > scores(q, right); }));
    }
  }
  return result;
}

void print(const std::string& name, const std::vector<index_t>& ranks) {
  double sum = 0;
  for (const index_t rank : ranks) sum += 1 / static_cast<double>(rank);
  const auto among = [&](index_t most) {
    return static_cast<int>(
        std::count_if(ranks.begin(), ranks.end(), [&](index_t rank) { return rank <= most; }));
  };
  std::printf("%-24s %20.3f %9d %12d\n", name.c_str(), sum / static_cast<double>(ranks.size()),
              among(1), among(3));
  std::fflush(stdout);
}

class Tuning {
 public:
  Tuning(Encoder& model, std::uint64_t seed, const Options& options)
      : model_(model),
        random_(seed),
        rate_{.kind = attn::Schedule::Kind::cosine,
              .peak = options.rate,
              .warm_up = 5,
              .steps = options.steps} {
    saved_.dropout.seed = seed;
  }
  ~Tuning() { lora_.unmerge(model_); }
  Tuning(const Tuning&) = delete;
  Tuning& operator=(const Tuning&) = delete;

  // One random question for each of 25 lines; returns the loss.
  double step(const std::vector<Answer>& answers, index_t n) {
    std::vector<Answer> drawn;
    std::sample(answers.begin(), answers.end(), std::back_inserter(drawn), 25, random_);
    std::vector<std::string> texts;  // questions, then their lines
    for (const Answer& answer : drawn) {
      texts.push_back(answer.questions[random_() % answer.questions.size()]);
    }
    for (const Answer& answer : drawn) texts.push_back(answer.line);
    saved_.dropout.step = n;
    attn::fill_parameters(gradients_, 0);
    attn::clear_gradients(adapters_);
    const double loss = add_gradients(texts);
    lora_.backward(gradients_, lora_gradients_);
    attn::clip_gradient_norm(adapters_, 1);
    adam_.step(rate_.at(n));
    lora_.merge(model_);
    return loss;
  }

 private:
  // The loss of the first half of the lines (questions) against the second half, each embedded by
  // the mean of its tokens. All lines are packed in one row of tokens.
  double add_gradients(const std::vector<std::string>& lines) {
    const index_t count = std::ssize(lines), half = count / 2, dim = model_.bert().hidden_size();
    std::vector<std::int32_t> tokens;
    attn::Tensor1<index_t> ends({count + 1});
    for (index_t b = 0; b < count; ++b) {
      const auto line =
          model_.tokenizer().encode(lines[static_cast<std::size_t>(b)],
                                    static_cast<std::size_t>(model_.options().max_tokens));
      tokens.insert(tokens.end(), line.begin(), line.end());
      ends(b + 1) = std::ssize(tokens);
    }
    const attn::TensorView2<const std::int32_t> ids(tokens.data(), {1, std::ssize(tokens)});
    const attn::AttentionOptions<float> options{.cu_seqlens_q = ends, .cu_seqlens_k = ends};
    attn::Tensor3<float> hidden({1, ids.size(), dim});
    attn::forward(model_.bert(), ids, hidden, saved_, options);
    attn::Tensor2<float> means({count, dim}), d_means(means.shape());
    // Calls f(line, token, weight of the token in the mean of its line).
    const auto for_each_token = [&](auto f) {
      for (index_t b = 0; b < count; ++b) {
        const float share = 1 / static_cast<float>(ends(b + 1) - ends(b));
        for (index_t t = ends(b); t < ends(b + 1); ++t) f(b, t, share);
      }
    };
    for_each_token([&](index_t line, index_t token, float share) {
      for (index_t x = 0; x < dim; ++x) means(line, x) += share * hidden(0, token, x);
    });
    const auto part = [&](attn::Tensor2<float>& of, bool second) {
      return of.view().slice(0, second ? half : 0, second ? count : half);
    };
    const double loss = attn::contrastive_loss_backward(part(means, false), part(means, true),
                                                        part(d_means, false), part(d_means, true));
    for_each_token([&](index_t line, index_t token, float share) {
      for (index_t x = 0; x < dim; ++x) hidden(0, token, x) = share * d_means(line, x);
    });
    attn::backward(model_.bert(), hidden, saved_, gradients_, options);
    return loss;
  }

  Encoder& model_;
  std::mt19937_64 random_;
  attn::Schedule rate_;
  attn::Bert<float> gradients_ = attn::gradients_of(model_.bert(), attn::LoraOptions().takes);
  attn::Lora<float> lora_{model_, {.rank = 8, .alpha = 16, .seed = random_()}};
  attn::Lora<float> lora_gradients_ = attn::gradients_of(lora_);
  std::vector<attn::TrainedParameter<float>> adapters_ =
      attn::parameters_of<float>(lora_, lora_gradients_);
  attn::Adam<float> adam_{adapters_, {}};
  attn::BertSaved<float> saved_;
};

void run(const Options& options) {
  if (!examples::model_is_present()) {
    throw examples::UsageError(examples::missing_model_message());
  }
  const Data data = read_data(options.data);
  Encoder model(examples::model_dir());
  const std::vector<index_t> before = ranks(model, data);
  const auto count = [](const std::vector<Answer>& answers) {
    std::size_t pairs = 0;
    for (const Answer& answer : answers) pairs += answer.questions.size();
    return pairs;
  };
  std::printf("%s to learn from; %s about %s, searched in %zu\n\n",
              examples::counted(count(data.learned), "pair").c_str(),
              examples::counted(count(data.held_out), "question").c_str(),
              examples::counted(data.held_out.size(), "other line").c_str(), data.lines.size());
  std::printf("%-24s %20s %9s %12s\n", "", "mean reciprocal rank", "found 1st", "in first 3");
  print("before", before);
  std::vector<index_t> after;
  for (index_t seed = 1; seed <= options.seeds; ++seed) {
    Tuning tuning(model, static_cast<std::uint64_t>(seed), options);
    const auto start = std::chrono::steady_clock::now();
    for (index_t n = 1; n <= options.steps; ++n) tuning.step(data.learned, n);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    after = ranks(model, data);
    char name[64];
    std::snprintf(name, sizeof(name), "seed %td, %s, %.0f s", seed,
                  examples::counted(options.steps, "step").c_str(), seconds);
    print(name, after);
  }
  std::printf("\nMoved up most, with the last seed:\n");
  std::vector<std::size_t> order(before.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto gain = [&](std::size_t n) { return before[n] - after[n]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return gain(a) > gain(b); });
  std::vector<std::pair<std::string, std::string>> asked;
  for (const Answer& answer : data.held_out) {
    for (const std::string& question : answer.questions) asked.emplace_back(question, answer.line);
  }
  for (std::size_t n = 0; n < std::min<std::size_t>(order.size(), 4); ++n) {
    const auto& [question, line] = asked[order[n]];
    std::printf("  from %td to %td: %s\n    %s\n", before[order[n]], after[order[n]],
                examples::printable(question).c_str(), examples::printable(line).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Tunes all-MiniLM-L6-v2 to find the line of a help centre that answers a question.");
  app.footer("Needs the weights of all-MiniLM-L6-v2: sh examples/fetch_model.sh");
  examples::add_number(app, "--steps", options.steps, index_t{1}, "Training steps per seed");
  examples::add_number(app, "--seeds", options.seeds, index_t{1},
                       "Number of training runs, each with its own seed");
  examples::add_real(app, "--rate", options.rate, {.open = true}, "Peak learning rate");
  app.add_option("--data", options.data, "Folder of help_center.txt and help_questions.txt");
  return examples::run_program(app, "finetune_search", argc, argv, [&] { run(options); });
}
