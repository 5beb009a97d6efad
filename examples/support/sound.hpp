// Samples of sound files at 16 kHz: WAV, FLAC and what else libsndfile reads.
#pragma once

#include <cstddef>
#include <sndfile.hh>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace examples {

// The mean of the channels, in -1 .. 1. Throws std::runtime_error.
inline std::vector<float> read_sound(const std::string& path) {
  SndfileHandle file(path);
  if (file.error() != SF_ERR_NO_ERROR) throw std::runtime_error(path + ": " + file.strError());
  if (file.samplerate() != 16000) {
    throw std::runtime_error(path + ": " + std::to_string(file.samplerate()) +
                             " Hz, not 16000 (ffmpeg -i FILE -ar 16000 OUT.wav converts it)");
  }
  const auto channels = static_cast<std::size_t>(file.channels());
  std::vector<float> samples, block(4096 * channels);
  while (const sf_count_t frames = file.readf(block.data(), 4096)) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(frames); ++i) {
      float sum = 0;
      for (const float x : std::span(block).subspan(i * channels, channels)) sum += x;
      samples.push_back(sum / static_cast<float>(channels));
    }
  }
  return samples;
}

}  // namespace examples
