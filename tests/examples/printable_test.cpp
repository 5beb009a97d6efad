// printable(): characters that control a terminal are escaped. Counts agree with their noun.
#include "support/printable.hpp"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace {

using examples::counted;
using examples::printable;

TEST(Printable, LeavesTextAlone) {
  for (const std::string text :
       {"", "plain ~ text", "caf\u00e9 \u4e2d\u6587 \U0001F600", "\u05d0\u05d1 \u0627\u0628",
        "\u00a0\u200d\u2028", R"(back\slash "quoted")"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, EscapesControlCharactersOfBothKinds) {
  EXPECT_EQ(printable("a\x1b[2J\tb\n"), R"(a\u001b[2J\u0009b\u000a)");
  EXPECT_EQ(printable(std::string("\0\x7f", 2)), R"(\u0000\u007f)");
  EXPECT_EQ(printable("\u0080\u0085\u009b1m\u009f"), R"(\u0080\u0085\u009b1m\u009f)");
}

TEST(Printable, EscapesWhatTurnsTextAround) {
  EXPECT_EQ(printable("\u061c\u200e\u200f"), R"(\u061c\u200e\u200f)");
  EXPECT_EQ(printable("\u202a\u202b\u202c\u202d\u202e"), R"(\u202a\u202b\u202c\u202d\u202e)");
  EXPECT_EQ(printable("\u2066\u2067\u2068\u2069"), R"(\u2066\u2067\u2068\u2069)");
  EXPECT_EQ(printable("\u2029\u202f\u2065\u206a"), "\u2029\u202f\u2065\u206a");  // their neighbours
}

TEST(Printable, ShowsBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("a\xff\x9b"
                      "b\xe4\xb8"),
            R"(a\xff\x9bb\xe4\xb8)");
  EXPECT_EQ(printable("\xc2"), R"(\xc2)");
}

TEST(Printable, KeepsJsonTheSame) {
  const nlohmann::json json = {"a\x1b\u009b\u202e\x7f\n\"\\", 1.5};
  const std::string shown = printable(json.dump());
  EXPECT_EQ(nlohmann::json::parse(shown), json);
  EXPECT_EQ(shown.find("\u202e"), shown.npos);
}

TEST(Counted, OneIsSingular) {
  EXPECT_EQ(counted(0, "line"), "0 lines");
  EXPECT_EQ(counted(1, "line"), "1 line");
  EXPECT_EQ(counted(2, "line"), "2 lines");
}

}  // namespace
