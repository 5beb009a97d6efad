// Positions of tensors in a safetensors file, and the check that they tile its data.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/core/element.hpp"
#include "attn/io/quote.hpp"

ATTN_NAMESPACE_BEGIN

/// What the format calls __metadata__: free text by key, such as {"format", "pt"}.
using SafetensorsMetadata = std::map<std::string, std::string, std::less<>>;

/// One tensor's type, extents, and bytes [begin, end) within the data that follow the header.
struct SafetensorsEntry {
  std::optional<DType> dtype;
  std::string unknown_dtype;  ///< the file's name for it, if attn does not support it
  std::vector<index_t> shape;
  std::uint64_t begin = 0, end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry, std::less<>> tensors;
  SafetensorsMetadata metadata;
  std::size_t data_begin = 0;  ///< position of the data within the file
};

namespace detail {

/// Wording of all errors of a file.
struct SafetensorsErrors {
  std::string file;

  [[noreturn]] void fail(std::string_view subject, std::string_view expected,
                         std::string_view found) const {
    throw IoError(message("SafetensorsFile", concat(file, ": ", subject), expected, found));
  }

  [[noreturn]] void fail_tensor(std::string_view tensor, std::string_view subject,
                                std::string_view expected, std::string_view found) const {
    fail(concat(subject, subject.empty() ? "" : " ", "tensor ", quote(tensor)), expected, found);
  }
};

/// Size in bytes of a tensor of known type. The extents other than 0 must not overflow either:
/// views have strides even without elements.
inline std::uint64_t checked_bytes(std::string_view name, const SafetensorsEntry& entry,
                                   const SafetensorsErrors& errors) {
  index_t bytes = static_cast<index_t>(element_size(*entry.dtype));
  bool empty = false;
  for (index_t extent : entry.shape) {
    empty = empty || extent == 0;
    if (extent > 0 && __builtin_mul_overflow(bytes, extent, &bytes)) {
      errors.fail_tensor(name, "shape of", "describe less than 2^63 bytes",
                         concat(shape_text(entry.shape), " of ", attn::name(*entry.dtype)));
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

/// The tensors must tile the data: each lies inside and is as long as its shape requires, if its
/// type is known; none overlaps another, and every byte belongs to one. (Bytes outside all tensors
/// could hide a second file.)
inline void check_layout(const SafetensorsHeader& header, std::uint64_t data_size,
                         const SafetensorsErrors& errors) {
  const auto interval = [](const SafetensorsEntry& entry) {
    return concat("[", entry.begin, ", ", entry.end, "]");
  };
  using Item = std::pair<const std::string, SafetensorsEntry>;
  std::vector<const Item*> items;
  for (const Item& item : header.tensors) {
    const auto& [name, entry] = item;
    if (entry.begin > entry.end || entry.end > data_size) {
      errors.fail_tensor(
          name, "data_offsets of",
          concat("be ordered and lie within the ", data_size, " bytes after the header"),
          interval(entry));
    }
    const std::uint64_t found = entry.end - entry.begin;
    const std::uint64_t bytes = entry.dtype ? checked_bytes(name, entry, errors) : found;
    if (found != bytes) {
      errors.fail_tensor(name, "data_offsets of",
                         concat("span the ", bytes, " bytes of ", attn::name(*entry.dtype), " ",
                                shape_text(entry.shape)),
                         concat(interval(entry), ", ", found, " bytes"));
    }
    items.push_back(&item);
  }
  std::sort(items.begin(), items.end(), [](const Item* a, const Item* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  std::uint64_t next = 0;
  const Item* previous = nullptr;
  const auto expected_position = [&] {
    return previous ? concat(next, ", where tensor ", quote(previous->first), " ends")
                    : concat(next, ", the first byte");
  };
  for (const Item* item : items) {
    if (item->second.begin != next) {
      errors.fail_tensor(item->first, "data_offsets of",
                         concat("begin at ", expected_position(), " (no overlaps, no holes)"),
                         interval(item->second));
    }
    next = item->second.end;
    previous = item;
  }
  if (next != data_size) {
    errors.fail("the data", concat("end at ", expected_position()), concat(data_size, " bytes"));
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
