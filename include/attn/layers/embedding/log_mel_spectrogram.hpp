// log_mel_spectrogram: Whisper's features of a sound.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attn/layers/linear.hpp"

ATTN_NAMESPACE_BEGIN

struct LogMelOptions {
  index_t num_mel_bins = 80;     ///< frequency bands; 128 for Whisper large-v3
  index_t num_samples = 480000;  ///< samples are cut, or padded with zeros, to this number: 30 s
};

namespace detail {

inline constexpr index_t kMelRate = 16000, kMelWindow = 400, kMelHop = 160,
                         kMelFrequencies = kMelWindow / 2 + 1;

/// Slaney's scale: linear to 1000 Hz, then logarithmic.
inline double hertz_of_mel(double mel) {
  return mel < 15 ? mel * 200 / 3 : 1000 * std::pow(6.4, (mel - 15) / 27);
}

/// (num_mel_bins, frequencies): triangles from 0 to 8000 Hz, evenly spaced in mels, of area 1 in
/// hertz.
inline Tensor2<double> mel_filters(index_t num_mel_bins) {
  const double most = 15 + 27 * std::log(8.0) / std::log(6.4);  // 8000 Hz in mels
  const auto edge = [&](index_t n) {
    return hertz_of_mel(most * static_cast<double>(n) / static_cast<double>(num_mel_bins + 1));
  };
  Tensor2<double> filters({num_mel_bins, kMelFrequencies});
  for (index_t m = 0; m < num_mel_bins; ++m) {
    const double low = edge(m), middle = edge(m + 1), high = edge(m + 2);
    for (index_t f = 0; f < kMelFrequencies; ++f) {
      const double hertz = static_cast<double>(f * kMelRate) / kMelWindow;
      const double up = (hertz - low) / (middle - low), down = (high - hertz) / (high - middle);
      filters(m, f) = (std::max)(0.0, (std::min)(up, down)) * 2 / (high - low);
    }
  }
  return filters;
}

/// (2 * frequencies, window): the rows of cos, then those of sin, each times Hann's window.
inline Tensor2<double> windowed_fourier_matrix() {
  Tensor2<double> matrix({2 * kMelFrequencies, kMelWindow});
  for (index_t i = 0; i < kMelWindow; ++i) {
    const double turn = 2 * std::numbers::pi / kMelWindow;
    const double window = 0.5 - 0.5 * std::cos(turn * static_cast<double>(i));
    for (index_t f = 0; f < kMelFrequencies; ++f) {
      const double angle = turn * static_cast<double>(f * i % kMelWindow);
      matrix(f, i) = window * std::cos(angle);
      matrix(kMelFrequencies + f, i) = window * std::sin(angle);
    }
  }
  return matrix;
}

}  // namespace detail

/// Features (num_mel_bins, num_samples / 160) of samples in -1 .. 1 at 16 kHz: the base-10
/// logarithm of the power in mel bands, of windows of 400 samples centred every 160; no less than
/// 8 below the largest one; then plus 4, divided by 4. Computes in double: the powers of quiet
/// bands are 1e-8 of the largest ones. Throws ValueError for num_mel_bins below 1 or num_samples
/// below 201. Source: Radford et al., "Robust speech recognition via large-scale weak supervision"
/// (2022), section 2.2; mel bands as in transformers' WhisperFeatureExtractor.
template <TensorLike Samples>
Tensor2<float> log_mel_spectrogram(const Samples& samples, const LogMelOptions& options = {},
                                   const Execution& execution = {}) {
  ATTN_ASSERT_INPUT(Samples, float, 1, "log_mel_spectrogram: samples", "(length)", "samples");
  using namespace detail;
  const auto x = view_as<const float, 1>(samples);
  const index_t bins = options.num_mel_bins, count = options.num_samples;
  if (bins < 1) {
    throw ValueError(
        message("log_mel_spectrogram", "num_mel_bins", "be at least 1", std::to_string(bins)));
  }
  if (count <= kMelWindow / 2) {
    throw ValueError(
        message("log_mel_spectrogram", "num_samples", "be at least 201", std::to_string(count)));
  }
  const index_t frames = count / kMelHop;
  const Tensor2<double> fourier = windowed_fourier_matrix(), filters = mel_filters(bins);
  Tensor2<double> bands({frames, bins});
  // In blocks: a whole recording of an hour would take 3 GB.
  constexpr index_t kBlock = 3000;
  for (index_t begin = 0; begin < frames; begin += kBlock) {
    const index_t rows = (std::min)(kBlock, frames - begin);
    Tensor2<double> windows({rows, kMelWindow});
    for (index_t n = 0; n < rows; ++n) {
      for (index_t i = 0; i < kMelWindow; ++i) {
        index_t at =
            std::abs((begin + n) * kMelHop + i - kMelWindow / 2);  // reflected at both ends
        if (at >= count) at = 2 * (count - 1) - at;
        windows(n, i) = at < x.extent(0) ? double{x(at)} : 0.0;
      }
    }
    const auto waves =
        linear(windows, fourier, TensorView1<const double>{}, Activation::none, execution);
    Tensor2<double> power({rows, kMelFrequencies});
    for (index_t n = 0; n < rows; ++n) {
      for (index_t f = 0; f < kMelFrequencies; ++f) {
        const double re = waves(n, f), im = waves(n, kMelFrequencies + f);
        power(n, f) = re * re + im * im;
      }
    }
    linear(power, filters, TensorView1<const double>{}, bands.view().slice(0, begin, begin + rows),
           Activation::none, {}, execution);
  }
  constexpr double kSilence = 1e-10;
  const double loudest = std::log10(
      (std::max)(kSilence, *std::max_element(bands.data(), bands.data() + bands.size())));
  auto result = Tensor2<float>::uninitialized({bins, frames});
  for (index_t m = 0; m < bins; ++m) {
    for (index_t n = 0; n < frames; ++n) {
      const double level = std::log10((std::max)(kSilence, bands(n, m)));
      result(m, n) = static_cast<float>(((std::max)(level, loudest - 8) + 4) / 4);
    }
  }
  return result;
}

ATTN_NAMESPACE_END
