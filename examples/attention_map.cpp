// Attention map: what every head of all-MiniLM-L6-v2 looks at in a text, as a page to explore, a picture and numbers.
//
//   sh examples/fetch_model.sh        (once)
//   attention_map --out map.html --png map.png --json map.json "The cat sat down because it was tired."

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "attn/io/atomic_file.hpp"

#include "attention_map_page.hpp"
#include "pages/page.hpp"
#include "support/command_line.hpp"
#include "support/contact_sheet.hpp"
#include "support/json.hpp"
#include "support/minilm.hpp"
#include "support/model_dir.hpp"

namespace {

using examples::Json;

struct Options {
  std::optional<std::string> out, png, json;
  std::string text;
};

// Weights as the page reads them: three base-64 digits each, 18 bits, which is five decimals and a quarter
// of the bytes that JSON's numbers take.
std::string packed(const attn::Tensor4<float>& weights) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  constexpr float kOne = (1 << 18) - 1;
  std::string digits;
  digits.reserve(3 * static_cast<std::size_t>(weights.size()));
  for (const float weight : std::span(weights.data(), static_cast<std::size_t>(weights.size()))) {
    const auto value = static_cast<unsigned>(std::lround(std::clamp(weight, 0.0F, 1.0F) * kOne));
    for (const unsigned shift : {12U, 6U, 0U}) digits += kDigits[value >> shift & 63U];
  }
  return digits;
}

std::string page(const std::string& text, const examples::AttentionMap& map) {
  return pages::with_data(pages::attention_map_page, {{"text", text},
                                                      {"tokens", map.tokens},
                                                      {"layers", map.weights.extent(0)},
                                                      {"heads", map.weights.extent(1)},
                                                      {"weights", packed(map.weights)}});
}

Json numbers(const attn::Tensor4<float>& weights, attn::index_t layer, attn::index_t head) {
  Json rows = Json::array();
  for (attn::index_t i = 0; i < weights.extent(2); ++i) {
    Json row = Json::array();
    for (attn::index_t j = 0; j < weights.extent(3); ++j) {
      row.push_back(examples::seven_decimals(weights(layer, head, i, j)));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string json(const examples::AttentionMap& map) {
  Json layers = Json::array();
  for (attn::index_t layer = 0; layer < map.weights.extent(0); ++layer) {
    Json heads = Json::array();
    for (attn::index_t head = 0; head < map.weights.extent(1); ++head) {
      heads.push_back(numbers(map.weights, layer, head));
    }
    layers.push_back(std::move(heads));
  }
  return Json{{"tokens", map.tokens}, {"weights", std::move(layers)}}.dump() + '\n';
}

void save(const std::string& path, const std::string& bytes) {
  attn::AtomicFile file(path);
  file.write(std::as_bytes(std::span(bytes)));
  file.commit();
  std::printf("%s: %zu bytes\n", path.c_str(), bytes.size());
}

void run(Options options) {
  if (options.text.empty()) throw examples::UsageError("a text is needed; see --help");
  if (!options.png && !options.json && !options.out) options.out = "attention_map.html";
  const auto same = [](const auto& a, const auto& b) { return a && a == b; };
  if (same(options.out, options.png) || same(options.out, options.json) ||
      same(options.png, options.json)) {
    throw examples::UsageError("--out, --png and --json must name different files");
  }
  if (!examples::model_is_present()) throw examples::UsageError(examples::missing_model_message());
  const examples::AttentionMap map =
      examples::MiniLm(examples::model_dir()).attention(options.text);
  if (options.out) save(*options.out, page(options.text, map));
  if (options.png) save(*options.png, examples::ContactSheet(map.weights).png());
  if (options.json) save(*options.json, json(map));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Shows what every head of all-MiniLM-L6-v2 looks at in TEXT.");
  app.footer(
      "Without --out, --png and --json it writes attention_map.html. Of a long text the first 256 "
      "tokens\n"
      "count, about 200 words. Needs the weights of all-MiniLM-L6-v2: sh examples/fetch_model.sh");
  app.add_option("--out", options.out, "Write a page for a browser, which needs no other file")
      ->type_name("PAGE.html");
  app.add_option("--png", options.png, "Write a picture of all heads, layers down and heads across")
      ->type_name("FILE");
  app.add_option("--json", options.json,
                 R"(Write {"tokens": [..], "weights": [layer][head][query][key]})")
      ->type_name("FILE");
  app.add_option("TEXT", options.text, "What to look at");
  return examples::run_program(app, "attention_map", argc, argv, [&] { run(options); });
}
