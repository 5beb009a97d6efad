// The tables of docs/precision.md: errors of low precision in products, attention and embeddings.
#include <cstdio>
#include <iostream>
#include <optional>

#include <CLI/CLI.hpp>

#include "precision/errors.hpp"
#include "precision/memory.hpp"
#include "support/command_line.hpp"
#include "support/model_dir.hpp"

namespace {

void print_products() {
  std::printf("| weights | activations | products | with outliers |\n| --- | --- | --- | --- |\n");
  for (const bench::WeightCase& one : bench::weight_cases()) {
    std::printf("| %s | %s | %.2g | %.2g |\n", one.weights.data(), one.activations.data(),
                bench::gemm_error(one, false), bench::gemm_error(one, true));
  }
}

void print_attention() {
  std::printf("\n| attention | error | with outliers |\n| --- | --- | --- |\n");
  for (const bench::AttentionCase& one : bench::attention_cases()) {
    std::printf("| %s | %.2g | %.2g |\n", one.name.data(), bench::attention_error(one, false),
                bench::attention_error(one, true));
  }
}

void print_cosines(const std::vector<std::string>& lines, bool say_worst) {
  if (!examples::model_is_present()) {
    throw examples::UsageError(examples::missing_model_message());
  }
  const attn::Tensor2<double> expected =
      attn::SentenceEncoder<double>(examples::model_dir()).encode(lines);
  std::printf("\n| weights | activations | 1 - cosine, mean | worst of %zu |\n", lines.size());
  std::printf("| --- | --- | --- | --- |\n");
  for (const bench::WeightCase& one : bench::weight_cases()) {
    const auto error = bench::cosine_error(examples::model_dir(), one, lines, expected);
    std::printf("| %s | %s | %.2g | %.2g |\n", one.weights.data(), one.activations.data(),
                error.mean, error.worst);
    if (say_worst) std::cerr << examples::printable(error.worst_line) << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool say_worst = false, only_memory = false;
  std::optional<std::uint64_t> seed;
  CLI::App app("Prints what each format of weights, activations and caches loses against double.");
  app.footer(
      "Relative errors of products and attention, and 1 - cosine of the embeddings of "
      "all-MiniLM-L6-v2,\nwhich sh examples/fetch_model.sh fetches.");
  app.add_flag("--worst", say_worst, "Say on standard error which line is the worst of each row");
  app.add_flag("--memory", only_memory,
               "Print only what the weights of all-MiniLM-L6-v2 take of memory");
  app.add_option("--random", seed,
                 "Print only what embeddings lose on 512 lines of random words in 20 scripts, "
                 "drawn by this seed");
  return examples::run_program(app, "precision", argc, argv, [&] {
    if (only_memory) {
      if (!examples::model_is_present()) {
        throw examples::UsageError(examples::missing_model_message());
      }
      bench::print_memory(examples::model_dir());
      return;
    }
    if (seed) return print_cosines(bench::random_lines(*seed, 512), say_worst);
    print_products();
    print_attention();
    print_cosines(bench::precision_lines(ATTN_REPOSITORY), say_worst);
  });
}
