// A Llama or Mistral from a folder, compared with transformers: short_decoder FOLDER
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>

#include <attn/attn.hpp>
#include <attn/io.hpp>
#include <attn/models/pretrained.hpp>

#include "support/command_line.hpp"

int run(const std::filesystem::path& folder) {
  const auto model = attn::load_pretrained<attn::Gpt<float>>(folder);
  const attn::SafetensorsFile golden(folder / "golden.safetensors");  // the results of transformers

  bool good = true;
  for (const std::string prompt : {"a", "b"}) {
    const auto ids = golden.load<attn::index_t, 1>("ids_" + prompt);
    const auto row = ids.reshape({1, -1});  // (batch, seq)
    const attn::Tensor3<float> logits = model(row);
    const double difference =
        attn::max_abs_difference(logits.select(0, 0), golden.load<float, 2>("logits_" + prompt));

    attn::GptSession<float> session(model, 1, ids.size() + 20);
    const auto tokens = attn::generate(session, row, {.max_new_tokens = 20})[0];
    const auto greedy = golden.load<attn::index_t, 1>("greedy_" + prompt);
    const bool same = std::ranges::equal(tokens, greedy.elements());
    std::printf("%s: logits differ by %.1e, tokens %s\n", prompt.c_str(), difference,
                same ? "do not" : "do");
    good = good && difference < 1e-5 && same;
  }
  return good ? 0 : 1;
}

int main(int argc, char** argv) {
  std::string folder = "tests/data/pretrained/llama";
  CLI::App app("Continues two prompts by the model in FOLDER, and compares with transformers.");
  app.add_option("FOLDER", folder, "A Llama or Mistral with golden.safetensors");
  return examples::run_program(app, "short_decoder", argc, argv, [&] { return run(folder); });
}
