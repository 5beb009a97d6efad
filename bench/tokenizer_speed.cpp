// tokenizer_speed: lines per second that one thread tokenizes, after a check of their ids.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "attn/models/gguf/tokenizer.hpp"

#include "support/command_line.hpp"
#include "support/model_dir.hpp"
#include "support/threads.hpp"

namespace {

struct Options {
  std::string lines, model;
  double seconds = 3;
};

void run(const Options& options) {
  if (options.model.empty() && !examples::llm_is_present())
    throw examples::UsageError(examples::missing_llm_message());
  const attn::GgufFile file(options.model.empty() ? examples::llm_path()
                                                  : std::filesystem::path(options.model));
  const attn::Tokenizer tokenizer = attn::gguf_tokenizer(file);
  std::ifstream stream(options.lines);
  if (!stream) throw examples::UsageError("cannot read " + options.lines);
  std::vector<std::string> lines;
  std::size_t bytes = 0, unequal = 0;
  for (const nlohmann::json& one : nlohmann::json::parse(stream)) {
    lines.push_back(one.at("text").get<std::string>());
    bytes += lines.back().size();
    if (tokenizer.encode(lines.back(), true) != one.at("ids").get<std::vector<attn::index_t>>())
      ++unequal;
  }
  double best = std::numeric_limits<double>::infinity();
  const bench::Clock::time_point first = bench::Clock::now();
  std::size_t ids = 0;
  do {
    const bench::Clock::time_point start = bench::Clock::now();
    ids = 0;
    for (const std::string& line : lines) ids += tokenizer.encode(line, true).size();
    best = std::min(best, bench::seconds_since(start));
  } while (bench::seconds_since(first) < options.seconds);
  const nlohmann::ordered_json result = {
      {"lines", lines.size()},
      {"unequal", unequal},
      {"ids", ids},
      {"seconds", best},
      {"mb_per_second", static_cast<double>(bytes) / best / 1e6}};
  std::cout << result.dump() << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Measures how fast a tokenizer makes the ids of lines, and counts those that differ.");
  app.add_option("LINES", options.lines, R"(A file [{"text": .., "ids": [..]}, ..])")->required();
  app.add_option("--model", options.model, "A GGUF file; SmolLM2 if not given");
  app.add_option("--seconds", options.seconds, "How long to measure")->capture_default_str();
  return examples::run_program(app, "tokenizer_speed", argc, argv, [&] { run(options); });
}
