// Errors of low precision against double: of products, of attention, and of embeddings.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/attention/cached_attention.hpp"
#include "attn/layers/linear.hpp"
#include "attn/models/quantize.hpp"
#include "attn/models/sentence_encoder.hpp"
#include "attn/text/utf8.hpp"

#include "support/inputs.hpp"

namespace bench {

using attn::index_t;

/// Sums of 12 uniform numbers: nearly normal, and the same on every machine.
template <int Rank>
attn::Tensor<float, Rank> normal_tensor(const attn::Shape<Rank>& shape, std::uint64_t seed,
                                        float scale = 1) {
  Random random(seed);
  attn::Tensor<float, Rank> x(shape);
  for (float& value : x.elements()) {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += random.number<double>();
    value = scale * static_cast<float>(sum / std::sqrt(12.0));
  }
  return x;
}

/// Multiplies some channels of the last axis: activations and keys of large models have a few that
/// are far larger than all others. Sources: Dettmers et al., "LLM.int8()" (2022); Liu et al.,
/// "KIVI" (2024).
template <int Rank>
void add_outliers(attn::Tensor<float, Rank>& x, index_t every, float times) {
  const index_t channels = x.shape().back();
  for (index_t i = 0; i < x.size(); ++i) {
    if (i % channels % every == every / 2) x.data()[i] *= times;
  }
}

/// |found - expected| / |expected|, with Euclidean norms.
template <class Found, class Expected>
double relative_error(const Found& found, const Expected& expected) {
  double error = 0, size = 0;
  for (index_t i = 0; i < expected.size(); ++i) {
    const double difference = static_cast<double>(found.data()[i]) - expected.data()[i];
    error += difference * difference;
    size += expected.data()[i] * expected.data()[i];
  }
  return std::sqrt(error / size);
}

/// A weight format, its activations, and the largest errors allowed.
struct WeightCase {
  std::string_view weights, activations;
  std::optional<attn::QuantizeOptions> options;  ///< none: float
  double most_random, most_outliers;             ///< relative errors of products
  double most_mean, most_worst;                  ///< 1 - cosine of embeddings
  attn::MatmulPrecision precision = attn::MatmulPrecision::highest;  ///< of products of floats
};

inline const std::vector<WeightCase>& weight_cases() {
  using W = attn::WeightFormat;
  using A = attn::ActivationFormat;
  using Options = attn::QuantizeOptions;
  static const std::vector<WeightCase> cases = {
      {"float", "exact", {}, 1e-6, 1e-6, 1e-7, 1e-7},
      {"float", "float, high", {}, 6e-6, 6e-6, 1e-7, 1e-7, attn::MatmulPrecision::high},
      {"float", "float, medium", {}, 3e-3, 3e-3, 1e-4, 5e-4, attn::MatmulPrecision::medium},
      {"bf16", "exact", Options{W::bf16, A::exact}, 2e-3, 2e-3, 1e-4, 5e-4},
      {"bf16", "bf16", Options{W::bf16, A::bf16}, 3e-3, 3e-3, 1e-4, 5e-4},
      {"f16", "exact", Options{W::f16, A::exact}, 3e-4, 3e-4, 2e-6, 1e-5},
      {"int8", "exact", Options{W::int8, A::exact}, 9e-3, 9e-3, 2e-3, 2e-2},
      {"int8", "int8", Options{W::int8, A::int8}, 0.013, 0.05, 5e-3, 2e-2},
      {"q8_0", "exact", Options{W::q8_0, A::exact}, 6e-3, 6e-3, 1e-3, 2e-3},
      {"q8_0", "int8", Options{W::q8_0, A::int8}, 9e-3, 0.016, 1e-3, 3e-3},
      {"q5_1", "int8", Options{W::q5_1, A::int8}, 0.04, 0.05, 0.02, 0.06},
      {"q5_0", "int8", Options{W::q5_0, A::int8}, 0.05, 0.06, 0.03, 0.08},
      {"q4_1", "int8", Options{W::q4_1, A::int8}, 0.09, 0.1, 0.06, 0.15},
      {"q4_0", "int8", Options{W::q4_0, A::int8}, 0.11, 0.12, 0.1, 0.2},
  };
  return cases;
}

/// Errors of x W^T: 64 rows of 768 numbers, 256 rows of weights; with outliers, 6 of the 768
/// channels of x are 20 times as large.
inline double gemm_error(const WeightCase& one, bool outliers) {
  auto x = normal_tensor<2>({64, 768}, 1);
  if (outliers) add_outliers(x, 128, 20);
  attn::Linear<float> linear(768, 256, false);
  linear.weight = normal_tensor<2>({256, 768}, 2, 0.04F);
  const auto expected =
      attn::linear(attn::convert<double>(x), attn::convert<double>(linear.weight));
  if (one.options) attn::quantize(linear, *one.options);
  const attn::Execution execution{.matmul_precision = one.precision};
  return relative_error(linear(x, attn::Activation::none, execution), expected);
}

/// The element type of attention's tensors or of its cache, and the largest errors allowed.
struct AttentionCase {
  std::string_view name;
  attn::DType element;
  bool is_cache;  ///< queries and output in float
  double most_random, most_outliers;
  attn::AttentionPrecision precision = attn::AttentionPrecision::exact;
  attn::MatmulPrecision matmul_precision = attn::MatmulPrecision::highest;
};

inline const std::vector<AttentionCase>& attention_cases() {
  using enum attn::DType;
  using attn::MatmulPrecision;
  const auto exact = attn::AttentionPrecision::exact;
  static const std::vector<AttentionCase> cases = {
      {"all float", F32, false, 1e-6, 1e-6},
      {"all float, high", F32, false, 1e-5, 3e-5, exact, MatmulPrecision::high},
      {"all float, medium", F32, false, 5e-3, 0.01, exact, MatmulPrecision::medium},
      {"all float16", F16, false, 6e-4, 1.2e-3},
      {"all bfloat16", BF16, false, 5e-3, 0.01},
      {"cache in float16", F16, true, 5e-4, 1.2e-3},
      {"cache in bfloat16", BF16, true, 4e-3, 9e-3},
      {"cache in int8", I8, true, 0.01, 0.05},
      {"all float, precision int8", F32, false, 0.012, 0.06, attn::AttentionPrecision::int8},
  };
  return cases;
}

/// Errors of attention with 4 heads, 128 queries and 512 keys of 64 numbers; with outliers, 2 of
/// the 64 channels of k are 10 times as large.
inline double attention_error(const AttentionCase& one, bool outliers) {
  const auto q = normal_tensor<4>({1, 4, 128, 64}, 3), v = normal_tensor<4>({1, 4, 512, 64}, 5);
  auto k = normal_tensor<4>({1, 4, 512, 64}, 4);
  if (outliers) add_outliers(k, 32, 10);
  const auto expected = attn::scaled_dot_product_attention(
      attn::convert<double>(q), attn::convert<double>(k), attn::convert<double>(v));
  if (one.is_cache) {
    attn::KvCache<float> cache(
        {.num_kv_heads = 4, .capacity = 512, .head_dim = 64, .element = one.element});
    cache.append(k, v);
    return relative_error(attn::scaled_dot_product_attention(q, cache), expected);
  }
  const auto all = [&]<class E>(E) {
    return relative_error(
        attn::scaled_dot_product_attention(
            attn::convert<E>(q), attn::convert<E>(k), attn::convert<E>(v),
            {.precision = one.precision, .execution = {.matmul_precision = one.matmul_precision}}),
        expected);
  };
  if (one.element == attn::DType::F16) return all(attn::float16{});
  if (one.element == attn::DType::BF16) return all(attn::bfloat16{});
  return all(float{});
}

/// 1 - cosine between a model's embeddings and the same embeddings computed in double.
struct CosineError {
  double mean = 0, worst = 0;
  std::string worst_line;
};

/// `expected` (lines, dim): the embeddings in double, of length 1.
inline CosineError cosine_error(const std::filesystem::path& model, const WeightCase& one,
                                std::span<const std::string> lines,
                                const attn::Tensor2<double>& expected) {
  attn::SentenceEncoder<float> encoder(model);
  if (one.options) attn::quantize(encoder, *one.options);
  const attn::Tensor2<float> found =
      encoder.encode(lines, {.normalize = true, .execution = {.matmul_precision = one.precision}});
  CosineError result;
  for (index_t i = 0; i < expected.extent(0); ++i) {
    double cosine = 0;
    for (index_t x = 0; x < expected.extent(1); ++x) cosine += found(i, x) * expected(i, x);
    const double error = std::abs(1 - cosine);
    result.mean += error / static_cast<double>(expected.extent(0));
    if (error <= result.worst) continue;
    result.worst = error;
    result.worst_line = lines[static_cast<std::size_t>(i)];
  }
  return result;
}

/// 512 lines: those of a help centre, and the unusual ones in all scripts that the tokenizer tests
/// use.
inline std::vector<std::string> precision_lines(const std::filesystem::path& repository) {
  std::vector<std::string> lines;
  const attn::MappedFile help(repository / "examples/data/help_center.txt");
  std::string_view text = attn::detail::text_of(help);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  constexpr std::size_t kLines = 512;
  const auto odd = attn::ConfigFile::list(repository / "tests/data/minilm/token_ids.json");
  for (std::size_t i = 0; i < odd.size() && lines.size() < kLines; ++i) {
    lines.push_back(odd[i].get<std::string>("text"));
  }
  return lines;
}

/// Lines of random words in one script after another, unlike any training text.
inline std::vector<std::string> random_lines(std::uint64_t seed, index_t count) {
  struct Letters {
    std::int32_t first, last;
  };
  constexpr Letters kScripts[] = {
      {0x61, 0x7A},      // Latin
      {0xE0, 0x17F},     // with accents
      {0x3B1, 0x3C9},    // Greek
      {0x430, 0x44F},    // Cyrillic
      {0x561, 0x586},    // Armenian
      {0x5D0, 0x5EA},    // Hebrew
      {0x627, 0x64A},    // Arabic
      {0x905, 0x939},    // Devanagari
      {0x985, 0x9B9},    // Bengali
      {0xB85, 0xBB9},    // Tamil
      {0xC05, 0xC39},    // Telugu
      {0xE01, 0xE2E},    // Thai
      {0x1000, 0x102A},  // Burmese
      {0x10D0, 0x10F0},  // Georgian
      {0x1200, 0x1248},  // Ethiopic
      {0x1780, 0x17B3},  // Khmer
      {0x3041, 0x3096},  // Hiragana
      {0x30A1, 0x30FA},  // Katakana
      {0x4E00, 0x9FA5},  // Han
      {0xAC00, 0xD7A3},  // Hangul
  };
  Random random(seed);
  std::vector<std::string> lines(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Letters& script = kScripts[i % std::size(kScripts)];
    for (index_t words = 1 + random.below(24); words > 0; --words) {
      for (index_t letters = 1 + random.below(9); letters > 0; --letters) {
        const auto offset = random.below(script.last - script.first + 1);
        attn::append_utf8(script.first + static_cast<std::int32_t>(offset), lines[i]);
      }
      if (words > 1) lines[i] += ' ';
    }
  }
  return lines;
}

}  // namespace bench
