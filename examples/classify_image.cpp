// classify_image: classifies PNG files with a vision transformer from a Hugging Face folder, and
// shows where it looks.
//
//   classify_image --model vit-base-patch16-224 cat.png      (config.json, model.safetensors)
//   classify_image cat.png                                   (random weights, to see the program at work)

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "attn/attn.hpp"
#include "attn/models/pretrained.hpp"

#include "support/command_line.hpp"
#include "support/preprocessor.hpp"
#include "support/printable.hpp"

namespace {

using attn::index_t;

struct Options {
  std::string model;
  index_t top = 5;
  std::vector<std::string> images;
};

struct Classifier {
  attn::Vit<float> model;
  examples::PixelOptions pixels;
  std::vector<std::string> labels;
};

Classifier from_folder(const std::filesystem::path& folder) {
  Classifier result{attn::load_vit<float>(folder), {}, {}};
  const attn::VitOptions& options = result.model.options();
  if (options.num_labels == 0)
    throw std::runtime_error(folder.string() + ": a model without a classifier");
  if (options.num_channels != 3)
    throw std::runtime_error(folder.string() + ": not a model of three colours");
  const nlohmann::json config = examples::read_json(folder / "config.json");
  const nlohmann::json names = config.value("id2label", nlohmann::json::object());
  for (index_t id = 0; id < options.num_labels; ++id) {
    const std::string key = std::to_string(id);
    const bool has_name = names.is_object() && names.contains(key) && names[key].is_string();
    result.labels.push_back(has_name ? names[key].get<std::string>() : "class " + key);
  }
  result.pixels = examples::pixel_options_of(folder);
  return result;
}

Classifier of_random_weights() {
  const attn::VitOptions options{.image_height = 96,
                                 .image_width = 96,
                                 .patch_size = 8,
                                 .hidden_size = 64,
                                 .num_hidden_layers = 3,
                                 .num_attention_heads = 4,
                                 .intermediate_size = 128,
                                 .num_labels = 10};
  Classifier result{attn::Vit<float>(options), {}, {}};
  std::uint64_t seed = 0;
  result.model.visit_parameters([&](std::string_view name, const auto& x) {
    const bool is_norm = name.find("norm") != std::string_view::npos;
    if (!is_norm) attn::fill_normal(x, {.std = 0.15, .seed = ++seed});
  });
  for (index_t id = 0; id < options.num_labels; ++id) {
    result.labels.push_back("class " + std::to_string(id));
  }
  return result;
}

// Prints the share of attention that each patch gets from the class token in the last layer; the
// darkest patch has the most.
void print_map(const attn::Tensor3<float>& weights, index_t rows, index_t columns) {
  constexpr std::string_view kShades = " .:-=+*#%@";
  float most = 0;
  for (index_t j = 1; j < weights.extent(2); ++j) most = std::max(most, weights(0, 0, j));
  for (index_t y = 0; y < rows; ++y) {
    std::string line = "    ";
    for (index_t x = 0; x < columns; ++x) {
      const float share = weights(0, 0, 1 + y * columns + x) / std::max(most, 1e-30F);
      const auto shade = static_cast<std::size_t>(share * float{kShades.size() - 1} + 0.5F);
      line.append(2, kShades[std::min(shade, kShades.size() - 1)]);
    }
    std::cout << line << '\n';
  }
}

void classify(const Classifier& classifier, const std::string& path, const examples::Pixels& pixels,
              index_t top) {
  const attn::Vit<float>& model = classifier.model;
  const attn::VitOptions& o = model.options();
  const attn::Tensor4<float> image =
      examples::resized(pixels, o.image_height, o.image_width, classifier.pixels);
  attn::Tensor3<float> weights({1, 1 + o.num_patches(), 1 + o.num_patches()});
  const attn::Tensor2<float> logits = model.classify(image, {.average_weights = weights});
  const attn::Tensor2<float> shares = attn::softmax(logits);
  const auto [values, indices] = attn::top_k(shares, std::min(top, o.num_labels));

  std::cout << examples::printable(path) << "  " << pixels.width << " x " << pixels.height << '\n';
  for (index_t n = 0; n < values.extent(1); ++n) {
    char share[16];
    std::snprintf(share, sizeof share, "%5.1f %% ", 100 * static_cast<double>(values(0, n)));
    const auto blocks = static_cast<std::size_t>(std::lround(30 * values(0, n)));
    std::string bar;
    for (std::size_t b = 0; b < 30; ++b) bar += b < blocks ? "█" : "·";
    std::cout << "  " << share << bar << "  "
              << examples::printable(classifier.labels[static_cast<std::size_t>(indices(0, n))])
              << '\n';
  }
  std::cout << "  where it looked, " << o.image_height / o.patch_size << " x "
            << o.image_width / o.patch_size << " patches:\n";
  print_map(weights, o.image_height / o.patch_size, o.image_width / o.patch_size);
}

void run(const Options& options) {
  if (options.images.empty()) throw examples::UsageError("an image is needed; see --help");
  const bool is_random = options.model.empty();
  const Classifier classifier = is_random ? of_random_weights() : from_folder(options.model);
  std::vector<examples::Pixels> images;  // load all of them before printing anything
  for (const std::string& path : options.images) images.push_back(examples::read_png(path));
  if (is_random) {
    std::cout << "No --model is given: the weights are random, and the results mean nothing.\n";
  }
  for (std::size_t n = 0; n < images.size(); ++n) {
    std::cout << '\n';
    classify(classifier, options.images[n], images[n], options.top);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Classifies PNG files with a vision transformer and shows where it looked.");
  app.footer(
      "FOLDER is a ViT as Hugging Face's transformers saves it: config.json, model.safetensors "
      "and,\n"
      "where there is one, preprocessor_config.json. Without it the weights are random.");
  app.add_option("--model", options.model, "The model's folder")->type_name("FOLDER");
  examples::add_number<index_t>(app, "--top", options.top, 1,
                                "Number of classes to print per image");
  app.add_option("IMAGE", options.images, "PNG files")->type_name("FILE");
  return examples::run_program(app, "classify_image", argc, argv, [&] { run(options); });
}
