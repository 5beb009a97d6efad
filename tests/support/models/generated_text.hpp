// expect_same(): two generated texts are equal in every bit, except for speculation statistics.
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
