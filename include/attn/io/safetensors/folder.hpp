// SafetensorsFolder: a model in one safetensors file or several with an index.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "attn/io/config_file.hpp"
#include "attn/io/safetensors.hpp"

ATTN_NAMESPACE_BEGIN

/// Reads like one SafetensorsFile; const calls are thread-safe. The constructor maps all files and
/// checks their headers.
class SafetensorsFolder {
 public:
  /// Opens model.safetensors, or else the files of model.safetensors.index.json. Throws IoError if
  /// there is neither, if a file cannot be read or breaks the format, or if a tensor is not in the
  /// file that the index names.
  explicit SafetensorsFolder(const std::filesystem::path& folder) {
    const std::filesystem::path one = folder / "model.safetensors",
                                index = folder / "model.safetensors.index.json";
    std::error_code error;
    if (std::filesystem::exists(one, error) || !std::filesystem::exists(index, error)) {
      file_name_ = detail::utf8(one);
      files_.emplace_back(one);
      for (const std::string& name : files_[0].names()) places_[name] = 0;
      return;
    }
    file_name_ = detail::utf8(index);
    const auto fail = [&](std::string_view what, std::string_view expected,
                          std::string_view found) {
      throw IoError(message("SafetensorsFolder",
                            detail::concat(detail::quote(file_name_), ": ", what), expected,
                            found));
    };
    const MappedFile bytes(index);
    const nlohmann::json json =
        detail::parse_json("SafetensorsFolder", detail::text_of(bytes), file_name_);
    if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
      fail("key \"weight_map\"", "be an object", "none");
    }
    std::map<std::string, std::size_t> numbers;
    for (const auto& [name, value] : json["weight_map"].items()) {
      const std::string what = detail::concat("the file of tensor ", detail::quote(name));
      if (!value.is_string()) fail(what, "be a text", detail::json_text(value));
      const auto file = value.get<std::string>();
      // A file name without a path out of the folder.
      if (file.find_first_of("/\\") != file.npos || file.find('\0') != file.npos ||
          !file.ends_with(".safetensors")) {
        fail(what, "be the name of a .safetensors file beside the index", detail::quote(file));
      }
      const auto [at, is_new] = numbers.emplace(file, files_.size());
      if (is_new) files_.emplace_back(folder / file);
      if (!files_[at->second].contains(name)) {
        fail(what, "hold it", detail::concat(detail::quote(file), " without it"));
      }
      places_[name] = at->second;
    }
    for (const auto& [file, number] : numbers) {
      for (const std::string& name : files_[number].names()) {
        if (places_.contains(name)) continue;
        fail(detail::concat("tensor ", detail::quote(name)), "be in the index",
             detail::concat("it in ", detail::quote(file), " alone"));
      }
    }
  }

  /// The only file, or the index.
  const std::string& file_name() const { return file_name_; }
  /// Tensor names, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& item : places_) result.push_back(item.first);
    return result;
  }
  bool contains(std::string_view name) const { return places_.contains(name); }

  /// The file that holds a tensor. Throws ValueError for an unknown name.
  const SafetensorsFile& file_of(std::string_view name) const {
    const auto found = places_.find(name);
    if (found != places_.end()) return files_[found->second];
    throw ValueError(
        message("SafetensorsFolder",
                detail::concat(detail::quote(file_name_), ": tensor ", detail::quote(name)),
                "exist", detail::concat("none of that name among ", places_.size())));
  }

  /// See SafetensorsFile.
  DType dtype(std::string_view name) const { return file_of(name).dtype(name); }
  const std::vector<index_t>& shape(std::string_view name) const {
    return file_of(name).shape(name);
  }
  template <TensorElement T, int Rank>
  Tensor<T, Rank> load(std::string_view name) const {
    return file_of(name).load<T, Rank>(name);
  }
  template <TensorElement T, int Rank>
  void load(std::string_view name, TensorView<T, Rank> out) const {
    file_of(name).load(name, out);
  }
  template <TensorElement T>
  void check(std::string_view name, std::span<const index_t> shape) const {
    file_of(name).check<T>(name, shape);
  }

 private:
  std::string file_name_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t, std::less<>> places_;
};

ATTN_NAMESPACE_END
