// expect_same(): two generated texts are the same in every bit, but for what speculation cost.
#pragma once

#include <gtest/gtest.h>

#include "attn/generation/generate_text.hpp"

namespace attn_test {

inline void expect_same(const attn::GeneratedText& found, const attn::GeneratedText& expected) {
  EXPECT_EQ(found.ids, expected.ids);
  EXPECT_EQ(found.text, expected.text);
  EXPECT_EQ(found.end, expected.end);
  EXPECT_EQ(found.log_probabilities, expected.log_probabilities);
  EXPECT_EQ(found.context, expected.context);
}

}  // namespace attn_test
