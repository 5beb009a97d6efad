// Configuration: the version as one number, and the inline namespace that spells the build.
#include "attn/core/config.hpp"

#include <string_view>
#include <type_traits>

#include <gtest/gtest.h>

#include "attn/core/error.hpp"

namespace {

#define ATTN_TEST_TEXT_(x) #x
#define ATTN_TEST_TEXT(x) ATTN_TEST_TEXT_(x)

static_assert(ATTN_VERSION ==
              ATTN_VERSION_MAJOR * 10000 + ATTN_VERSION_MINOR * 100 + ATTN_VERSION_PATCH);
static_assert(std::is_same_v<attn::ShapeError, attn::ATTN_ABI_NAMESPACE::ShapeError>);

TEST(Config, NamespaceNamesBaselineThreadingAndInstructionSet) {
  const std::string_view name = ATTN_TEST_TEXT(ATTN_ABI_NAMESPACE);
  EXPECT_TRUE(name.starts_with("v1_")) << name;
#if defined(_OPENMP)
  EXPECT_NE(name.find("_omp_"), name.npos) << name;
#else
  EXPECT_NE(name.find("_serial_"), name.npos) << name;
#endif
}

}  // namespace
