// Safetensors files as dicts of numpy arrays.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <nanobind/stl/filesystem.h>

#include "attn/io/safetensors.hpp"

#include "arrays.hpp"
#include "bindings.hpp"

namespace attn_python {

namespace {

/// The type of a view in numpy: 8-bit floats are bytes.
nb::dlpack::dtype stored_type(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto bits = static_cast<std::uint8_t>(8 * attn::element_size(dtype));
  const auto of = [&](Code code) {
    return nb::dlpack::dtype{static_cast<std::uint8_t>(code), bits, 1};
  };
  switch (dtype) {
    case DType::BOOL:
      return of(Code::Bool);
    case DType::I8:
    case DType::I16:
    case DType::I32:
    case DType::I64:
      return of(Code::Int);
    case DType::F16:
    case DType::F32:
    case DType::F64:
      return of(Code::Float);
    case DType::C64:
      return of(Code::Complex);
    default:
      return of(Code::UInt);
  }
}

/// A copy as float32.
nb::object widened(const attn::SafetensorsFile& file, const std::string& name) {
  Extents shape;
  for (const index_t extent : file.shape(name)) shape.push_back(extent);
  const Result made = make(Framework::numpy, DType::F32, shape);
  const std::span<const std::byte> bytes = file.bytes(name);
  attn::detail::decode_stored<float, 1>(
      DType::BF16, bytes, false,
      attn::TensorView1<float>(made.elements<float>(), {shape.product()}));
  return made.object;
}

nb::dict load_safetensors(const std::filesystem::path& path) {
  using File = attn::SafetensorsFile;
  const auto file = std::make_shared<const File>(path);
  nb::dict result;
  for (const std::string& name : file->names()) {
    const DType dtype = file->dtype(name);
    if (dtype == DType::BF16) {
      result[name.c_str()] = widened(*file, name);
      continue;
    }
    const std::span<const std::byte> bytes = file->bytes(name);
    if (dtype == DType::BOOL &&
        std::any_of(bytes.begin(), bytes.end(), [](std::byte x) { return x > std::byte{1}; })) {
      throw_value("load", "tensor " + name, "hold booleans of 0 and 1", "another byte");
    }
    const std::vector<std::size_t> shape(file->shape(name).begin(), file->shape(name).end());
    // Every array keeps the mapped file alive.
    const nb::capsule owner(new std::shared_ptr<const File>(file), [](void* held) noexcept {
      delete static_cast<std::shared_ptr<const File>*>(held);
    });
    const nb::ndarray<nb::numpy, nb::ro> array(bytes.data(), shape.size(), shape.data(), owner,
                                               nullptr, stored_type(dtype));
    result[name.c_str()] = nb::cast(array);
  }
  return result;
}

}  // namespace

void bind_files(nb::module_& m) { m.def("load_safetensors", &load_safetensors, nb::arg("path")); }

}  // namespace attn_python
