// GgufFile: metadata and tensors by name in a memory-mapped GGUF file, dense or quantised.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "attn/core/tensor.hpp"
#include "attn/io/gguf/blocks.hpp"
#include "attn/io/gguf/split.hpp"
#include "attn/io/mapped_file.hpp"
#include "attn/io/stored_tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// A tensor as stored in a file: `bytes` are whole blocks, row by row.
struct GgufTensor {
  GgufType type;
  std::vector<index_t> shape;  ///< outermost first; empty for a scalar
  std::span<const std::byte> bytes;
};

/// An open GGUF file, or all parts of a split one; const calls are thread-safe. Opening checks the
/// whole header: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
/// Unknown names throw ValueError, unsupported types DTypeError, unexpected shapes ShapeError, all
/// naming file and tensor; other tensors can still be loaded.
class GgufFile {
 public:
  /// Maps the file; the first part of a split model, name-00001-of-00003.gguf, opens the others
  /// beside it. Throws IoError if a file cannot be read or breaks the format, or parts contradict
  /// each other.
  explicit GgufFile(const std::filesystem::path& path) : file_name_(detail::utf8(path)) {
    header_ = map(path);
    if (header_.split.count <= 1) return;
    const auto paths = detail::gguf_part_paths(path, header_.split);
    for (std::size_t no = 1; no < paths.size(); ++no) {
      detail::join_gguf_part(header_, map(paths[no]), no, detail::utf8(paths[no]));
    }
    detail::finish_gguf_parts(header_, file_name_);
  }

  /// Reads a file's bytes from memory that the caller keeps alive; `name` stands for the file in
  /// errors.
  explicit GgufFile(std::span<const std::byte> bytes, std::string name = "memory")
      : bytes_({bytes}), file_name_(std::move(name)) {
    header_ = parse_gguf_header(bytes, file_name_);
    if (header_.split.count <= 1) return;
    throw IoError(
        message("GgufFile", detail::concat(detail::quote(file_name_), ": the model"),
                "be in one piece of memory (a path opens all parts)",
                detail::concat("part ", header_.split.no + 1, " of ", header_.split.count)));
  }

  GgufFile(GgufFile&&) noexcept = default;
  GgufFile& operator=(GgufFile&&) noexcept = default;

  const std::string& file_name() const { return file_name_; }

  /// Metadata keys, sorted.
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return header_.metadata; }
  bool has(std::string_view key) const { return header_.metadata.contains(key); }

  /// The value of a key. Throws ValueError if it is missing or does not fit T, DTypeError if it has
  /// another kind.
  template <GgufElement T>
  T get(std::string_view key) const {
    return value(key).template get<T>(subject(key));
  }
  /// The value of a key, or `otherwise` if it is missing.
  template <GgufElement T>
  T get(std::string_view key, T otherwise) const {
    return has(key) ? get<T>(key) : otherwise;
  }
  template <GgufElement T>
  std::vector<T> array(std::string_view key) const {
    return value(key).template array<T>(subject(key));
  }

  /// Tensor names, in the file's order.
  const std::vector<std::string>& names() const { return header_.names; }
  bool contains(std::string_view name) const { return header_.tensors.contains(name); }
  /// Empty for a scalar.
  const std::vector<index_t>& shape(std::string_view name) const {
    return find("shape", name).shape;
  }

  /// Releases the memory of a tensor's bytes until they are read again: for a mapped file, its
  /// whole pages.
  void release(std::string_view name) const {
    const GgufEntry& entry = find("release", name);
    if (!maps_.empty()) maps_[entry.part].release(bytes_of(entry));
  }

  /// Type, shape and stored bytes of a tensor, valid for the life of this object (moved or not).
  GgufTensor tensor(std::string_view name) const& {
    const GgufEntry& entry = find("tensor", name);
    return {type_of("tensor", name, entry), entry.shape, bytes_of(entry)};
  }
  GgufTensor tensor(std::string_view name) const&& = delete;  // would dangle

  /// A view of a tensor of F32 in the file. A scalar has shape (1). Throws ValueError if the data
  /// are not aligned for float.
  template <int Rank>
  TensorView<const float, Rank> view(std::string_view name) const& {
    const GgufEntry& entry = find("view", name);
    if (const GgufType type = type_of("view", name, entry); type != GgufType::F32) {
      throw DTypeError(error("view", name, "hold F32 (load() converts)", attn::name(type)));
    }
    return stored(name, entry.shape).template view_as<float, Rank>(bytes_of(entry), entry.begin);
  }
  template <int Rank>
  TensorView<const float, Rank> view(std::string_view name) const&& = delete;  // would dangle

  /// A copy in float, of any supported type. A scalar has shape (1).
  template <int Rank>
  Tensor<float, Rank> load(std::string_view name) const {
    const GgufEntry& entry = find("load", name);
    type_of("load", name, entry);
    auto result = Tensor<float, Rank>::uninitialized(
        stored(name, entry.shape).template shape_as<Rank>("load"));
    load(name, result.view());
    return result;
  }

  /// Loads into contiguous memory of the caller. Throws before the first write.
  template <int Rank>
  void load(std::string_view name, TensorView<float, Rank> out) const {
    check(name, out.shape());
    const GgufEntry& entry = find("load", name);
    if (out.size() > 0 && !out.is_contiguous()) {
      throw ShapeError(error("load", name, "be loaded to a contiguous view (these are the strides)",
                             to_string(out.strides())));
    }
    dequantize_gguf(type_of("load", name, entry), bytes_of(entry),
                    {out.data(), static_cast<std::size_t>(out.size())});
  }

  /// Throws what load() would throw for this shape.
  void check(std::string_view name, std::span<const index_t> shape) const {
    const GgufEntry& entry = find("load", name);
    type_of("load", name, entry);
    stored(name, entry.shape).check_shape("load", shape);
  }

 private:
  std::string subject(std::string_view key) const {
    return detail::concat(detail::quote(file_name_), ": key ", detail::quote(key));
  }
  detail::StoredTensor stored(std::string_view name, std::span<const index_t> shape) const {
    return {.reader = "GgufFile", .file = file_name_, .name = name, .shape = shape};
  }
  std::string error(std::string_view function, std::string_view name, std::string_view expected,
                    std::string_view found) const {
    return stored(name, {}).error(function, expected, found);
  }

  const GgufValue& value(std::string_view key) const {
    const auto found = header_.metadata.find(key);
    if (found == header_.metadata.end()) {
      throw ValueError(message("GgufFile", subject(key), "be in the file", "none"));
    }
    return found->second;
  }

  const GgufEntry& find(std::string_view function, std::string_view name) const {
    const auto found = header_.tensors.find(name);
    if (found == header_.tensors.end()) {
      throw ValueError(error(function, name, "be in the file",
                             detail::concat("none among ", header_.names.size(), " tensors")));
    }
    return found->second;
  }

  GgufType type_of(std::string_view function, std::string_view name, const GgufEntry& entry) const {
    if (const auto type = gguf_type(entry.type)) return *type;
    throw DTypeError(
        error(function, name,
              "be of type F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, "
              "Q6_K, IQ4_NL, IQ4_XS or MXFP4",
              detail::gguf_type_name(entry.type)));
  }

  std::span<const std::byte> bytes_of(const GgufEntry& entry) const {
    if (entry.bytes == 0) return {};  // such an offset may lie beyond the file's end
    return bytes_[entry.part].subspan(static_cast<std::size_t>(entry.begin),
                                      static_cast<std::size_t>(entry.bytes));
  }

  /// Maps the next part, and returns its header.
  GgufHeader map(const std::filesystem::path& path) {
    bytes_.push_back(maps_.emplace_back(path).bytes());
    return parse_gguf_header(bytes_.back(), detail::utf8(path));
  }

  std::vector<MappedFile> maps_;  ///< the parts; none of bytes in memory
  std::vector<std::span<const std::byte>> bytes_;
  std::string file_name_;
  GgufHeader header_;
};

ATTN_NAMESPACE_END
