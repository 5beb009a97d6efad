// Header of a GGUF file: metadata and tensor positions, checked before data is read.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <map>
#include <optional>

#include "attn/io/gguf/metadata.hpp"

ATTN_NAMESPACE_BEGIN

static_assert(std::endian::native == std::endian::little,
              "GGUF files are little-endian, and this reader does not swap bytes");

/// One tensor's type, extents and bytes.
struct GgufEntry {
  std::uint32_t type = 0;  ///< its number in the file, also of an unsupported type
  std::vector<index_t>
      shape;             ///< outermost first, the reverse of the file's order; empty for a scalar
  index_t size = 1;      ///< elements
  std::size_t part = 0;  ///< the file that holds it, of those of a split model
  std::uint64_t begin = 0;  ///< within that file
  std::uint64_t bytes = 0;  ///< 0 for unsupported types
};

/// The place of a file among the parts of a split model.
struct GgufSplit {
  std::uint64_t no = 0;       ///< counted from 0
  std::uint64_t count = 1;    ///< parts
  std::uint64_t tensors = 0;  ///< of all parts together
};

struct GgufHeader {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::map<std::string, GgufEntry, std::less<>> tensors;
  std::vector<std::string> names;  ///< of tensors, in the file's order
  std::uint64_t alignment = 32;
  GgufSplit split;
};

namespace detail {

/// Reads a file from front to back; reading past the end throws.
class GgufCursor {
 public:
  GgufCursor(std::span<const std::byte> file, std::string_view file_name)
      : file_(file), file_name_(quote(file_name)) {}

  [[noreturn]] void fail(std::string_view subject, std::string_view expected,
                         std::string_view found) const {
    throw IoError(message("GgufFile", concat(file_name_, ": ", subject), expected, found));
  }

  std::size_t at() const { return at_; }
  std::size_t left() const { return file_.size() - at_; }

  std::span<const std::byte> take(std::uint64_t size, std::string_view what) {
    if (size > left()) {
      fail(what, concat("lie within the ", file_.size(), " bytes of the file"),
           concat(size, " bytes from byte ", at_, " on"));
    }
    at_ += size;
    return file_.subspan(at_ - size, size);
  }

  template <class V>
  V number(std::string_view what) {
    return gguf_number<V>(take(sizeof(V), what).data());
  }

  std::string_view string(std::string_view what) {
    const auto bytes = take(number<std::uint64_t>(what), what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  /// A count of items that take at least `least` bytes each: at most as many as the rest of the
  /// file can hold.
  std::uint64_t count(std::string_view what, std::uint64_t least) {
    const auto value = number<std::uint64_t>(what);
    if (value > left() / least) {
      fail(what, concat("be at most what ", left(), " bytes can hold"), std::to_string(value));
    }
    return value;
  }

 private:
  std::span<const std::byte> file_;
  std::string file_name_;
  std::size_t at_ = 0;
};

inline GgufValueType gguf_value_type(GgufCursor& cursor, const std::string& what) {
  const auto number = cursor.number<std::uint32_t>(what);
  if (number >= std::size(kGgufValueNames)) {
    cursor.fail(what, "be of a type from 0 to 12", std::to_string(number));
  }
  return static_cast<GgufValueType>(number);
}

inline GgufValue gguf_value(GgufCursor& cursor, std::span<const std::byte> file,
                            std::string_view key) {
  const std::string what = concat("key ", quote(key));
  const GgufValueType type = gguf_value_type(cursor, what);
  if (type != GgufValueType::ARRAY) {
    const std::size_t begin = cursor.at();
    if (type == GgufValueType::STRING) {
      cursor.string(what);
    } else {
      cursor.take(size_of_value(type), what);
    }
    return {type, false, 1, file.subspan(begin, cursor.at() - begin)};
  }
  const GgufValueType element = gguf_value_type(cursor, what);
  // ggml's reader refuses arrays of arrays, too.
  if (element == GgufValueType::ARRAY) cursor.fail(what, "be an array of values", "one of arrays");
  const bool strings = element == GgufValueType::STRING;
  const std::uint64_t count =
      cursor.count(what, strings ? sizeof(std::uint64_t) : size_of_value(element));
  const std::size_t begin = cursor.at();
  if (strings) {
    for (std::uint64_t i = 0; i < count; ++i) cursor.string(what);
  } else {
    cursor.take(count * size_of_value(element), what);
  }
  return {element, true, static_cast<std::size_t>(count), file.subspan(begin, cursor.at() - begin)};
}

/// Reads one tensor's entry without its data; `begin` still counts from the start of the data.
inline GgufEntry gguf_entry(GgufCursor& cursor, std::string_view tensor) {
  constexpr std::uint32_t kMaxDims = 4;
  const std::string what = concat("tensor ", quote(tensor));
  GgufEntry entry;
  const auto dims = cursor.number<std::uint32_t>(what);
  if (dims > kMaxDims) cursor.fail(what, "have at most 4 extents", std::to_string(dims));
  bool overflow = false;
  for (std::uint32_t i = 0; i < dims; ++i) {
    const auto extent = cursor.number<std::uint64_t>(what);
    if (!std::in_range<index_t>(extent)) {
      cursor.fail(what, "have extents below 2^63", std::to_string(extent));
    }
    entry.shape.insert(entry.shape.begin(), static_cast<index_t>(extent));
    // Strides of tensors without elements must not overflow either.
    overflow = overflow ||
               __builtin_mul_overflow(
                   entry.size, std::max<index_t>(static_cast<index_t>(extent), 1), &entry.size);
  }
  entry.type = cursor.number<std::uint32_t>(what);
  entry.begin = cursor.number<std::uint64_t>(what);
  if (overflow) cursor.fail(what, "have less than 2^63 elements", shape_text(entry.shape));
  for (const index_t extent : entry.shape) {
    if (extent == 0) entry.size = 0;
  }
  if (const auto type = gguf_type(entry.type)) {
    const auto elements = static_cast<index_t>(block_elements(*type));
    const index_t row = entry.shape.empty() ? 1 : entry.shape.back();
    if (row % elements != 0) {
      cursor.fail(what, concat("have rows of whole blocks of ", elements, " (", name(*type), ")"),
                  shape_text(entry.shape));
    }
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(entry.size / elements),
                               std::uint64_t{block_bytes(*type)}, &entry.bytes)) {
      cursor.fail(what, "have less than 2^64 bytes", shape_text(entry.shape));
    }
  }
  return entry;
}

/// Offsets within the file: each aligned, within the file, and without overlap.
inline void place_gguf_tensors(GgufHeader& header, const GgufCursor& cursor,
                               std::size_t file_size) {
  const std::uint64_t alignment = header.alignment;
  // alignment is at most 2^30 and the file within the address space: this does not overflow.
  const std::uint64_t data = (cursor.at() + alignment - 1) / alignment * alignment;
  const std::uint64_t size = file_size > data ? file_size - data : 0;
  std::vector<std::pair<const std::string*, GgufEntry*>> order;
  for (auto& [tensor, entry] : header.tensors) {
    const std::string what = concat("tensor ", quote(tensor));
    if (entry.begin % alignment != 0) {
      cursor.fail(what, concat("begin at a multiple of ", alignment, " bytes"),
                  concat("an offset of ", entry.begin));
    }
    if (entry.begin > size || entry.bytes > size - entry.begin) {
      cursor.fail(what, concat("lie within the ", size, " bytes of data"),
                  concat(entry.bytes, " bytes from byte ", entry.begin, " on"));
    }
    order.emplace_back(&tensor, &entry);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->bytes) <
           std::pair(b.second->begin, b.second->bytes);
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const GgufEntry& before = *order[i - 1].second;
    if (before.begin + before.bytes <= order[i].second->begin) continue;
    cursor.fail(concat("tensor ", quote(*order[i].first)), "lie apart from all others",
                concat("it over tensor ", quote(*order[i - 1].first)));
  }
  for (auto& item : header.tensors) item.second.begin += data;
}

}  // namespace detail

/// Parses and checks the header of `file`, the whole file's bytes, to which the result refers;
/// `file_name` is for errors. Throws IoError that names the file, the key or tensor, the
/// requirement of the format and the value found.
inline GgufHeader parse_gguf_header(std::span<const std::byte> file, std::string_view file_name) {
  detail::GgufCursor cursor(file, file_name);
  constexpr std::string_view kMagic = "GGUF";
  const auto magic = file.first((std::min)(file.size(), kMagic.size()));
  if (std::string_view(reinterpret_cast<const char*>(magic.data()), magic.size()) != kMagic) {
    cursor.fail("the file", "begin with GGUF",
                detail::quote({reinterpret_cast<const char*>(magic.data()), magic.size()}));
  }
  cursor.take(kMagic.size(), "the file");
  const auto version = cursor.number<std::uint32_t>("the version");
  if (version != 2 && version != 3) {
    const bool swapped = version != 0 && (version & 0xFFFFu) == 0;
    cursor.fail("the version", "be 2 or 3",
                swapped ? "that of a big-endian file" : std::to_string(version));
  }
  GgufHeader header;
  constexpr std::uint64_t kLeastTensor = 24, kLeastKey = 13;
  const std::uint64_t tensors = cursor.count("the number of tensors", kLeastTensor);
  const std::uint64_t keys = cursor.count("the number of keys", kLeastKey);
  for (std::uint64_t i = 0; i < keys; ++i) {
    const std::string_view key = cursor.string("a key");
    GgufValue value = detail::gguf_value(cursor, file, key);
    if (!header.metadata.try_emplace(std::string(key), value).second) {
      cursor.fail("every key", "occur once", detail::concat(detail::quote(key), " again"));
    }
  }
  const auto number = [&](std::string_view key, std::uint64_t otherwise) {
    const auto found = header.metadata.find(key);
    if (found == header.metadata.end()) return otherwise;
    try {
      return found->second.get<std::uint64_t>(detail::concat("key ", detail::quote(key)));
    } catch (const std::invalid_argument& error) {
      throw IoError(error.what());
    }
  };
  header.split = {.no = number("split.no", 0),
                  .count = number("split.count", 1),
                  .tensors = number("split.tensors.count", 0)};
  header.alignment = number("general.alignment", header.alignment);
  if (!std::has_single_bit(header.alignment) || header.alignment > (1u << 30)) {
    cursor.fail("key \"general.alignment\"", "be a power of two up to 2^30",
                std::to_string(header.alignment));
  }
  for (std::uint64_t i = 0; i < tensors; ++i) {
    const std::string_view tensor = cursor.string("a tensor's name");
    const auto [at, is_new] =
        header.tensors.try_emplace(std::string(tensor), detail::gguf_entry(cursor, tensor));
    if (!is_new) {
      cursor.fail("every tensor's name", "occur once",
                  detail::concat(detail::quote(tensor), " again"));
    }
    header.names.push_back(at->first);
  }
  detail::place_gguf_tensors(header, cursor, file.size());
  const GgufSplit& split = header.split;
  if (split.no >= (std::max)(split.count, std::uint64_t{1})) {
    cursor.fail("key \"split.no\"", detail::concat("be less than split.count, ", split.count),
                std::to_string(split.no));
  }
  const bool is_counted = split.count <= 1 && header.metadata.contains("split.tensors.count");
  if (is_counted && split.tensors != tensors) {
    cursor.fail("key \"split.tensors.count\"",
                detail::concat("be the number of tensors, ", tensors),
                std::to_string(split.tensors));
  }
  return header;
}

ATTN_NAMESPACE_END
