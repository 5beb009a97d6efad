// error_of: the text of the exception that a call throws.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace attn_test {

/// what() of the Error that f throws; fails the test if f throws another exception or none.
template <class Error, class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no exception";
  return "";
}

inline ::testing::AssertionResult contains(std::string_view text, std::string_view part) {
  if (text.find(part) != std::string_view::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "expected: " << part << "\n  within: " << text;
}

}  // namespace attn_test
