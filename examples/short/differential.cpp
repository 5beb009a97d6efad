// Differential attention (Ye et al., 2024) on Eigen matrices, beside PyTorch's: differential FILE
#include <cstdio>

#include <attn/attn.hpp>
#include <attn/io.hpp>

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Head h of n / 2 sees what head h sees less lambda times what head h + n / 2 sees.
Matrix differential(const Matrix& x, const attn::SafetensorsFile& file, int n) {
  const auto project = [&](const Matrix& from, const char* weight) {
    return Matrix(from * attn::eigen_map(file.view<float, 2>(weight)).transpose());
  };
  const auto heads = [](auto& m, int count) {
    return attn::split_heads(attn::view_of(m).unsqueeze(0), count);  // (1, count, seq, dim)
  };
  const Matrix q = project(x, "q"), k = project(x, "k"), v = project(x, "v");
  const auto half = [&](auto& m, int i) {
    return heads(m, n).slice(1, i * n / 2, (i + 1) * n / 2);
  };
  const attn::Tensor4<float> values = attn::concatenate(3, half(v, 0), half(v, 1));
  Matrix seen[2] = {v, v};  // of the right size
  for (const int i : {0, 1}) {
    attn::scaled_dot_product_attention(half(q, i), half(k, i), values, heads(seen[i], n / 2),
                                       {.mask = attn::causal()});
  }
  seen[0] -= file.load<float, 1>("lambda")(0) * seen[1];
  attn::rms_norm(heads(seen[0], n / 2), {}, 1e-5, heads(seen[0], n / 2));
  return (1 - file.load<float, 1>("lambda_init")(0)) * project(seen[0], "o");
}

int main(int argc, char** argv) {
  const attn::SafetensorsFile file(argc > 1 ? argv[1] : "differential.safetensors");
  const Matrix y = differential(attn::eigen_map(file.view<float, 2>("x")), file, 4);
  const double difference = attn::max_abs_difference(y, file.load<float, 2>("out"));
  std::printf("largest difference from PyTorch's result: %.1e\n", difference);
  return difference < 1e-5 ? 0 : 1;
}
