// Pixels of a PNG file as the input of a vision model: resized, three channels, normalised.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <png.h>
#include <stdexcept>
#include <string>
#include <vector>

#include "attn/attn.hpp"

namespace examples {

using attn::index_t;

// Red, green and blue of each pixel, row by row; transparent ones on a white background.
struct Pixels {
  index_t width = 0, height = 0;
  std::vector<std::uint8_t> rgb;
};

inline Pixels read_png(const std::string& path) {
  const auto fail = [&](const std::string& what) { throw std::runtime_error(path + ": " + what); };
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_file(&image, path.c_str()) == 0) fail(image.message);
  image.format = PNG_FORMAT_RGB;
  constexpr std::size_t kMax = std::size_t{1} << 26U;  // a small file may claim a huge size
  if (std::size_t{image.width} * image.height > kMax) {
    png_image_free(&image);
    fail("more than 2^26 pixels");
  }
  Pixels pixels{image.width, image.height, std::vector<std::uint8_t>(PNG_IMAGE_SIZE(image))};
  const png_color white{255, 255, 255};
  if (png_image_finish_read(&image, &white, pixels.rgb.data(), 0, nullptr) == 0) {
    fail(image.message);
  }
  return pixels;
}

// How pixels between those of an image are computed.
enum class Interpolation { bilinear, bicubic };

// The weight of a pixel at this distance: a triangle, or the cubic of Keys (1981) with a = -1/2.
inline double weight_at(double distance, Interpolation interpolation) {
  const double x = std::abs(distance);
  if (interpolation == Interpolation::bilinear) return std::max(1 - x, 0.0);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

// Weights of the pixels of a row of `from` for `count` pixels, `first` and those behind it, of a
// row of `to`: a kernel around the centre of each, which grows where the image shrinks, so that
// every pixel is used.
class Resampling {
 public:
  Resampling(index_t from, index_t to, index_t first, index_t count, Interpolation interpolation) {
    const double scale = static_cast<double>(from) / static_cast<double>(to);
    const double width = std::max(scale, 1.0);
    const double reach = interpolation == Interpolation::bicubic ? 2 * width : width;
    for (index_t i = first; i < first + count; ++i) {
      const double middle = (static_cast<double>(i) + 0.5) * scale;
      Part part{std::max<index_t>(0, std::lround(middle - reach)), {}};
      const index_t end = std::min<index_t>(from, std::lround(middle + reach));
      double sum = 0;
      for (index_t j = part.begin; j < end; ++j) {
        const double at = (static_cast<double>(j) + 0.5 - middle) / width;
        part.weights.push_back(weight_at(at, interpolation));
        sum += part.weights.back();
      }
      for (double& weight : part.weights) weight /= sum;
      parts_.push_back(std::move(part));
    }
  }

  // The i-th of the `count` pixels; element(j) is an element of the input row.
  template <class Element>
  double operator()(index_t i, const Element& element) const {
    const Part& part = parts_[static_cast<std::size_t>(i)];
    double sum = 0;
    index_t j = part.begin;
    for (const double weight : part.weights) sum += weight * element(j++);
    return sum;
  }

 private:
  struct Part {
    index_t begin;
    std::vector<double> weights;
  };
  std::vector<Part> parts_;
};

// The preprocessing of a model: (pixel * scale - mean) / deviation, channel by channel, of the
// image resized to the model's size or, with shortest_edge, of the centre of the image whose
// shorter side was resized to it.
struct PixelOptions {
  Interpolation interpolation = Interpolation::bilinear;
  std::optional<index_t> shortest_edge;
  double scale = 1.0 / 255;
  std::array<double, 3> mean{0.5, 0.5, 0.5}, deviation{0.5, 0.5, 0.5};
};

// (1, 3, height, width)
inline attn::Tensor4<float> resized(const Pixels& pixels, index_t height, index_t width,
                                    const PixelOptions& options) {
  index_t full_height = height, full_width = width;
  if (options.shortest_edge) {
    const index_t edge = *options.shortest_edge, shorter = std::min(pixels.width, pixels.height);
    if (edge < std::max(height, width)) {
      throw std::runtime_error("shortest_edge must be at least the model's image size; found " +
                               std::to_string(edge));
    }
    full_height = edge * pixels.height / shorter;
    full_width = edge * pixels.width / shorter;
  }
  const Resampling across(pixels.width, full_width, (full_width - width) / 2, width,
                          options.interpolation),
      down(pixels.height, full_height, (full_height - height) / 2, height, options.interpolation);
  attn::Tensor4<float> image({1, 3, height, width});
  attn::Tensor2<double> narrow({pixels.height, width});
  for (index_t c = 0; c < 3; ++c) {
    for (index_t y = 0; y < pixels.height; ++y) {
      for (index_t x = 0; x < width; ++x) {
        narrow(y, x) = across(x, [&](index_t from) {
          const index_t at = 3 * (y * pixels.width + from) + c;
          return static_cast<double>(pixels.rgb[static_cast<std::size_t>(at)]);
        });
      }
    }
    const auto channel = static_cast<std::size_t>(c);
    for (index_t y = 0; y < height; ++y) {
      for (index_t x = 0; x < width; ++x) {
        const double value = down(y, [&](index_t from) { return narrow(from, x); });
        image(0, c, y, x) = static_cast<float>((value * options.scale - options.mean[channel]) /
                                               options.deviation[channel]);
      }
    }
  }
  return image;
}

}  // namespace examples
