// train_gpt: trains a small GPT on the characters of Shakespeare's plays; writes a checkpoint,
// samples and a page of losses.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <random>
#include <span>

#include <attn/generation.hpp>
#include <attn/train.hpp>

#include "pages/page.hpp"
#include "support/check_writable.hpp"
#include "support/command_line.hpp"
#include "support/plays.hpp"
#include "train_gpt_page.hpp"

namespace {

using attn::index_t;

constexpr std::size_t kWrittenBytes = 10'000'000;  // at least the size of a checkpoint or a page

struct Options {
  index_t steps = 2200, batch = 12, context = 64;
  // the run ends after this number of steps
  double seconds = std::numeric_limits<double>::infinity();
  std::string out, checkpoint;
};

attn::GptOptions model_options(index_t vocab_size, index_t context) {
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

class Training {
 public:
  Training(const Options& options, const examples::Plays& plays)
      : options_(options),
        plays_(plays),
        trained_(std::ssize(plays.ids) * 9 / 10),  // the last tenth is held out
        model_(model_options(std::ssize(plays.characters), options.context)) {
    attn::initialize(model_, {.seed = 1, .embedding_std = 0.02});
  }

  attn::Adam<float>& optimizer() { return adam_; }
  attn::Gpt<float>& model() { return model_; }

  // Trains one step and returns its loss. The batch depends on the step's number only, so that a
  // resumed run draws the same batches.
  double step(index_t n) {
    std::mt19937_64 random(static_cast<std::uint64_t>(n));
    const index_t room = trained_ - options_.context - 1;
    draw(
        [&](index_t) { return static_cast<index_t>(random() % static_cast<std::uint64_t>(room)); });
    attn::clear_gradients(parameters_);
    attn::forward(model_, ids_, logits_, saved_);
    const double loss = attn::cross_entropy_backward(rows(), targets_, rows());
    attn::backward(model_, logits_, saved_, gradients_);
    attn::clip_gradient_norm(parameters_, 1);
    adam_.step(rate_.at(n));
    return loss;
  }

  // Mean loss over `batches` pieces of the held-out text, evenly spaced.
  double held_out(index_t batches) {
    const index_t room = std::ssize(plays_.ids) - trained_ - options_.context - 1;
    double sum = 0;
    for (index_t n = 0; n < batches; ++n) {
      draw([&](index_t row) {
        return trained_ + (n * options_.batch + row) * room / (batches * options_.batch);
      });
      model_.forward(ids_, logits_);
      sum += attn::cross_entropy(rows(), targets_);
    }
    return sum / static_cast<double>(batches);
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
  template <class First>
  void draw(First first) {
    for (index_t row = 0; row < options_.batch; ++row) {
      const int* from = plays_.ids.data() + first(row);
      std::copy_n(from, options_.context, &ids_(row, 0));
      std::copy_n(from + 1, options_.context, &targets_(row * options_.context));
    }
  }
  attn::TensorView2<float> rows() {
    return {logits_.data(), {options_.batch * options_.context, model_.vocab_size()}};
  }

  Options options_;
  const examples::Plays& plays_;
  index_t trained_;
  attn::Gpt<float> model_;
  attn::Gpt<float> gradients_ = attn::gradients_of(model_);
  std::vector<attn::TrainedParameter<float>> parameters_ =
      attn::parameters_of<float>(model_, gradients_);
  // Weight decay applies to weights, not to norms and biases.
  attn::Adam<float> adam_{
      parameters_,
      {.beta2 = 0.99,
       .decoupled = true,
       .groups = {{attn::decays, 1.0, 0.1}, {[](std::string_view) { return true; }, 1.0, 0.0}}}};
  attn::Schedule rate_{.kind = attn::Schedule::Kind::cosine,
                       .peak = 3e-3,
                       .minimum = 3e-4,
                       .warm_up = 100,
                       .steps = options_.steps};
  attn::GptSaved<float> saved_;
  attn::Tensor2<int> ids_{{options_.batch, options_.context}};
  attn::Tensor1<int> targets_{{options_.batch * options_.context}};
  attn::Tensor3<float> logits_{{options_.batch, options_.context, model_.vocab_size()}};
};

void run(const Options& options) {
  for (const std::string& path : {options.out, options.checkpoint}) {
    if (!path.empty()) examples::check_writable(path, kWrittenBytes);
  }
  if (!examples::plays_are_present()) {
    throw std::runtime_error("the plays are not in " + examples::plays_dir().string() +
                             "; `sh examples/fetch_plays.sh` downloads them (5 MB)");
  }
  const examples::Plays plays(examples::plays_dir());
  std::printf("%s, %td different\n", examples::counted(std::ssize(plays.ids), "character").c_str(),
              std::ssize(plays.characters));
  Training training(options, plays);
  index_t first = 1;
  if (!options.checkpoint.empty() && std::filesystem::exists(options.checkpoint)) {
    first += attn::load_checkpoint(options.checkpoint, training.model(), training.optimizer()).step;
    std::printf("goes on behind step %td\n", first - 1);
  }
  nlohmann::ordered_json curve = nlohmann::ordered_json::array(), samples = curve;
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double sum = 0;
  index_t summed = 0, last = first - 1;
  for (index_t n = first; n <= options.steps; ++n) {
    if (passed() >= options.seconds) break;
    sum += training.step(n);
    last = n;
    ++summed;
    if (n % 50 != 0 && n != options.steps) continue;
    const double rate = static_cast<double>(n - first + 1) / passed();
    const double left =
        std::min(static_cast<double>(options.steps - n) / rate, options.seconds - passed());
    std::printf("step %5td of %td  loss %.3f  %6.0f tokens/s  %3.0f s left\n", n, options.steps,
                sum / static_cast<double>(summed),
                rate * static_cast<double>(options.batch * options.context), std::max(left, 0.0));
    std::fflush(stdout);
    nlohmann::ordered_json point{{"step", n}, {"loss", sum / static_cast<double>(summed)}};
    if (n % 500 == 0) {
      point["held"] = training.held_out(20);
      const std::string text = training.sample(200);
      std::printf("held out %.3f\n%s\n\n", point["held"].get<double>(), text.c_str());
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
  std::printf("after %s and %.0f s: %.3f nats a character on the held-out tenth\n%s\n",
              examples::counted(last, "step").c_str(), trained_for, held, text.c_str());
  if (options.out.empty()) return;
  samples.push_back({{"step", last}, {"text", text}});
  const std::string page = pages::with_data(
      pages::train_gpt_page,
      {{"curve", curve}, {"samples", samples}, {"held", held}, {"seconds", trained_for}});
  attn::AtomicFile file(options.out);
  file.write(std::as_bytes(std::span(page)));
  file.commit();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a small GPT on Shakespeare's plays, character by character.");
  Options options;
  examples::add_number(app, "--steps", options.steps, index_t{1}, "Training steps");
  examples::add_positive(app, "--seconds", options.seconds, "Stop after this many seconds");
  app.add_option("--out", options.out, "Write a page with the loss and the samples");
  app.add_option("--checkpoint", options.checkpoint, "Resume from this file, and save to it");
  return examples::run_program(app, "train_gpt", argc, argv, [&] { run(options); });
}
