// StopFilter: for any pieces, the output is the text before the first complete stop text, without
// any part of it.
#include "attn/text/stop_filter.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/random.hpp"

namespace attn {
namespace {

TEST(StopFilter, GivesTheTextUpToTheFirstCompleteStopText) {
  for (std::uint64_t draw = 0; draw < 500; ++draw) {
    attn_test::Random random(draw);
    SCOPED_TRACE(random.trace());
    const auto word = [&](attn_test::Index least, attn_test::Index most) {
      std::string text;
      for (auto n = random.integer(least, most); n > 0; --n) text += random.chance(0.5) ? 'a' : 'b';
      return text;
    };
    const std::string text = word(0, 20);
    std::vector<std::string> stops;
    for (auto n = random.integer(0, 3); n > 0; --n) stops.push_back(word(1, 5));
    std::size_t end = text.npos;
    for (std::size_t size = 1; size <= text.size() && end == text.npos; ++size) {
      for (const std::string& stop : stops) {
        if (std::string_view(text).substr(0, size).ends_with(stop)) {
          end = std::min(end, size - stop.size());
        }
      }
    }
    StopFilter filter(stops);
    std::string found;
    for (std::size_t at = 0; at < text.size();) {
      const auto size = static_cast<std::size_t>(random.integer(1, 4));
      found += filter.push(std::string_view(text).substr(at, size));
      ASSERT_TRUE(text.substr(0, end).starts_with(found));
      at += size;
    }
    ASSERT_EQ(filter.stopped(), end != text.npos);
    found += filter.finish();
    ASSERT_EQ(found, text.substr(0, end));
  }
}

TEST(StopFilter, HoldsBackNoMoreThanItMust) {
  StopFilter filter({"END"});
  EXPECT_EQ(filter.push("the E"), "the ");
  EXPECT_EQ(filter.push("N"), "");
  EXPECT_EQ(filter.push("X E"), "ENX ");
  EXPECT_EQ(filter.finish(), "E");
  EXPECT_THROW(StopFilter({"a", ""}), ValueError);
  EXPECT_THROW(StopFilter({"\x9F of an \u00df"}), ValueError);
  EXPECT_EQ(StopFilter({"\u00df\ufffd"}).push("stra\u00df"), "stra");
}

}  // namespace
}  // namespace attn
