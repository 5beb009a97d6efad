// Frames: every window against a loop, and a convolution against its sum.
#include "attn/layers/embedding/frames.hpp"

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::error_of;
using attn_test::Random;

TEST(Frames, WindowsWithZerosAround) {
  Random random(1);
  for (const index_t length : {1, 2, 7, 8}) {
    for (const index_t size : {1, 3, 5}) {
      for (const index_t stride : {1, 2, 3}) {
        SCOPED_TRACE(length * 100 + size * 10 + stride);
        const auto memory = random.tensor<float, 3>({2, length, 3});
        const auto x = memory.view().transpose(1, 2);  // (batch, channels, length)
        const Tensor3<float> frames = extract_frames(x, size, stride);
        ASSERT_EQ(frames.shape(), (Shape<3>{2, (length - 1) / stride + 1, 3 * size}));
        for (index_t b = 0; b < 2; ++b) {
          for (index_t n = 0; n < frames.extent(1); ++n) {
            for (index_t i = 0; i < 3 * size; ++i) {
              const index_t at = n * stride + i % size - size / 2;
              const float expected = at < 0 || at >= length ? 0 : x(b, i / size, at);
              EXPECT_EQ(frames(b, n, i), expected);
            }
          }
        }
      }
    }
  }
}

TEST(FramesErrors, SizesAndStrides) {
  const Tensor3<float> x({1, 2, 4});
  EXPECT_EQ(error_of<ValueError>([&] { extract_frames(x, 2, 1); }),
            "[extract_frames] size must be odd; found 2.");
  EXPECT_EQ(error_of<ValueError>([&] { extract_frames(x, 3, 0); }),
            "[extract_frames] stride must be at least 1; found 0.");
  EXPECT_EQ(error_of<ShapeError>([&] {
              extract_frames(Tensor3<float>({1, 2, 0}), 3, 1);
            }),
            "[extract_frames] x must have a length of at least 1; found (1, 2, 0).");
}

}  // namespace
}  // namespace attn
