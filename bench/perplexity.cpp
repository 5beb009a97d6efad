// perplexity: how well a language model predicts a text.
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include "attn/generation/generate_text.hpp"

#include "support/command_line.hpp"
#include "support/json.hpp"
#include "support/model_dir.hpp"
#include "support/precision.hpp"

namespace {

using attn::index_t;
using examples::UsageError;

struct Options {
  std::string file, model, precision = "exact";
  index_t context = 512, bytes = std::numeric_limits<index_t>::max();
  bool json = false;
};

std::string read_text(const Options& options) {
  if (std::filesystem::is_directory(options.file))
    throw UsageError(options.file + " is a directory");
  errno = 0;
  std::ifstream in(options.file, std::ios::binary);
  if (!in) {
    throw UsageError("cannot read '" + options.file +
                     "': " + std::generic_category().message(errno));
  }
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (std::ssize(text) > options.bytes) text.resize(static_cast<std::size_t>(options.bytes));
  return text;
}

std::filesystem::path model_path(const Options& options) {
  if (!options.model.empty()) return options.model;
  if (!examples::llm_is_present()) throw UsageError(examples::missing_llm_message());
  return examples::llm_path();
}

void run(const Options& options) {
  if (options.context % 2 != 0) {
    throw UsageError("--ctx must be even; found " + std::to_string(options.context));
  }
  if (!examples::kActivations.contains(options.precision)) {
    throw UsageError("--precision must be exact, bf16 or int8; found " + options.precision);
  }
  const std::string text = read_text(options);
  const attn::LanguageModel model(model_path(options),
                                  {.activations = examples::kActivations.at(options.precision)});
  const std::vector<index_t> ids = model.tokenizer().encode(text);
  const index_t windows = std::ssize(ids) / options.context;
  if (windows == 0) {
    throw UsageError("the text has " + std::to_string(ids.size()) + " tokens, a window " +
                     std::to_string(options.context) + " (--ctx)");
  }
  std::vector<double> losses;  // -log P of each scored token
  for (index_t n = 0; n < windows; ++n) {
    const auto begin = ids.begin() + n * options.context;
    const std::vector<index_t> window(begin, begin + options.context);
    for (const double x : attn::score_text(model, window, {}, options.context / 2))
      losses.push_back(-x);
  }
  const auto count = static_cast<double>(losses.size());
  double mean = 0, squares = 0;
  for (const double x : losses) mean += x / count;
  for (const double x : losses) squares += (x - mean) * (x - mean);
  const double perplexity = std::exp(mean);
  // The error of exp() of the mean is the mean's error times the derivative, the perplexity.
  const double error = count > 1 ? perplexity * std::sqrt(squares / (count - 1) / count) : 0;
  if (options.json) {
    std::cout << examples::Json{{"perplexity", static_cast<float>(perplexity)},
                                {"standard_error", static_cast<float>(error)},
                                {"windows", windows},
                                {"tokens", losses.size()}}
                     .dump()
              << '\n';
  } else {
    std::cout << "perplexity " << attn::to_string(static_cast<float>(perplexity)) << " +- "
              << attn::to_string(static_cast<float>(error)) << " over " << losses.size()
              << " tokens of " << windows << " windows\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app(
      "Prints the perplexity of a text, the exponential of the mean of -log P over tokens, with "
      "its "
      "standard error. The text is read in windows, each by itself, and the second half of each is "
      "scored.");
  app.footer("Without --model it is SmolLM2-135M-Instruct: sh examples/fetch_llm.sh");
  app.add_option("FILE", o.file, "The text; such as one of sh examples/fetch_plays.sh")->required();
  app.add_option("--model", o.model, "A GGUF file")->type_name("FILE");
  app.add_option("--precision", o.precision,
                 "Of activations that meet quantised weights: exact (float), bf16 or int8")
      ->capture_default_str();
  examples::add_number<index_t>(app, "--ctx", o.context, 2, "Tokens of a window, an even number");
  examples::add_number<index_t>(app, "--bytes", o.bytes, 1, "Only the first bytes of the text");
  app.add_flag("--json", o.json, "Print one JSON object");
  return examples::run_program(app, "perplexity", argc, argv, [&] { run(o); });
}
