// preprocessor_config.json of a Hugging Face folder, as the preprocessing of pixels.
#pragma once

#include <array>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

#include "png_pixels.hpp"

namespace examples {

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) throw std::runtime_error(path.string() + ": no JSON object");
  return json;
}

// Reads a list of three numbers, or one number for all three.
inline void read_channels(const nlohmann::json& json, const char* key,
                          std::array<double, 3>& channels) {
  if (!json.contains(key)) return;
  const nlohmann::json& value = json[key];
  for (std::size_t c = 0; c < 3; ++c) {
    const bool is_list = value.is_array() && value.size() == 3;
    const nlohmann::json& number = is_list ? value[c] : value;
    if (!number.is_number()) throw std::runtime_error(std::string(key) + ": not three numbers");
    channels[c] = number.get<double>();
  }
}

// The folder's preprocessing; without the file, the default.
inline PixelOptions pixel_options_of(const std::filesystem::path& folder) {
  PixelOptions options;
  const std::filesystem::path path = folder / "preprocessor_config.json";
  if (!std::filesystem::exists(path)) return options;
  const nlohmann::json json = read_json(path);
  const auto is_on = [&](const char* key, bool otherwise) {
    return json.contains(key) && json[key].is_boolean() ? json[key].get<bool>() : otherwise;
  };
  if (json.contains("rescale_factor") && json["rescale_factor"].is_number()) {
    options.scale = json["rescale_factor"].get<double>();
  }
  if (!is_on("do_rescale", true)) options.scale = 1;
  if (is_on("do_normalize", true)) {
    read_channels(json, "image_mean", options.mean);
    read_channels(json, "image_std", options.deviation);
  } else {
    options.mean = {0, 0, 0};
    options.deviation = {1, 1, 1};
  }
  if (!is_on("do_resize", true)) {
    throw std::runtime_error(path.string() + ": do_resize must be true");
  }
  if (json.contains("resample")) {
    const nlohmann::json& number = json["resample"];
    if (number != 2 && number != 3) {
      throw std::runtime_error(path.string() + ": resample must be 2 (bilinear) or 3 (bicubic)");
    }
    options.interpolation = number == 3 ? Interpolation::bicubic : Interpolation::bilinear;
  }
  const nlohmann::json size = json.value("size", nlohmann::json());
  const bool is_edge = size.is_object() && size.contains("shortest_edge");
  // Older files have a number, which is the shortest edge of what is cropped.
  const bool is_old_edge = size.is_number() && is_on("do_center_crop", false);
  if (is_edge || is_old_edge) {
    const nlohmann::json& edge = is_edge ? size["shortest_edge"] : size;
    if (!edge.is_number_unsigned() || edge > 1 << 16) {
      throw std::runtime_error(path.string() + ": shortest_edge must lie in 0 .. 65536");
    }
    options.shortest_edge = edge.get<index_t>();
  }
  return options;
}

}  // namespace examples
