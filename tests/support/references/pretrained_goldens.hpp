// The folder tests/data/pretrained, and differences from its goldens.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>

#include "attn/core.hpp"

namespace attn_test {

inline const std::filesystem::path kPretrained = ATTN_TEST_DATA_DIR "/pretrained";

/// The largest difference relative to the largest expected number, at least 1.
template <class X, class Y>
double relative_difference(const X& x, const Y& expected) {
  EXPECT_EQ(x.size(), expected.size());
  double worst = 0, most = 1;
  for (attn::index_t i = 0; i < expected.size(); ++i) {
    const double e = static_cast<double>(expected.data()[i]);
    worst = std::max(worst, std::abs(static_cast<double>(x.data()[i]) - e));
    most = std::max(most, std::abs(e));
  }
  return worst / most;
}

}  // namespace attn_test
