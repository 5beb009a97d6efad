// Some draws of formats_fuzz: weight formats, cache elements, hostile numbers.
#include <gtest/gtest.h>

#include "support/draws/format_draw.hpp"

namespace attn {
namespace {

TEST(Formats, RandomCallsAreWhatTheyMean) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(150); ++draw) {
    attn_test::Random random(9000 + draw);
    ASSERT_EQ(attn_test::format_difference(random), "") << random.trace();
  }
}

}  // namespace
}  // namespace attn
