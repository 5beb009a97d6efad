// NpyArray, save_npy: numpy's .npy files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attn/core/tensor.hpp"
#include "attn/io/atomic_file.hpp"
#include "attn/io/mapped_file.hpp"
#include "attn/io/named_tensor.hpp"
#include "attn/io/numpy/npy_header.hpp"
#include "attn/io/stored_elements.hpp"

ATTN_NAMESPACE_BEGIN

/// One array, from a .npy file or a member of a .npz file; const calls are thread-safe. Opening
/// checks the header and the length of the data. Unexpected types throw DTypeError, unexpected
/// shapes ShapeError, naming the file.
///
/// A file may hold several arrays one after another, as np.save() to one open file writes them:
/// next_offset() is where the next one begins.
class NpyArray {
 public:
  /// Maps the file; the array begins at `offset`, in bytes. Throws ValueError for an offset beyond
  /// the file, IoError if the file cannot be read or breaks the format, DTypeError for unsupported
  /// elements (text, objects, structures, complex numbers).
  explicit NpyArray(const std::filesystem::path& path, std::size_t offset = 0)
      : map_(path), bytes_(map_.bytes()), offset_(offset), file_name_(detail::utf8(path)) {
    if (offset > bytes_.size()) {
      throw ValueError(
          message("NpyArray", detail::concat(file_name_, ": offset"),
                  detail::concat("lie within the ", bytes_.size(), " bytes of the file"),
                  std::to_string(offset)));
    }
    bytes_ = bytes_.subspan(offset);
    open();
  }
  /// Reads a file's bytes from memory that the caller keeps alive; `name` stands for the file in
  /// errors.
  explicit NpyArray(std::span<const std::byte> bytes, std::string name = "memory")
      : bytes_(bytes), file_name_(std::move(name)) {
    open();
  }
  /// Owns the bytes of the file.
  NpyArray(Buffer<std::byte> bytes, std::string name)
      : storage_(std::move(bytes)),
        bytes_(storage_.data(), static_cast<std::size_t>(storage_.size())),
        file_name_(std::move(name)) {
    open();
  }

  NpyArray(NpyArray&&) noexcept = default;
  NpyArray& operator=(NpyArray&&) noexcept = default;

  const std::string& file_name() const { return file_name_; }
  DType dtype() const { return header_.dtype; }
  /// Empty for a scalar.
  const std::vector<index_t>& shape() const { return header_.shape; }
  /// Whether the first axis is contiguous, as in Fortran and in Eigen's matrices.
  bool is_fortran_order() const { return header_.is_fortran_order; }
  /// The `offset` of the next array, in bytes from the start of the file or memory; none if this
  /// array is the last one.
  std::optional<std::size_t> next_offset() const {
    const std::size_t end = header_.data_begin + header_.data_size;
    return end < bytes_.size() ? std::optional(offset_ + end) : std::nullopt;
  }

  /// A view of the array in the file, without a copy, for the life of this object (moved or not);
  /// Fortran order appears as strides. T must be the stored type; bool can only be loaded. A scalar
  /// has shape (1). Throws ValueError if the data have the other byte order or are not aligned for
  /// T: use load().
  template <TensorElement T, int Rank>
  TensorView<const T, Rank> view() const& {
    static_assert(!std::same_as<T, bool>, "bool can only be loaded");
    if (header_.dtype != dtype_of<T>()) {
      throw DTypeError(
          error("view", detail::concat("hold ", name(dtype_of<T>())), name(header_.dtype)));
    }
    const Shape<Rank> shape = shape_as<Rank>("view");
    if (header_.is_big_endian) {
      throw ValueError(error("view", "be little-endian to be viewed (load() copies it)", ">"));
    }
    if (reinterpret_cast<std::uintptr_t>(data().data()) % alignof(T) != 0) {
      throw ValueError(error("view",
                             detail::concat("lie on a multiple of ", alignof(T),
                                            " bytes to be viewed (load() copies it)"),
                             detail::concat("an offset of ", offset_ + header_.data_begin)));
    }
    return ordered<T, Rank>(reinterpret_cast<const T*>(data().data()), shape);
  }
  template <TensorElement T, int Rank>
  TensorView<const T, Rank> view() const&& = delete;  // would dangle

  /// A copy, for any alignment, order of axes and byte order. Floats of every size are loaded from
  /// F16, F32 and F64; integers from every integer type, if all values fit; bool from BOOL, as
  /// SafetensorsFile::load() does.
  template <TensorElement T, int Rank>
  Tensor<T, Rank> load() const {
    const Shape<Rank> shape = shape_as<Rank>("load");
    if (!detail::with_stored_type<T>(header_.dtype, [](auto) {})) {
      throw DTypeError(error(
          "load",
          detail::concat(detail::loadable_types<T>(), " to be loaded as ", name(dtype_of<T>())),
          name(header_.dtype)));
    }
    detail::check_stored_values<T>(header_.dtype, data(), header_.is_big_endian,
                                   [&](std::string_view expected, std::string_view found) {
                                     throw ValueError(error("load", expected, found));
                                   });
    auto result = Tensor<T, Rank>::uninitialized(shape);
    // In the order of the file: its last axis fastest, which is the first one in Fortran order.
    TensorView<T, Rank> target = result.view();
    if (header_.is_fortran_order) target = reversed(target);
    detail::decode_stored<T, Rank>(header_.dtype, data(), header_.is_big_endian, target);
    return result;
  }

  template <class T, int Rank>
  void view() const {
    detail::assert_tensor_element<T>();
  }
  template <class T, int Rank>
  Tensor<T, Rank> load() const {
    return detail::assert_tensor_element<T>(), Tensor<T, Rank>();
  }

 private:
  void open() {
    header_ = parse_npy_header(bytes_, file_name_);
    const std::span<const std::byte> rest = bytes_.subspan(header_.data_begin);
    // Bytes that are not those of another array are refused: the header or the data are damaged.
    if (rest.size() < header_.data_size ||
        (rest.size() > header_.data_size && !detail::begins_npy(rest.subspan(header_.data_size)))) {
      throw IoError(
          message("NpyArray", detail::concat(file_name_, ": the data"),
                  detail::concat("have the ", header_.data_size, " bytes of ", name(header_.dtype),
                                 " ", detail::shape_text(header_.shape),
                                 " and end there or before another array"),
                  detail::concat(rest.size(), " bytes")));
    }
  }

  std::string error(std::string_view function, std::string_view expected,
                    std::string_view found) const {
    return message(detail::concat("NpyArray::", function),
                   detail::concat(file_name_, ": the array"), expected, found);
  }

  static std::string_view name(DType dtype) { return attn::name(dtype); }
  std::span<const std::byte> data() const {
    return bytes_.subspan(header_.data_begin, header_.data_size);
  }

  template <int Rank>
  Shape<Rank> shape_as(std::string_view function) const {
    if (Rank == 1 && header_.shape.empty()) return {1};
    if (header_.shape.size() != Rank) {
      throw ShapeError(error(function, detail::concat("have rank ", Rank),
                             detail::concat("shape ", detail::shape_text(header_.shape))));
    }
    Shape<Rank> shape{};
    std::copy(header_.shape.begin(), header_.shape.end(), shape.begin());
    return shape;
  }

  template <class T, int Rank>
  static TensorView<T, Rank> reversed(const TensorView<T, Rank>& x) {
    Shape<Rank> shape = x.shape(), strides = x.strides();
    std::reverse(shape.begin(), shape.end());
    std::reverse(strides.begin(), strides.end());
    return {x.data(), shape, strides};
  }
  template <class T, int Rank>
  TensorView<const T, Rank> ordered(const T* elements, Shape<Rank> shape) const {
    if (!header_.is_fortran_order) return {elements, shape};
    std::reverse(shape.begin(), shape.end());
    return reversed<const T, Rank>({elements, shape});
  }

  MappedFile map_;
  Buffer<std::byte> storage_;
  std::span<const std::byte> bytes_;  // from this array's header to the end of the file
  std::size_t offset_ = 0;
  std::string file_name_;
  NpyHeader header_;
};

namespace detail {

/// A .npy file's bytes up to its data, which begin at a multiple of 64. Throws DTypeError for a
/// type that numpy lacks.
inline std::string npy_preamble(std::string_view function, const NamedTensor& tensor) {
  std::string descr;
  for (const NpyType& type : kNpyTypes) {
    if (type.dtype != tensor.dtype()) continue;
    descr = concat(element_size(type.dtype) == 1 ? "|" : "<", type.name);
  }
  if (descr.empty()) {
    throw DTypeError(message(function, concat("the array ", quote(tensor.name())),
                             "hold a type that numpy has (convert it, or use safetensors)",
                             attn::name(tensor.dtype())));
  }
  if (tensor.shape().size() > kMaxNpyAxes) {
    throw ShapeError(message(function, concat("the array ", quote(tensor.name())),
                             concat("have at most ", kMaxNpyAxes, " axes"),
                             std::to_string(tensor.shape().size())));
  }
  std::string header = concat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (");
  for (index_t extent : tensor.shape()) header += concat(extent, ", ");
  if (tensor.shape().size() > 1) header.resize(header.size() - 2);
  header += "), }";
  constexpr std::size_t prefix = 10;
  while ((prefix + header.size() + 1) % kAlignment != 0) header += ' ';
  header += '\n';
  std::string preamble("\x93NUMPY\x01\x00", 8);
  preamble += static_cast<char>(header.size() & 0xFF);
  preamble += static_cast<char>(header.size() >> 8);
  return preamble + header;
}

}  // namespace detail

/// Writes one array, in C order, atomically: `np.load(path)` reads it. Throws DTypeError for
/// bfloat16, which numpy lacks, IoError naming the file if it cannot be written.
template <TensorLike X>
void save_npy(const std::filesystem::path& path, const X& x) {
  const NamedTensor tensor("x", x);
  const std::string preamble = detail::npy_preamble("save_npy", tensor);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(preamble)));
  tensor.for_each_run([&](std::span<const std::byte> piece) { file.write(piece); });
  file.commit();
}

ATTN_NAMESPACE_END
