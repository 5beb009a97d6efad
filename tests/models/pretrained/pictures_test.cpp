// Vit from folders: hidden states against transformers for each type, also at other sizes.
#include <algorithm>

#include <gtest/gtest.h>

#include "attn/models/pretrained/vit.hpp"

#include "support/error_of.hpp"
#include "support/references/pretrained_goldens.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::kPretrained;
using attn_test::relative_difference;

template <class T>
Vit<T> load(const std::string& name, const PretrainedOptions& options = {}) {
  return detail::vit_from_folder<T>(kPretrained / name, options);
}

// Fails for a model_type without a folder here.
TEST(PretrainedPictures, EveryTypeHasTheHiddenStatesOfTransformers) {
  for (const auto types : detail::kPictureTypes) {
    for (const detail::PictureType& type : types) {
      const std::string name(type.model_type);
      SCOPED_TRACE(name);
      const SafetensorsFile golden(kPretrained / name / "golden.safetensors");
      const bool interpolates = golden.contains("images_b");
      const std::vector<std::string> plain{""}, sizes{"_a", "_b", "_c"};
      for (const std::string& key : interpolates ? sizes : plain) {
        const auto images = golden.load<float, 4>("images" + key);
        const auto hidden = golden.load<double, 3>("hidden" + key);
        EXPECT_LT(relative_difference(load<float>(name)(images), hidden), 1e-5);
        EXPECT_LT(relative_difference(load<float>(name, {.pack = false})(images), hidden), 1e-5);
        // transformers interpolates in float.
        EXPECT_LT(relative_difference(load<double>(name)(convert<double>(images)), hidden), 1e-6);
      }
    }
  }
}

TEST(PretrainedPictures, ConfigsBecomeOptions) {
  const auto options_of = [](const std::string& name) {
    return vit_options_of(ConfigFile(kPretrained / name / "config.json"));
  };
  EXPECT_FALSE(options_of("vit").interpolation);
  EXPECT_EQ(options_of("dinov2").interpolation, Bicubic::plain);
  EXPECT_EQ(options_of("dinov2").intermediate_size, 32);
  EXPECT_EQ(options_of("dinov2").num_prefix_tokens(), 1);
  EXPECT_EQ(options_of("dinov2_with_registers").interpolation, Bicubic::antialiased);
  EXPECT_EQ(options_of("dinov2_with_registers").num_prefix_tokens(), 3);
}

TEST(PretrainedPicturesErrors, SizesOfImages) {
  const Vit<float> model = load<float>("dinov2");
  const auto error = [&](const Shape<4>& shape) {
    return error_of<ShapeError>([&] { model(Tensor4<float>(shape)); });
  };
  EXPECT_EQ(error({1, 3, 12, 10}),
            "[Vit] images must have shape (batch, 3, height, width) with sizes that the patch of 4 "
            "divides; found (1, 3, 12, 10).");
  EXPECT_TRUE(contains(error({1, 2, 12, 12}), "found (1, 2, 12, 12)"));
  EXPECT_TRUE(contains(error({1, 3, 0, 12}), "found (1, 3, 0, 12)"));
}

}  // namespace
}  // namespace attn
