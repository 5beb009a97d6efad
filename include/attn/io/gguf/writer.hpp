// save_gguf: writes GGUF files completely or not at all.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <set>

#include "attn/io/atomic_file.hpp"
#include "attn/io/gguf.hpp"
#include "attn/io/gguf/quantize.hpp"

ATTN_NAMESPACE_BEGIN

/// Metadata keys and values of a file to be written, in order.
class GgufMetadata {
 public:
  /// Sets a bool, an integer of 8 to 64 bits, float, double or text (std::string_view or
  /// convertible to it); the written type is that of the value. Setting a key again keeps its
  /// place.
  template <class T>
  void set(std::string_view key, const T& value) {
    entry(key) = encoded_type<T>() + encoded(value);
  }
  /// Sets an array of these types.
  template <class T>
  void set(std::string_view key, const std::vector<T>& values) {
    std::string text = number(static_cast<std::uint32_t>(GgufValueType::ARRAY)) +
                       encoded_type<T>() + number(std::uint64_t{values.size()});
    for (const auto& value : values) text += encoded(value);
    entry(key) = std::move(text);
  }
  /// Copies a value from another file.
  void set(std::string_view key, const GgufValue& value) {
    std::string text;
    if (value.is_array()) text += number(static_cast<std::uint32_t>(GgufValueType::ARRAY));
    text += number(static_cast<std::uint32_t>(value.type()));
    if (value.is_array()) text += number(std::uint64_t{value.size()});
    text.append(reinterpret_cast<const char*>(value.bytes().data()), value.bytes().size());
    entry(key) = std::move(text);
  }

  /// Keys, each with its type and value in the file's encoding.
  const std::vector<std::pair<std::string, std::string>>& entries() const { return entries_; }

  /// A number in the file's encoding.
  template <class V>
  static std::string number(V value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  /// A text in the file's encoding.
  static std::string text(std::string_view value) {
    return number(std::uint64_t{value.size()}).append(value);
  }

 private:
  std::string& entry(std::string_view key) {
    for (auto& [known, value] : entries_) {
      if (known == key) return value;
    }
    return entries_.emplace_back(key, "").second;
  }

  template <class T>
  static std::string encoded_type() {
    constexpr GgufValueType type = [] {
      if constexpr (std::same_as<T, bool>)
        return GgufValueType::BOOL;
      else if constexpr (std::same_as<T, float>)
        return GgufValueType::F32;
      else if constexpr (std::same_as<T, double>)
        return GgufValueType::F64;
      else if constexpr (std::integral<T> && std::is_signed_v<T>)
        return sizeof(T) == 1   ? GgufValueType::I8
               : sizeof(T) == 2 ? GgufValueType::I16
               : sizeof(T) == 4 ? GgufValueType::I32
                                : GgufValueType::I64;
      else if constexpr (std::integral<T>)
        return sizeof(T) == 1   ? GgufValueType::U8
               : sizeof(T) == 2 ? GgufValueType::U16
               : sizeof(T) == 4 ? GgufValueType::U32
                                : GgufValueType::U64;
      else
        return GgufValueType::STRING;
    }();
    return number(static_cast<std::uint32_t>(type));
  }
  template <class T>
  static std::string encoded(const T& value) {
    if constexpr (std::same_as<T, bool>) {
      return std::string(1, value ? '\1' : '\0');
    } else if constexpr (std::is_arithmetic_v<T>) {
      return number(value);
    } else {
      return text(std::string_view(value));
    }
  }

  std::vector<std::pair<std::string, std::string>> entries_;
};

/// A tensor to be written: refers to its blocks, which must outlive it.
struct NamedGgufTensor {
  std::string name;
  GgufTensor tensor;
};

/// Writes `path` atomically, version 3, tensors aligned to 32 bytes: a reader sees the old file or
/// the whole new one. Throws ValueError for a repeated name; ShapeError for more than 4 extents,
/// for rows that are not whole blocks and for a number of bytes that does not match the shape;
/// IoError naming the file if it cannot be written.
inline void save_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                      std::span<const NamedGgufTensor> tensors) {
  constexpr std::uint64_t kAlign = 32;
  std::set<std::string_view> names;
  std::string header = "GGUF" + GgufMetadata::number(std::uint32_t{3}) +
                       GgufMetadata::number(std::uint64_t{tensors.size()});
  std::string entries;
  std::uint64_t keys = 0;
  for (const auto& [key, value] : metadata.entries()) {
    if (key == "general.alignment") continue;  // alignment of the file that it came from
    entries += GgufMetadata::text(key).append(value);
    ++keys;
  }
  header.append(GgufMetadata::number(keys)).append(entries);
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::string subject = detail::concat("tensor ", detail::quote(name));
    if (!names.insert(name).second) {
      throw ValueError(message("save_gguf", "every name", "occur once", detail::quote(name)));
    }
    const auto elements = static_cast<index_t>(block_elements(tensor.type));
    const index_t size = size_of(tensor.shape),
                  row = tensor.shape.empty() ? 1 : tensor.shape.back();
    std::uint64_t bytes = 0;
    if (tensor.shape.size() > 4 || row % elements != 0 ||
        __builtin_mul_overflow(static_cast<std::uint64_t>(size / elements),
                               std::uint64_t{block_bytes(tensor.type)}, &bytes) ||
        bytes != tensor.bytes.size()) {
      throw ShapeError(
          message("save_gguf", subject,
                  detail::concat("have at most 4 extents, rows of whole blocks of ", elements, ", ",
                                 block_bytes(tensor.type), " bytes each"),
                  detail::concat(tensor.bytes.size(), " bytes of shape ",
                                 detail::shape_text(tensor.shape))));
    }
    header.append(GgufMetadata::text(name))
        .append(GgufMetadata::number(static_cast<std::uint32_t>(tensor.shape.size())));
    for (std::size_t i = tensor.shape.size(); i-- > 0;) {
      header += GgufMetadata::number(static_cast<std::uint64_t>(tensor.shape[i]));
    }
    header.append(GgufMetadata::number(static_cast<std::uint32_t>(tensor.type)))
        .append(GgufMetadata::number(offset));
    offset += (bytes + kAlign - 1) / kAlign * kAlign;
  }
  const auto pad = [](std::uint64_t size) {
    return std::string((kAlign - size % kAlign) % kAlign, '\0');
  };
  header += pad(header.size());
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(header)));
  for (const auto& item : tensors) {
    file.write(item.tensor.bytes);
    const std::string padding = pad(item.tensor.bytes.size());
    file.write(std::as_bytes(std::span(padding)));
  }
  file.commit();
}

ATTN_NAMESPACE_END
