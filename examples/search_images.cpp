// search_images: ranks PNG files by a text, with a CLIP or SigLIP from a Hugging Face folder.
//
//   search_images clip-vit-base-patch32 photos/*.png --query "a dog on the beach"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "attn/attn.hpp"
#include "attn/models/pretrained.hpp"
#include "attn/models/pretrained/tokenizer.hpp"

#include "support/command_line.hpp"
#include "support/json.hpp"
#include "support/preprocessor.hpp"
#include "support/printable.hpp"

namespace {

using attn::index_t;

struct Options {
  std::string folder, query;
  std::vector<std::string> images;
  index_t top = 5;
  bool json = false;
};

// An image and how well the query describes it.
struct Match {
  std::string image;
  float similarity;   // the cosine of both vectors
  float probability;  // of SigLIP
};

// The token that fills texts up, and whether before them.
std::pair<std::string, bool> padding_of(const std::filesystem::path& folder) {
  const attn::ConfigFile config(folder / "tokenizer_config.json");
  const bool is_text = config.holds_text("pad_token");
  return {is_text ? config.get<std::string>("pad_token")
                  : config.object("pad_token").get<std::string>("content"),
          config.get<std::string>("padding_side", "right") == "left"};
}

// The query as ids (1, tokens), cut to the positions of the model.
attn::Tensor2<index_t> ids_of(const Options& o, const attn::ClipOptions& model) {
  const attn::InputEmbeddingOptions& embedding = model.text_embedding;
  const bool is_siglip = model.form == attn::ClipForm::siglip;
  const auto [tokenizer, special, chat_template] =
      attn::pretrained_text(o.folder, embedding.vocab_size);
  // SigLIP was trained on texts in lower case; the tokenizer of CLIP does the same.
  std::vector<index_t> ids = tokenizer.encode(is_siglip ? attn::lowercase(o.query) : o.query);
  const index_t around = (special.add_bos ? 1 : 0) + (special.behind ? 1 : 0);
  const auto room =
      static_cast<std::size_t>(std::max<index_t>(0, embedding.max_positions - around));
  ids.resize(std::min(ids.size(), room));
  if (special.add_bos) ids.insert(ids.begin(), *special.bos);
  if (special.behind) ids.push_back(*special.behind);
  if (is_siglip) {
    const auto [name, is_before] = padding_of(o.folder);
    const auto pad = tokenizer.token(name);
    if (!pad) throw std::runtime_error("pad_token: the tokenizer has no token " + name);
    const std::size_t missing = static_cast<std::size_t>(embedding.max_positions) - ids.size();
    ids.insert(is_before ? ids.begin() : ids.end(), missing, *pad);
  }
  attn::Tensor2<index_t> result({1, std::ssize(ids)});
  std::copy(ids.begin(), ids.end(), result.data());
  return result;
}

void print_matches(const std::vector<Match>& matches, bool is_siglip) {
  for (const Match& match : matches) {
    char numbers[32];
    if (is_siglip) {
      std::snprintf(numbers, sizeof numbers, "%7.4f %5.1f %%",
                    static_cast<double>(match.similarity),
                    100 * static_cast<double>(match.probability));
    } else {
      std::snprintf(numbers, sizeof numbers, "%7.4f", static_cast<double>(match.similarity));
    }
    std::cout << numbers << "  " << examples::printable(match.image) << '\n';
  }
}

void run(const Options& o) {
  if (o.folder.empty() || o.images.empty()) {
    throw examples::UsageError("a folder and images are needed; see --help");
  }
  if (o.query.empty()) throw examples::UsageError("--query is needed; see --help");
  const auto model = attn::load_pretrained<attn::Clip<float>>(o.folder);
  if (!exists(std::filesystem::path(o.folder) / "preprocessor_config.json")) {
    throw std::runtime_error(o.folder + ": no preprocessor_config.json");
  }
  const examples::PixelOptions pixels = examples::pixel_options_of(o.folder);
  const attn::VitOptions& vision = model.options().vision;
  if (vision.num_channels != 3) {
    throw std::runtime_error(o.folder + ": not a model of three colours");
  }
  const bool is_siglip = model.options().form == attn::ClipForm::siglip;
  const attn::Tensor2<float> text = model.embed_texts(ids_of(o, model.options()));
  std::vector<Match> matches;
  for (const std::string& path : o.images) {
    const attn::Tensor2<float> image = model.embed_images(examples::resized(
        examples::read_png(path), vision.image_height, vision.image_width, pixels));
    float cosine = 0;
    for (index_t d = 0; d < image.extent(1); ++d) cosine += image(0, d) * text(0, d);
    const float logit = model.similarities(image, text)(0, 0);
    matches.push_back({path, cosine, 1 / (1 + std::exp(-logit))});
  }
  std::stable_sort(matches.begin(), matches.end(),
                   [](const Match& a, const Match& b) { return a.similarity > b.similarity; });
  matches.resize(std::min(matches.size(), static_cast<std::size_t>(o.top)));
  if (!o.json) return print_matches(matches, is_siglip);
  examples::Json result;
  result["query"] = o.query;
  result["images"] = examples::Json::array();
  for (const Match& match : matches) {
    examples::Json one;
    one["file"] = match.image;
    one["similarity"] = match.similarity;
    if (is_siglip) one["probability"] = match.probability;
    result["images"].push_back(one);
  }
  std::cout << result.dump() << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Ranks images by how well a text describes them, the best first.");
  app.footer(
      "FOLDER holds config.json, model.safetensors, preprocessor_config.json, tokenizer.json and\n"
      "tokenizer_config.json of a CLIP or SigLIP, such as openai/clip-vit-base-patch32 of the "
      "Hub.\n"
      "The number before an image is the cosine of its vector and that of the text; with SigLIP\n"
      "the probability that they belong together follows.");
  app.add_option("--query", options.query, "The text")->type_name("TEXT");
  examples::add_number<index_t>(app, "--top", options.top, 1, "Number of images to print");
  app.add_flag("--json", options.json, "Print one JSON object");
  app.add_option("FOLDER", options.folder, "The model's folder");
  app.add_option("IMAGE", options.images, "PNG files")->type_name("FILE");
  return examples::run_program(app, "search_images", argc, argv, [&] { run(options); });
}
