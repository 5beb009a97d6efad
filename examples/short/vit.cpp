// A vision transformer from a folder, compared with PyTorch: short_vit FOLDER
#include <cstdio>
#include <filesystem>
#include <string>

#include <attn/attn.hpp>
#include <attn/io.hpp>
#include <attn/models/pretrained.hpp>

#include "support/command_line.hpp"

int run(const std::filesystem::path& folder) {
  const auto vit = attn::load_vit<float>(folder);
  const attn::SafetensorsFile golden(folder / "golden.safetensors");  // the results of transformers

  const auto images = golden.load<float, 4>("images");  // (batch, channels, height, width)
  const attn::Tensor2<float> logits = vit.classify(images);
  const auto [best, labels] = attn::top_k(attn::softmax(logits), 1);
  for (attn::index_t i = 0; i < images.extent(0); ++i) {
    std::printf("image %td: label %td, %.3f\n", i, labels(i, 0), best(i, 0));
  }

  const double difference = attn::max_abs_difference(logits, golden.load<float, 2>("logits"));
  std::printf("largest difference from PyTorch's logits: %.1e\n", difference);
  return difference < 1e-5 ? 0 : 1;
}

int main(int argc, char** argv) {
  std::string folder = "tests/data/pretrained/vit";
  CLI::App app("Labels images by the model in FOLDER, and compares with PyTorch.");
  app.add_option("FOLDER", folder, "A ViT with golden.safetensors");
  return examples::run_program(app, "short_vit", argc, argv, [&] { return run(folder); });
}
