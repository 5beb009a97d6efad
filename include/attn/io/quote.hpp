// Quoting of untrusted text, shapes and lists in error messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The parts one after another, integers in decimal. (Also avoids "text" + string, in which g++ 12
/// warns of an overlap by mistake.)
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  [[maybe_unused]] const auto add = [&](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(part)>>) {
      text += std::to_string(part);
    } else {
      text += std::string_view(part);
    }
  };
  (add(parts), ...);
  return text;
}

/// Length of the UTF-8 sequence at the start of `text`; 0 if there is none (RFC 3629: no overlong
/// forms, no surrogates, nothing past U+10FFFF).
inline std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned lead = byte(0);
  if (text.empty() || lead < 0x80) return text.empty() ? 0 : 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  unsigned least = 0x80, most = 0xBF;  // of the second byte
  if (lead == 0xE0) least = 0xA0;
  if (lead == 0xED) most = 0x9F;
  if (lead == 0xF0) least = 0x90;
  if (lead == 0xF4) most = 0x8F;
  if (lead < 0xC2 || lead > 0xF4 || byte(1) < least || byte(1) > most) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

/// `text` in double quotes, cut after about 120 bytes, with control characters (C0, C1, DEL) and
/// invalid bytes as \xNN: a hostile name of 100 MB, or one with a NUL that would end what() early,
/// still gives one readable line.
inline std::string quote(std::string_view text) {
  constexpr std::size_t longest = 120;
  constexpr const char* digits = "0123456789abcdef";
  std::string result = "\"";
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = utf8_length(text.substr(at));
    const std::string_view character = text.substr(at, std::max<std::size_t>(length, 1));
    if (at + character.size() > longest) break;
    at += character.size();
    const auto first = static_cast<unsigned char>(character.front());
    const bool is_c1 =
        length == 2 && first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;
    if (length == 0 || first < 0x20 || first == 0x7F || is_c1) {
      for (char c : character) {
        const auto byte = static_cast<unsigned char>(c);
        result.append("\\x").append(1, digits[byte >> 4]).append(1, digits[byte & 15]);
      }
    } else {
      if (first == '"' || first == '\\') result += '\\';
      result += character;
    }
  }
  return result += at < text.size() ? "...\"" : "\"";
}

/// The name of a file for messages; on Windows, path::string() throws for letters that the code
/// page lacks.
inline std::string utf8(const std::filesystem::path& path) {
  const std::u8string text = path.u8string();
  return {text.begin(), text.end()};
}

/// "(2, 3)", as to_string() prints shapes of fixed rank; "()" for a scalar.
inline std::string shape_text(std::span<const index_t> shape) {
  constexpr std::size_t most = 16;
  std::string text = "(";
  for (std::size_t i = 0; i < (std::min)(shape.size(), most); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  if (shape.size() > most) text += concat(", ... ", shape.size(), " extents in all");
  return text += ")";
}

/// "2 missing ("a", "b")"; the first 50 names, and the number of others.
inline std::string list_text(std::span<const std::string> names, std::string_view what) {
  constexpr std::size_t most = 50;
  std::string text = concat(names.size(), " ", what);
  if (names.empty()) return text;
  text += " (";
  for (std::size_t i = 0; i < (std::min)(names.size(), most); ++i) {
    if (i > 0) text += ", ";
    text += quote(names[i]);
  }
  if (names.size() > most) text += concat(" and ", names.size() - most, " more");
  return text += ")";
}

}  // namespace detail

ATTN_NAMESPACE_END
