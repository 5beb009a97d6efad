// A program for every platform: attention on each instruction set against nested loops; an .npy
// round trip.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include <attn/attn.hpp>
// Files are little-endian, and their headers are an error on other processors.
#define HAS_FILES (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
#if HAS_FILES
#include <attn/io.hpp>
#include <attn/train.hpp>
#endif

namespace {

using attn::index_t;

/// The numbers of a linear congruential generator, in [-1, 1).
attn::Tensor4<float> numbers(const std::array<index_t, 4>& shape, unsigned seed) {
  attn::Tensor4<float> x(shape);
  for (index_t i = 0; i < x.size(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    x.data()[i] = static_cast<float>(seed >> 8) / 8388608.0F - 1.0F;
  }
  return x;
}

/// softmax(q k^T / sqrt(d)) v, causal, in double.
double attention_at(const attn::Tensor4<float>& q, const attn::Tensor4<float>& k,
                    const attn::Tensor4<float>& v, index_t head, index_t row, index_t column) {
  double sum = 0, total = 0;
  for (index_t j = 0; j <= row; ++j) {
    double score = 0;
    for (index_t d = 0; d < q.extent(3); ++d) {
      score += double{q(0, head, row, d)} * double{k(0, head, j, d)};
    }
    const double weight = std::exp(score / std::sqrt(static_cast<double>(q.extent(3))));
    total += weight;
    sum += weight * double{v(0, head, j, column)};
  }
  return sum / total;
}

}  // namespace

int main() {
  const auto q = numbers({1, 3, 70, 40}, 1), k = numbers({1, 3, 70, 40}, 2),
             v = numbers({1, 3, 70, 40}, 3);
  double largest = 0;
  for (attn::Isa isa : attn::kAllIsas) {
    if (!attn::is_available(isa)) continue;
    const auto out = attn::scaled_dot_product_attention(
        q, k, v, {.mask = attn::causal(), .execution = {.isa = isa}});
    for (index_t head = 0; head < 3; ++head) {
      for (index_t row = 0; row < 70; ++row) {
        for (index_t column = 0; column < 40; ++column) {
          largest = (std::max)(largest, std::abs(double{out(0, head, row, column)} -
                                                 attention_at(q, k, v, head, row, column)));
        }
      }
    }
    std::printf("%s ", attn::name(isa).data());
  }

  std::printf("largest error %.1e", largest);
  bool same = true;
#if HAS_FILES
  const std::filesystem::path file = std::filesystem::temp_directory_path() / "attn everywhere.npy";
  attn::save_npy(file, q);
  const auto read = attn::NpyArray(file).load<float, 4>();
  std::filesystem::remove(file);
  same = std::equal(q.data(), q.data() + q.size(), read.data(), read.data() + read.size());
  std::printf(", .npy %s", same ? "read back" : "DIFFERS");
#endif
  std::printf("\n");
  return largest < 1e-6 && same ? 0 : 1;
}
