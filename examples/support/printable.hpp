// Text that cannot control a terminal, and counts with their noun.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

#include <utf8proc.h>

namespace examples {

// Control characters of ASCII and Latin-1 (C1), which move a terminal's cursor, and characters that
// change the direction of text, which make a line read differently.
inline bool acts_on_a_terminal(utf8proc_int32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x061C || c == 0x200E || c == 0x200F ||
         (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

// `text` with such characters as \uNNNN, and bytes that are not UTF-8 as \xNN. \uNNNN is a JSON
// escape, so that a line of JSON keeps its meaning.
inline std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  const auto append_escape = [&](const char* format, unsigned value) {
    char escape[8];
    result.append(escape,
                  static_cast<std::size_t>(std::snprintf(escape, sizeof escape, format, value)));
  };
  const auto* next = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t size =
        utf8proc_iterate(next + at, static_cast<utf8proc_ssize_t>(text.size() - at), &c);
    const std::size_t step = size > 0 ? static_cast<std::size_t>(size) : 1;
    if (size <= 0) {
      append_escape("\\x%02x", next[at]);
    } else if (acts_on_a_terminal(c)) {
      append_escape("\\u%04x", static_cast<unsigned>(c) & 0xFFFFU);
    } else {
      result.append(text.substr(at, step));
    }
    at += step;
  }
  return result;
}

// "1 line", "2 lines".
template <class Int>
std::string counted(Int count, std::string_view noun) {
  return std::to_string(count) + ' ' + std::string(noun) + (count == 1 ? "" : "s");
}

}  // namespace examples
