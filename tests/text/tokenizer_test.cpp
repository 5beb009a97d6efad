// Tokenizer: ids of Hugging Face's `tokenizers`, any bytes round trip, special tokens only on
// request.
#include "attn/text/tokenizer.hpp"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "attn/models/gguf/tokenizer.hpp"
#include "attn/text/text_stream.hpp"

#include "support/error_of.hpp"
#include "support/model_dir.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using Ids = std::vector<index_t>;

// A vocabulary of all bytes, some merges and special tokens.
struct ToyVocabulary {
  explicit ToyVocabulary(PreTokenizer pre = PreTokenizer::gpt2, bool ignore_merges = false) {
    for (const std::int32_t letter : detail::byte_letters())
      append_utf8(letter, spelled.emplace_back());
    kinds.assign(256, TokenKind::normal);
    for (const char* token : {"he", "ll", "hell", "lo", "\u0120t", "\u0120th", "\u00c3\u00a9"}) {
      spelled.emplace_back(token);
      kinds.push_back(TokenKind::normal);
    }
    for (const char* token : {"<s>", "<s>x", "</s>"}) {
      spelled.emplace_back(token);
      kinds.push_back(TokenKind::control);
    }
    spelled.emplace_back("<tool>");
    kinds.push_back(TokenKind::user_defined);
    vocabulary.tokens.assign(spelled.begin(), spelled.end());
    vocabulary.kinds = kinds;
    vocabulary.merges = {"h e", "l l", "he ll", "l o", "\u0120 t", "\u0120t h", "\u00c3 \u00a9"};
    vocabulary.pre_tokenizer = pre;
    vocabulary.ignore_merges = ignore_merges;
  }
  std::vector<std::string> spelled;
  std::vector<TokenKind> kinds;
  BpeVocabulary vocabulary;
};

constexpr index_t kHe = 256, kLl = 257, kHell = 258, kLo = 259, kT = 260, kTh = 261, kE = 262,
                  kS = 263, kSx = 264, kTool = 266;

TEST(Bpe, MergesTheMostUrgentPairFirst) {
  const Tokenizer tokenizer(ToyVocabulary().vocabulary);
  EXPECT_EQ(tokenizer.encode("hello"), (Ids{kHell, 'o'}));
  EXPECT_EQ(tokenizer.encode("lo"), (Ids{kLo}));
  EXPECT_EQ(tokenizer.encode("llo"), (Ids{kLl, 'o'}));
  EXPECT_EQ(tokenizer.encode("lllll"), (Ids{kLl, kLl, 'l'}));
  EXPECT_EQ(tokenizer.encode(" the"), (Ids{kT, kHe}));
  EXPECT_EQ(tokenizer.encode(" tho"), (Ids{kTh, 'o'}));
  EXPECT_EQ(tokenizer.encode("h e"), (Ids{'h', ' ', 'e'}));
  EXPECT_EQ(tokenizer.encode("\u00e9"), (Ids{kE}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.piece(kT), " t");
  EXPECT_EQ(tokenizer.token("hell"), std::optional<index_t>(kHell));
  EXPECT_EQ(tokenizer.token("<s>"), std::optional<index_t>(kS));
  EXPECT_EQ(tokenizer.token("hello"), std::nullopt);
}

TEST(Bpe, AWholeWordMayBeATokenBeforeMerges) {
  ToyVocabulary toy(PreTokenizer::llama_bpe, true);
  toy.spelled.emplace_back("hello");
  toy.vocabulary.tokens.assign(toy.spelled.begin(), toy.spelled.end());
  toy.vocabulary.kinds.push_back(TokenKind::normal);
  EXPECT_EQ(Tokenizer(toy.vocabulary).encode("hello"), (Ids{267}));
  toy.vocabulary.ignore_merges = false;
  EXPECT_EQ(Tokenizer(toy.vocabulary).encode("hello"), (Ids{kHell, 'o'}));
}

TEST(Bpe, SpecialTokensAreTheLongestAndOnlyWhereAskedFor) {
  const Tokenizer tokenizer(ToyVocabulary().vocabulary);
  EXPECT_EQ(tokenizer.encode("<s>x<s>y", true), (Ids{kSx, kS, 'y'}));
  EXPECT_EQ(tokenizer.encode("<s>"), (Ids{'<', 's', '>'}));
  EXPECT_EQ(tokenizer.encode("a<tool>"), (Ids{'a', kTool}));
  // Text on both sides of a border between pieces is joined, but never forms a control token.
  const TextPiece pieces[] = {{"<s>", true}, {"he"}, {"l"}, {"l"}, {"<"}, {"s>", true}, {"<s>"}};
  EXPECT_EQ(tokenizer.encode(pieces), (Ids{kS, kHell, '<', 's', '>', '<', 's', '>'}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(pieces)), "<s>hell<s><s>");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(pieces), false), "hell<s><s>");
}

/// \w of regular expressions includes letters in circles and squares, which are not letters
/// elsewhere.
TEST(Bpe, WholeWordsEndBeforeAnyLetter) {
  for (const std::int32_t code : {0x41, 0x5F, 0x301, 0x661, 0x2167, 0x200D, 0x24B6, 0x24E9, 0x1F130,
                                  0x1F149, 0x1F150, 0x1F169, 0x1F170, 0x1F189}) {
    EXPECT_TRUE(detail::is_word_char(code)) << code;
  }
  for (const std::int32_t code :
       {0x20, 0x2D, 0xBD, 0x200B, 0x200E, 0x24B5, 0x24EA, 0x1F12F, 0x1F14A, 0x1F16A, 0x1F18A}) {
    EXPECT_FALSE(detail::is_word_char(code)) << code;
  }
}

TEST(Bpe, AnyBytesAreHadBackAndStreamedInWholeCharacters) {
  for (const auto pre :
       {PreTokenizer::gpt2, PreTokenizer::smollm, PreTokenizer::llama_bpe, PreTokenizer::qwen2}) {
    const Tokenizer tokenizer(ToyVocabulary(pre).vocabulary);
    for (std::uint64_t draw = 0; draw < 300; ++draw) {
      attn_test::Random random(draw);
      SCOPED_TRACE(random.trace());
      std::string text;
      const std::vector<std::string> likely = {
          "hello",        " the",     "\u00e9",   "\u4e2d", "\U0001F642", "\xE4\xB8", "\xF0\x9F",
          "\xED\xA0\x80", "\xF4\x90", "\xC0\xAF", "1",      "\n",         "'s"};
      for (auto n = random.integer(0, 20); n > 0; --n) {
        text += random.chance(0.5) ? random.pick(likely)
                                   : std::string(1, static_cast<char>(random.integer(-128, 127)));
      }
      const Ids ids = tokenizer.encode(text);
      ASSERT_EQ(tokenizer.decode(ids), text);
      TextStream stream(tokenizer);
      std::string streamed;
      for (const index_t id : ids) {
        const std::string piece = stream.push(id);
        ASSERT_EQ(valid_utf8(piece), piece);
        streamed += piece;
      }
      streamed += stream.finish();
      ASSERT_EQ(streamed, valid_utf8(text));
    }
  }
}

TEST(Bpe, ALongWordTakesNoTimeOfItsLengthSquared) {
  const Tokenizer tokenizer(ToyVocabulary().vocabulary);
  const std::string word(1000000, 'l');
  EXPECT_EQ(tokenizer.encode(word), Ids(500000, kLl));
}

TEST(Bpe, WhatIsWrongWithAVocabularyIsNamed) {
  const auto fails = [](auto change, std::string_view part) {
    ToyVocabulary toy;
    change(toy.vocabulary);
    EXPECT_TRUE(contains(error_of<ValueError>([&] { Tokenizer tokenizer(toy.vocabulary); }), part));
  };
  fails([](BpeVocabulary& v) { v.kinds.pop_back(); },
        "kinds must be as many as tokens, 267; found 266");
  fails([](BpeVocabulary& v) { v.merges.push_back("h o"); },
        "merge 7 must be two tokens that together are one; found \"h o\"");
  fails([](BpeVocabulary& v) { v.merges.push_back("ho"); }, "merge 7");
  fails([](BpeVocabulary& v) { v.merges.push_back(""); }, "merge 7");
  fails([](BpeVocabulary& v) { v.tokens[1] = v.tokens[0]; }, "every token must occur once");
  const Tokenizer tokenizer(ToyVocabulary().vocabulary);
  EXPECT_TRUE(
      contains(error_of<ValueError>([&] { tokenizer.piece(267); }), "lie in 0 .. 266; found 267"));
  EXPECT_TRUE(contains(error_of<ValueError>([&] { tokenizer.decode(Ids{-1}); }), "found -1"));
}

/// Cases of tests/data/smollm2/make_token_ids.py, or of the folder that ATTN_TOKEN_IDS_DIR names.
nlohmann::json token_cases(const std::string& name) {
  const char* dir = std::getenv("ATTN_TOKEN_IDS_DIR");
  std::ifstream file((dir != nullptr ? std::string(dir) : ATTN_TEST_DATA_DIR "/smollm2") + "/" +
                     name);
  return nlohmann::json::parse(file);
}

TEST(PreTokenizers, CutWhereTokenizersDoes) {
  for (const nlohmann::json& one : token_cases("pre_tokens.json")) {
    const auto text = one.at("text").get<std::string>();
    for (const char* name : {"gpt2", "llama-bpe", "qwen2"}) {
      std::vector<std::string> words;
      for_each_word(*pre_tokenizer(name), text,
                    [&](std::string_view word) { words.emplace_back(word); });
      EXPECT_EQ(words, one.at(name).get<std::vector<std::string>>())
          << name << " of " << one.at("text").dump(-1, ' ', true);
    }
  }
  EXPECT_EQ(pre_tokenizer("deepseek-llm"), std::nullopt);
}

TEST(SmolLm2Tokenizer, HasTheIdsOfTokenizers) {
  if (!examples::llm_is_present()) GTEST_SKIP() << examples::missing_llm_message();
  const Tokenizer tokenizer = gguf_tokenizer(GgufFile(examples::llm_path()));
  ASSERT_EQ(tokenizer.vocab_size(), 49152);
  const nlohmann::json cases = token_cases("token_ids.json");
  ASSERT_GE(cases.size(), 300u);
  for (const nlohmann::json& one : cases) {
    EXPECT_EQ(tokenizer.encode(one.at("text").get<std::string>(), true), one.at("ids").get<Ids>())
        << "of " << one.at("text").dump(-1, ' ', true);
  }
}

}  // namespace
}  // namespace attn
