// Patches: every pixel against a loop over patches, channels, rows and columns.
#include "attn/layers/embedding/patches.hpp"

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::error_of;
using attn_test::Random;

TEST(Patches, PixelsInOrder) {
  Random random(1);
  const index_t p = 3;
  const auto images = random.tensor<float, 4>({2, 6, 9, 2});
  const auto x =
      images.permute({0, 3, 1, 2});  // (batch, channels, height, width) of channels-last memory
  const Tensor3<float> patches = extract_patches(x, p);
  ASSERT_EQ(patches.shape(), (Shape<3>{2, 6, 18}));
  for (index_t b = 0; b < 2; ++b) {
    for (index_t n = 0; n < 6; ++n) {
      for (index_t i = 0; i < 18; ++i) {
        const index_t c = i / (p * p), row = i / p % p, column = i % p;
        EXPECT_EQ(patches(b, n, i), x(b, c, n / 3 * p + row, n % 3 * p + column));
      }
    }
  }
}

TEST(PatchesErrors, SizesThatThePatchDoesNotDivide) {
  const Tensor4<float> images({1, 3, 6, 8});
  EXPECT_EQ(error_of<ShapeError>([&] { extract_patches(images, 3); }),
            "[extract_patches] images must have a height and a width that the patch of 3 divides; "
            "found (1, 3, 6, 8).");
  EXPECT_THROW(extract_patches(images, 0), ShapeError);
  EXPECT_EQ(extract_patches(Tensor4<float>({0, 3, 4, 4}), 2).shape(), (Shape<3>{0, 4, 12}));
}

}  // namespace
}  // namespace attn
