// train_gpt(): trains a small GPT on the characters of Shakespeare's plays, on several ranks; writes
// a checkpoint, samples and a page of losses.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include <attn/distributed.hpp>
#include <attn/distributed/sharded_checkpoint.hpp>
#include <attn/generation.hpp>
#include <attn/train.hpp>

#include "pages/page.hpp"
#include "support/check_writable.hpp"
#include "support/command_line.hpp"
#include "support/plays.hpp"
#include "train_gpt_page.hpp"

namespace examples {

using attn::index_t;

// At least the size of a checkpoint or a page.
inline constexpr std::size_t kWrittenBytes = 10'000'000;

struct GptTrainingOptions {
  index_t steps = 2200, batch = 12, context = 64;
  index_t micro_batches = 1;  // of a step: losses have the same bits on any number of ranks
  double seconds = std::numeric_limits<double>::infinity();
  std::string out = {}, checkpoint = {};
};

inline attn::GptOptions gpt_training_model(index_t vocab_size, index_t context) {
  return {.vocab_size = vocab_size,
          .num_layers = 4,
          .layer = {.d_model = 128,
                    .nhead = 4,
                    .dim_feedforward = 512,
                    .dropout = 0,
                    .activation = attn::Activation::gelu_tanh,
                    .norm_first = true},
          .max_positions = context};
}

class GptTraining {
 public:
  GptTraining(const GptTrainingOptions& options, const Plays& plays, attn::Communicator& comm)
      : options_(options),
        comm_(comm),
        plays_(plays),
        trained_(std::ssize(plays.ids) * 9 / 10),  // the last tenth is held out
        model_(gpt_training_model(std::ssize(plays.characters), options.context)) {
    attn::initialize(model_, {.seed = 1, .embedding_std = 0.02});
  }

  attn::ShardedOptimizer<attn::Adam<float>>& optimizer() { return adam_; }
  attn::Gpt<float>& model() { return model_; }

  // Trains one step and returns its loss, on all ranks. The batch depends on the step's number only,
  // so that a resumed run draws the same batches.
  double step(index_t n) {
    std::mt19937_64 random(static_cast<std::uint64_t>(n));
    const index_t room = trained_ - options_.context - 1;
    std::vector<index_t> firsts;
    for (index_t row = 0; row < options_.batch; ++row) {
      firsts.push_back(static_cast<index_t>(random() % static_cast<std::uint64_t>(room)));
    }
    attn::clear_gradients(parameters_);
    for (index_t m = tree_.micro_batches().begin; m < tree_.micro_batches().end; ++m) {
      take(attn::micro_batch(firsts, m, options_.micro_batches));
      attn::forward(model_, ids_, logits_, saved_);
      const auto tokens = static_cast<double>(options_.batch * options_.context);
      const double loss =
          attn::cross_entropy_backward(rows(), targets_, rows(), {.divisor = tokens});
      attn::backward(model_, logits_, saved_, gradients_);
      tree_.add(m, loss);
    }
    const double loss = tree_.finish(adam_);
    adam_.step(rate_.at(n), {}, attn::clip_factor(adam_.gradient_norm(), 1));
    return loss;
  }

  // Mean loss over `batches` batches of the held-out text, evenly spaced.
  double held_out(index_t batches) {
    const index_t room = std::ssize(plays_.ids) - trained_ - options_.context - 1;
    const index_t count = batches * options_.micro_batches, rows_of_each = ids_.extent(0);
    double sum = 0;
    std::vector<index_t> firsts(static_cast<std::size_t>(rows_of_each));
    for (index_t n = 0; n < count; ++n) {
      for (index_t row = 0; row < rows_of_each; ++row) {
        firsts[static_cast<std::size_t>(row)] =
            trained_ + (n * rows_of_each + row) * room / (count * rows_of_each);
      }
      take(firsts);
      model_.forward(ids_, logits_);
      sum += attn::cross_entropy(rows(), targets_);
    }
    return sum / static_cast<double>(count);
  }

  // The model's text after a line break.
  std::string sample(index_t length) const {
    attn::Sampler sampler({.temperature = 0.8, .seed = 3}, model_.vocab_size());
    const auto break_at = std::find(plays_.characters.begin(), plays_.characters.end(), '\n');
    std::vector<index_t> said{break_at - plays_.characters.begin()};
    std::string text;
    attn::Tensor3<float> logits({1, 1, model_.vocab_size()});
    for (index_t n = 0; n < length; ++n) {
      const index_t first = std::max(std::ssize(said) - options_.context, index_t{0});
      const attn::TensorView2<const index_t> last(said.data() + first,
                                                  {1, std::ssize(said) - first});
      model_.forward(last, logits);
      said.push_back(sampler(logits.view().select(0, 0).select(0, 0)));
      text += plays_.characters[static_cast<std::size_t>(said.back())];
    }
    return text;
  }

 private:
  // Takes the pieces of the text that begin at `firsts`.
  void take(std::span<const index_t> firsts) {
    index_t row = 0;
    for (index_t first : firsts) {
      const int* from = plays_.ids.data() + first;
      std::copy_n(from, options_.context, &ids_(row, 0));
      std::copy_n(from + 1, options_.context, &targets_(row * options_.context));
      ++row;
    }
  }
  attn::TensorView2<float> rows() {
    return {logits_.data(), {targets_.size(), model_.vocab_size()}};
  }

  GptTrainingOptions options_;
  attn::Communicator& comm_;
  const Plays& plays_;
  index_t trained_;
  attn::Gpt<float> model_;
  attn::Gpt<float> gradients_ = attn::gradients_of(model_);
  std::vector<attn::TrainedParameter<float>> parameters_ =
      attn::parameters_of<float>(model_, gradients_);
  // Weight decay applies to weights, not to norms and biases.
  attn::ShardedOptimizer<attn::Adam<float>> adam_{
      comm_,
      parameters_,
      {.beta2 = 0.99,
       .decoupled = true,
       .groups = {{attn::decays, 1.0, 0.1}, {[](std::string_view) { return true; }, 1.0, 0.0}}}};
  attn::Schedule rate_{.kind = attn::Schedule::Kind::cosine,
                       .peak = 3e-3,
                       .minimum = 3e-4,
                       .warm_up = 100,
                       .steps = options_.steps};
  attn::GradientTree<float> tree_{comm_, parameters_, options_.micro_batches};
  attn::GptSaved<float> saved_;
  attn::Tensor2<int> ids_{{options_.batch / options_.micro_batches, options_.context}};
  attn::Tensor1<int> targets_{{ids_.size()}};
  attn::Tensor3<float> logits_{{ids_.extent(0), options_.context, model_.vocab_size()}};
};

// Trains on all ranks; rank 0 prints and writes.
inline void train_gpt(const GptTrainingOptions& options, attn::Communicator& comm) {
  const bool prints = comm.rank() == 0;
  for (const std::string& path : {options.out, options.checkpoint}) {
    if (prints && !path.empty()) check_writable(path, kWrittenBytes);
  }
  if (!plays_are_present()) {
    throw std::runtime_error("the plays are not in " + plays_dir().string() +
                             "; `sh examples/fetch_plays.sh` downloads them (5 MB)");
  }
  const Plays plays(plays_dir());
  if (prints) {
    std::printf("%s, %td different\n", counted(std::ssize(plays.ids), "character").c_str(),
                std::ssize(plays.characters));
  }
  GptTraining training(options, plays, comm);
  index_t first = 1;
  // Ranks may see different files: rank 0 decides, and a rank that lacks its file ends them all.
  char resumes =
      prints && !options.checkpoint.empty() && std::filesystem::exists(options.checkpoint);
  comm.broadcast(0, std::as_writable_bytes(std::span(&resumes, 1)));
  if (resumes != 0) {
    first += attn::load_checkpoint(options.checkpoint, training.model(), training.optimizer()).step;
    if (prints) std::printf("goes on behind step %td\n", first - 1);
  }
  nlohmann::ordered_json curve = nlohmann::ordered_json::array(), samples = curve;
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [&] {  // by the clock of rank 0: all end after the same step
    const auto now = std::chrono::steady_clock::now();
    double seconds = std::chrono::duration<double>(now - start).count();
    comm.broadcast(0, std::as_writable_bytes(std::span(&seconds, 1)));
    return seconds;
  };
  double sum = 0;
  index_t summed = 0, last = first - 1;
  for (index_t n = first; n <= options.steps; ++n) {
    if (passed() >= options.seconds) break;
    sum += training.step(n);
    last = n;
    ++summed;
    if (n % 50 != 0 && n != options.steps) continue;
    const double now = passed(), rate = static_cast<double>(n - first + 1) / now;
    const double left =
        std::min(static_cast<double>(options.steps - n) / rate, options.seconds - now);
    if (prints) {
      std::printf("step %5td of %td  loss %.3f  %6.0f tokens/s  %3.0f s left\n", n, options.steps,
                  sum / static_cast<double>(summed),
                  rate * static_cast<double>(options.batch * options.context), std::max(left, 0.0));
      std::fflush(stdout);
    }
    nlohmann::ordered_json point{{"step", n}, {"loss", sum / static_cast<double>(summed)}};
    if (n % 500 == 0) {
      point["held"] = training.held_out(20);
      const std::string text = training.sample(200);
      if (prints) std::printf("held out %.3f\n%s\n\n", point["held"].get<double>(), text.c_str());
      samples.push_back({{"step", n}, {"text", text}});
    }
    curve.push_back(point);
    sum = 0;
    summed = 0;
    if (!options.checkpoint.empty() && n % 500 == 0) {
      attn::save_checkpoint(options.checkpoint, training.model(), training.optimizer(),
                            {.step = n});
    }
  }
  const double trained_for = passed(), held = training.held_out(100);
  const std::string text = training.sample(600);
  if (!prints) return;
  std::printf("after %s and %.0f s: %.3f nats a character on the held-out tenth\n%s\n",
              counted(last, "step").c_str(), trained_for, held, text.c_str());
  if (options.out.empty()) return;
  samples.push_back({{"step", last}, {"text", text}});
  const std::string page = pages::with_data(
      pages::train_gpt_page,
      {{"curve", curve}, {"samples", samples}, {"held", held}, {"seconds", trained_for}});
  attn::AtomicFile file(options.out);
  file.write(std::as_bytes(std::span(page)));
  file.commit();
}

inline void add_training_options(CLI::App& app, GptTrainingOptions& options) {
  add_number(app, "--steps", options.steps, index_t{1}, "Training steps");
  add_real(app, "--seconds", options.seconds, {.open = true}, "Stop after this many seconds");
  app.add_option("--out", options.out, "Write a page with the loss and the samples");
  app.add_option("--checkpoint", options.checkpoint, "Resume from this file, and save to it");
}

}  // namespace examples
