// Split GGUF files: the names of their parts, and how their headers join.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <filesystem>

#include "attn/io/gguf/header.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The end of the file name of part `no`, counted from 0, of `count`: -00001-of-00003.gguf.
inline std::string gguf_part_suffix(std::uint64_t no, std::uint64_t count) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05llu-of-%05llu.gguf",
                static_cast<unsigned long long>(no + 1), static_cast<unsigned long long>(count));
  return text;
}

/// The paths of all parts, from that of the first and its header. Throws IoError if it is not the
/// first, or has another name.
inline std::vector<std::filesystem::path> gguf_part_paths(const std::filesystem::path& first,
                                                          const GgufSplit& split) {
  const std::string name = utf8(first.filename()), subject = quote(utf8(first));
  constexpr std::uint64_t kMostParts = 65535;
  if (split.no != 0) {
    throw IoError(message("GgufFile", subject,
                          concat("be the first part of the model, *",
                                 gguf_part_suffix(0, split.count), ", which opens the others"),
                          concat("part ", split.no + 1, " of ", split.count)));
  }
  if (split.count > kMostParts) {
    throw IoError(message("GgufFile", concat(subject, ": key \"split.count\""),
                          concat("be at most ", kMostParts), std::to_string(split.count)));
  }
  const std::string suffix = gguf_part_suffix(0, split.count);
  if (!name.ends_with(suffix)) {
    throw IoError(message("GgufFile", subject,
                          concat("have a name that ends with ", suffix,
                                 ", because it is the first of ", split.count, " parts"),
                          quote(name)));
  }
  const std::string stem = name.substr(0, name.size() - suffix.size());
  std::vector<std::filesystem::path> paths;
  for (std::uint64_t no = 0; no < split.count; ++no) {
    paths.push_back(first.parent_path() / (stem + gguf_part_suffix(no, split.count)));
  }
  return paths;
}

/// Adds the tensors of part `no`, whose header is `part`, to the header of the first. Throws
/// IoError, naming the part's file, if its keys contradict the first's or a tensor occurs twice.
inline void join_gguf_part(GgufHeader& whole, GgufHeader&& part, std::uint64_t no,
                           std::string_view file_name) {
  const auto check = [&](std::string_view key, std::uint64_t found, std::uint64_t expected) {
    if (found == expected) return;
    throw IoError(message("GgufFile", concat(quote(file_name), ": key ", quote(key)),
                          concat("be ", expected, ", as the first part says"),
                          std::to_string(found)));
  };
  check("split.count", part.split.count, whole.split.count);
  check("split.no", part.split.no, no);
  check("split.tensors.count", part.split.tensors, whole.split.tensors);
  for (std::string& name : part.names) {
    GgufEntry entry = std::move(part.tensors.find(name)->second);
    entry.part = no;
    if (!whole.tensors.try_emplace(name, std::move(entry)).second) {
      throw IoError(message("GgufFile", concat(quote(file_name), ": tensor ", quote(name)),
                            "lie in one part only", "it in an earlier one too"));
    }
    whole.names.push_back(std::move(name));
  }
}

/// Throws IoError unless all parts together hold as many tensors as the first says; the keys of the
/// split are then no longer among the metadata.
inline void finish_gguf_parts(GgufHeader& whole, std::string_view file_name) {
  if (whole.names.size() != whole.split.tensors) {
    throw IoError(message("GgufFile", concat(quote(file_name), ": the parts together"),
                          concat("hold ", whole.split.tensors, " tensors"),
                          std::to_string(whole.names.size())));
  }
  std::erase_if(whole.metadata, [](const auto& item) { return item.first.starts_with("split."); });
}

}  // namespace detail

ATTN_NAMESPACE_END
