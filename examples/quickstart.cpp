// quickstart: causal attention over six words; prints the attention weights.
#include <cstdio>

#include <attn/attn.hpp>

#include "support/command_line.hpp"

namespace {

void run() {
  const char* words[] = {"red", "cat", "blue", "dog", "green", "bird"};
  // (batch, heads, tokens, dim): each word has a colour score and an animal score.
  const attn::Tensor4<float> x({1, 1, 6, 2}, {2, 0, 0, 2, 2, .5f, .5f, 2, 2, 1, 0, 2});
  attn::Tensor4<float> weights({1, 1, 6, 6});

  const attn::Tensor4<float> y =
      attn::scaled_dot_product_attention(x, x, x, {.mask = attn::causal(), .weights = weights});

  const char* shades[] = {"  ", "░░", "▒▒", "▓▓", "██"};
  std::printf("      ");
  for (const char* word : words) std::printf("%9s", word);
  for (int i = 0; i < 6; ++i) {
    std::printf("\n%6s", words[i]);
    for (int j = 0; j <= i; ++j) {
      const float weight = weights(0, 0, i, j);
      std::printf("  %s %.2f", shades[int(4.99f * weight)], weight);
    }
  }
  std::printf("\nOutput of bird: %.2f colour, %.2f animal\n", y(0, 0, 5, 0), y(0, 0, 5, 1));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Prints how much each of six words looks at itself and at those before it.");
  return examples::run_program(app, "quickstart", argc, argv, run);
}
