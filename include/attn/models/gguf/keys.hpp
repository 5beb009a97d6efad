// GgufKeys: metadata of a GGUF file, in which every key is read, without effect, or an error.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <map>
#include <set>

#include "attn/io/gguf.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Keys that nothing reads, without their prefix, and the values (false and true are 0 and 1) for
/// which a key has no effect: any value if the list is empty.
using GgufUnreadKeys = std::map<std::string_view, std::vector<double>>;

/// The metadata keys with a prefix such as "llama.", accessed by the rest of their names. Errors
/// begin with a function's name, and name file and key. Reading marks keys as read: not
/// thread-safe.
class GgufKeys {
 public:
  /// Keys in `ignore`, with or without the prefix, count as missing.
  GgufKeys(const GgufFile& file, std::string prefix, std::string_view function,
           std::span<const std::string> ignore)
      : file_(file), prefix_(std::move(prefix)), function_(function), ignore_(ignore) {}

  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  bool has(std::string_view name) const {
    const std::string full = key(name);
    read_.insert(full);
    return file_.has(full) && !is_ignored(full);
  }
  bool has_array(std::string_view name) const {
    return has(name) && file_.metadata().find(key(name))->second.is_array();
  }

  template <GgufElement T>
  T get(std::string_view name) const {
    require(name);
    return file_.get<T>(key(name));
  }
  template <GgufElement T>
  T get(std::string_view name, T otherwise) const {
    return has(name) ? get<T>(name) : otherwise;
  }
  template <GgufElement T>
  std::vector<T> array(std::string_view name) const {
    require(name);
    return file_.array<T>(key(name));
  }

  /// A size in 1 .. 2^24.
  index_t count(std::string_view name) const {
    const index_t value{get<std::uint32_t>(name)};
    if (value < 1 || value > index_t{1} << 24) {
      fail(name, "lie in 1 .. 2^24", std::to_string(value));
    }
    return value;
  }
  index_t count(std::string_view name, index_t otherwise) const {
    return has(name) ? count(name) : otherwise;
  }

  /// Numbers; throws if the key is missing and there is no `otherwise`.
  double finite(std::string_view name, std::optional<double> otherwise = {}) const {
    const auto value = otherwise ? get<double>(name, *otherwise) : get<double>(name);
    if (!std::isfinite(value)) fail(name, "be finite", attn::to_string(value));
    return value;
  }
  double not_negative(std::string_view name, std::optional<double> otherwise = {}) const {
    const double value = finite(name, otherwise);
    if (value < 0) fail(name, "not be negative", attn::to_string(value));
    return value;
  }
  double positive(std::string_view name, std::optional<double> otherwise = {}) const {
    const double value = finite(name, otherwise);
    if (!(value > 0)) fail(name, "be positive", attn::to_string(value));
    return value;
  }

  /// Throws ValueError for keys that were not read, unless `unread` lists them.
  void check_all_read(const GgufUnreadKeys& unread) const {
    std::vector<std::string> unknown;
    for (const auto& [full, value] : file_.metadata()) {
      if (!full.starts_with(prefix_) || read_.contains(full) || is_ignored(full)) continue;
      const std::string_view name = std::string_view(full).substr(prefix_.size());
      if (const auto known = unread.find(name); known != unread.end()) {
        check_value(name, value, known->second);
      } else {
        unknown.push_back(full);
      }
    }
    if (unknown.empty()) return;
    throw ValueError(message(function_, quote(file_.file_name()),
                             "have only known keys (ignore_keys accepts others)",
                             list_text(unknown, "of them")));
  }

  [[noreturn]] void fail(std::string_view name, std::string_view expected,
                         std::string_view found) const {
    throw ValueError(message(
        function_, concat(quote(file_.file_name()), ": key ", quote(key(name))), expected, found));
  }

 private:
  bool is_ignored(std::string_view full) const {
    return std::any_of(ignore_.begin(), ignore_.end(), [&](const std::string& one) {
      return full == one || full.substr(prefix_.size()) == one;
    });
  }
  void require(std::string_view name) const {
    if (!has(name)) fail(name, "be in the file", "none");
  }

  void check_value(std::string_view name, const GgufValue& value,
                   const std::vector<double>& passing) const {
    if (passing.empty()) return;
    const bool is_bool = value.type() == GgufValueType::BOOL;
    const auto text = [&](double number) {
      return is_bool ? std::string(number != 0 ? "true" : "false") : attn::to_string(number);
    };
    const std::optional<double> number = number_of(name, value);
    std::string expected = "be ";
    for (const double one : passing) {
      if (number == one) return;
      expected.append(text(one)).append(one == passing.back() ? " or missing" : ", ");
    }
    fail(name, expected + ", because attn implements nothing else (ignore_keys accepts the key)",
         number             ? text(*number)
         : value.is_array() ? "an array"
                            : "a text");
  }

  /// A number or a bool; none for arrays and texts.
  std::optional<double> number_of(std::string_view name, const GgufValue& value) const {
    const GgufValueType type = value.type();
    if (value.is_array() || type == GgufValueType::STRING) return std::nullopt;
    if (type == GgufValueType::BOOL) return get<bool>(name) ? 1 : 0;
    if (type == GgufValueType::F32 || type == GgufValueType::F64) return get<double>(name);
    return static_cast<double>(get<std::int64_t>(name));
  }

  const GgufFile& file_;
  std::string prefix_;
  std::string_view function_;
  std::span<const std::string> ignore_;
  mutable std::set<std::string, std::less<>> read_;
};

}  // namespace detail

ATTN_NAMESPACE_END
