// log_mel_spectrogram: transformers' features of noise and a tone (tests/data/whisper/make.py).
#include "attn/layers/embedding/log_mel_spectrogram.hpp"

#include <gtest/gtest.h>

#include "attn/core/compare.hpp"
#include "attn/io/npy.hpp"

#include "support/error_of.hpp"

namespace attn {
namespace {

using attn_test::error_of;

/// Half a second: noise of a linear congruential generator.
Tensor1<float> noise() {
  Tensor1<float> x({8000});
  std::uint32_t state = 1;
  for (index_t i = 0; i < x.size(); ++i) {
    state = (1103515245U * state + 12345U) & 0x7fffffffU;
    x(i) = static_cast<float>(state) / 1073741824.0f - 1.0f;
  }
  return x;
}

/// 1.25 seconds of 440 Hz.
Tensor1<float> tone() {
  Tensor1<float> x({20000});
  for (index_t i = 0; i < x.size(); ++i) {
    x(i) = static_cast<float>(
        0.5 * std::sin(2 * std::numbers::pi * 440 * static_cast<double>(i) / 16000));
  }
  return x;
}

TEST(LogMelSpectrogram, IsThatOfTransformers) {
  for (const index_t bins : {80, 128}) {
    for (const bool is_noise : {true, false}) {
      const std::string name = (is_noise ? "noise_" : "tone_") + std::to_string(bins);
      SCOPED_TRACE(name);
      const auto expected =
          NpyArray(ATTN_TEST_DATA_DIR "/whisper/" + name + ".npy").load<float, 2>();
      // The goldens are one second long: the noise is padded, the tone truncated.
      const auto found = log_mel_spectrogram(is_noise ? noise() : tone(),
                                             {.num_mel_bins = bins, .num_samples = 16000});
      ASSERT_EQ(found.shape(), expected.shape());
      EXPECT_LT(max_abs_difference(found, expected), 1e-5);
    }
  }
}

// Across the blocks that it is computed in: noise that repeats every 50 frames.
TEST(LogMelSpectrogram, FramesOfLongSoundsAreThoseOfTheirParts) {
  const Tensor1<float> part = noise();
  Tensor1<float> x({62 * 8000});
  for (index_t i = 0; i < x.size(); ++i) x(i) = part(i % 8000);
  const LogMelOptions all{.num_mel_bins = 8, .num_samples = x.size()};
  const Tensor2<float> whole = log_mel_spectrogram(x, all);
  EXPECT_EQ(whole.shape(), (Shape<2>{8, 3100}));
  for (index_t n = 10; n < 3090; ++n) {
    for (index_t m = 0; m < 8; ++m) ASSERT_EQ(whole(m, n), whole(m, 10 + (n - 10) % 50)) << n;
  }
}

TEST(LogMelSpectrogram, SilenceAndErrors) {
  const Tensor2<float> silence = log_mel_spectrogram(Tensor1<float>({0}));
  EXPECT_EQ(silence.shape(), (Shape<2>{80, 3000}));
  EXPECT_EQ(silence(79, 2999), -1.5f);  // (log10(1e-10) + 4) / 4
  const Tensor1<float> x({400});
  EXPECT_EQ(error_of<ValueError>([&] { log_mel_spectrogram(x, {.num_mel_bins = 0}); }),
            "[log_mel_spectrogram] num_mel_bins must be at least 1; found 0.");
  EXPECT_EQ(error_of<ValueError>([&] { log_mel_spectrogram(x, {.num_samples = 200}); }),
            "[log_mel_spectrogram] num_samples must be at least 201; found 200.");
}

}  // namespace
}  // namespace attn
