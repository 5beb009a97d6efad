// Configuration: version, namespace of this build, exceptions outside of it.
//
// How flags change the namespace: tests/isa_mix/namespaces.cmake.
#include "attn/core/config.hpp"

#include <string_view>
#include <type_traits>
#include <typeinfo>

#include <gtest/gtest.h>

#include "attn/core/error.hpp"
#include "attn/core/tensor.hpp"

namespace {

#define ATTN_TEST_TEXT_(x) #x
#define ATTN_TEST_TEXT(x) ATTN_TEST_TEXT_(x)

static_assert(ATTN_VERSION ==
              ATTN_VERSION_MAJOR * 10000 + ATTN_VERSION_MINOR * 100 + ATTN_VERSION_PATCH);
static_assert(std::is_same_v<attn::Tensor<float, 2>, attn::ATTN_ABI_NAMESPACE::Tensor<float, 2>>);

TEST(Config, NamespaceNamesVersionLevelAndThreading) {
  const std::string_view name = ATTN_TEST_TEXT(ATTN_ABI_NAMESPACE);
  EXPECT_TRUE(name.starts_with(ATTN_TEST_TEXT(ATTN_LAYOUT))) << name;
#if defined(__x86_64__)
  EXPECT_NE(name.find("_x86v"), name.npos) << name;
#endif
#if defined(_OPENMP)
  EXPECT_NE(name.find("_omp"), name.npos) << name;
#else
  EXPECT_EQ(name.find("_omp"), name.npos) << name;
#endif
}

// Two shared libraries compiled with different flags catch each other's exceptions.
TEST(Config, ExceptionsLieOutsideOfTheNamespace) {
  EXPECT_STREQ(typeid(attn::ShapeError).name(), "N4attn10ShapeErrorE");
  EXPECT_STREQ(typeid(attn::DTypeError).name(), "N4attn10DTypeErrorE");
  EXPECT_STREQ(typeid(attn::ValueError).name(), "N4attn10ValueErrorE");
  EXPECT_STREQ(typeid(attn::IoError).name(), "N4attn7IoErrorE");
}

}  // namespace
