// draft_trees: tokens per step of speculative decoding by chains and by trees of drafts.
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "attn/generation/generate_text.hpp"
#include "attn/io/mapped_file.hpp"

#include "support/command_line.hpp"
#include "support/model_dir.hpp"
#include "support/threads.hpp"

namespace {

using attn::index_t;
using examples::UsageError;
using Session = attn::GptSession<float>;

struct Options {
  std::string file, model;
  index_t passages = 8, prompt = 200, tokens = 64, layers = 24;
};

// The model's first layers and its head, as a draft model of the same vocabulary.
attn::Gpt<float> first_layers(const attn::Gpt<float>& model, index_t layers) {
  attn::Gpt<float> first = model;  // which shares its weights
  auto& all = first.blocks.layers;
  if (layers > std::ssize(all)) {
    throw UsageError("the model has " + std::to_string(all.size()) + " layers (--layers)");
  }
  all.erase(all.begin() + layers, all.end());
  return first;
}

void run(const Options& options) {
  if (options.model.empty() && !examples::llm_is_present()) {
    throw UsageError(examples::missing_llm_message());
  }
  const attn::LanguageModel model(
      options.model.empty() ? examples::llm_path() : std::filesystem::path(options.model),
      {.activations = attn::ActivationFormat::int8});
  const attn::Gpt<float> first = first_layers(model.gpt(), options.layers);
  const attn::MappedFile file(options.file);
  const std::vector<index_t> text = model.tokenizer().encode(
      {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
  const index_t capacity = options.prompt + options.tokens + 64;
  const index_t apart = (std::ssize(text) - options.prompt) / options.passages;
  if (apart < 1) throw UsageError("the text has only " + std::to_string(text.size()) + " tokens");

  std::vector<std::vector<index_t>> plain;
  // Answers all passages; `draft` begins with empty caches each time.
  const auto measure = [&](const std::string& name, const auto& draft_of) {
    index_t said = 0, drafted = 0, accepted = 0;
    double seconds = 0;
    for (index_t n = 0; n < options.passages; ++n) {
      const auto begin = text.begin() + n * apart;
      Session session(model.gpt(), 1, capacity), draft_session(first, 1, capacity);
      const auto draft = draft_of(draft_session);
      attn::TextGenerationOptions how{.max_new_tokens = options.tokens};
      if constexpr (requires { how.draft = std::ref(*draft); }) {
        if (draft) how.draft = std::ref(*draft);
      }
      const std::vector<index_t> prompt(begin, begin + options.prompt);
      const bench::Clock::time_point start = bench::Clock::now();
      const attn::GeneratedText found = attn::generate_text(model, session, prompt, how);
      seconds += bench::seconds_since(start);
      if (std::ssize(plain) <= n) plain.push_back(found.ids);
      if (found.ids != plain[static_cast<std::size_t>(n)]) {
        throw std::runtime_error(name + ": other tokens than plain decoding");
      }
      said += std::ssize(found.ids);
      drafted += found.drafted;
      accepted += found.accepted;
    }
    const auto steps = static_cast<double>(said - accepted);
    std::cout << name << ": " << static_cast<double>(said) / steps << " tokens per step, "
              << static_cast<double>(drafted) / steps << " drafted per step, "
              << static_cast<double>(said) / seconds << " tokens per second\n";
  };
  using Model = attn::DraftModel<float>;
  measure("no draft", [](Session&) { return std::unique_ptr<Model>(); });
  for (const index_t width : {1, 2, 3, 4, 8}) {
    measure("draft model, width " + std::to_string(width),
            [&](Session& session) { return std::make_unique<Model>(session, width); });
  }
  for (const index_t continuations : {1, 2, 4, 8}) {
    measure("prompt lookup, " + std::to_string(continuations) + " continuations",
            [&](Session&) { return std::make_unique<attn::PromptLookup>(3, continuations); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app(
      "Continues passages of a text and prints tokens per step of speculative decoding: with "
      "chains "
      "(width 1, 1 continuation) and with trees. The draft model is the first layers of the "
      "model.");
  app.footer("Without --model it is SmolLM2-135M-Instruct: sh examples/fetch_llm.sh");
  app.add_option("FILE", o.file, "The text; such as one of sh examples/fetch_plays.sh")->required();
  app.add_option("--model", o.model, "A GGUF file")->type_name("FILE");
  examples::add_number<index_t>(app, "--passages", o.passages, 1, "How many passages");
  examples::add_number<index_t>(app, "--prompt", o.prompt, 1, "Tokens of a passage");
  examples::add_number<index_t>(app, "--tokens", o.tokens, 1, "New tokens of each passage");
  examples::add_number<index_t>(app, "--layers", o.layers, 1, "Layers of the draft model");
  return examples::run_program(app, "draft_trees", argc, argv, [&] { run(o); });
}
