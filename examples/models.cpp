// models: prints the contents of a language model's Hugging Face folder, its options as a Gpt, and
// its next tokens.
//
//   models tests/data/pretrained/llama       (a Llama of two layers, written by transformers)

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "attn/attn.hpp"
#include "attn/models/pretrained.hpp"

#include "support/command_line.hpp"
#include "support/printable.hpp"

namespace {

using attn::index_t;

struct Options {
  std::string folder;
  std::vector<index_t> ids;
  index_t tokens = 20;
};

template <class... Values>
std::string text_of(const char* format, Values... values) {
  char text[200];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

void print_file(const attn::SafetensorsFolder& file) {
  std::map<std::string, index_t> bytes;
  index_t elements = 0;
  for (const std::string& name : file.names()) {
    const attn::SafetensorsFile& part = file.file_of(name);
    bytes[std::string(attn::name(part.dtype(name)))] += std::ssize(part.bytes(name));
    index_t size = 1;
    for (const index_t extent : part.shape(name)) size *= extent;
    elements += size;
  }
  std::cout << "1. The files: " << examples::printable(file.file_name()) << '\n'
            << "   " << examples::counted(file.names().size(), "tensor") << ", "
            << examples::counted(elements, "number") << ':';
  for (const auto& [type, count] : bytes)
    std::cout << ' ' << type << ' ' << examples::counted(count, "byte");
  std::cout << '\n';
}

void print_options(const attn::ConfigFile& config, const attn::GptOptions& o) {
  const attn::MultiHeadAttentionOptions& a = o.layer.attention;
  std::cout << "\n2. config.json as GptOptions\n"
            << "   model_type " << examples::printable(config.get<std::string>("model_type"))
            << ": " << examples::counted(o.num_layers, "layer") << " of width " << o.layer.d_model
            << ", " << examples::counted(o.layer.nhead, "head");
  if (a.num_kv_heads > 0) std::cout << " on " << a.num_kv_heads << " of keys and values";
  std::cout << ", " << examples::counted(o.vocab_size, "token") << "\n   "
            << (o.layer.norm == attn::NormKind::rms ? "RMS norm" : "layer norm") << ", "
            << (o.layer.gated ? "gated " : "") << "feed-forward of " << o.layer.dim_feedforward
            << ", " << (o.tied ? "tied" : "own") << " weights of the logits\n   ";
  if (a.rotary) {
    std::cout << "rotary positions to " << a.rotary->max_positions << ", theta " << a.rotary->theta;
    if (a.rotary->scaling.kind != attn::RotaryScalingKind::none) {
      std::cout << ", scaled by " << a.rotary->scaling.factor;
    }
  } else {
    std::cout << "learned positions to " << o.max_positions;
  }
  std::cout << '\n';
}

void print_parameters(const attn::Gpt<float>& model) {
  std::cout << "\n3. The parameters of the first layer, and those outside of layers\n";
  model.visit_parameters([&](std::string_view name, const auto& x) {
    const bool is_of_others = name.find(".layers.") != std::string_view::npos &&
                              name.find(".layers.0.") == std::string_view::npos;
    if (is_of_others) return;
    std::cout << text_of("   %-48.*s %s\n", static_cast<int>(name.size()), name.data(),
                         attn::to_string(x.shape()).c_str());
  });
}

void print_next(const attn::Tensor3<float>& logits) {
  const index_t last = logits.extent(1) - 1;
  const attn::Tensor1<float> row(logits.view().select(0, 0).select(0, last));
  const attn::Tensor1<float> shares = attn::softmax(row);
  const auto [values, indices] = attn::top_k(shares, std::min<index_t>(5, row.size()));
  for (index_t n = 0; n < values.size(); ++n) {
    std::string bar;
    for (long b = 0; b < std::lround(40 * values(n)); ++b) bar += "█";
    std::cout << text_of("   token %5td  %5.1f %%  ", indices(n),
                         100 * static_cast<double>(values(n)))
              << bar << '\n';
  }
}

void print_ids(const char* what, const std::vector<index_t>& ids) {
  std::cout << "   " << what;
  for (const index_t id : ids) std::cout << ' ' << id;
  std::cout << '\n';
}

std::vector<index_t> read_ids(const attn::SafetensorsFile& file, const char* name) {
  const auto ids = file.load<index_t, 1>(name);
  return {ids.elements().begin(), ids.elements().end()};
}

int run(Options options) {
  if (options.folder.empty()) throw examples::UsageError("a folder is needed; see --help");
  const std::filesystem::path folder = options.folder, golden = folder / "golden.safetensors";
  const attn::ConfigFile config(folder / "config.json");
  const attn::GptOptions gpt_options = attn::gpt_options_of(config);
  const attn::Gpt<float> model = attn::load_pretrained<attn::Gpt<float>>(folder);
  // The results of transformers, if the folder contains them.
  std::vector<index_t> expected;
  if (options.ids.empty() && std::filesystem::exists(golden)) {
    const attn::SafetensorsFile file(golden.string());
    options.ids = read_ids(file, "ids_a");
    expected = read_ids(file, "greedy_a");
    options.tokens = std::ssize(expected);
  }
  if (options.ids.empty()) options.ids = {1, 2, 3};
  const attn::TensorView2<const index_t> prompt(options.ids.data(), {1, std::ssize(options.ids)});
  const attn::Tensor3<float> logits = model(prompt);
  attn::GptSession<float> session(model, 1, std::ssize(options.ids) + options.tokens);
  const auto answer = attn::generate(session, prompt, {.max_new_tokens = options.tokens})[0];

  print_file(attn::SafetensorsFolder(folder));
  print_options(config, gpt_options);
  print_parameters(model);
  std::cout << "\n4. What it says next\n";
  print_ids("behind the prompt", options.ids);
  print_next(logits);
  std::cout << "\n5. A session, which keeps keys and values\n";
  print_ids("the likeliest each time:", answer);
  std::cout << "   " << examples::counted(session.length(), "token") << " held, room for "
            << session.room() << " more\n";
  if (expected.empty()) return 0;
  const bool is_same = answer == expected;
  std::cout << "   " << (is_same ? "the tokens of" : "NOT the tokens of") << " transformers, as "
            << examples::printable(golden.filename().string()) << " has them\n";
  return is_same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Walks through FOLDER, a language model as Hugging Face's transformers saves it.");
  app.footer(
      "model_type llama, mistral, qwen2, qwen3, gemma or gpt2. In the repository: "
      "tests/data/pretrained/llama\n"
      "A golden.safetensors in the folder, as in tests/data, contains the tokens that transformers "
      "generates.");
  const auto read_prompt = [&](const CLI::results_t& words) {
    options.ids.clear();
    for (const std::string& word : words) {
      options.ids.push_back(examples::read_number("--ids", word, index_t{0}));
    }
    return true;
  };
  app.add_option("--ids", read_prompt, "The prompt's tokens, such as --ids 1,2,3")
      ->delimiter(',')
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false)  // followed by FOLDER
      ->type_name("IDS");
  examples::add_number<index_t>(app, "--tokens", options.tokens, 1, "Number of tokens to generate");
  app.add_option("FOLDER", options.folder, "The model's folder");
  return examples::run_program(app, "models", argc, argv, [&] { return run(options); });
}
