// The header of .npy files: type, order and shape, parsed and checked.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/core/element.hpp"
#include "attn/io/quote.hpp"

ATTN_NAMESPACE_BEGIN

struct NpyHeader {
  DType dtype = DType::F32;
  bool is_big_endian = false;
  bool is_fortran_order = false;  ///< the first axis lies closest
  std::vector<index_t> shape;
  std::size_t data_begin = 0;  ///< position of the data within the file
  std::size_t data_size = 0;   ///< bytes
};

namespace detail {

struct NpyType {
  DType dtype;
  std::string_view name;  ///< behind the byte order
};

/// bool has no byte order, as integers of one byte.
inline constexpr NpyType kNpyTypes[] = {
    {DType::BOOL, "b1"}, {DType::U8, "u1"},  {DType::I8, "i1"},  {DType::U16, "u2"},
    {DType::I16, "i2"},  {DType::U32, "u4"}, {DType::I32, "i4"}, {DType::U64, "u8"},
    {DType::I64, "i8"},  {DType::F16, "f2"}, {DType::F32, "f4"}, {DType::F64, "f8"},
};

/// numpy's limit is 64 axes.
inline constexpr std::size_t kMaxNpyAxes = 64;

/// The dictionary of a header, a literal of Python: {'descr': '<f4', 'fortran_order': False,
/// 'shape': (2, 3), }.
class NpyDictionary {
 public:
  NpyDictionary(std::string_view text, const std::string& file) : rest_(text), file_(file) {}

  void parse_to(NpyHeader& header) {
    expect('{');
    bool has_descr = false, has_order = false, has_shape = false;
    while (!accept('}')) {
      const std::string_view key = string();
      expect(':');
      bool* seen = key == "descr"           ? &has_descr
                   : key == "fortran_order" ? &has_order
                   : key == "shape"         ? &has_shape
                                            : nullptr;
      if (seen == nullptr || *seen) {
        fail("the header's keys", "be descr, fortran_order and shape, each once", quote(key));
      }
      *seen = true;
      if (key == "descr") {
        parse_type(header);
      } else if (key == "shape") {
        header.shape = shape();
      } else {
        header.is_fortran_order = boolean();
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (!has_descr || !has_order || !has_shape) {
      fail("the header", "give descr, fortran_order and shape", "fewer");
    }
    skip_spaces();
    if (!rest_.empty()) fail("the header", "end with its dictionary", quote(rest_));
  }

 private:
  [[noreturn]] void fail(std::string_view subject, std::string_view expected,
                         std::string_view found) const {
    throw IoError(message("NpyArray", concat(file_, ": ", subject), expected, found));
  }

  void skip_spaces() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n')) {
      rest_.remove_prefix(1);
    }
  }
  bool accept(char c) {
    skip_spaces();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail("the header", concat("have ", std::string(1, c)), quote(rest_));
  }
  bool accept(std::string_view word) {
    skip_spaces();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  /// Without escapes, which no type and no key has.
  std::string_view string() {
    const char mark = accept('"') ? '"' : '\'';
    if (mark == '\'') expect('\'');
    const std::size_t end = rest_.find(mark);
    if (end == std::string_view::npos) fail("the header's strings", "end", quote(rest_));
    const std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return text;
  }

  bool boolean() {
    if (accept(std::string_view("True"))) return true;
    if (!accept(std::string_view("False"))) fail("fortran_order", "be True or False", quote(rest_));
    return false;
  }

  std::vector<index_t> shape() {
    std::vector<index_t> result;
    expect('(');
    while (!accept(')')) {
      skip_spaces();
      index_t extent = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), extent);
      if (error != std::errc() || extent < 0 || result.size() == kMaxNpyAxes) {
        fail("shape", concat("be at most ", kMaxNpyAxes, " numbers from 0 on, below 2^63"),
             quote(rest_));
      }
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      accept('L');  // as Python 2 wrote
      result.push_back(extent);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return result;
  }

  void parse_type(NpyHeader& header) {
    skip_spaces();
    const bool is_structured = rest_.starts_with('[') || rest_.starts_with('(');
    const std::string_view descr = is_structured ? rest_.substr(0, 1) : string();
    const bool has_order = !descr.empty() && std::string_view("<>=|").find(descr[0]) < 4;
    const std::string_view name = descr.substr(has_order ? 1 : 0);
    for (const NpyType& type : kNpyTypes) {
      if (type.name != name && !(name == "?" && type.dtype == DType::BOOL)) continue;
      header.dtype = type.dtype;
      header.is_big_endian = descr[0] == '>' && element_size(type.dtype) > 1;
      return;
    }
    throw DTypeError(message("NpyArray", concat(file_, ": the elements"),
                             "be bool, integers or floats of up to 64 bits",
                             is_structured ? std::string("a structure") : quote(descr)));
  }

  std::string_view rest_;
  const std::string& file_;
};

}  // namespace detail

/// Reads the header that `bytes` begin with; the data need not be there yet. Throws IoError where
/// the bytes break the format
/// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html), DTypeError for
/// elements that attn does not know; `file` names the file in errors.
inline NpyHeader parse_npy_header(std::span<const std::byte> bytes, const std::string& file) {
  const auto fail = [&](std::string_view subject, std::string_view expected,
                        std::string_view found) {
    throw IoError(message("NpyArray", detail::concat(file, ": ", subject), expected, found));
  };
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  constexpr std::string_view magic = "\x93NUMPY";
  if (!text.starts_with(magic) || text.size() < 10) {
    fail("the file", "begin with \\x93NUMPY and a version", detail::quote(text.substr(0, 10)));
  }
  const int version = static_cast<unsigned char>(text[6]);
  if (version < 1 || version > 3) fail("the version", "be 1, 2 or 3", std::to_string(version));
  const std::size_t begin = version == 1 ? 10 : 12;
  std::size_t size = 0;
  for (std::size_t at = (std::min)(begin, text.size()); at-- > 8;) {
    size = size << 8 | static_cast<unsigned char>(text[at]);
  }
  if (text.size() < begin || size > text.size() - begin) {
    fail("the header", "lie within the file", detail::concat(size, " bytes of ", text.size()));
  }
  NpyHeader header;
  detail::NpyDictionary(text.substr(begin, size), file).parse_to(header);
  header.data_begin = begin + size;
  // Extents other than 0 must not overflow either: views have strides even where they have no
  // elements.
  auto product = static_cast<index_t>(element_size(header.dtype));
  bool is_empty = false;
  for (index_t extent : header.shape) {
    is_empty = is_empty || extent == 0;
    if (extent > 0 && __builtin_mul_overflow(product, extent, &product)) {
      fail("shape", "describe less than 2^63 bytes", detail::shape_text(header.shape));
    }
  }
  header.data_size = is_empty ? 0 : static_cast<std::size_t>(product);
  return header;
}

ATTN_NAMESPACE_END
