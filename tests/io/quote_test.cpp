// How errors quote hostile text.
#include "attn/io/quote.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace attn::detail {
namespace {

using namespace std::string_literals;

TEST(Concat, JoinsTextAndNumbers) {
  EXPECT_EQ(concat(), "");
  EXPECT_EQ(concat("a", std::string("b"), std::string_view("c"), -1, std::size_t{2}), "abc-12");
}

TEST(Quote, EscapesWhatWouldBreakALine) {
  EXPECT_EQ(quote("a.weight"), "\"a.weight\"");
  EXPECT_EQ(quote(""), "\"\"");
  EXPECT_EQ(quote("a\0b\nc\x7F\x1B"s), R"("a\x00b\x0ac\x7f\x1b")");
  EXPECT_EQ(quote(R"(a"b\c)"), R"("a\"b\\c")");
  EXPECT_EQ(quote("caf\xC3\xA9"), "\"caf\xC3\xA9\"");
}

TEST(Quote, EscapesWhatIsNoUtf8AndC1) {
  EXPECT_EQ(quote("a\xFF\x80z"), R"("a\xff\x80z")");
  EXPECT_EQ(quote("\xC3"), R"("\xc3")");                          // cut short
  EXPECT_EQ(quote("\xC3("), R"("\xc3(")");                        // no continuation
  EXPECT_EQ(quote("\xC0\xAF"), R"("\xc0\xaf")");                  // overlong
  EXPECT_EQ(quote("\xED\xA0\x80"), R"("\xed\xa0\x80")");          // a surrogate
  EXPECT_EQ(quote("\xF4\x90\x80\x80"), R"("\xf4\x90\x80\x80")");  // past U+10FFFF
  EXPECT_EQ(quote("\xE2\x82\xAC\xF0\x9F\x98\x80"), "\"\xE2\x82\xAC\xF0\x9F\x98\x80\"");
  EXPECT_EQ(quote("\xC2\x9B"
                  "1m\xC2\xA0"),
            "\"\\xc2\\x9b1m\xC2\xA0\"");
}

TEST(Quote, CutsLongTextBetweenCharacters) {
  EXPECT_EQ(quote(std::string(120, 'x')), '"' + std::string(120, 'x') + '"');
  EXPECT_EQ(quote(std::string(100'000'000, 'x')), '"' + std::string(120, 'x') + "...\"");
  EXPECT_EQ(quote(std::string(119, 'x') + "\xC3\xA9"), '"' + std::string(119, 'x') + "...\"");
  EXPECT_TRUE(quote(std::string(300, '\x80')).ends_with("\\x80...\""));
}

TEST(ShapeText, LooksLikeToString) {
  EXPECT_EQ(shape_text({}), "()");
  EXPECT_EQ(shape_text(std::vector<index_t>{2, 3}), to_string(Shape<2>{2, 3}));
  EXPECT_EQ(shape_text(std::vector<index_t>(100, 1)),
            "(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ... 100 extents in all)");
}

TEST(ListText, CapsTheList) {
  EXPECT_EQ(list_text({}, "missing"), "0 missing");
  EXPECT_EQ(list_text(std::vector<std::string>{"a", "b"}, "missing"), R"(2 missing ("a", "b"))");
  const std::string many = list_text(std::vector<std::string>(1000, "a"), "unexpected");
  EXPECT_TRUE(many.starts_with("1000 unexpected (\"a\", "));
  EXPECT_TRUE(many.ends_with(" and 950 more)"));
}

}  // namespace
}  // namespace attn::detail
