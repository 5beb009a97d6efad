// Errors of low precision in docs/precision.md stay within their bounds.
#include <algorithm>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "precision/errors.hpp"
#include "support/model_dir.hpp"
#include "support/random.hpp"

namespace {

const std::filesystem::path kRepository = ATTN_TEST_DATA_DIR "/../..";

std::string name_of(const bench::WeightCase& one) {
  return std::string(one.weights) + " weights, " + std::string(one.activations) + " activations";
}

TEST(Precision, ProductsStayWithinTheirBounds) {
  for (const bench::WeightCase& one : bench::weight_cases()) {
    EXPECT_LT(bench::gemm_error(one, false), one.most_random) << name_of(one);
    EXPECT_LT(bench::gemm_error(one, true), one.most_outliers) << name_of(one);
  }
}

TEST(Precision, AttentionStaysWithinItsBounds) {
  for (const bench::AttentionCase& one : bench::attention_cases()) {
    EXPECT_LT(bench::attention_error(one, false), one.most_random) << one.name;
    EXPECT_LT(bench::attention_error(one, true), one.most_outliers) << one.name;
  }
}

// bf16: a cosine of 0.9999 on average and at least 0.9995; int8: 0.995 and 0.98; others as in the
// table.
TEST(Precision, EmbeddingsOfOddLinesStayNearThoseInDouble) {
  if (!examples::model_is_present()) GTEST_SKIP() << examples::missing_model_message();
  const std::vector<std::string> all = bench::precision_lines(kRepository);
  ASSERT_EQ(all.size(), 512U);
  // One line in eight, among them the worst for most formats; the program precision reads all
  // lines.
  std::vector<std::string> lines;
  const std::size_t step = std::max(all.size() / attn_test::draws(64), std::size_t{1});
  for (std::size_t i = step - 1; i < all.size(); i += step) lines.push_back(all[i]);
  const attn::Tensor2<double> expected =
      attn::SentenceEncoder<double>(examples::model_dir()).encode(lines);
  for (const bench::WeightCase& one : bench::weight_cases()) {
    const auto error = bench::cosine_error(examples::model_dir(), one, lines, expected);
    EXPECT_LT(error.mean, one.most_mean) << name_of(one);
    EXPECT_LT(error.worst, one.most_worst) << name_of(one) << ": " << error.worst_line;
  }
}

// The formats of --precision on lines of random words, for which no model was trained.
TEST(Precision, EmbeddingsOfRandomWordsStayNearThoseInDouble) {
  if (!examples::model_is_present()) GTEST_SKIP() << examples::missing_model_message();
  const std::vector<std::string> lines =
      bench::random_lines(1, static_cast<attn::index_t>(attn_test::draws(60)));
  const attn::Tensor2<double> expected =
      attn::SentenceEncoder<double>(examples::model_dir()).encode(lines);
  for (const bench::WeightCase& one : bench::weight_cases()) {
    if (one.weights != "int8" && one.weights != "bf16") continue;
    const auto error = bench::cosine_error(examples::model_dir(), one, lines, expected);
    EXPECT_LT(error.mean, one.most_mean) << name_of(one);
    EXPECT_LT(error.worst, one.most_worst) << name_of(one) << ": " << error.worst_line;
  }
}

}  // namespace
