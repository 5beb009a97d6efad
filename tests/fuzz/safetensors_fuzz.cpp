// libFuzzer: any bytes give an IoError or a safetensors file that can be read completely.
//
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude -Itests \
//       tests/fuzz/safetensors_fuzz.cpp -o safetensors_fuzz && ./safetensors_fuzz
#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/io.hpp"

#include "support/files/safetensors_bytes.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const attn::SafetensorsFile file(std::as_bytes(std::span(data, size)));
    attn_test::read_everything(file);
  } catch (const attn::IoError&) {
    // Most inputs are invalid.
  }
  return 0;
}
