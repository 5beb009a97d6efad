// Header of a safetensors file, parsed and checked before data is read.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "attn/core/element.hpp"
#include "attn/io/quote.hpp"
#include "attn/io/safetensors/layout.hpp"

ATTN_NAMESPACE_BEGIN

/// The limit of the reference implementation: a longer header is an attack rather than a model.
inline constexpr std::size_t kMaxSafetensorsHeader = 100'000'000;

namespace detail {

/// Receives the parser's events. The format has three levels (file, tensor, list of numbers), so
/// the state is the current level, and anything deeper is an error at its first bracket: no
/// document is built, nesting cannot exhaust the stack, and a repeated key is detected rather than
/// merged.
class SafetensorsJsonHandler {
 public:
  using Json = nlohmann::json;

  SafetensorsJsonHandler(SafetensorsHeader& header, const SafetensorsErrors& errors)
      : header_(header), errors_(errors) {}

  bool start_object(std::size_t) {
    if (level_ == Level::kOutside) {
      level_ = Level::kFile;
    } else if (level_ == Level::kFile) {
      level_ = in_metadata_ ? Level::kMetadata : Level::kTensor;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(std::string& text) {
    if (level_ == Level::kMetadata) {
      entry_key_ = text;
      const auto [at, is_new] = header_.metadata.try_emplace(text);
      if (!is_new) fail_repeated("key", text);
      text_ = &at->second;
    } else if (level_ == Level::kTensor) {
      const auto field = std::find(std::begin(kFields), std::end(kFields), text);
      if (field == std::end(kFields)) {
        errors_.fail_tensor(name_, "a key of", "be dtype, shape or data_offsets", quote(text));
      }
      field_ = static_cast<std::size_t>(field - kFields);
      if (std::exchange(has_field_[field_], true)) fail_repeated("key", text);
    } else if (text == "__metadata__") {
      in_metadata_ = true;
      if (std::exchange(has_metadata_, true)) fail_repeated("key", text);
    } else {
      in_metadata_ = false;
      const auto [at, is_new] = header_.tensors.try_emplace(text);
      if (!is_new) fail_repeated("tensor name", text);
      name_ = text;
      entry_ = &at->second;
      std::fill(std::begin(has_field_), std::end(has_field_), false);
    }
    return true;
  }

  bool end_object() {
    if (level_ == Level::kTensor) {
      for (std::size_t i = 0; i < std::size(kFields); ++i) {
        if (has_field_[i]) continue;
        errors_.fail_tensor(name_, "", "have dtype, shape and data_offsets",
                            concat("no ", kFields[i]));
      }
    }
    in_metadata_ = false;
    level_ = level_ == Level::kFile ? Level::kOutside : Level::kFile;
    return true;
  }

  bool start_array(std::size_t) {
    if (level_ != Level::kTensor || field_ == kDtype) unexpected("an array");
    level_ = Level::kNumbers;
    numbers_ = 0;
    return true;
  }

  bool end_array() {
    if (field_ == kOffsets && numbers_ != 2) {
      errors_.fail_tensor(name_, "data_offsets of", "be two numbers", std::to_string(numbers_));
    }
    level_ = Level::kTensor;
    return true;
  }

  bool string(std::string& text) {
    if (level_ == Level::kMetadata) {
      *text_ = std::move(text);
    } else if (level_ == Level::kTensor && field_ == kDtype) {
      // An unknown type makes this tensor unreadable, not the file.
      entry_->dtype = dtype_from_name(text);
      if (!entry_->dtype) entry_->unknown_dtype = std::move(text);
    } else {
      unexpected(quote(text));
    }
    return true;
  }

  bool number_unsigned(std::uint64_t value) {
    constexpr auto most = static_cast<std::uint64_t>((std::numeric_limits<index_t>::max)());
    if (level_ != Level::kNumbers || value > most) unexpected(std::to_string(value));
    if (field_ == kShape) {
      entry_->shape.push_back(static_cast<index_t>(value));
    } else {
      (numbers_ == 0 ? entry_->begin : entry_->end) = value;
    }
    ++numbers_;
    return true;
  }

  bool null() { unexpected("null"); }
  bool boolean(bool value) { unexpected(value ? "true" : "false"); }
  bool number_integer(std::int64_t value) { unexpected(std::to_string(value)); }
  bool number_float(double, const std::string& text) { unexpected(quote(text)); }
  bool binary(Json::binary_t&) { unexpected("binary data"); }

  // The parser's own text repeats its input, however long: keep only the position.
  bool parse_error(std::size_t position, const std::string& token, const Json::exception&) {
    errors_.fail("the header", "be valid JSON in UTF-8",
                 concat("an error at its byte ", position, ", near ", quote(token)));
  }

 private:
  enum class Level { kOutside, kFile, kMetadata, kTensor, kNumbers };
  enum Field : std::size_t { kDtype, kShape, kOffsets };
  static constexpr std::string_view kFields[] = {"dtype", "shape", "data_offsets"};

  [[noreturn]] void unexpected(const std::string& found) const {
    switch (level_) {
      case Level::kOutside:
        errors_.fail("the header", "be an object", found);
      case Level::kFile:
        if (in_metadata_) errors_.fail("__metadata__", "be an object", found);
        errors_.fail_tensor(name_, "", "be an object", found);
      case Level::kMetadata:
        errors_.fail(concat("__metadata__ entry ", quote(entry_key_)), "be a string", found);
      case Level::kTensor:
      case Level::kNumbers:
        break;
    }
    constexpr std::string_view expected[] = {"be a string",
                                             "be an array of integers from 0 to 2^63 - 1",
                                             "be an array of two integers from 0 to 2^63 - 1"};
    errors_.fail_tensor(name_, concat(kFields[field_], " of"), expected[field_], found);
  }

  [[noreturn]] void fail_repeated(std::string_view what, std::string_view text) const {
    std::string subject = concat("every ", what);
    if (level_ == Level::kMetadata) subject += " of __metadata__";
    if (level_ == Level::kTensor) subject += concat(" of tensor ", quote(name_));
    errors_.fail(subject, "occur once", concat(quote(text), " again"));
  }

  SafetensorsHeader& header_;
  const SafetensorsErrors& errors_;
  Level level_ = Level::kOutside;
  bool in_metadata_ = false, has_metadata_ = false;
  std::string name_, entry_key_;
  SafetensorsEntry* entry_ = nullptr;
  std::string* text_ = nullptr;
  std::size_t field_ = kDtype, numbers_ = 0;
  bool has_field_[std::size(kFields)] = {};
};

}  // namespace detail

/// Parses and checks the header of `file`, the whole file's bytes; `file_name` is for errors.
/// Throws IoError that names the file, the tensor, the requirement of the format and the value
/// found. Stricter than the reference: a tensor has only its three keys, and extents beside a 0
/// must not overflow.
inline SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                                  std::string_view file_name) {
  const detail::SafetensorsErrors errors{detail::quote(file_name)};
  constexpr std::size_t prefix = sizeof(std::uint64_t);
  if (file.size() < prefix) {
    errors.fail("the file", "begin with the header's length in 8 bytes",
                detail::concat(file.size(), " bytes"));
  }
  std::uint64_t length = 0;
  for (std::size_t i = prefix; i-- > 0;) {
    length = length << 8 | std::to_integer<std::uint64_t>(file[i]);
  }
  if (length > kMaxSafetensorsHeader) {
    errors.fail("the header", detail::concat("be at most ", kMaxSafetensorsHeader, " bytes long"),
                std::to_string(length));
  }
  if (length > file.size() - prefix) {
    errors.fail("the header", detail::concat("lie within the ", file.size(), " bytes of the file"),
                detail::concat(length, " bytes after the first 8"));
  }
  const auto* text = reinterpret_cast<const char*>(file.data()) + prefix;
  // The parser would skip a byte order mark, and takes a NUL as the end of its input.
  if (length == 0 || text[0] != '{') {
    errors.fail("the header", "begin with {",
                length == 0 ? "nothing" : detail::quote({text, std::min<std::size_t>(length, 8)}));
  }
  if (const void* nul = std::memchr(text, 0, length)) {
    errors.fail("the header", "be valid JSON in UTF-8",
                detail::concat("a NUL at its byte ", static_cast<const char*>(nul) - text + 1));
  }

  SafetensorsHeader header;
  header.data_begin = prefix + length;
  detail::SafetensorsJsonHandler handler(header, errors);
  nlohmann::json::sax_parse(text, text + length, &handler);
  detail::check_layout(header, file.size() - header.data_begin, errors);
  return header;
}

ATTN_NAMESPACE_END
