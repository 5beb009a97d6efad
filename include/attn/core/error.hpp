// Exceptions, and the format of error messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#include "attn/core/config.hpp"

// Outside of the inline namespace: an exception thrown in one shared library can be caught in
// another, whatever flags each was compiled with.
namespace attn {

/// A tensor has the wrong rank, extents or strides.
struct ShapeError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A tensor holds another element type than the requested one.
struct DTypeError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// An option's value is out of range, or two options contradict each other.
struct ValueError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A file cannot be opened, is truncated, or violates its format.
struct IoError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace attn

ATTN_NAMESPACE_BEGIN

// Keeps code that throws apart from code that does not: not inlined, optimised for size, one copy
// per program.
#define ATTN_COLD __attribute__((cold, noinline))

// For code that every call runs once: not inlined, one copy per program. Not cold, because g++
// regards a block that calls a cold function as cold itself, and compiles the caller's loop around
// attention for size (attn_report mha_tutorial took 1.07 times as long).
#define ATTN_ONCE_A_CALL __attribute__((noinline))

namespace detail {

/// Concatenates the parts. Messages use no other string operation, because in C++20 each file
/// compiles every one that it uses.
ATTN_COLD inline std::string join(std::initializer_list<std::string_view> parts) {
  std::size_t size = 0;
  for (std::string_view part : parts) size += part.size();
  std::string text(size, ' ');
  char* to = text.data();
  for (std::string_view part : parts) {
    // an empty part may be a null pointer, which memcpy forbids even for 0 bytes
    if (part.empty()) continue;
    std::memcpy(to, part.data(), part.size());
    to += part.size();
  }
  return text;
}

}  // namespace detail

/// "[function] argument must expected; found found."
ATTN_COLD inline std::string message(std::string_view function, std::string_view argument,
                                     std::string_view expected, std::string_view found) {
  return detail::join({"[", function, "] ", argument, " must ", expected, "; found ", found, "."});
}

/// As short as %g makes it: std::to_string prints 1e-50 as 0.000000.
ATTN_COLD inline std::string to_string(double x) {
  char text[32];
  const int size = std::snprintf(text, sizeof text, "%g", x);
  return detail::join({{text, static_cast<std::size_t>(size)}});
}

/// An integer, as std::to_string prints it.
ATTN_COLD inline std::string to_string(std::ptrdiff_t x) {
  char text[32];
  const int size = std::snprintf(text, sizeof text, "%td", x);
  return detail::join({{text, static_cast<std::size_t>(size)}});
}

ATTN_NAMESPACE_END
