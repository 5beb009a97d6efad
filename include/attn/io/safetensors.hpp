// SafetensorsFile: tensors by name in a memory-mapped safetensors file, viewed or copied.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/core/tensor.hpp"
#include "attn/io/mapped_file.hpp"
#include "attn/io/named_tensor.hpp"
#include "attn/io/safetensors_header.hpp"

ATTN_NAMESPACE_BEGIN

static_assert(std::endian::native == std::endian::little,
              "safetensors files are little-endian, and this reader does not swap bytes");

/// An open file; const calls are safe from many threads at once. The whole header is checked on
/// opening: https://github.com/huggingface/safetensors#format. Unknown names throw ValueError,
/// other element types than asked for DTypeError, other shapes ShapeError, all naming file and
/// tensor.
class SafetensorsFile {
 public:
  /// Maps the file. Throws IoError where it cannot be read or breaks the format.
  explicit SafetensorsFile(const std::filesystem::path& path)
      : map_(path), bytes_(map_.bytes()), file_name_(path.string()) {
    header_ = parse_safetensors_header(bytes_, file_name_);
  }

  /// Over a file's bytes that the caller keeps alive; `name` stands for the file in errors.
  explicit SafetensorsFile(std::span<const std::byte> bytes, std::string name = "memory")
      : bytes_(bytes), file_name_(std::move(name)) {
    header_ = parse_safetensors_header(bytes_, file_name_);
  }

  SafetensorsFile(SafetensorsFile&&) noexcept = default;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept = default;

  const std::string& file_name() const { return file_name_; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }

  /// Sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& item : header_.tensors) result.push_back(item.first);
    return result;
  }

  bool contains(std::string_view name) const { return header_.tensors.contains(name); }
  /// Throws DTypeError for a type that attn does not know; such a tensor can be had as bytes() alone.
  DType dtype(std::string_view name) const {
    return known_dtype("dtype", name, find("dtype", name));
  }
  /// Empty for a scalar.
  const std::vector<index_t>& shape(std::string_view name) const {
    return find("shape", name).shape;
  }
  /// The tensor's bytes as stored: little-endian, last axis fastest, aligned or not.
  std::span<const std::byte> bytes(std::string_view name) const {
    return bytes_of(find("bytes", name));
  }

  /// The tensor as stored, whatever its type and rank, to be written again by save_safetensors(); valid for the life
  /// of this object. Throws DTypeError for a type that attn does not know.
  NamedTensor tensor(std::string_view name) const& {
    const SafetensorsEntry& entry = find("tensor", name);
    return {std::string(name), known_dtype("tensor", name, entry), entry.shape, bytes_of(entry)};
  }
  NamedTensor tensor(std::string_view name) const&& = delete;  // would dangle

  /// The tensor where it lies, without a copy, for the life of this object (moved or not). T must
  /// be the stored type; bool cannot be viewed, since a stored byte other than 0 and 1 is no bool.
  /// A scalar has shape (1). Throws ValueError where the data are not aligned for T: use load().
  template <TensorElement T, int Rank>
  TensorView<const T, Rank> view(std::string_view name) const& {
    static_assert(!std::same_as<T, bool>, "bool can only be loaded");
    const SafetensorsEntry& entry = find("view", name);
    if (entry.dtype != dtype_of<T>()) {
      throw DTypeError(error("view", name, detail::concat("hold ", attn::name(dtype_of<T>())),
                             stored_type(entry)));
    }
    const Shape<Rank> shape = shape_as<Rank>("view", name, entry);
    const std::byte* data = bytes_of(entry).data();
    if (reinterpret_cast<std::uintptr_t>(data) % alignof(T) != 0) {
      throw ValueError(error("view", name,
                             detail::concat("lie on a multiple of ", alignof(T),
                                            " bytes to be viewed (load() copies it)"),
                             detail::concat("an offset of ", header_.data_begin + entry.begin)));
    }
    return {reinterpret_cast<const T*>(data), shape};
  }

  template <TensorElement T, int Rank>
  TensorView<const T, Rank> view(std::string_view name) const&& = delete;  // would dangle

  /// A copy of any alignment. Floats of every size are loaded from F16, BF16, F32 and F64 (what is wider rounds once,
  /// to nearest even); integers from every integer type, if all values fit; bool from
  /// BOOL, if all bytes are 0 or 1, else ValueError. A scalar has shape (1).
  template <TensorElement T, int Rank>
  Tensor<T, Rank> load(std::string_view name) const {
    const Shape<Rank> shape = shape_as<Rank>("load", name, find("load", name));
    check<T>(name, shape);
    auto result = Tensor<T, Rank>::uninitialized(shape);
    decode_to(find("load", name), result.view());
    return result;
  }

  /// The same into memory of the caller, of any strides. Throws before the first write.
  template <TensorElement T, int Rank>
  void load(std::string_view name, TensorView<T, Rank> out) const {
    check<T>(name, out.shape());
    decode_to(find("load", name), out);
  }

  /// Throws what load() would throw for elements T and this shape.
  template <TensorElement T>
  void check(std::string_view name, std::span<const index_t> shape) const {
    const SafetensorsEntry& entry = find("load", name);
    if (!with_stored_type<T>(entry.dtype, [](auto) {})) {
      throw DTypeError(error("load", name,
                             detail::concat(kIsFloat<T>               ? "hold F16, BF16, F32 or F64"
                                            : std::is_same_v<T, bool> ? "hold BOOL"
                                                                      : "hold integers",
                                            " to be loaded as ", attn::name(dtype_of<T>())),
                             stored_type(entry)));
    }
    const index_t one[] = {1};
    const std::span<const index_t> stored = entry.shape.empty() ? one : std::span(entry.shape);
    if (!std::equal(stored.begin(), stored.end(), shape.begin(), shape.end())) {
      throw ShapeError(error("load", name, detail::concat("have shape ", detail::shape_text(shape)),
                             detail::shape_text(entry.shape)));
    }
    if constexpr (!kIsFloat<T>) {
      with_stored_type<T>(entry.dtype,
                          [&]<class Stored>(Stored) { check_values<T, Stored>(name, entry); });
    }
  }

 private:
  template <class T>
  static constexpr bool kIsFloat = std::is_floating_point_v<T> || Float16Element<T>;

  std::string error(std::string_view function, std::string_view name, std::string_view expected,
                    std::string_view found) const {
    return message(detail::concat("SafetensorsFile::", function),
                   detail::concat(detail::quote(file_name_), ": tensor ", detail::quote(name)),
                   expected, found);
  }

  const SafetensorsEntry& find(std::string_view function, std::string_view name) const {
    const auto at = header_.tensors.find(name);
    if (at == header_.tensors.end()) {
      throw ValueError(error(function, name, "exist",
                             detail::concat("none of that name among ", header_.tensors.size())));
    }
    return at->second;
  }

  static std::string stored_type(const SafetensorsEntry& entry) {
    return entry.dtype ? std::string(attn::name(*entry.dtype)) : detail::quote(entry.unknown_dtype);
  }

  DType known_dtype(std::string_view function, std::string_view name,
                    const SafetensorsEntry& entry) const {
    if (entry.dtype) return *entry.dtype;
    std::string known;
    for (const detail::DTypeRow& row : detail::kDTypes) {
      known.append(known.empty() ? "" : ", ").append(row.name);
    }
    throw DTypeError(
        error(function, name, detail::concat("hold one of ", known), stored_type(entry)));
  }

  std::span<const std::byte> bytes_of(const SafetensorsEntry& entry) const {
    return bytes_.subspan(header_.data_begin + static_cast<std::size_t>(entry.begin),
                          static_cast<std::size_t>(entry.end - entry.begin));
  }

  template <int Rank>
  Shape<Rank> shape_as(std::string_view function, std::string_view name,
                       const SafetensorsEntry& entry) const {
    if (Rank == 1 && entry.shape.empty()) return {1};
    if (entry.shape.size() != Rank) {
      throw ShapeError(error(function, name, detail::concat("have rank ", Rank),
                             detail::concat("shape ", detail::shape_text(entry.shape))));
    }
    Shape<Rank> shape{};
    std::copy(entry.shape.begin(), entry.shape.end(), shape.begin());
    return shape;
  }

  /// Calls f with a value of the stored type, if a T can be loaded from it; else returns false.
  template <class T, class F>
  static bool with_stored_type(const std::optional<DType>& dtype, F&& f) {
    if (!dtype) return false;
    if constexpr (kIsFloat<T>) {
      switch (*dtype) {
        case DType::F16:
          return f(float16{}), true;
        case DType::BF16:
          return f(bfloat16{}), true;
        case DType::F32:
          return f(float{}), true;
        case DType::F64:
          return f(double{}), true;
        default:
          return false;
      }
    } else if constexpr (std::is_same_v<T, bool>) {
      // As bytes until they are known to be 0 or 1.
      return dtype == DType::BOOL && (f(std::uint8_t{}), true);
    } else {
      switch (*dtype) {
        case DType::I8:
          return f(std::int8_t{}), true;
        case DType::U8:
          return f(std::uint8_t{}), true;
        case DType::I16:
          return f(std::int16_t{}), true;
        case DType::U16:
          return f(std::uint16_t{}), true;
        case DType::I32:
          return f(std::int32_t{}), true;
        case DType::U32:
          return f(std::uint32_t{}), true;
        case DType::I64:
          return f(std::int64_t{}), true;
        case DType::U64:
          return f(std::uint64_t{}), true;
        default:
          return false;
      }
    }
  }

  // The data may be misaligned, so that elements are copied out bytewise.
  template <class Stored>
  static Stored element(const std::byte* from) {
    Stored value;
    std::memcpy(&value, from, sizeof(Stored));
    return value;
  }

  template <class T, class Stored>
  void check_values(std::string_view name, const SafetensorsEntry& entry) const {
    constexpr bool is_bool = std::is_same_v<T, bool>;
    if constexpr (!is_bool && std::is_same_v<T, Stored>) return;
    const std::span<const std::byte> data = bytes_of(entry);
    for (std::size_t at = 0; at < data.size(); at += sizeof(Stored)) {
      const Stored value = element<Stored>(data.data() + at);
      bool fits;
      if constexpr (is_bool) {
        fits = value <= 1;
      } else {
        fits = std::in_range<T>(value);
      }
      if (fits) continue;
      throw ValueError(error(
          "load", name,
          is_bool ? "hold bytes of 0 or 1 only" : detail::concat("fit ", attn::name(dtype_of<T>())),
          detail::concat(value, " at element ", at / sizeof(Stored))));
    }
  }

  template <class T, int Rank>
  void decode_to(const SafetensorsEntry& entry, TensorView<T, Rank> out) const {
    // Without this an extent of 2^40 beside one of 0 would be counted through.
    if (out.size() == 0) return;
    with_stored_type<T>(entry.dtype,
                        [&]<class Stored>(Stored) { decode<Stored>(bytes_of(entry).data(), out); });
  }

  /// Converts elements in order; returns the position after the last.
  template <class Stored, class T, int Rank>
  static const std::byte* decode(const std::byte* from, TensorView<T, Rank> out) {
    if constexpr (std::is_same_v<T, Stored>) {
      if (out.is_contiguous()) {
        const std::size_t bytes = static_cast<std::size_t>(out.size()) * sizeof(T);
        std::memcpy(out.data(), from, bytes);
        return from + bytes;
      }
    }
    for (index_t i = 0; i < out.extent(0); ++i) {
      if constexpr (Rank > 1) {
        from = decode<Stored>(from, out.select(0, i));
      } else {
        const Stored value = element<Stored>(from);
        out(i) = static_cast<T>(value);
        from += sizeof(Stored);
      }
    }
    return from;
  }

  MappedFile map_;
  std::span<const std::byte> bytes_;
  std::string file_name_;
  SafetensorsHeader header_;
};

ATTN_NAMESPACE_END
