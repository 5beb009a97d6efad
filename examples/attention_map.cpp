// attention_map: shows what each head of all-MiniLM-L6-v2 or of a language model attends to in a
// text, as an interactive page, a picture and numbers; or which tokens a language model's masks
// keep.
//
//   sh examples/fetch_model.sh        (once)
//   attention_map --out map.html --png map.png --json map.json "The cat sat down because it was tired."
//   attention_map --model SmolLM2-135M-Instruct.Q4_1.gguf "The cat sat down because it was tired."
//   attention_map --mask --model SmolLM2-135M-Instruct.Q4_1.gguf "The cat sat down."

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include <CLI/CLI.hpp>

#include "attn/io/atomic_file.hpp"

#include "attention_map_page.hpp"
#include "pages/page.hpp"
#include "support/attention_of.hpp"
#include "support/command_line.hpp"
#include "support/contact_sheet.hpp"
#include "support/heads_of.hpp"
#include "support/json.hpp"
#include "support/model_dir.hpp"
#include "support/precision.hpp"
#include "support/printable.hpp"

namespace {

using examples::Json;

struct Options {
  std::optional<std::string> out, png, json, model;
  bool mask = false;
  std::string text, precision = "exact";
  std::vector<std::string> ignore_keys;
};

// The page's encoding of weights: multiples of 1e-5 in base-64 digits, one to three for small
// numbers and four for the rest. Most weights of a long text are small: a map of 256 tokens takes
// half the size of three digits for each weight. pages/weights.js decodes them.
std::string packed(const attn::Tensor4<float>& weights) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string digits;
  digits.reserve(2 * static_cast<std::size_t>(weights.size()));
  for (const float weight : std::span(weights.data(), static_cast<std::size_t>(weights.size()))) {
    auto value = static_cast<unsigned>(std::lround(std::clamp(weight, 0.0F, 1.0F) * 1e5F));
    // The first digit tells how many digits follow: 0 to 31 none, to 59 one, to 62 two, 63 three.
    unsigned first = 0, following = 0;
    if (value < 32) {
      first = value;
    } else if ((value -= 32) < 28 * 64) {
      following = 1;
      first = 32 + (value >> 6U);
    } else if ((value -= 28 * 64) < 3 * 64 * 64) {
      following = 2;
      first = 60 + (value >> 12U);
    } else {
      value -= 3 * 64 * 64;
      following = 3;
      first = 63;
    }
    digits += kDigits[first];
    while (following-- > 0) digits += kDigits[value >> (6 * following) & 63U];
  }
  return digits;
}

// The name of a model's file or folder.
std::string name_of(const std::filesystem::path& model) {
  const std::filesystem::path path = std::filesystem::absolute(model).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).stem().string();
}

std::string page(const Options& options, const examples::AttentionMap& map) {
  const bool decodes = options.model.has_value();
  return pages::with_data(pages::attention_map_page,
                          {{"text", options.text},
                           {"model", decodes ? name_of(*options.model) : "MiniLM"},
                           {"fullName", decodes ? name_of(*options.model) : "all-MiniLM-L6-v2"},
                           {"firstLayer", decodes ? "blk.0" : "encoder.layer.0"},
                           {"decodes", decodes},
                           {"numTokens", map.num_tokens},
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
  // A token may be an incomplete character.
  return examples::printable(Json{{"tokens", map.tokens}, {"weights", std::move(layers)}}.dump(
             -1, ' ', false, Json::error_handler_t::replace)) +
         '\n';
}

// The mask of each layer in characters, at most 32 across; layers with the same mask share one.
std::string mask_pictures(const examples::AttentionMap& map) {
  const auto seq = static_cast<attn::index_t>(map.tokens.size());
  const auto block = static_cast<attn::index_t>(std::bit_ceil((map.tokens.size() + 31) / 32));
  std::string text = "blocks of " + std::to_string(block) + " x " + std::to_string(block) +
                     " tokens: . masked out, + kept in part, # kept\n";
  for (std::size_t first = 0, end = 0; first < map.windows.size(); first = end) {
    while (end < map.windows.size() && map.windows[end] == map.windows[first]) ++end;
    const attn::index_t window = map.windows[first];
    const attn::BlockMask mask(
        attn::mask_mod([window, causal = map.is_causal](int, int, int i, int j) {
          return (!causal || j <= i) && (window < 0 || j >= i - window);
        }),
        {1, 1, seq, seq}, {.q_block = block, .kv_block = block});
    text += (end - first == 1 ? "layer " : "layers " + std::to_string(first) + " to ") +
            std::to_string(end - 1) + ":\n" + to_string(mask) + '\n';
  }
  return text;
}

// Writes to a file, or to standard output for "-", which then holds nothing else: messages go to
// standard error.
void save(const std::string& path, const std::string& bytes) {
  if (path == "-") {
    std::cout.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush();
    return;
  }
  attn::AtomicFile file(path);
  file.write(std::as_bytes(std::span(bytes)));
  file.commit();
  std::cerr << examples::printable(path) << ": " << examples::counted(bytes.size(), "byte") << '\n';
}

// Whether two outputs are the same file, under any spelling.
bool same(const std::optional<std::string>& a, const std::optional<std::string>& b) {
  if (!a || !b) return false;
  std::error_code error;
  const auto place = [&](const std::string& path) {
    return path == "-" ? std::filesystem::path(path)
                       : std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
  };
  return *a == *b || (place(*a) == place(*b) && !error);
}

examples::AttentionMap map_of(const Options& options) {
  examples::check_precision(options.precision);
  if (options.model) {
    if (options.precision != "exact") {
      throw examples::UsageError("--precision is that of all-MiniLM-L6-v2, without --model");
    }
    constexpr attn::index_t kMostTokens = 256;  // the path of all-MiniLM-L6-v2
    const attn::LanguageModel model(*options.model,
                                    {.pack = false, .ignore_keys = options.ignore_keys});
    return examples::heads_of(model, options.text, kMostTokens);
  }
  if (!examples::model_is_present()) throw examples::UsageError(examples::missing_model_message());
  const attn::MatmulPrecision products = examples::matmul_precision(options.precision);
  attn::SentenceEncoder<float> encoder(examples::model_dir(), {.matmul_precision = products});
  examples::set_precision(encoder, options.precision);
  return examples::attention_of(encoder, options.text, {.matmul_precision = products});
}

void run(Options options) {
  if (options.text.empty()) throw examples::UsageError("a text is needed; see --help");
  if (!options.png && !options.json && !options.out && !options.mask) {
    options.out = "attention_map.html";
  }
  if (same(options.out, options.png) || same(options.out, options.json) ||
      same(options.png, options.json)) {
    throw examples::UsageError("--out, --png and --json must name different files");
  }
  if (options.mask && (options.out == "-" || options.png == "-" || options.json == "-")) {
    throw examples::UsageError("--mask takes standard output, and so does -");
  }
  const examples::AttentionMap map = map_of(options);
  if (map.num_tokens > map.tokens.size()) {
    std::cerr << "the text is cut: of its " << examples::counted(map.num_tokens, "token")
              << " the model reads " << map.tokens.size() << '\n';
  }
  if (options.out) save(*options.out, page(options, map));
  if (options.png)
    save(*options.png, examples::ContactSheet(map.weights, options.text, map.tokens).png());
  if (options.json) save(*options.json, json(map));
  if (options.mask) std::cout << mask_pictures(map) << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Shows what every head of all-MiniLM-L6-v2, or of a language model, looks at in TEXT.");
  app.footer(
      "Without --out, --png, --json and --mask, it writes attention_map.html.\n"
      "The name - stands for standard output.\n"
      "Long texts are truncated to 256 tokens, about 200 words.\n"
      "Without --model it needs the weights of all-MiniLM-L6-v2: sh examples/fetch_model.sh");
  app.add_option("--model", options.model, "A language model: a GGUF file or a Hugging Face folder")
      ->type_name("FILE");
  examples::add_ignored_keys(app, options.ignore_keys);
  app.add_option("--out", options.out, "Write a self-contained page for a browser")
      ->type_name("PAGE.html");
  app.add_option("--png", options.png, "Write a picture of all heads, layers down and heads across")
      ->type_name("FILE");
  app.add_option("--json", options.json,
                 R"(Write {"tokens": [..], "weights": [layer][head][query][key]})")
      ->type_name("FILE");
  app.add_flag("--mask", options.mask,
               "Print which blocks of tokens the mask of each layer masks out");
  examples::add_precision(app, options.precision);
  app.add_option("TEXT", options.text, "The text");
  return examples::run_program(app, "attention_map", argc, argv, [&] { run(options); });
}
