// Charsmap: SentencePiece's compiled table of character replacements.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/core/error.hpp"
#include "attn/text/utf8.hpp"

ATTN_NAMESPACE_BEGIN

/// The precompiled_charsmap of a SentencePiece model: the size in bytes of a double-array trie, its
/// units (32-bit little-endian numbers), and zero-terminated replacements. Bits 0-7 of a unit are
/// the byte that leads to it, bit 8 is set if a key ends there, and bits 10 and up, shifted left by
/// 8 more if bit 9 is set, are its offset. The unit of the value is at (own index xor offset); byte
/// b leads from there to that index xor b. A value has bit 31 set, and the index of its replacement
/// in the other bits.
///
/// The normalisation is that of Hugging Face's `tokenizers`: each grapheme cluster of at most 5
/// bytes that begins with a key is replaced by the replacement of the shortest such key, whatever
/// follows it in the cluster; in other clusters each character is replaced by its own replacement,
/// if it has one. Invalid bytes stay. Source: Yata et al., "A compact static double-array keeping
/// character codes" (2007); clusters: Unicode Standard Annex 29.
class Charsmap {
 public:
  /// Throws ValueError for an invalid table.
  explicit Charsmap(std::string_view bytes) {
    const std::size_t size = bytes.size() < 4 ? 0 : word(bytes, 0);
    check(size > 0 && size % (4 * kBlock) == 0 && size <= bytes.size() - 4,
          "begin with the size of its trie, blocks of 1024 bytes that it holds",
          detail::join({std::to_string(size), " in ", std::to_string(bytes.size()), " bytes"}));
    for (std::size_t at = 0; at < size; at += 4) units_.push_back(word(bytes, 4 + at));
    texts_ = bytes.substr(4 + size);
    check(texts_.ends_with('\0'), "end with a zero byte, the end of a replacement", "none");
    check(valid_utf8(texts_) == texts_, "have replacements in UTF-8", "other bytes");
    // These checks keep every lookup within units and replacements: a block of 256 units holds the
    // targets of all bytes.
    check(!is_value(units_[0]), "have a trie with a root", "a value");
    for (std::size_t at = 0; at < units_.size(); ++at) {
      if (is_value(units_[at])) continue;
      const std::size_t next = at ^ offset(units_[at]);
      check(next < units_.size(), "lead from each unit to another", std::to_string(next));
      if (!ends_key(units_[at])) continue;
      const std::size_t begin = units_[next] & ~kValue;
      check(is_value(units_[next]) && begin < texts_.size() && is_begin(texts_[begin]),
            "have values that say where replacements begin", std::to_string(units_[next]));
    }
  }

  std::string operator()(std::string_view text) const {
    std::string result;
    result.reserve(text.size());
    while (!text.empty()) {
      const std::size_t size = cluster(text);
      append_cluster(text.substr(0, size), result);
      text.remove_prefix(size);
    }
    return result;
  }

 private:
  static constexpr std::size_t kBlock = 256;  // units
  static constexpr std::uint32_t kValue = std::uint32_t{1} << 31;

  static void check(bool good, const std::string& expected, const std::string& found) {
    if (!good) throw ValueError(message("Charsmap", "precompiled_charsmap", expected, found));
  }
  static std::uint32_t word(std::string_view bytes, std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 4; i-- > 0;)
      value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
    return value;
  }
  static bool is_value(std::uint32_t unit) { return (unit & kValue) != 0; }
  static bool ends_key(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
  static std::size_t offset(std::uint32_t unit) {
    return std::size_t{unit >> 10} << ((unit >> 9 & 1) != 0 ? 8 : 0);
  }
  /// Whether a character begins with this byte.
  static bool is_begin(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

  /// Number of bytes of the first grapheme cluster; 1 for bytes that are not text.
  static std::size_t cluster(std::string_view text) {
    Utf8Char last = first_char(text);
    std::size_t size = last.size;
    utf8proc_int32_t state = 0;
    while (last.code >= 0 && size < text.size()) {
      const Utf8Char next = first_char(text.substr(size));
      if (next.code < 0 || utf8proc_grapheme_break_stateful(last.code, next.code, &state)) break;
      size += next.size;
      last = next;
    }
    return size;
  }

  void append_cluster(std::string_view cluster, std::string& out) const {
    constexpr std::size_t kMax = 5;  // bytes that are looked up as a whole
    if (cluster.size() <= kMax) {
      if (const auto replacement = find(cluster)) {
        out += *replacement;
        return;
      }
    }
    while (!cluster.empty()) {
      const std::string_view character = cluster.substr(0, first_char(cluster).size);
      out += find(character).value_or(character);
      cluster.remove_prefix(character.size());
    }
  }

  /// The replacement of the shortest key at the start of the text.
  std::optional<std::string_view> find(std::string_view text) const {
    std::size_t at = offset(units_[0]);
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      at ^= byte;
      const std::uint32_t unit = units_[at];
      // A zero byte is in no key: it would lead to a value.
      if (byte == 0 || (unit & (kValue | 0xFF)) != byte) break;
      at ^= offset(unit);
      if (ends_key(unit)) {
        const std::size_t begin = units_[at] & ~kValue;
        return std::string_view(texts_).substr(begin, texts_.find('\0', begin) - begin);
      }
    }
    return std::nullopt;
  }

  std::vector<std::uint32_t> units_;
  std::string texts_;
};

ATTN_NAMESPACE_END
