// Errors: the common form of messages, and the types to catch.
#include "attn/core/error.hpp"

#include <type_traits>

#include <gtest/gtest.h>

namespace {

static_assert(std::is_base_of_v<std::invalid_argument, attn::ShapeError>);
static_assert(std::is_base_of_v<std::invalid_argument, attn::DTypeError>);
static_assert(std::is_base_of_v<std::invalid_argument, attn::ValueError>);
static_assert(std::is_base_of_v<std::runtime_error, attn::IoError>);

TEST(Error, MessageNamesFunctionArgumentExpectedAndFound) {
  EXPECT_EQ(attn::message("softmax", "out", "have shape (2, 3)", "(2, 4)"),
            "[softmax] out must have shape (2, 3); found (2, 4).");
  // Null pointers, whose copies UndefinedBehaviorSanitizer would report.
  EXPECT_EQ(attn::message("softmax", {}, "be", {}), "[softmax]  must be; found .");
}

}  // namespace
