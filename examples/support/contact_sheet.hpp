// The picture of an attention map: every head of every layer small, layers down and heads across, as a PNG.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <png.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "attn/attn.hpp"

namespace examples {

using Rgb = std::array<std::uint8_t, 3>;

// The colour of a weight in [0, 1]: lightness falls evenly with its square root, since most weights of a
// row are small. The light scale of pages/page.css, whose colours are evenly spaced in OKLCH.
inline Rgb weight_colour(float weight) {
  static constexpr std::array<std::uint32_t, 9> kScale = {
      0xf5f7f9, 0xbfdefd, 0x92c1f8, 0x6ea4ec, 0x5486d8, 0x4269bc, 0x354e9a, 0x2a3771, 0x1f2342};
  const float at = std::sqrt(std::clamp(weight, 0.0F, 1.0F)) * float{kScale.size() - 1};
  const std::size_t below = std::min(static_cast<std::size_t>(at), kScale.size() - 2);
  const float part = at - static_cast<float>(below);
  Rgb colour{};
  for (unsigned i = 0; i < 3; ++i) {
    const auto channel = [&](std::uint32_t c) {
      return static_cast<float>(c >> (16 - 8 * i) & 255U);
    };
    colour[i] = static_cast<std::uint8_t>(
        std::lround((1 - part) * channel(kScale[below]) + part * channel(kScale[below + 1])));
  }
  return colour;
}

class ContactSheet {
 public:
  // weights (layers, heads, queries, keys).
  explicit ContactSheet(const attn::Tensor4<float>& weights)
      : cell_(std::max<attn::index_t>(1, kMapPixels / weights.extent(2))),
        width_(kMargin + weights.extent(1) * (cell_ * weights.extent(3) + kGap)),
        height_(kMargin + weights.extent(0) * (cell_ * weights.extent(2) + kGap)),
        pixels_(static_cast<std::size_t>(width_ * height_), Rgb{255, 255, 255}) {
    const attn::index_t pitch = cell_ * weights.extent(3) + kGap;
    for (attn::index_t layer = 0; layer < weights.extent(0); ++layer) {
      const attn::index_t top = kMargin + layer * pitch;
      number(layer, kMargin / 2, top + (pitch - kGap) / 2);
      for (attn::index_t head = 0; head < weights.extent(1); ++head) {
        const attn::index_t left = kMargin + head * pitch;
        if (layer == 0) number(head, left + (pitch - kGap) / 2, kMargin / 2);
        for (attn::index_t i = 0; i < weights.extent(2); ++i) {
          for (attn::index_t j = 0; j < weights.extent(3); ++j) {
            fill(left + j * cell_, top + i * cell_, cell_,
                 weight_colour(weights(layer, head, i, j)));
          }
        }
      }
    }
  }

  // The bytes of a PNG file. Throws std::runtime_error with libpng's own words.
  std::string png() const {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = static_cast<png_uint_32>(width_);
    image.height = static_cast<png_uint_32>(height_);
    image.format = PNG_FORMAT_RGB;
    std::string bytes;
    png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
    bytes.resize(size);
    if (png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels_.data(), 0, nullptr) ==
        0) {
      throw std::runtime_error(std::string("libpng: ") + image.message);
    }
    bytes.resize(size);
    return bytes;
  }

 private:
  static constexpr attn::index_t kMapPixels = 128;  // of one head, where the tokens are fewer
  static constexpr attn::index_t kGap = 8, kMargin = 32, kDot = 2;

  void fill(attn::index_t left, attn::index_t top, attn::index_t size, Rgb colour) {
    for (attn::index_t y = top; y < top + size; ++y) {
      std::fill_n(pixels_.begin() + static_cast<std::ptrdiff_t>(y * width_ + left), size, colour);
    }
  }

  // A decimal number around a point, in digits of 3 x 5 dots.
  void number(attn::index_t value, attn::index_t x, attn::index_t y) {
    // Rows from the top, three bits each, the leftmost dot the highest.
    static constexpr std::array<unsigned, 10> kDigits = {075557, 026227, 071747, 071717, 055711,
                                                         074717, 074757, 071111, 075757, 075717};
    const std::string text = std::to_string(value);
    attn::index_t left = x - kDot * (4 * static_cast<attn::index_t>(text.size()) - 1) / 2;
    for (const char c : text) {
      const unsigned digit = kDigits[static_cast<std::size_t>(c - '0')];
      for (unsigned dot = 0; dot < 15; ++dot) {
        if ((digit >> (14 - dot) & 1U) == 0) continue;
        fill(left + kDot * (dot % 3), y + kDot * (dot / 3) - 5 * kDot / 2, kDot, Rgb{96, 104, 116});
      }
      left += 4 * kDot;
    }
  }

  attn::index_t cell_, width_, height_;
  std::vector<Rgb> pixels_;
};

}  // namespace examples
