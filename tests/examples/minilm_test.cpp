// all-MiniLM-L6-v2 gives PyTorch's embeddings, whatever the batch, and finds the refund line.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <functional>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "attn/models/sentence_encoder.hpp"

#include "support/model_dir.hpp"

namespace {

using MiniLm = attn::SentenceEncoder<float>;
using Row = std::vector<float>;

// Skips every test if the model has not been downloaded.
class MiniLmModel : public testing::Test {
 protected:
  void SetUp() override {
    if (!examples::model_is_present()) GTEST_SKIP() << examples::missing_model_message();
  }

  static const MiniLm& model() {
    static const MiniLm shared(examples::model_dir());
    return shared;
  }

  static nlohmann::json reference() {
    std::ifstream file(ATTN_TEST_DATA_DIR "/minilm/embeddings.json");
    return nlohmann::json::parse(file);
  }
};

Row row(const attn::Tensor2<float>& embeddings, std::size_t index) {
  const float* first = &embeddings(static_cast<attn::index_t>(index), 0);
  return {first, first + embeddings.extent(1)};
}

float max_difference(const Row& a, const Row& b) {
  float worst = 0;
  // Written so that NaN counts as the largest difference.
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= worst)) worst = difference;
    if (std::isnan(worst)) break;
  }
  return worst;
}

std::vector<std::string> read_lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// tests/data/minilm/make_embeddings.py made the references, in double precision.
TEST_F(MiniLmModel, TenSentencesHavePyTorchsEmbeddings) {
  const nlohmann::json cases = reference();
  ASSERT_EQ(cases.size(), 10U);
  std::vector<std::string> sentences;
  for (const nlohmann::json& one : cases) sentences.push_back(one.at("text"));
  EXPECT_EQ(sentences, read_lines(ATTN_TEST_DATA_DIR "/minilm/sentences.txt"));

  const attn::Tensor2<float> embeddings = model().encode(sentences);
  ASSERT_EQ(embeddings.shape(), (attn::Shape<2>{10, 384}));
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    const Row expected = cases[i].at("embedding").get<Row>();
    ASSERT_EQ(expected.size(), 384U);
    EXPECT_LE(max_difference(row(embeddings, i), expected), 1e-5F)
        << "of the sentence \"" << sentences[i] << '"';
  }
}

TEST_F(MiniLmModel, EmbeddingsHaveLengthOne) {
  const std::vector<std::string> lines = {"", "one", "two words", std::string(100, '.')};
  const attn::Tensor2<float> embeddings = model().encode(lines);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Row e = row(embeddings, i);
    EXPECT_NEAR(std::inner_product(e.begin(), e.end(), e.begin(), 0.0), 1.0, 1e-6);
  }
}

TEST_F(MiniLmModel, NoLinesGiveNoEmbeddings) {
  EXPECT_EQ(model().encode(std::vector<std::string>{}).shape(), (attn::Shape<2>{0, 384}));
}

TEST_F(MiniLmModel, BatchAndNeighboursDoNotChangeAnEmbedding) {
  std::vector<std::string> lines;
  for (const nlohmann::json& one : reference()) lines.push_back(one.at("text"));
  lines.pop_back();  // the long line, which would fill every batch up to 256 tokens
  const attn::Tensor2<float> alone = model().encode(lines, {.batch_size = 1});
  for (const attn::index_t batch_size : {2, 5, 32}) {
    const attn::Tensor2<float> together = model().encode(lines, {.batch_size = batch_size});
    for (std::size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(max_difference(row(together, i), row(alone, i)), 0)
          << "line " << i << ", batch_size " << batch_size;
    }
  }
  std::reverse(lines.begin(), lines.end());
  const attn::Tensor2<float> reversed = model().encode(lines, {.batch_size = 4});
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(max_difference(row(reversed, lines.size() - 1 - i), row(alone, i)), 0);
  }
}

// The line that answers shares no content word with the question; ten other lines use one of its
// words in another sense.
TEST_F(MiniLmModel, FindsTheRefundLineFirst) {
  // All these lines, and few enough others to be fast under a sanitizer; semantic_search_test.sh
  // searches the whole text.
  std::vector<std::string> lines =
      read_lines(ATTN_TEST_DATA_DIR "/../../examples/data/help_center.txt");
  ASSERT_GE(lines.size(), 200U);
  const auto is_rival = [](const std::string& line) {
    const auto has = [&](const char* word) { return line.find(word) != line.npos; };
    return has("Money") || has("money") || has("back");
  };
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), is_rival), 10);
  const auto rest = lines.begin() + 40;
  lines.erase(std::remove_if(rest, lines.end(), std::not_fn(is_rival)), lines.end());
  ASSERT_EQ(lines.size(), 50U);
  const std::string query = "How do I get my money back?";
  const Row wanted = row(model().encode(std::span(&query, 1)), 0);
  const attn::Tensor2<float> embeddings = model().encode(lines);
  std::vector<double> scores;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    scores.push_back(
        std::inner_product(wanted.begin(), wanted.end(), row(embeddings, i).begin(), 0.0));
  }
  const auto best = std::max_element(scores.begin(), scores.end());
  EXPECT_TRUE(lines[static_cast<std::size_t>(best - scores.begin())].starts_with("Refunds are "));
  EXPECT_NEAR(*best, 0.4823, 1e-4);  // PyTorch's cosine
  *best = -1;
  EXPECT_LT(*std::max_element(scores.begin(), scores.end()), 0.30);
}

TEST(MiniLmFiles, ThatAreMissingAreNamed) {
  try {
    const MiniLm model("/nonexistent");
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("/nonexistent"), std::string::npos);
  }
}

}  // namespace
