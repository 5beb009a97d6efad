// libFuzzer: any bytes give an IoError or a GGUF file that can be read completely.
//
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude -Itests \
//       tests/fuzz/gguf_fuzz.cpp -o gguf_fuzz && ./gguf_fuzz
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "support/files/gguf_bytes.hpp"

namespace {

void read(std::string_view text) {
  const attn_test::ExactBytes bytes(text);
  try {
    const attn::GgufFile file(bytes.span());
    attn_test::read_everything(file);
  } catch (const attn::IoError&) {
    // Most inputs are invalid.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  read(input);
  // Applies the input as changes to a valid file, at places that the input names: random bytes
  // hardly ever form a header of 64-bit lengths.
  std::string changed = attn_test::sample_gguf();
  for (std::size_t at = 0; at + 3 <= size; at += 3) {
    const std::size_t place = (std::size_t{data[at]} << 8 | data[at + 1]) % changed.size();
    changed[place] = static_cast<char>(data[at + 2]);
  }
  read(changed);
  return 0;
}
