// ConfigFile: typed access to a JSON file, which records the keys that were not read.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "attn/io/mapped_file.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The whole text as JSON. Throws IoError naming the file, also if an object has a key twice.
inline nlohmann::json parse_json(std::string_view function, std::string_view text,
                                 const std::string& file_name) {
  using Json = nlohmann::json;
  std::vector<std::set<std::string, std::less<>>> keys;  // of the objects that are open
  const auto check_keys = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        throw IoError(message(function, quote(file_name), "have each key once",
                              concat("key ", quote(key), " again")));
      }
    }
    return true;
  };
  try {
    return Json::parse(text, check_keys);
  } catch (const Json::exception& error) {
    // The library's text quotes what it read last, at most one token of it.
    throw IoError(message(function, quote(file_name), "be JSON", quote(error.what())));
  }
}

inline std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// A value as text for errors, truncated.
inline std::string json_text(const nlohmann::json& value) {
  return value.is_structured()
             ? value.type_name()
             : quote(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

}  // namespace detail

/// A JSON object. A key whose value is null counts as missing. Errors are ValueErrors that name
/// file and key. Member functions mark keys as read, so they are not thread-safe.
class ConfigFile {
 public:
  /// Throws IoError for a file that cannot be read or is no JSON object.
  explicit ConfigFile(const std::filesystem::path& path)
      : ConfigFile(detail::text_of(MappedFile(path)), detail::utf8(path)) {}

  /// `name` stands for the file in errors.
  explicit ConfigFile(std::string_view text, std::string name) : file_name_(std::move(name)) {
    json_ =
        std::make_shared<const nlohmann::json>(detail::parse_json("ConfigFile", text, file_name_));
    if (!json_->is_object()) {
      throw IoError(message("ConfigFile", detail::quote(file_name_), "hold a JSON object",
                            json_->type_name()));
    }
  }

  /// The objects of a file that holds a list of them: their keys are called "0.key", "1.key" and so
  /// on in errors. Throws IoError for a file that cannot be read or is no such list.
  static std::vector<ConfigFile> list(const std::filesystem::path& path) {
    const std::string file_name = detail::utf8(path);
    const MappedFile file(path);
    const auto json = std::make_shared<const nlohmann::json>(
        detail::parse_json("ConfigFile", detail::text_of(file), file_name));
    std::vector<ConfigFile> result;
    const auto check = [&](const nlohmann::json& value, bool good) {
      if (good) return;
      throw IoError(message("ConfigFile", detail::quote(file_name), "hold a list of JSON objects",
                            value.type_name()));
    };
    check(*json, json->is_array());
    for (const nlohmann::json& one : *json) {
      check(one, one.is_object());
      const std::string prefix = std::to_string(result.size()) + ".";
      result.push_back(ConfigFile({json, &one}, file_name, prefix));
    }
    return result;
  }

  const std::string& file_name() const { return file_name_; }

  /// All keys that have a value, sorted; none of them counts as read.
  std::vector<std::string> keys() const {
    std::vector<std::string> result;
    for (const auto& [key, value] : json_->items()) {
      if (!value.is_null()) result.push_back(key);
    }
    return result;
  }
  bool has(std::string_view key) const {
    const auto found = json_->find(key);
    if (found == json_->end()) return false;
    read_.insert(std::string(key));
    return !found->is_null();
  }
  /// Whether the object has no such key; a key whose value is null exists.
  bool lacks(std::string_view key) const { return json_->find(key) == json_->end(); }

  /// T is bool, an integer type, double or std::string. Integers must fit, numbers be finite.
  template <class T>
  T get(std::string_view key) const {
    if (!has(key)) fail(key, "be given", "none");
    const nlohmann::json& value = *json_->find(key);
    if constexpr (std::same_as<T, bool>) {
      if (!value.is_boolean()) fail(key, "be true or false", detail::json_text(value));
      return value.get<bool>();
    } else if constexpr (std::same_as<T, std::string>) {
      if (!value.is_string()) fail(key, "be a text", detail::json_text(value));
      return value.get<std::string>();
    } else if constexpr (std::integral<T>) {
      const bool fits = value.is_number_unsigned()  ? std::in_range<T>(value.get<std::uint64_t>())
                        : value.is_number_integer() ? std::in_range<T>(value.get<std::int64_t>())
                                                    : false;
      if (!fits) fail(key, "be a whole number that fits", detail::json_text(value));
      return value.get<T>();
    } else {
      static_assert(std::same_as<T, double>, "settings are bool, integers, double and texts");
      if (!value.is_number() || !std::isfinite(value.get<double>())) {
        fail(key, "be a finite number", detail::json_text(value));
      }
      return value.get<double>();
    }
  }
  /// The value of a key, or `otherwise` if it is missing.
  template <class T>
  T get(std::string_view key, T otherwise) const {
    return has(key) ? get<T>(key) : otherwise;
  }

  /// A size: 1 .. 2^24.
  index_t count(std::string_view key) const {
    const auto value = get<index_t>(key);
    if (value < 1 || value > index_t{1} << 24) fail(key, "lie in 1 .. 2^24", std::to_string(value));
    return value;
  }
  index_t count(std::string_view key, index_t otherwise) const {
    return has(key) ? count(key) : otherwise;
  }

  /// A list of texts.
  std::vector<std::string> texts(std::string_view key) const {
    const auto& list = array(key);
    std::vector<std::string> result;
    for (const nlohmann::json& one : list) {
      if (!one.is_string()) fail(key, "be a list of texts", detail::json_text(one));
      result.push_back(one.get<std::string>());
    }
    return result;
  }
  /// A list of sizes, or one size.
  std::vector<index_t> counts(std::string_view key) const {
    if (has(key) && json_->find(key)->is_number()) return {count(key)};
    std::vector<index_t> result;
    for (const nlohmann::json& one : array(key)) {
      if (!one.is_number_unsigned() || one.get<std::uint64_t>() - 1 >= std::uint64_t{1} << 24) {
        fail(key, "be sizes of 1 .. 2^24", detail::json_text(one));
      }
      result.push_back(one.get<index_t>());
    }
    return result;
  }
  /// A list of whole numbers from 0 on, or one.
  std::vector<index_t> indices(std::string_view key) const {
    if (has(key) && json_->find(key)->is_number()) return {index(key, *json_->find(key))};
    std::vector<index_t> result;
    for (const nlohmann::json& one : array(key)) result.push_back(index(key, one));
    return result;
  }
  /// A list of finite numbers.
  std::vector<double> numbers(std::string_view key) const {
    std::vector<double> result;
    for (const nlohmann::json& one : array(key)) {
      if (!one.is_number() || !std::isfinite(one.get<double>())) {
        fail(key, "be a list of finite numbers", detail::json_text(one));
      }
      result.push_back(one.get<double>());
    }
    return result;
  }
  /// A list of lists of texts.
  std::vector<std::vector<std::string>> text_lists(std::string_view key) const {
    std::vector<std::vector<std::string>> result;
    for (const nlohmann::json& list : array(key)) {
      auto& texts = result.emplace_back();
      if (!list.is_array()) fail(key, "be a list of lists of texts", detail::json_text(list));
      for (const nlohmann::json& one : list) {
        if (!one.is_string()) fail(key, "be a list of lists of texts", detail::json_text(one));
        texts.push_back(one.get<std::string>());
      }
    }
    return result;
  }
  /// A pair of a text and a finite number.
  std::pair<std::string, double> numbered_text(std::string_view key) const {
    return numbered_text(key, "be a pair of a text and a finite number", array(key));
  }
  /// A list of pairs of a text and a finite number.
  std::vector<std::pair<std::string, double>> numbered_texts(std::string_view key) const {
    std::vector<std::pair<std::string, double>> result;
    for (const nlohmann::json& pair : array(key))
      result.push_back(numbered_text(key, "be pairs of a text and a finite number", pair));
    return result;
  }
  /// An object of whole numbers from 0 on, by key, sorted.
  std::vector<std::pair<std::string, index_t>> named_indices(std::string_view key) const {
    if (!has(key)) fail(key, "be given", "none");
    const nlohmann::json& value = *json_->find(key);
    if (!value.is_object()) fail(key, "be an object", detail::json_text(value));
    std::vector<std::pair<std::string, index_t>> result;
    for (const auto& [name, one] : value.items()) result.emplace_back(name, index(key, one));
    return result;
  }
  /// Whether the value is a text, or a list whose first entry is one.
  bool holds_text(std::string_view key) const {
    if (!has(key)) return false;
    const nlohmann::json& value = *json_->find(key);
    return value.is_array() && !value.empty() ? value[0].is_string() : value.is_string();
  }
  /// How many entries a list or an object has.
  index_t size(std::string_view key) const {
    if (!has(key) || !json_->find(key)->is_structured())
      fail(key, "be a list or an object", "none");
    return static_cast<index_t>(json_->find(key)->size());
  }

  /// The object of a key: its keys are called "key.inner" in errors and by unread().
  ConfigFile object(std::string_view key) const {
    if (!has(key)) fail(key, "be given", "none");
    const nlohmann::json& value = *json_->find(key);
    if (!value.is_object()) fail(key, "be an object", detail::json_text(value));
    return ConfigFile({json_, &value}, file_name_, detail::concat(prefix_, key, "."));
  }
  /// A list of objects: the keys of the first are called "key.0.inner".
  std::vector<ConfigFile> objects(std::string_view key) const {
    std::vector<ConfigFile> result;
    for (const nlohmann::json& one : array(key)) {
      if (!one.is_object()) fail(key, "be a list of objects", detail::json_text(one));
      const std::string prefix = detail::concat(prefix_, key, ".", result.size(), ".");
      result.push_back(ConfigFile({json_, &one}, file_name_, prefix));
    }
    return result;
  }

  /// Keys with a value that were not read, sorted.
  std::vector<std::string> unread() const {
    std::vector<std::string> result;
    for (const auto& [key, value] : json_->items()) {
      if (!read_.contains(key) && !value.is_null()) result.push_back(prefix_ + key);
    }
    return result;
  }

  [[noreturn]] void fail(std::string_view key, std::string_view expected,
                         std::string_view found) const {
    throw ValueError(message("ConfigFile",
                             detail::concat(detail::quote(file_name_), ": key ",
                                            detail::quote(prefix_ + std::string(key))),
                             expected, found));
  }

 private:
  ConfigFile(std::shared_ptr<const nlohmann::json> json, const std::string& file_name,
             std::string prefix)
      : json_(std::move(json)), file_name_(file_name), prefix_(std::move(prefix)) {}

  index_t index(std::string_view key, const nlohmann::json& value) const {
    if (!value.is_number_unsigned() || !std::in_range<index_t>(value.get<std::uint64_t>())) {
      fail(key, "be whole numbers from 0 on", detail::json_text(value));
    }
    return value.get<index_t>();
  }

  std::pair<std::string, double> numbered_text(std::string_view key, std::string_view expected,
                                               const nlohmann::json& pair) const {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_number() ||
        !std::isfinite(pair[1].get<double>())) {
      fail(key, expected, detail::json_text(pair));
    }
    return {pair[0].get<std::string>(), pair[1].get<double>()};
  }

  const nlohmann::json& array(std::string_view key) const {
    if (!has(key)) fail(key, "be given", "none");
    const nlohmann::json& value = *json_->find(key);
    if (!value.is_array()) fail(key, "be a list", detail::json_text(value));
    return value;
  }

  std::shared_ptr<const nlohmann::json> json_;  ///< within the file's, which it keeps alive
  std::string file_name_, prefix_;
  mutable std::set<std::string, std::less<>> read_;
};

ATTN_NAMESPACE_END
