// UTF-8 text: its characters, normalisation, lower case, white space, replacement.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include <utf8proc.h>

#include "attn/core/config.hpp"

ATTN_NAMESPACE_BEGIN

/// One character of a text: its code point and how many bytes it takes.
struct Utf8Char {
  std::int32_t code;  ///< -1 where the byte belongs to no valid sequence
  std::size_t size;   ///< bytes; 1 if code is -1
};

/// The first character of a text that is not empty.
inline Utf8Char first_char(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return {first, 1};
  utf8proc_int32_t code = 0;
  const utf8proc_ssize_t size =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(text.size()), &code);
  if (size <= 0) return {-1, 1};
  return {code, static_cast<std::size_t>(size)};
}

/// The last character of a text that is not empty.
inline Utf8Char last_char(std::string_view text) {
  for (std::size_t size = 2; size <= 4 && size <= text.size(); ++size) {
    const Utf8Char c = first_char(text.substr(text.size() - size));
    if (c.code >= 0 && c.size == size) return c;
  }
  return first_char(text.substr(text.size() - 1));
}

inline void append_utf8(std::int32_t code, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(code, bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

/// Number of bytes at the end that begin an incomplete character: 0 to 3.
inline std::size_t unfinished_bytes(std::string_view text) {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // the first byte is further back
    // First byte of two, three or four; bytes that begin no character are not held back.
    const std::size_t size = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    if (byte < 0xC2 || byte > 0xF4 || back >= size) return 0;
    // The second byte already reveals overlong forms, surrogates and code points past U+10FFFF.
    if (back >= 2) {
      const auto second = static_cast<unsigned char>(text[text.size() - back + 1]);
      const unsigned least = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
      const unsigned most = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
      if (second < least || second > most) return 0;
    }
    return back;
  }
  return 0;
}

/// The text in Unicode normalisation form C. Invalid bytes stay. Throws std::bad_alloc.
inline std::string nfc(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    std::size_t valid = 0;
    bool is_ascii = true;
    while (valid < text.size()) {
      const Utf8Char c = first_char(text.substr(valid));
      if (c.code < 0) break;
      is_ascii = is_ascii && c.code < 0x80;
      valid += c.size;
    }
    if (is_ascii) {
      result.append(text.substr(0, valid));
    } else {
      utf8proc_uint8_t* form = nullptr;
      const utf8proc_ssize_t size =
          utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(valid), &form,
                       static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(form, &std::free);
      if (size < 0) throw std::bad_alloc();
      result.append(reinterpret_cast<const char*>(form), static_cast<std::size_t>(size));
    }
    text.remove_prefix(valid);
    if (text.empty()) break;
    result += text.front();
    text.remove_prefix(1);
  }
  return result;
}

/// The text in lower case, character by character: a sigma is never final. Invalid bytes stay.
inline std::string lowercase(std::string_view text) {
  constexpr std::int32_t kDottedI = 0x130;  // whose lower case is two characters
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char c = first_char(text);
    if (c.code < 0) {
      result.append(text.substr(0, c.size));
    } else if (c.code == kDottedI) {
      result += "i\xCC\x87";
    } else {
      append_utf8(utf8proc_tolower(c.code), result);
    }
    text.remove_prefix(c.size);
  }
  return result;
}

/// The text with U+FFFD for every invalid byte.
inline std::string valid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char c = first_char(text);
    if (c.code < 0) {
      result += "\xEF\xBF\xBD";
    } else {
      result.append(text.substr(0, c.size));
    }
    text.remove_prefix(c.size);
  }
  return result;
}

namespace detail {

/// White space in the sense of \s in regular expressions.
inline bool is_white_space(std::int32_t code) {
  if (code >= 0 && code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  if (code == 0x85) return true;
  const utf8proc_category_t category = utf8proc_category(code);
  return category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP;
}

/// The text with all occurrences of `from` replaced by `to`.
inline std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (std::size_t at = text.find(from); at != text.npos; at = text.find(from)) {
    result.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return result.append(text);
}

}  // namespace detail

ATTN_NAMESPACE_END
