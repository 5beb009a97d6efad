// Safetensors files made by hand, valid or not, and a reader of everything in a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/io.hpp"

namespace attn_test {

/// A length as eight bytes, little-endian.
inline std::string length_prefix(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xFF);
  return bytes;
}

inline std::string safetensors_file(std::string_view header, std::string_view data = "") {
  return length_prefix(header.size()).append(header).append(data);
}

/// A heap block of exactly this size: AddressSanitizer reports reads past its end.
class ExactBytes {
 public:
  explicit ExactBytes(std::string_view text) : buffer_(static_cast<attn::index_t>(text.size())) {
    if (!text.empty()) std::memcpy(buffer_.data(), text.data(), text.size());
  }
  std::span<const std::byte> span() const {
    return {buffer_.data(), static_cast<std::size_t>(buffer_.size())};
  }

 private:
  attn::Buffer<std::byte> buffer_;
};

/// The bytes of values, as in a file.
template <class T>
std::string bytes_of(std::initializer_list<T> values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::size_t at = 0;
  for (const T& value : values) std::memcpy(bytes.data() + sizeof(T) * at++, &value, sizeof(T));
  return bytes;
}

/// Calls f, which may throw a DTypeError, ShapeError or ValueError for a tensor of another type or
/// shape.
template <class F>
void allow_refusal(F&& f) {
  try {
    f();
  } catch (const std::invalid_argument&) {
  }
}

template <class T, int Rank>
void read_as(const attn::SafetensorsFile& file, const std::string& name, double& sum) {
  // Adds up bytes: arithmetic on unchecked values could fail itself.
  const auto add = [&](const T* data, attn::index_t size) {
    const auto bytes = std::as_bytes(std::span(data, static_cast<std::size_t>(size)));
    for (std::byte b : bytes) sum += std::to_integer<int>(b);
  };
  allow_refusal([&] {
    const auto tensor = file.load<T, Rank>(name);
    if constexpr (std::is_same_v<T, bool>) {
      for (bool b : tensor.elements()) sum += b ? 1 : 0;
    }
    add(tensor.data(), tensor.size());
  });
  if constexpr (!std::is_same_v<T, bool>) {
    allow_refusal([&] {
      const auto view = file.view<T, Rank>(name);
      add(view.data(), view.size());
    });
  }
}

template <int Rank>
void read_all_types(const attn::SafetensorsFile& file, const std::string& name, double& sum) {
  read_as<float, Rank>(file, name, sum);
  read_as<double, Rank>(file, name, sum);
  read_as<attn::float16, Rank>(file, name, sum);
  read_as<attn::bfloat16, Rank>(file, name, sum);
  read_as<bool, Rank>(file, name, sum);
  read_as<std::int8_t, Rank>(file, name, sum);
  read_as<std::uint16_t, Rank>(file, name, sum);
  read_as<std::int32_t, Rank>(file, name, sum);
  read_as<std::int64_t, Rank>(file, name, sum);
}

/// Reads every byte in every available way; returns a number made from them.
inline double read_everything(const attn::SafetensorsFile& file) {
  double sum = 0;
  for (const auto& [key, text] : file.metadata()) sum += static_cast<double>((key + text).size());
  for (const std::string& name : file.names()) {
    for (std::byte b : file.bytes(name)) sum += std::to_integer<int>(b);
    sum += static_cast<double>(file.shape(name).size());
    allow_refusal([&] {
      const attn::NamedTensor tensor = file.tensor(name);
      sum += static_cast<double>(tensor.size()) + static_cast<double>(file.dtype(name));
    });
    read_all_types<1>(file, name, sum);
    read_all_types<2>(file, name, sum);
    read_all_types<3>(file, name, sum);
  }
  return sum;
}

/// A small file with metadata, escapes, a scalar, an empty tensor, 16-bit floats, integers and
/// bool.
inline std::string sample_safetensors() {
  return safetensors_file(R"({"__metadata__":{"format":"pt","note":"caf\u00e9 \"x\""},)"
                          R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                          R"("scalar":{"dtype":"F64","shape":[],"data_offsets":[24,32]},)"
                          R"("none":{"dtype":"F32","shape":[0,4],"data_offsets":[32,32]},)"
                          R"("ids":{"shape":[2],"data_offsets":[32,48],"dtype":"I64"},)"
                          R"("h\u00e9":{"dtype":"F16","shape":[1,1,3],"data_offsets":[48,54]},)"
                          R"("mask":{"dtype":"BOOL","shape":[3],"data_offsets":[54,57]},)"
                          R"("bf":{"dtype":"BF16","shape":[2],"data_offsets":[57,61]}}   )",
                          bytes_of<float>({1, 2, 3, 4, 5, 6}) + bytes_of<double>({-0.5}) +
                              bytes_of<std::int64_t>({-1, std::int64_t{1} << 40}) +
                              bytes_of<std::uint16_t>({0x3C00, 0xC000, 0x0001}) +
                              bytes_of<std::uint8_t>({0, 1, 1}) +
                              bytes_of<std::uint16_t>({0x3F80, 0x7F80}));
}

}  // namespace attn_test
