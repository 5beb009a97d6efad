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
/// units, numbers of 32 bits whose low bytes come first, and replacements that each end with a zero
/// byte. A unit has the byte that leads to it in its low 8 bits, bit 8 where a key ends there, and
/// from bit 10 on, 8 places higher with bit 9, what its place is combined with (exclusive or) to
/// give that of its value; byte b leads from there to that place combined with b. A value has bit
/// 31, and says where its replacement begins.
///
/// Texts become what Hugging Face's `tokenizers` makes of them: each grapheme cluster of at most 5
/// bytes that begins with a key is replaced by what the shortest such key becomes, whatever follows
/// it in the cluster; in other clusters each character is, or stays. Bytes that belong to no valid
/// sequence stay what they are. Source: Yata et al., "A compact static double-array keeping
/// character codes" (2007); clusters: Unicode Standard Annex 29.
class Charsmap {
 public:
  /// Throws ValueError for what is no such table.
  explicit Charsmap(std::string_view bytes) {
    const std::size_t size = bytes.size() < 4 ? 0 : word(bytes, 0);
    check(size > 0 && size % (4 * kBlock) == 0 && size <= bytes.size() - 4,
          "begin with the size of its trie, blocks of 1024 bytes that it holds",
          detail::join({std::to_string(size), " in ", std::to_string(bytes.size()), " bytes"}));
    for (std::size_t at = 0; at < size; at += 4) units_.push_back(word(bytes, 4 + at));
    texts_ = bytes.substr(4 + size);
    check(texts_.ends_with('\0'), "end with a zero byte, as each replacement does", "none");
    check(valid_utf8(texts_) == texts_, "have replacements in UTF-8", "other bytes");
    // With these, no lookup leaves units and replacements: a block of 256 units holds all that
    // bytes lead to.
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
  /// Of a character.
  static bool is_begin(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

  /// How many bytes the first grapheme cluster has; of bytes that are no text, one.
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

  /// What the shortest key becomes that the text begins with.
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
