// minilm_speed: how fast semantic_search's encoder embeds the lines of a text, tokenizer included.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "attn/models/sentence_encoder.hpp"

#include "support/command_line.hpp"
#include "support/model_dir.hpp"
#include "support/precision.hpp"
#include "support/threads.hpp"

namespace {

struct Options {
  std::string text, embeddings, precision = "exact";
  double seconds = 5;
};

std::vector<std::string> read_lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  if (lines.empty()) throw examples::UsageError("no lines in " + path);
  return lines;
}

void run(const Options& options) {
  if (!examples::model_is_present()) {
    throw examples::UsageError(examples::missing_model_message());
  }
  const std::vector<std::string> lines = read_lines(options.text);
  examples::check_precision(options.precision);
  const attn::MatmulPrecision products = examples::matmul_precision(options.precision);
  const attn::EncodeOptions encode{.execution = {.matmul_precision = products}};
  attn::SentenceEncoder<float> model(examples::model_dir(), {.matmul_precision = products});
  examples::set_precision(model, options.precision);
  // Allocates the scratch memory of the calls below.
  const attn::Tensor2<float> embeddings = model.encode(lines, encode);
  if (!options.embeddings.empty()) {
    std::ofstream file(options.embeddings, std::ios::binary);
    file.write(reinterpret_cast<const char*>(embeddings.data()),
               static_cast<std::streamsize>(embeddings.size() * attn::index_t{sizeof(float)}));
    if (!file.flush()) throw examples::UsageError("cannot write " + options.embeddings);
  }
  double best = std::numeric_limits<double>::infinity();
  const bench::Clock::time_point first = bench::Clock::now();
  do {
    const bench::Clock::time_point start = bench::Clock::now();
    model.encode(lines, encode);
    best = std::min(best, bench::seconds_since(start));
  } while (bench::seconds_since(first) < options.seconds);
  const nlohmann::ordered_json result = {
      {"lines", lines.size()},
      {"seconds", best},
      {"sentences_per_second", static_cast<double>(lines.size()) / best},
      {"threads", attn::default_executor().concurrency()}};
  std::cout << result.dump() << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Embeds the lines of TEXT by all-MiniLM-L6-v2, again and again, and prints the shortest time "
      "as JSON. Loading is not counted.");
  app.add_option("TEXT", options.text, "File of one sentence a line")->required();
  app.add_option("--seconds", options.seconds, "About how long to measure")->capture_default_str();
  app.add_option("--embeddings", options.embeddings,
                 "Write the embeddings to FILE: 384 floats a line, as they lie in memory")
      ->type_name("FILE");
  examples::add_precision(app, options.precision);
  return examples::run_program(app, "minilm_speed", argc, argv, [&] { run(options); });
}
