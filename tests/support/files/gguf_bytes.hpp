// GGUF files made by hand, valid or not, and a reader of everything in a file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attn/io/gguf.hpp"

#include "support/files/safetensors_bytes.hpp"

namespace attn_test {

/// Little-endian bytes of numbers, and text with its length before it.
template <class T>
std::string gguf_number(T value) {
  return bytes_of<T>({value});
}
inline std::string gguf_text(std::string_view text) {
  return gguf_number(std::uint64_t{text.size()}).append(text);
}

/// One key with its type and its value's bytes.
inline std::string gguf_key(std::string_view key, std::uint32_t type, std::string_view value) {
  return gguf_text(key).append(gguf_number(type)).append(value);
}

/// The header entry of a tensor; extents innermost first, as in the file.
inline std::string gguf_tensor(std::string_view name, const std::vector<std::uint64_t>& extents,
                               std::uint32_t type, std::uint64_t offset) {
  std::string bytes =
      gguf_text(name).append(gguf_number(static_cast<std::uint32_t>(extents.size())));
  for (const std::uint64_t extent : extents) bytes += gguf_number(extent);
  return bytes.append(gguf_number(type)).append(gguf_number(offset));
}

/// A whole file; `tensors` and `keys` are the counts in its header.
inline std::string gguf_file(std::uint64_t tensors, std::uint64_t keys, std::string_view header,
                             std::string_view data = "", std::uint32_t version = 3,
                             std::size_t alignment = 32) {
  std::string bytes = "GGUF" + gguf_number(version);
  bytes.append(gguf_number(tensors)).append(gguf_number(keys)).append(header);
  if (!data.empty()) bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
  return bytes.append(data);
}

/// Reads every value and tensor in every available way; returns a number made from them.
inline double read_everything(const attn::GgufFile& file) {
  double sum = 0;
  const auto refused = [](auto&& f) {
    try {
      f();
    } catch (const std::invalid_argument&) {
      // A DTypeError, ShapeError or ValueError: it has another type.
    }
  };
  for (const auto& item : file.metadata()) {
    const std::string& key = item.first;
    refused([&] { sum += static_cast<double>(file.get<std::string_view>(key).size()); });
    refused([&] { sum += file.get<bool>(key) ? 1 : 0; });
    refused([&] { sum += static_cast<double>(file.get<std::int16_t>(key)); });
    refused([&] { sum += static_cast<double>(file.get<std::uint64_t>(key)); });
    refused([&] { sum += std::isnan(file.get<double>(key)) ? 1 : 0; });
    refused([&] {
      for (const std::string_view text : file.array<std::string_view>(key)) {
        for (const char c : text) sum += c;
      }
    });
    refused([&] { sum += static_cast<double>(file.array<std::int32_t>(key).size()); });
    refused([&] { sum += static_cast<double>(file.array<float>(key).size()); });
    refused([&] { sum += static_cast<double>(file.array<bool>(key).size()); });
  }
  const auto add = [&](auto* data, attn::index_t size) {
    for (const std::byte b : std::as_bytes(std::span(data, static_cast<std::size_t>(size)))) {
      sum += std::to_integer<int>(b);
    }
  };
  for (const std::string& name : file.names()) {
    refused([&] {
      const attn::GgufTensor tensor = file.tensor(name);
      add(tensor.bytes.data(), static_cast<attn::index_t>(tensor.bytes.size()));
    });
    const auto read = [&]<int Rank>(std::integral_constant<int, Rank>) {
      refused([&] {
        const auto view = file.view<Rank>(name);
        add(view.data(), view.size());
      });
      refused([&] {
        const auto tensor = file.load<Rank>(name);
        add(tensor.data(), tensor.size());
      });
    };
    read(std::integral_constant<int, 1>{});
    read(std::integral_constant<int, 2>{});
    read(std::integral_constant<int, 3>{});
    read(std::integral_constant<int, 4>{});
  }
  return sum;
}

/// A small file with all types of values.
inline std::string sample_gguf() {
  using namespace std::string_literals;
  const std::string strings = gguf_number(std::uint32_t{8}) + gguf_number(std::uint64_t{3}) +
                              gguf_text("a") + gguf_text("") + gguf_text("caf\u00e9");
  const std::string numbers = gguf_number(std::uint32_t{5}) + gguf_number(std::uint64_t{2}) +
                              bytes_of<std::int32_t>({-1, 7});
  std::string header =
      gguf_key("general.architecture", 8, gguf_text("test")) +
      gguf_key("general.alignment", 4, gguf_number(std::uint32_t{8})) +
      gguf_key("t.flag", 7, "\1"s) + gguf_key("t.small", 1, gguf_number(std::int8_t{-3})) +
      gguf_key("t.large", 10, gguf_number(std::uint64_t{1} << 63)) +
      gguf_key("t.half", 6, gguf_number(0.5f)) + gguf_key("t.third", 12, gguf_number(1.0 / 3)) +
      gguf_key("t.strings", 9, strings) + gguf_key("t.numbers", 9, numbers);
  header += gguf_tensor("matrix", {3, 2}, 0, 0) + gguf_tensor("scalar", {}, 0, 24) +
            gguf_tensor("none", {0, 4}, 0, 32) + gguf_tensor("blocks", {32, 1}, 8, 32) +
            gguf_tensor("other", {256}, 16, 72);
  const std::string q8 = bytes_of<std::uint16_t>({0x3C00}) + std::string(32, '\2');
  return gguf_file(
      5, 9, header,
      bytes_of<float>({1, 2, 3, 4, 5, 6, 7}) + std::string(4, '\0') + q8 + std::string(6, '\0'), 3,
      8);
}

}  // namespace attn_test
