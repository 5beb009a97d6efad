// A program that catches the plugin's exceptions by the types of its own headers.
#include <cmath>
#include <cstdio>
#include <string_view>

#include <attn/attn.hpp>

float plugin_attend(int head_dim);
void plugin_read();

int main() {
  if (std::abs(plugin_attend(16) - 0.5F) > 1e-6F) return 1;
  try {
    plugin_attend(15);
    return 2;
  } catch (const attn::ShapeError& error) {
    std::printf("ShapeError: %s\n", error.what());
    if (std::string_view(error.what()).find("(1, 2, 8, 15)") == std::string_view::npos) return 3;
  }
  try {
    plugin_read();
    return 4;
  } catch (const attn::IoError&) {
  }
  return 0;
}
