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

// Outside of the inline namespace: what one shared library throws another catches, whatever flags
// each was compiled with.
namespace attn {

/// A tensor has the wrong rank, extents or strides.
struct ShapeError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A tensor holds another element type than the one asked for.
struct DTypeError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// An option's value is out of its range, or two options contradict each other.
struct ValueError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A file cannot be opened, is truncated, or does not hold what its format promises.
struct IoError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace attn

ATTN_NAMESPACE_BEGIN

// What throws stays out of the way of what does not: not inlined, compiled for size, one copy a
// program.
#define ATTN_COLD __attribute__((cold, noinline))

// What every call runs once is one copy a program, too, but not cold: g++ takes a block that calls
// a cold function for cold itself, and compiles the caller's loop around attention for size
// (attn_report's mha_tutorial took 1.07 of the time).
#define ATTN_ONCE_A_CALL __attribute__((noinline))

namespace detail {

/// The parts side by side. In C++20 every operation on strings that a file uses is compiled there:
/// messages take this one alone.
ATTN_COLD inline std::string join(std::initializer_list<std::string_view> parts) {
  std::size_t size = 0;
  for (std::string_view part : parts) size += part.size();
  std::string text(size, ' ');
  char* to = text.data();
  for (std::string_view part : parts) {
    if (part.empty()) continue;  // it may have no memory, of which memcpy takes not even 0 bytes
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

/// As short as %g makes it: std::to_string shows 1e-50 as 0.000000.
ATTN_COLD inline std::string to_string(double x) {
  char text[32];
  const int size = std::snprintf(text, sizeof text, "%g", x);
  return detail::join({{text, static_cast<std::size_t>(size)}});
}

/// A whole number, as std::to_string writes it.
ATTN_COLD inline std::string to_string(std::ptrdiff_t x) {
  char text[32];
  const int size = std::snprintf(text, sizeof text, "%td", x);
  return detail::join({{text, static_cast<std::size_t>(size)}});
}

ATTN_NAMESPACE_END
