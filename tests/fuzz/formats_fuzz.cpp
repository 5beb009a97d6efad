// libFuzzer: products of every quantised format, attention on caches of every element.
#include <cstdlib>
#include <iostream>

#include "support/draws/format_draw.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  attn_test::Random random(std::span(data, size));
  const std::string found = attn_test::format_difference(random);
  if (found.empty()) return 0;
  std::cerr << found << '\n';
  std::abort();
}
