// Directory of a zip file: members and their positions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "attn/io/quote.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

struct ZipMember {
  bool is_deflated = false;  ///< else stored
  std::uint32_t crc = 0;
  std::uint64_t size = 0;             ///< bytes of the contents
  std::span<const std::byte> stored;  ///< the bytes in the file
};

/// Reads the directory at the end of the file (PKWARE's APPNOTE.TXT 6.3, with the 64-bit fields
/// that numpy writes). Every position is checked before it is read.
class ZipDirectory {
 public:
  ZipDirectory(std::span<const std::byte> bytes, const std::string& file)
      : bytes_(bytes), file_(file) {}

  std::map<std::string, ZipMember, std::less<>> members() const {
    Place directory = find_directory();
    std::map<std::string, ZipMember, std::less<>> result;
    for (std::uint64_t i = 0; i < directory.entries; ++i) {
      check("a directory entry", directory.begin, kEntry, directory.end);
      if (number(directory.begin, 4) != 0x02014b50) {
        fail("a directory entry", "begin with PK\\1\\2", concat("others at ", directory.begin));
      }
      const std::uint64_t name = number(directory.begin + 28, 2);
      const std::uint64_t extra = number(directory.begin + 30, 2);
      const std::uint64_t length = kEntry + name + extra + number(directory.begin + 32, 2);
      check("a directory entry", directory.begin, length, directory.end);
      std::string text(name_at(directory.begin + kEntry, name));
      if (result.contains(text)) fail("every name", "occur once", quote(text));
      result.emplace(text, member(text, directory.begin, directory.first));
      directory.begin += length;
    }
    return result;
  }

 private:
  static constexpr std::uint64_t kEntry = 46, kLocal = 30, kEnd = 22, kEnd64 = 56, kLocator = 20;
  struct Place {
    std::uint64_t begin, end, entries;
    std::uint64_t first;  ///< where the directory begins, and the members end
  };

  [[noreturn]] void fail(std::string_view subject, std::string_view expected,
                         std::string_view found) const {
    throw IoError(message("NpzFile", concat(file_, ": ", subject), expected, found));
  }

  /// Throws unless [begin, begin + length) lies below `end`, which lies within the file.
  void check(std::string_view what, std::uint64_t begin, std::uint64_t length,
             std::uint64_t end) const {
    if (begin <= end && length <= end - begin) return;
    fail(what, concat("lie below byte ", end), concat(length, " bytes at ", begin));
  }

  std::uint64_t number(std::uint64_t at, int bytes) const {
    std::uint64_t result = 0;
    for (int i = bytes; i-- > 0;) {
      result = result << 8 | std::to_integer<std::uint64_t>(bytes_[at + static_cast<unsigned>(i)]);
    }
    return result;
  }
  std::string_view name_at(std::uint64_t at, std::uint64_t length) const {
    return {reinterpret_cast<const char*>(bytes_.data()) + at, length};
  }

  Place find_directory() const {
    // The last record may be followed by a comment of up to 65535 bytes.
    const std::uint64_t size = bytes_.size();
    for (std::uint64_t comment = 0; comment <= 0xFFFF && kEnd + comment <= size; ++comment) {
      const std::uint64_t end = size - kEnd - comment;
      if (number(end, 4) != 0x06054b50 || number(end + 20, 2) != comment) continue;
      std::uint64_t entries = number(end + 10, 2), length = number(end + 12, 4);
      std::uint64_t begin = number(end + 16, 4), limit = end;
      const bool is_64 = entries == 0xFFFF || length == 0xFFFFFFFF || begin == 0xFFFFFFFF;
      if (is_64 && end >= kLocator && number(end - kLocator, 4) == 0x07064b50) {
        limit = number(end - kLocator + 8, 8);
        check("the directory's end", limit, kEnd64, end - kLocator);
        if (number(limit, 4) != 0x06064b50)
          fail("the directory's end", "begin with PK\\6\\6", "others");
        entries = number(limit + 32, 8);
        length = number(limit + 40, 8);
        begin = number(limit + 48, 8);
      }
      check("the directory", begin, length, limit);
      return {.begin = begin, .end = begin + length, .entries = entries, .first = begin};
    }
    fail("the file", "be a zip file", "no end of a directory");
  }

  ZipMember member(std::string_view name, std::uint64_t entry, std::uint64_t end) const {
    const auto subject = [&] { return concat("member ", quote(name)); };
    const std::uint64_t flags = number(entry + 8, 2), method = number(entry + 10, 2);
    if ((flags & 1) != 0) fail(subject(), "not be encrypted", "that it is");
    if (method != 0 && method != 8) {
      fail(subject(), "be stored or deflated", concat("method ", method));
    }
    std::uint64_t stored = number(entry + 20, 4), size = number(entry + 24, 4);
    std::uint64_t local = number(entry + 42, 4);
    read_64(entry, size, stored, local);
    check(subject(), local, kLocal, end);
    if (number(local, 4) != 0x04034b50) {
      fail(subject(), "begin with PK\\3\\4", concat("others at ", local));
    }
    const std::uint64_t head = kLocal + number(local + 26, 2) + number(local + 28, 2);
    check(subject(), local, head, end);
    check(subject(), local + head, stored, end);
    if (method == 0 && stored != size) {
      fail(subject(), concat("have ", size, " bytes"), concat(stored, " stored"));
    }
    // Deflate expands by at most 258 bytes per 2 bits: a larger size is refused before memory is
    // allocated.
    if (method == 8 && size / 1032 > stored) {
      fail(subject(), concat("inflate to at most 1032 times its ", stored, " bytes"),
           concat(size, " bytes"));
    }
    return {.is_deflated = method == 8,
            .crc = static_cast<std::uint32_t>(number(entry + 16, 4)),
            .size = size,
            .stored = bytes_.subspan(local + head, stored)};
  }

  /// Fields of 32 one bits are stored in the 64-bit extra field, only those, in this order.
  void read_64(std::uint64_t entry, std::uint64_t& size, std::uint64_t& stored,
               std::uint64_t& local) const {
    std::uint64_t at = entry + kEntry + number(entry + 28, 2);
    const std::uint64_t end = at + number(entry + 30, 2);
    while (at + 4 <= end) {
      const std::uint64_t id = number(at, 2), length = number(at + 2, 2);
      at += 4;
      check("an extra field", at, length, end);
      if (id == 1) {
        std::uint64_t field = at;
        for (std::uint64_t* value : {&size, &stored, &local}) {
          if (*value != 0xFFFFFFFF) continue;
          check("an extra field", field, 8, at + length);
          *value = number(field, 8);
          field += 8;
        }
        return;
      }
      at += length;
    }
  }

  std::span<const std::byte> bytes_;
  const std::string& file_;
};

}  // namespace detail

ATTN_NAMESPACE_END
