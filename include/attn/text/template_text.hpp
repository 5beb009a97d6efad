// The text of chat templates: canonical form, hash, white space as in Python.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "attn/text/utf8.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A canonical form of a template's text. Removes comments, white space within tags, the line end
/// after a tag, and text that the dash of a tag strips; writes strings in single quotes, within
/// them quotes and backslashes behind a backslash and \n as a line end. Keeps other text. An
/// unknown escape becomes a quote, which no known template has in its place.
inline std::string normal_template(std::string_view text) {
  std::string result;
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  std::size_t text_begin = 0;  // within result: start of the text after the last tag
  bool begins_line = true;     // whether the text at text_begin begins a line
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view open = text.substr(at, 2);
    const bool is_comment = open == "{#" && text.find("#}", at + 2) != text.npos;
    if (open != "{%" && open != "{{" && !is_comment) {
      result += text[at++];
      continue;
    }
    const std::string_view close = is_comment ? "#}" : open == "{%" ? "%}" : "}}";
    at += 2;
    const bool strips = text.substr(at).starts_with('-');
    if (strips) ++at;
    if (strips || open != "{{") {
      std::size_t end = result.size();
      while (end > text_begin && is_space(result[end - 1]) && (strips || result[end - 1] != '\n'))
        --end;
      // Before a block tag or a comment only its indentation.
      const bool indents = end == text_begin ? begins_line : result[end - 1] == '\n';
      if (strips || indents) result.resize(end);
    }
    const std::size_t tag_begin = result.size();
    result += open;
    char quote = 0;
    while (at < text.size() && (quote != 0 || text.substr(at, 2) != close)) {
      const char c = text[at++];
      if (is_comment) {
        result += c;
      } else if (quote != 0 && c == '\\' && at < text.size()) {
        const char escaped = text[at++];
        const bool is_known = escaped == '\'' || escaped == '"' || escaped == '\\';
        if (escaped != 'n') result += is_known ? '\\' : '\'';
        result += escaped == 'n' ? '\n' : escaped;
      } else if (quote != 0 && c != quote) {
        if (c == '\'' || c == '"') result += '\\';
        result += c;
      } else if (quote != 0 || c == '\'' || c == '"') {
        quote = quote != 0 ? '\0' : c;
        result += '\'';
      } else if (!is_space(c)) {
        result += c;
      }
    }
    const bool strips_behind = result.ends_with('-');
    if (strips_behind) result.pop_back();
    result += text.substr(at, 2);
    if (is_comment) result.resize(tag_begin);
    at = (std::min)(at + 2, text.size());
    begins_line = false;
    if (strips_behind) {
      while (at < text.size() && is_space(text[at])) ++at;
    } else if (open != "{{" && at < text.size() && text[at] == '\n') {
      ++at;
      begins_line = true;
    }
    text_begin = result.size();
  }
  return result;
}

/// A string in a canonical text, which begins at `begin`, behind its quote; without its end,
/// nothing.
inline std::optional<std::string_view> string_at(std::string_view normal, std::size_t begin) {
  for (std::size_t at = begin; at < normal.size(); ++at) {
    if (normal[at] == '\'') return normal.substr(begin, at - begin);
    if (normal[at] == '\\') ++at;
  }
  return std::nullopt;
}
/// The value of such a string.
inline std::string unescaped(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\\' && at + 1 < text.size()) ++at;
    result += text[at];
  }
  return result;
}

/// FNV-1a, 64 bits: distinguishes known templates from all others.
constexpr std::uint64_t fingerprint(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

/// Python's text.strip(letters).
inline std::string_view trimmed(std::string_view text, std::string_view letters) {
  text.remove_prefix((std::min)(text.find_first_not_of(letters), text.size()));
  return text.substr(0, text.find_last_not_of(letters) + 1);
}

/// The characters that Python's text.strip() removes.
inline bool is_python_space(std::int32_t code) {
  return is_white_space(code) || (code >= 0x1C && code <= 0x1F);
}
/// Python's text.rstrip().
inline std::string_view stripped_behind(std::string_view text) {
  while (!text.empty() && is_python_space(last_char(text).code))
    text.remove_suffix(last_char(text).size);
  return text;
}
/// Python's text.strip(), which is Jinja's trim.
inline std::string_view stripped(std::string_view text) {
  while (!text.empty() && is_python_space(first_char(text).code))
    text.remove_prefix(first_char(text).size);
  return stripped_behind(text);
}

}  // namespace detail

ATTN_NAMESPACE_END
