// Prints the result of x(i, j) out of range, with and without ATTN_CHECK_INDEX.
#include <cstdio>

#include <attn/core.hpp>

int main() {
  attn::Tensor2<float> x({2, 3});
  const auto at = [&](attn::index_t i, attn::index_t j) {
    try {
      // Within the memory, so that unchecked builds read valid memory.
      std::printf("%g\n", static_cast<double>(x(i, j)));
    } catch (const attn::ShapeError& error) {
      std::printf("%s\n", error.what());
    }
  };
  at(1, 2);
  at(0, 3);
  at(1, -1);
}
