// WordPieceTokenizer: ids of Hugging Face's `tokenizers`, and any bytes.
#include "attn/text/wordpiece.hpp"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "attn/io/mapped_file.hpp"

#include "support/model_dir.hpp"

namespace {

using attn::WordPieceTokenizer;
using Ids = std::vector<std::int32_t>;

// Skips every test if the vocabulary has not been downloaded.
class WordPiece : public testing::Test {
 protected:
  void SetUp() override {
    if (!examples::model_is_present()) GTEST_SKIP() << examples::missing_model_message();
  }

  // Read once: the tests only use const member functions.
  static const WordPieceTokenizer& tokenizer() {
    static const WordPieceTokenizer shared = [] {
      const attn::MappedFile file(examples::model_dir() / "vocab.txt");
      const auto bytes = file.bytes();
      return WordPieceTokenizer({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }();
    return shared;
  }
};

// tests/data/minilm/make_token_ids.py made the lines and ids.
TEST_F(WordPiece, FiveHundredLinesHaveTheIdsOfTokenizers) {
  std::ifstream file(ATTN_TEST_DATA_DIR "/minilm/token_ids.json");
  ASSERT_TRUE(file) << "cannot read " ATTN_TEST_DATA_DIR "/minilm/token_ids.json";
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_EQ(cases.size(), 500U);
  for (const nlohmann::json& one : cases) {
    EXPECT_EQ(tokenizer().encode(one.at("text").get<std::string>()), one.at("ids").get<Ids>())
        << "of the text " << one.at("text").dump(-1, ' ', true);
  }
}

TEST_F(WordPiece, ReadsTheWholeVocabulary) { EXPECT_EQ(tokenizer().vocab_size(), 30522U); }

TEST_F(WordPiece, CutsAtMaxTokensSpecialOnesIncluded) {
  const std::string text = "one [MASK] unaffable .";
  const Ids all = tokenizer().encode(text);
  ASSERT_GT(all.size(), 6U);
  for (std::size_t max_tokens = 2; max_tokens <= all.size() + 1; ++max_tokens) {
    Ids expected = all;
    if (max_tokens < all.size()) {
      expected.resize(max_tokens);
      expected.back() = 102;
    }
    EXPECT_EQ(tokenizer().encode(text, max_tokens), expected) << "max_tokens = " << max_tokens;
  }
  EXPECT_THROW(tokenizer().encode(text, 1), attn::ValueError);
  EXPECT_THROW(tokenizer().encode(text, 0), attn::ValueError);
}

// Python decodes such bytes with errors="replace" to U+FFFD, which is removed like a control
// character: the bytes have no effect.
TEST_F(WordPiece, SkipsBytesThatAreNotUtf8) {
  const Ids hello_world = tokenizer().encode("hello world");
  const std::vector<std::string> bad = {
      "\x80",             // a continuation with nothing to continue
      "\xff",             // never valid
      "\xc3",             // cut short
      "\xe4\xb8",         // cut short
      "\xf0\x9f\x98",     // cut short
      "\xc0\xaf",         // overlong '/'
      "\xe0\x80\xaf",     // overlong '/'
      "\xed\xa0\x80",     // a surrogate
      "\xf4\x90\x80\x80"  // past U+10FFFF
  };
  for (const std::string& bytes : bad) {
    EXPECT_EQ(tokenizer().encode("hel" + bytes + "lo wo" + bytes + bytes + "rld" + bytes),
              hello_world);
    EXPECT_EQ(tokenizer().encode(bytes), (Ids{101, 102}));
    EXPECT_EQ(tokenizer().encode("[MA" + bytes + "SK]"), tokenizer().encode("[MA\u200bSK]"));
  }
}

TEST_F(WordPiece, RandomBytesGiveAWellFormedResult) {
  std::mt19937 random(17);
  // Half of the bytes come from this list: otherwise hardly any sequence of more than two bytes is
  // valid.
  const std::string likely =
      "[CLS][MASK] a\t\xc3\xa9\xe4\xb8\xad\xcc\x81\xf0\x9f\x98\x80\xed\x95\x9c";
  for (int round = 0; round < 3000; ++round) {
    std::string text(random() % 800, '\0');
    for (char& byte : text) {
      byte = random() % 2 == 0 ? likely[random() % likely.size()]
                               : static_cast<char>(static_cast<unsigned char>(random() & 0xFFU));
    }
    const Ids ids = tokenizer().encode(text);
    ASSERT_GE(ids.size(), 2U);
    ASSERT_LE(ids.size(), 256U);
    ASSERT_EQ(ids.front(), 101);
    ASSERT_EQ(ids.back(), 102);
    for (const std::int32_t id : ids) {
      ASSERT_GE(id, 0);
      ASSERT_LT(id, 30522);
    }
  }
}

TEST(WordPieceVocabulary, ThatCannotBeUsedIsNamed) {
  try {
    const WordPieceTokenizer tokenizer("[PAD]\n[UNK]\n[CLS]\r\n[SEP]\n", "vocab.txt");
    FAIL() << "no error";
  } catch (const attn::ValueError& error) {
    EXPECT_STREQ(error.what(),
                 "[WordPieceTokenizer] vocab.txt must hold the token [MASK]; found none.");
  }
  EXPECT_THROW(WordPieceTokenizer(""), attn::ValueError);
  try {
    const WordPieceTokenizer tokenizer("[PAD]\n[UNK]\na\n[CLS]\n[SEP]\n[MASK]\na\r\n", "vocab.txt");
    FAIL() << "no error";
  } catch (const attn::ValueError& error) {
    EXPECT_STREQ(error.what(),
                 "[WordPieceTokenizer] vocab.txt must hold each token once; found the same with "
                 "ids 2 and 6.");
  }
}

TEST(WordPieceVocabulary, MayHaveOtherSpecialTokens) {
  const WordPieceTokenizer tokenizer(
      "<s>\n<pad>\n</s>\n[UNK]\n<mask>\na\n[\n<mask>a", "memory",
      {.pad = "<pad>", .unknown = "[UNK]", .cls = "<s>", .sep = "</s>", .mask = "<mask>"});
  EXPECT_EQ(tokenizer.encode("a</s>[a <pad>[UNK]<mask>"),
            (std::vector<std::int32_t>{0, 5, 2, 6, 5, 1, 3, 4, 2}));
  // The longest of several tokens at a place.
  const WordPieceTokenizer longest(
      "<s>\n<pad>\n</s>\n<mask>\n<mask>a", "memory",
      {.pad = "<pad>", .unknown = "<mask>a", .cls = "<s>", .sep = "</s>", .mask = "<mask>"});
  EXPECT_EQ(longest.encode("<mask><mask>a"), (std::vector<std::int32_t>{0, 3, 4, 2}));
}

TEST(WordPieceVocabulary, EndsWithOrWithoutALineEnd) {
  const std::string lines = "[PAD]\r\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\na";
  for (const std::string& text : {lines, lines + "\n"}) {
    const WordPieceTokenizer tokenizer(text);
    EXPECT_EQ(tokenizer.vocab_size(), 7U);
    EXPECT_EQ(tokenizer.piece(0), "[PAD]");
    EXPECT_EQ(tokenizer.encode("a b"), (Ids{2, 6, 1, 3}));
  }
}

}  // namespace
