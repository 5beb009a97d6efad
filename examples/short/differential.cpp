// Differential attention (Ye et al., 2024), compared with PyTorch: short_differential FILE
#include <cstdio>
#include <string>

#include <attn/attn.hpp>
#include <attn/io.hpp>

#include "support/command_line.hpp"

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Head h of n / 2 is the attention of head h minus lambda times that of head h + n / 2.
Matrix differential(const Matrix& x, const attn::SafetensorsFile& file, int n) {
  const auto project = [&](const Matrix& from, const char* weight) {
    return Matrix(from * attn::eigen_map(file.view<float, 2>(weight)).transpose());
  };
  const Matrix q = project(x, "q"), k = project(x, "k"), v = project(x, "v");
  // Both halves of the heads as a batch of two: (2, n / 2, seq, dim).
  const auto halves = [n](auto& m) { return attn::split_heads(m, n).split(1, 2).select(0, 0); };
  const auto values = attn::concatenate(-1, halves(v).slice(0, 0, 1), halves(v).slice(0, 1, 2));
  const auto seen = attn::scaled_dot_product_attention(
      halves(q), halves(k), values.expand({2, -1, -1, -1}), {.mask = attn::causal()});
  Matrix y(v.rows(), v.cols());
  const auto out = attn::split_heads(y, n / 2);
  attn::add(seen.slice(0, 0, 1), seen.slice(0, 1, 2), out, -file.load<float, 1>("lambda")(0));
  attn::rms_norm(out, {}, 1e-5, out);
  return (1 - file.load<float, 1>("lambda_init")(0)) * project(y, "o");
}

int run(const std::string& path) {
  const attn::SafetensorsFile file(path);
  const Matrix y = differential(attn::eigen_map(file.view<float, 2>("x")), file, 4);
  const double difference = attn::max_abs_difference(y, file.load<float, 2>("out"));
  std::printf("largest difference from PyTorch's result: %.1e\n", difference);
  return difference < 1e-5 ? 0 : 1;
}

int main(int argc, char** argv) {
  std::string path = "tests/data/pretrained/differential.safetensors";
  CLI::App app("Computes differential attention, and compares with PyTorch.");
  app.add_option("FILE", path, "Inputs, weights and PyTorch's result");
  return examples::run_program(app, "short_differential", argc, argv, [&] { return run(path); });
}
