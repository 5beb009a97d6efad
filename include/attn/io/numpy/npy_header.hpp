// Header of .npy files: type, order and shape.
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
  bool is_fortran_order = false;  ///< the first axis is contiguous
  std::vector<index_t> shape;
  std::size_t data_begin = 0;  ///< from the start of the header
  std::size_t data_size = 0;   ///< bytes
};

namespace detail {

struct NpyType {
  DType dtype;
  std::string_view name;
};

/// The names written, after the byte order. bool and one-byte integers have no byte order.
inline constexpr NpyType kNpyTypes[] = {
    {DType::BOOL, "b1"}, {DType::U8, "u1"},  {DType::I8, "i1"},  {DType::U16, "u2"},
    {DType::I16, "i2"},  {DType::U32, "u4"}, {DType::I32, "i4"}, {DType::U64, "u8"},
    {DType::I64, "i8"},  {DType::F16, "f2"}, {DType::F32, "f4"}, {DType::F64, "f8"},
};

/// Other names that numpy.dtype() accepts on 64-bit Linux. Letters may follow a byte order.
inline constexpr NpyType kNpyAliases[] = {
    {DType::BOOL, "?"},       {DType::BOOL, "bool"},  {DType::BOOL, "bool_"},
    {DType::U8, "B"},         {DType::U8, "uint8"},   {DType::U8, "ubyte"},
    {DType::I8, "b"},         {DType::I8, "int8"},    {DType::I8, "byte"},
    {DType::U16, "H"},        {DType::U16, "uint16"}, {DType::U16, "ushort"},
    {DType::I16, "h"},        {DType::I16, "int16"},  {DType::I16, "short"},
    {DType::U32, "I"},        {DType::U32, "uint32"}, {DType::U32, "uintc"},
    {DType::I32, "i"},        {DType::I32, "int32"},  {DType::I32, "intc"},
    {DType::U64, "L"},        {DType::U64, "N"},      {DType::U64, "P"},
    {DType::U64, "Q"},        {DType::U64, "uint64"}, {DType::U64, "uint"},
    {DType::U64, "ulong"},    {DType::U64, "uintp"},  {DType::U64, "ulonglong"},
    {DType::I64, "l"},        {DType::I64, "n"},      {DType::I64, "p"},
    {DType::I64, "q"},        {DType::I64, "int64"},  {DType::I64, "int"},
    {DType::I64, "int_"},     {DType::I64, "long"},   {DType::I64, "intp"},
    {DType::I64, "longlong"}, {DType::F16, "e"},      {DType::F16, "float16"},
    {DType::F16, "half"},     {DType::F32, "f"},      {DType::F32, "float32"},
    {DType::F32, "single"},   {DType::F64, "d"},      {DType::F64, "float64"},
    {DType::F64, "double"},   {DType::F64, "float"},
};

/// numpy's limit is 64 axes.
inline constexpr std::size_t kMaxNpyAxes = 64;

/// The dictionary of a header, a Python literal: {'descr': '<f4', 'fortran_order': False, 'shape':
/// (2, 3), }.
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
    rest_.remove_prefix((std::min)(rest_.find_first_not_of(" \t\n\r\f"), rest_.size()));
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

  /// A string with any prefix of Python but b. Without escapes, which occur in no type and no key.
  std::string_view string() {
    skip_spaces();
    if (!rest_.empty() && std::string_view("uUrR").find(rest_.front()) < 4) rest_.remove_prefix(1);
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
      accept('L');  // as Python 2 wrote it
      result.push_back(extent);
      if (!accept(',')) {
        if (result.size() == 1) expect(',');  // (3) is a number
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
    for (std::span<const NpyType> types : {std::span<const NpyType>(kNpyTypes), {kNpyAliases}}) {
      for (const NpyType& type : types) {
        if (type.name != name || (has_order && name.size() > 2)) continue;
        header.dtype = type.dtype;
        header.is_big_endian = descr[0] == '>' && element_size(type.dtype) > 1;
        return;
      }
    }
    throw DTypeError(message("NpyArray", concat(file_, ": the elements"),
                             "be bool, integers or floats of up to 64 bits",
                             is_structured ? std::string("a structure") : quote(descr)));
  }

  std::string_view rest_;
  const std::string& file_;
};

/// Whether the bytes begin with the magic string of .npy files.
inline bool begins_npy(std::span<const std::byte> bytes) {
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())
      .starts_with("\x93NUMPY");
}

}  // namespace detail

/// Reads the header at the start of `bytes`; the data may be missing. Throws IoError if the bytes
/// break the format (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html),
/// DTypeError for unsupported elements; `file` names the file in errors.
inline NpyHeader parse_npy_header(std::span<const std::byte> bytes, const std::string& file) {
  const auto fail = [&](std::string_view subject, std::string_view expected,
                        std::string_view found) {
    throw IoError(message("NpyArray", detail::concat(file, ": ", subject), expected, found));
  };
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!detail::begins_npy(bytes) || text.size() < 10) {
    fail("the file", "begin with \\x93NUMPY and a version", detail::quote(text.substr(0, 10)));
  }
  const int version = static_cast<unsigned char>(text[6]);
  if (version < 1 || version > 3 || text[7] != 0) {
    fail("the version", "be 1.0, 2.0 or 3.0",
         detail::concat(version, ".", int{static_cast<unsigned char>(text[7])}));
  }
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
  // Extents other than 0 must not overflow either: views have strides even without elements.
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
