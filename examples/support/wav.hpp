// Samples of WAV files: 16-bit PCM at 16 kHz, as ffmpeg -ar 16000 -c:a pcm_s16le writes them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include "attn/core.hpp"

namespace examples {

// The mean of the channels, in -1 .. 1. Throws std::runtime_error for other formats.
inline attn::Tensor1<float> read_wav(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) {
    throw std::runtime_error(path + ": cannot be read");
  }
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto number = [&](std::size_t at, std::size_t size) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i) {
      value |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
    }
    return value;
  };
  const auto word = [&](std::size_t at) { return std::string_view(bytes).substr(at, 4); };
  if (bytes.size() < 12 || word(0) != "RIFF" || word(8) != "WAVE") {
    throw std::runtime_error(path + ": no WAV file");
  }
  std::size_t channels = 0;
  for (std::size_t at = 12; bytes.size() - at >= 8;) {
    const std::string_view kind = word(at);
    const std::size_t begin = at + 8;
    // A file written as a stream has wrong sizes in its headers.
    const std::size_t size = std::min<std::size_t>(number(at + 4, 4), bytes.size() - begin);
    if (kind == "fmt " && size >= 16) {
      channels = number(begin + 2, 2);
      if (number(begin, 2) != 1 || number(begin + 14, 2) != 16 || channels == 0 ||
          number(begin + 4, 4) != 16000) {
        throw std::runtime_error(path +
                                 ": not 16-bit PCM at 16 kHz (ffmpeg -i FILE -ar 16000 -c:a "
                                 "pcm_s16le OUT.wav writes it)");
      }
    }
    if (kind == "data" && channels > 0) {
      const std::size_t count = size / (2 * channels);
      attn::Tensor1<float> samples({static_cast<attn::index_t>(count)});
      for (std::size_t i = 0; i < count; ++i) {
        float sum = 0;
        for (std::size_t c = 0; c < channels; ++c) {
          const auto code = number(begin + 2 * (i * channels + c), 2);
          sum += static_cast<float>(static_cast<std::int16_t>(code));
        }
        samples(static_cast<attn::index_t>(i)) = sum / (32768.0f * static_cast<float>(channels));
      }
      return samples;
    }
    at = std::min(begin + size + size % 2, bytes.size());
  }
  throw std::runtime_error(path + ": holds no sound");
}

}  // namespace examples
