// Charsmap: texts and ids of the package tokenizers for files with SentencePiece's compiled table
// of characters; invalid tables.
#include "attn/text/charsmap.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "attn/io/base64.hpp"
#include "attn/models/pretrained/tokenizer.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using nlohmann::json;

const std::filesystem::path kTables =
    std::filesystem::path(ATTN_TEST_DATA_DIR) / "pretrained" / "precompiled";

json table_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return json::parse(file);
}

/// The table of the cases, as bytes.
std::string table() {
  const json normalizer = table_json(kTables / "xlm_roberta" / "tokenizer.json").at("normalizer");
  return detail::bytes_of_base64(normalizer.at("precompiled_charsmap").get<std::string>()).value();
}

/// A table of one block that maps 'a' to "bc".
std::string small_table() {
  std::vector<std::uint32_t> units(256);
  units[0] = 1 << 10;                                   // to 1
  units[1 ^ 'a'] = 'a' | 1 << 8 | ('a' ^ 1 ^ 2) << 10;  // to 2
  units[2] = 1u << 31 | 1;
  std::string bytes("\0\4\0\0", 4);
  for (const std::uint32_t unit : units) {
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(unit >> shift & 0xFF);
  }
  return bytes + std::string("\0bc\0", 4);
}

TEST(Charsmap, HasTheTextsAndIdsOfTokenizers) {
  const char* dir = std::getenv("ATTN_TOKEN_IDS_DIR");
  const json cases =
      table_json((dir != nullptr ? std::filesystem::path(dir) : kTables) / "cases.json");
  const auto lines = cases.at("lines").get<std::vector<std::string>>();
  ASSERT_GE(lines.size(), 150u);
  const Charsmap charsmap(table());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(json(charsmap(lines[i])).dump(-1, ' ', true),
              cases.at("normal").at(i).dump(-1, ' ', true))
        << json(lines[i]).dump(-1, ' ', true);
  }
  for (const std::string name :
       {"xlm_roberta", "xlm_roberta_spaces", "t5", "t5_first", "no_table"}) {
    const PretrainedText text = pretrained_text(kTables / name);
    EXPECT_EQ(text.special.add_bos, name == "xlm_roberta" || name == "xlm_roberta_spaces");
    for (std::size_t i = 0; i < lines.size(); ++i) {
      std::vector<index_t> ids;
      if (text.special.add_bos) ids.push_back(text.special.bos.value());
      for (const index_t id : text.tokenizer.encode(lines[i], true)) ids.push_back(id);
      ids.push_back(text.special.behind.value());
      EXPECT_EQ(ids, cases.at(name).at(i).get<std::vector<index_t>>())
          << name << " of " << json(lines[i]).dump(-1, ' ', true);
      EXPECT_EQ(text.tokenizer.decode(ids, false),
                cases.at(name + ".text").at(i).get<std::string>())
          << name << " of " << json(lines[i]).dump(-1, ' ', true);
    }
  }
}

TEST(Charsmap, ReplacesAClusterByWhatItsShortestKeyBecomes) {
  const Charsmap charsmap(small_table());
  EXPECT_EQ(charsmap("xay"), "xbcy");
  EXPECT_EQ(charsmap("a\u0301x"), "bcx");        // 3 bytes: the table drops the accent
  EXPECT_EQ(charsmap("a\u0301\u0302x"), "bcx");  // 5
  EXPECT_EQ(charsmap("a\u0301\u0302\u0303"), "bc\u0301\u0302\u0303");  // 7: mapped one by one
  EXPECT_EQ(charsmap(""), "");
  EXPECT_EQ(charsmap(std::string("\0a\0", 3)), std::string("\0bc\0", 4));
}

TEST(Charsmap, BytesThatAreNoTextStayThemselvesAndEndClusters) {
  const Charsmap charsmap(small_table());
  EXPECT_EQ(charsmap("\xFF\x80"), "\xFF\x80");
  EXPECT_EQ(charsmap("a\xCC"), "bc\xCC");
  EXPECT_EQ(charsmap("\xE4\xB8"
                     "a\xCC\x81\xCC"),
            "\xE4\xB8"
            "bc\xCC");
  EXPECT_EQ(charsmap("\xED\xA0\x80"
                     "a"),
            "\xED\xA0\x80"
            "bc");
  // Any bytes, also through a tokenizer.
  const Tokenizer tokenizer = pretrained_text(kTables / "t5").tokenizer;
  for (std::uint64_t draw = 0; draw < 200; ++draw) {
    attn_test::Random random(draw);
    SCOPED_TRACE(random.trace());
    std::string text;
    for (auto n = random.integer(0, 30); n > 0; --n) {
      text += static_cast<char>(random.integer(-128, 127));
    }
    for (const index_t id : tokenizer.encode(text, true)) EXPECT_LT(id, tokenizer.vocab_size());
    EXPECT_LE(charsmap(text).size(), 2 * text.size());
  }
}

TEST(Charsmap, NamesWhatIsWrongWithATable) {
  const std::string good = small_table();
  const auto fails = [](std::string bytes, std::string_view part) {
    EXPECT_TRUE(contains(error_of<ValueError>([&] { Charsmap charsmap(bytes); }), part));
  };
  const auto with = [&](std::size_t unit, std::uint32_t value) {
    std::string bytes = good;
    for (std::size_t i = 0; i < 4; ++i) {
      bytes[4 + 4 * unit + i] = static_cast<char>(value >> 8 * i & 0xFF);
    }
    return bytes;
  };
  constexpr std::uint32_t kValue = 1u << 31;
  fails("", "begin with the size of its trie, blocks of 1024 bytes that it holds; found 0 in 0");
  fails(std::string("\0\0\0\0\0", 5), "found 0 in 5 bytes");
  fails(std::string("\xFF\xFF\xFF\xFF\0", 5), "found 4294967295 in 5 bytes");
  fails("\4" + good.substr(1), "found 1028 in 1032 bytes");
  fails(good.substr(0, 1027), "found 1024 in 1027 bytes");
  fails(good.substr(0, 1028), "end with a zero byte");
  fails(good.substr(0, good.size() - 1), "end with a zero byte");
  fails(good.substr(0, 1029) + std::string("\xFF\0", 2), "have replacements in UTF-8");
  fails(with(0, kValue), "have a trie with a root");
  fails(with(7, 256 << 10), "lead from each unit to another; found 263");
  fails(with(7, 1 << 9 | 1 << 10), "lead from each unit to another; found 263");
  fails(with(7, ~0u >> 1), "lead from each unit to another");
  fails(with(2, 0), "have values that say where replacements begin; found 0");
  fails(with(2, kValue | 4), "have values that say where replacements begin");
  fails(with(2, ~0u), "have values that say where replacements begin");
  std::string inside = good;
  inside.replace(1029, 2, "\u00e9");
  EXPECT_EQ(Charsmap(inside)("a"), "\u00e9");
  inside[4 + 4 * 2] = 2;
  fails(inside, "have values that say where replacements begin");
}

TEST(Charsmap, ChangedTablesAreErrorsOrTables) {
  const std::string good = table();
  int tables = 0;
  for (std::uint64_t draw = 0; draw < 2000; ++draw) {
    attn_test::Random random(draw);
    SCOPED_TRACE(random.trace());
    std::string bytes = good;
    for (auto n = random.integer(1, 3); n > 0; --n) {
      bytes[static_cast<std::size_t>(random.integer(0, std::ssize(bytes) - 1))] =
          static_cast<char>(random.integer(-128, 127));
    }
    if (random.chance(0.2)) bytes.resize(static_cast<std::size_t>(random.integer(0, 4700)));
    try {
      const Charsmap charsmap(bytes);
      charsmap("hello \uff21\u0301\ufb03 \u1100\u1161\u11a8\x01 caf\u0065\u0301");
      ++tables;
    } catch (const ValueError&) {
    }
  }
  EXPECT_GT(tables, 200);
}

TEST(CharsmapFiles, NameWhatTheyCannotFollow) {
  const attn_test::TempFolder folder;
  const auto fails = [&](const std::string& name, std::string_view part, const std::string& place,
                         const json& value) {
    json changed = table_json(kTables / name / "tokenizer.json");
    changed[json::json_pointer(place)] = value;
    std::ofstream(folder / "tokenizer.json") << changed.dump();
    const auto error = error_of<ValueError>([&] { pretrained_text(folder / "."); });
    EXPECT_TRUE(contains(error, part));
    EXPECT_TRUE(contains(error, "tokenizer.json"));
  };
  const std::string map = "normalizer.precompiled_charsmap\" must be ";
  const std::string at = "/normalizer/precompiled_charsmap";
  fails("xlm_roberta", map + "given; found none", at, nullptr);
  fails("xlm_roberta", map + "a character map; found \"[Charsmap]", at, "");
  fails("xlm_roberta", map + "a character map; found \"[Charsmap]", at, "AAAAAA==");
  for (const char* text :
       {"A", "AA", "AAA", "AAAA\n", "A===", "AB==", "AAB=", "AA-A", "=AAA", "A=AA"})
    fails("xlm_roberta", map + "base64; found another text", at, text);
  fails("t5", "normalizer.normalizers.1.type\" must be Replace of punctuation",
        "/normalizer/normalizers/1/type", "Precompiled");
  fails("t5", "normalizer.normalizers.1.type\" must be", "/normalizer/normalizers/1/type",
        "Lowercase");
  fails("t5", "pattern\" must be \" {2,}\"", "/normalizer/normalizers/2/pattern/Regex", " +");
  fails("t5", "pattern\" must be \" {2,}\"", "/normalizer/normalizers/2/pattern",
        {{"String", "  "}});
  fails("t5_first", "be always or never after", "/normalizer/normalizers/1/strip_left", true);
  fails("xlm_roberta", "be always or never after WhitespaceSplit",
        "/pre_tokenizer/pretokenizers/1/prepend_scheme", "first");
  fails("xlm_roberta", "found \"WhitespaceSplit\"", "/pre_tokenizer",
        {{"type", "WhitespaceSplit"}});
  fails("t5", "with at most one token before and one after it", "/post_processor/single/2",
        {{"SpecialToken", {{"id", "</s>"}}}});
}

TEST(CharsmapFiles, OldOnesNameNoTypeOfModel) {
  const attn_test::TempFolder folder;
  json changed = table_json(kTables / "xlm_roberta" / "tokenizer.json");
  changed["model"].erase("type");
  changed["model"].erase("byte_fallback");
  std::ofstream(folder / "tokenizer.json") << changed.dump();
  const Tokenizer tokenizer = pretrained_text(folder / ".").tokenizer;
  EXPECT_EQ(tokenizer.encode("\uff48ello"),
            pretrained_text(kTables / "xlm_roberta").tokenizer.encode("hello"));
}

}  // namespace
}  // namespace attn
