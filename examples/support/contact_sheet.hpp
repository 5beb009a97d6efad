// An attention map as a PNG: the text, a small map of every head (layers down, heads across), and
// the tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <png.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <utf8proc.h>

#include "attn/attn.hpp"

#include "letters.hpp"
#include "printable.hpp"

namespace examples {

using Rgb = std::array<std::uint8_t, 3>;

// The colour of a weight in [0, 1]: lightness decreases linearly with its square root, since most
// weights of a row are small. The same colours as the light scale of pages/page.css, which are
// evenly spaced in OKLCH.
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

// Text in the available letters: removes accents, and writes other scripts as \uNNNN.
inline std::string in_ascii(std::string_view text) {
  std::string result;
  const auto* next = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(
      next, static_cast<utf8proc_ssize_t>(text.size()), &mapped,
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STRIPMARK | UTF8PROC_STABLE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (size < 0) return printable(text);  // not UTF-8: its bytes as escapes
  for (utf8proc_ssize_t at = 0; at < size;) {
    utf8proc_int32_t c = 0;
    at += utf8proc_iterate(mapped + at, size - at, &c);
    if (c == '\n' || c == '\t') c = ' ';
    if (c >= ' ' && c <= '~') {
      result += static_cast<char>(c);
    } else {
      char escape[12];
      const int length = std::snprintf(escape, sizeof escape, c > 0xFFFF ? "\\U%08x" : "\\u%04x",
                                       static_cast<unsigned>(c));
      result.append(escape, static_cast<std::size_t>(length));
    }
  }
  return result;
}

class ContactSheet {
 public:
  // weights (layers, heads, queries, keys), the text and its tokens.
  ContactSheet(const attn::Tensor4<float>& weights, std::string_view text,
               const std::vector<std::string>& tokens)
      : cell_(std::max<attn::index_t>(1, kMapPixels / weights.extent(2))),
        width_(kMargin + weights.extent(1) * (cell_ * weights.extent(3) + kGap)) {
    // Large type if the text fits in two lines; otherwise the type of the tokens, and truncated at
    // the model's length.
    attn::index_t title_dot = 2 * kDot;
    std::vector<std::string> title = wrapped(in_ascii(text), title_dot);
    if (title.size() > 2) title = wrapped(in_ascii(text), title_dot = kDot);
    if (title.size() > kMostTitleLines) {
      title.resize(kMostTitleLines);
      title.back() = "...";
    }
    std::string list = "Rows (queries) and columns (keys):";
    for (const std::string& token : tokens) list += ' ' + in_ascii(token);
    const std::vector<std::string> legend = wrapped(list, kDot);
    const attn::index_t pitch = cell_ * weights.extent(3) + kGap;
    const attn::index_t head_line = kGap + line_height(title_dot) * std::ssize(title);
    const attn::index_t maps = head_line + kMargin;
    const attn::index_t foot_line = maps + weights.extent(0) * pitch + kGap;
    height_ = foot_line + line_height(kDot) * std::ssize(legend) + kGap;
    pixels_.assign(static_cast<std::size_t>(width_ * height_), Rgb{255, 255, 255});

    write(title, kGap, kGap, title_dot, Rgb{27, 34, 48});
    write(legend, kGap, foot_line, kDot, Rgb{27, 34, 48});
    for (attn::index_t layer = 0; layer < weights.extent(0); ++layer) {
      const attn::index_t top = maps + layer * pitch;
      number(layer, kMargin / 2, top + (pitch - kGap) / 2);
      for (attn::index_t head = 0; head < weights.extent(1); ++head) {
        const attn::index_t left = kMargin + head * pitch;
        if (layer == 0) number(head, left + (pitch - kGap) / 2, head_line + kMargin / 2);
        for (attn::index_t i = 0; i < weights.extent(2); ++i) {
          for (attn::index_t j = 0; j < weights.extent(3); ++j) {
            fill(left + j * cell_, top + i * cell_, cell_,
                 weight_colour(weights(layer, head, i, j)));
          }
        }
      }
    }
  }

  // The bytes of a PNG file. Throws std::runtime_error with libpng's message.
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
  static constexpr attn::index_t kMapPixels = 128;  // width of one head, if the tokens are narrower
  static constexpr attn::index_t kGap = 8, kMargin = 32, kDot = 2;
  static constexpr std::size_t kMostTitleLines = 12;

  static attn::index_t line_height(attn::index_t dot) { return dot * (kLetterHeight + 2); }

  // Lines of words that fit between the margins; a longer word is cut at the margin.
  std::vector<std::string> wrapped(std::string_view text, attn::index_t dot) const {
    const auto most = static_cast<std::size_t>((width_ - 2 * kGap) / (dot * kLetterWidth));
    std::vector<std::string> lines;
    while (!text.empty()) {
      std::size_t end = text.size();
      if (end > most) {
        const std::size_t space = text.rfind(' ', most);
        end = space == text.npos || space == 0 ? most : space;
      }
      lines.emplace_back(text.substr(0, end));
      text.remove_prefix(end);
      text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    }
    return lines;
  }

  void write(const std::vector<std::string>& lines, attn::index_t left, attn::index_t top,
             attn::index_t dot, Rgb colour) {
    for (const std::string& line : lines) {
      attn::index_t x = left;
      for (const char c : line) {
        for (int row = 0; row < kLetterHeight; ++row) {
          for (int column = 0; column < kLetterWidth; ++column) {
            if (has_dot(c, column, row)) fill(x + dot * column, top + dot * row, dot, colour);
          }
        }
        x += dot * kLetterWidth;
      }
      top += line_height(dot);
    }
  }

  // A decimal number centred at a point.
  void number(attn::index_t value, attn::index_t x, attn::index_t y) {
    const std::string text = std::to_string(value);
    const attn::index_t width = kDot * (kLetterWidth * std::ssize(text) - 1);
    write({text}, x - width / 2, y - 7 * kDot / 2, kDot, Rgb{96, 104, 116});
  }

  void fill(attn::index_t left, attn::index_t top, attn::index_t size, Rgb colour) {
    for (attn::index_t y = top; y < top + size; ++y) {
      std::fill_n(pixels_.begin() + static_cast<std::ptrdiff_t>(y * width_ + left), size, colour);
    }
  }

  attn::index_t cell_, width_, height_ = 0;
  std::vector<Rgb> pixels_;
};

}  // namespace examples
