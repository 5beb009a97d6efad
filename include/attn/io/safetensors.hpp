// SafetensorsFile: tensors of a memory-mapped safetensors file by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/core/tensor.hpp"
#include "attn/io/mapped_file.hpp"
#include "attn/io/named_tensor.hpp"
#include "attn/io/safetensors/header.hpp"
#include "attn/io/stored_elements.hpp"
#include "attn/io/stored_tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// An open safetensors file; const calls are thread-safe. Opening checks the whole header:
/// https://github.com/huggingface/safetensors#format. Unknown names throw ValueError, unexpected
/// element types DTypeError, unexpected shapes ShapeError, all naming file and tensor.
class SafetensorsFile {
 public:
  /// Maps the file. Throws IoError if it cannot be read or breaks the format.
  explicit SafetensorsFile(const std::filesystem::path& path)
      : map_(path), bytes_(map_.bytes()), file_name_(detail::utf8(path)) {
    header_ = parse_safetensors_header(bytes_, file_name_);
  }

  /// Reads a file's bytes from memory that the caller keeps alive; `name` stands for the file in
  /// errors.
  explicit SafetensorsFile(std::span<const std::byte> bytes, std::string name = "memory")
      : bytes_(bytes), file_name_(std::move(name)) {
    header_ = parse_safetensors_header(bytes_, file_name_);
  }

  SafetensorsFile(SafetensorsFile&&) noexcept = default;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept = default;

  const std::string& file_name() const { return file_name_; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }

  /// Tensor names, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& item : header_.tensors) result.push_back(item.first);
    return result;
  }

  bool contains(std::string_view name) const { return header_.tensors.contains(name); }
  /// Throws DTypeError for an unsupported type; such a tensor is available only as bytes().
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

  /// The tensor as stored, of any type and rank, to be written again by save_safetensors(); valid
  /// for the life of this object. Throws DTypeError for an unsupported type.
  NamedTensor tensor(std::string_view name) const& {
    const SafetensorsEntry& entry = find("tensor", name);
    return {std::string(name), known_dtype("tensor", name, entry), entry.shape, bytes_of(entry)};
  }
  NamedTensor tensor(std::string_view name) const&& = delete;  // would dangle

  /// A view of the tensor in the file, without a copy, for the life of this object (moved or not).
  /// T must be the stored type; bool cannot be viewed, since a stored byte other than 0 and 1 is
  /// not a valid bool. A scalar has shape (1). Throws ValueError if the data are not aligned for T:
  /// use load().
  template <TensorElement T, int Rank>
  TensorView<const T, Rank> view(std::string_view name) const& {
    static_assert(!std::same_as<T, bool>, "bool can only be loaded");
    const SafetensorsEntry& entry = find("view", name);
    if (entry.dtype != dtype_of<T>()) {
      throw DTypeError(error("view", name, detail::concat("hold ", attn::name(dtype_of<T>())),
                             stored_type(entry)));
    }
    return stored(name, entry.shape)
        .template view_as<T, Rank>(bytes_of(entry), header_.data_begin + entry.begin);
  }

  template <TensorElement T, int Rank>
  TensorView<const T, Rank> view(std::string_view name) const&& = delete;  // would dangle

  /// A copy, for any alignment. Floats of every size are loaded from F16, BF16, F32 and F64 (wider
  /// types are rounded once, to nearest even); integers from every integer type, if all values fit;
  /// bool from BOOL, if all bytes are 0 or 1, otherwise ValueError. A scalar has shape (1).
  template <TensorElement T, int Rank>
  Tensor<T, Rank> load(std::string_view name) const {
    const SafetensorsEntry& entry = find("load", name);
    const Shape<Rank> shape = stored(name, entry.shape).template shape_as<Rank>("load");
    check<T>(name, shape);
    auto result = Tensor<T, Rank>::uninitialized(shape);
    detail::decode_stored<T, Rank>(*entry.dtype, bytes_of(entry), false, result.view());
    return result;
  }

  /// Loads into memory of the caller, of any strides. Throws before the first write.
  template <TensorElement T, int Rank>
  void load(std::string_view name, TensorView<T, Rank> out) const {
    check<T>(name, out.shape());
    const SafetensorsEntry& entry = find("load", name);
    detail::decode_stored<T, Rank>(*entry.dtype, bytes_of(entry), false, out);
  }

  template <class T, int Rank>
  void view(std::string_view) const {
    detail::assert_tensor_element<T>();
  }
  template <class T, int Rank>
  Tensor<T, Rank> load(std::string_view) const {
    return detail::assert_tensor_element<T>(), Tensor<T, Rank>();
  }

  /// Throws what load() would throw for elements T and this shape.
  template <TensorElement T>
  void check(std::string_view name, std::span<const index_t> shape) const {
    const SafetensorsEntry& entry = find("load", name);
    if (!detail::with_stored_type<T>(entry.dtype, [](auto) {})) {
      throw DTypeError(error("load", name,
                             detail::concat(detail::loadable_types<T>(), " to be loaded as ",
                                            attn::name(dtype_of<T>())),
                             stored_type(entry)));
    }
    stored(name, entry.shape).check_shape("load", shape);
    detail::check_stored_values<T>(*entry.dtype, bytes_of(entry), false,
                                   [&](std::string_view expected, std::string_view found) {
                                     throw ValueError(error("load", name, expected, found));
                                   });
  }

 private:
  detail::StoredTensor stored(std::string_view name, std::span<const index_t> shape) const {
    return {.reader = "SafetensorsFile", .file = file_name_, .name = name, .shape = shape};
  }
  std::string error(std::string_view function, std::string_view name, std::string_view expected,
                    std::string_view found) const {
    return stored(name, {}).error(function, expected, found);
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
    return bytes_.subspan(header_.data_begin + entry.begin, entry.end - entry.begin);
  }

  MappedFile map_;
  std::span<const std::byte> bytes_;
  std::string file_name_;
  SafetensorsHeader header_;
};

ATTN_NAMESPACE_END
