// save_safetensors: deterministic, aligned safetensors files, written completely or not at all.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "attn/io/atomic_file.hpp"
#include "attn/io/named_tensor.hpp"
#include "attn/io/safetensors/header.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline std::string json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw ValueError(message("save_safetensors", "every name and text", "be UTF-8", quote(text)));
  }
}

/// The file's first bytes, for tensors in the order in which their data will follow.
inline std::string safetensors_preamble(std::span<const NamedTensor* const> tensors,
                                        const SafetensorsMetadata& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, text] : metadata) {
      if (header.back() != '{') header += ',';
      header += concat(json_string(key), ":", json_string(text));
    }
    header += '}';
  }
  std::uint64_t offset = 0;
  for (const NamedTensor* tensor : tensors) {
    if (header.back() != '{') header += ',';
    header += concat(json_string(tensor->name()), R"(:{"dtype":")", name(tensor->dtype()),
                     R"(","shape":[)");
    for (std::size_t i = 0; i < tensor->shape().size(); ++i) {
      if (i > 0) header += ',';
      header += std::to_string(tensor->shape()[i]);
    }
    const std::uint64_t begin = offset;
    std::uint64_t bytes = element_size(tensor->dtype());
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(tensor->size()), &bytes) ||
        __builtin_add_overflow(offset, bytes, &offset) || !std::in_range<index_t>(offset)) {
      throw ShapeError(message("save_safetensors", "the file", "be shorter than 2^63 bytes",
                               concat("tensor ", quote(tensor->name()), " of shape ",
                                      shape_text(tensor->shape()), " at ", begin)));
    }
    header += concat("],\"data_offsets\":[", begin, ",", offset, "]}");
  }
  header += '}';
  // Pads with spaces, so that the data start at a multiple of 64: views are aligned to a cache line
  // if the sizes before them allow it.
  constexpr std::size_t prefix = sizeof(std::uint64_t);
  while ((prefix + header.size()) % kAlignment != 0) header += ' ';
  if (header.size() > kMaxSafetensorsHeader) {
    throw ValueError(message("save_safetensors", "the header",
                             concat("be at most ", kMaxSafetensorsHeader, " bytes long"),
                             std::to_string(header.size())));
  }
  std::string preamble;
  for (std::size_t i = 0; i < prefix; ++i) {
    preamble += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  }
  return preamble + header;
}

}  // namespace detail

/// Writes the file's bytes, piece by piece, to `sink(std::span<const std::byte>)`. See
/// save_safetensors() for order and errors, which come before the first piece.
template <class Sink>
void write_safetensors(std::span<const NamedTensor> tensors, const SafetensorsMetadata& metadata,
                       Sink&& sink) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return a->dtype() != b->dtype() ? a->dtype() > b->dtype() : a->name() < b->name();
  });
  std::vector<std::string_view> names{"__metadata__"};
  for (const NamedTensor& tensor : tensors) names.push_back(tensor.name());
  std::sort(names.begin(), names.end());
  const auto repeated = std::adjacent_find(names.begin(), names.end());
  if (repeated != names.end()) {
    throw ValueError(message("save_safetensors", "every name",
                             "occur once and differ from __metadata__", detail::quote(*repeated)));
  }
  const std::string preamble = detail::safetensors_preamble(order, metadata);
  sink(std::as_bytes(std::span(preamble)));
  for (const NamedTensor* tensor : order) tensor->for_each_run(sink);
}

/// Writes `path` atomically: a reader sees the old file or the whole new one. Deterministic:
/// tensors are laid out by descending type, then by name, as in the reference implementation.
/// Throws ValueError for a repeated name, "__metadata__" as a name and text that is not UTF-8;
/// IoError naming the file if it cannot be written.
inline void save_safetensors(const std::filesystem::path& path,
                             std::span<const NamedTensor> tensors,
                             const SafetensorsMetadata& metadata = {}) {
  AtomicFile file(path);
  write_safetensors(tensors, metadata,
                    [&](std::span<const std::byte> piece) { file.write(piece); });
  file.commit();
}

/// `save_safetensors("model.safetensors", {{"weight", w}, {"bias", b}})`
inline void save_safetensors(const std::filesystem::path& path,
                             std::initializer_list<NamedTensor> tensors,
                             const SafetensorsMetadata& metadata = {}) {
  save_safetensors(path, std::span(tensors.begin(), tensors.size()), metadata);
}

ATTN_NAMESPACE_END
