// How io errors quote text, shapes and lists that come from a file nobody has vouched for.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The parts one after another, whole numbers in decimal. (Also because g++ 12, in "text" + string,
/// warns of an overlap that is not there.)
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

/// `text` in double quotes, cut after about 120 bytes, control characters as \xNN: a hostile name
/// of 100 MB, or one with a NUL that would end what() early, still gives one readable line.
inline std::string quote(std::string_view text) {
  constexpr std::size_t longest = 120;
  constexpr const char* digits = "0123456789abcdef";
  std::size_t length = std::min(text.size(), longest);
  // Never cut a UTF-8 sequence: its bytes after the first are 10xxxxxx.
  while (length < text.size() && length > 0 && (text[length] & 0xC0) == 0x80) --length;

  std::string result = "\"";
  for (char c : text.substr(0, length)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      result.append("\\x").append(1, digits[byte >> 4]).append(1, digits[byte & 15]);
    } else {
      if (c == '"' || c == '\\') result += '\\';
      result += c;
    }
  }
  return result += length < text.size() ? "...\"" : "\"";
}

/// "(2, 3)", as to_string() gives for shapes of fixed rank; "()" for a scalar.
inline std::string shape_text(std::span<const index_t> shape) {
  constexpr std::size_t most = 16;
  std::string text = "(";
  for (std::size_t i = 0; i < std::min(shape.size(), most); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  if (shape.size() > most) text += concat(", ... ", shape.size(), " extents in all");
  return text += ")";
}

/// "2 missing ("a", "b")"; the first 50 names, and how many more there are.
inline std::string list_text(std::span<const std::string> names, std::string_view what) {
  constexpr std::size_t most = 50;
  std::string text = concat(names.size(), " ", what);
  if (names.empty()) return text;
  text += " (";
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) {
    if (i > 0) text += ", ";
    text += quote(names[i]);
  }
  if (names.size() > most) text += concat(" and ", names.size() - most, " more");
  return text += ")";
}

}  // namespace detail

ATTN_NAMESPACE_END
