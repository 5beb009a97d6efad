// GgufFile: values, views and conversions, equal to those of the Python package gguf.
#include "attn/io/gguf.hpp"

#include <bit>
#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attn/io/gguf/writer.hpp"

#include "support/error_of.hpp"
#include "support/files/gguf_bytes.hpp"
#include "support/files/temp_folder.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::ExactBytes;
using testing::ElementsAre;

// Made by tests/data/gguf/make_blocks.py.
const GgufFile& golden() {
  static const GgufFile file(ATTN_TEST_DATA_DIR "/gguf/blocks.gguf");
  return file;
}

/// The number of values whose bits differ.
std::size_t differences(std::span<const float> a, std::span<const float> b) {
  std::size_t count = a.size() == b.size() ? 0 : a.size() + b.size();
  for (std::size_t i = 0; count == 0 && i < a.size(); ++i) {
    count += std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i]);
  }
  return count;
}

TEST(Gguf, BlocksOfEveryTypeBecomeTheFloatsOfThePythonPackage) {
  for (const char* type : {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K",
                           "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4", "F16", "BF16"}) {
    const auto found = golden().load<2>(type);
    const auto expected = golden().view<2>(detail::concat(type, ".expected"));
    EXPECT_EQ(name(golden().tensor(type).type), type);
    ASSERT_EQ(found.shape(), expected.shape()) << type;
    EXPECT_EQ(
        differences(found.elements(), {expected.data(), static_cast<std::size_t>(expected.size())}),
        0u)
        << type;
  }
}

TEST(Gguf, ScalesThatAreNotFiniteReadAsThoseOfThePythonPackage) {
  // MXFP4 is left out: all of its scales are finite.
  for (const char* type : {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K",
                           "Q3_K", "IQ4_NL", "IQ4_XS"}) {
    const auto found = golden().load<2>(detail::concat("hostile.", type));
    const auto expected = golden().view<2>(detail::concat("hostile.", type, ".expected"));
    ASSERT_EQ(found.shape(), expected.shape()) << type;
    int infinite = 0, nan = 0;
    for (index_t i = 0; i < found.size(); ++i) {
      const float a = found.data()[i], b = expected.data()[i];
      infinite += std::isinf(b), nan += std::isnan(b);
      ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << type << ", " << i << ": " << a;
    }
    EXPECT_GT(nan, 0) << type;
    // In formats with an offset, infinity minus infinity is NaN.
    if (std::string_view(type).ends_with("_0")) {
      EXPECT_GT(infinite, 0) << type;
    }
  }
}

TEST(Gguf, FloatsBecomeTheBlocksOfThePythonPackage) {
  for (const char* type : {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16"}) {
    const bool is_float = block_elements(*gguf_type(std::string_view(type))) == 1;
    const GgufTensor values = golden().tensor(is_float ? "floats" : "values");
    const std::span floats(reinterpret_cast<const float*>(values.bytes.data()),
                           values.bytes.size() / 4);
    const GgufTensor expected = golden().tensor(detail::concat("made.", type));
    EXPECT_EQ(name(expected.type), type);
    const auto found = quantize_gguf(expected.type, floats);
    ASSERT_EQ(found.size(), expected.bytes.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i], expected.bytes[i]) << type << ", byte " << i;
    }
  }
}

TEST(Gguf, ValuesAreTyped) {
  const std::string text = attn_test::sample_gguf();
  const ExactBytes bytes(text);
  const GgufFile file(bytes.span(), "sample");
  EXPECT_EQ(file.get<std::string_view>("general.architecture"), "test");
  EXPECT_TRUE(file.get<bool>("t.flag"));
  EXPECT_EQ(file.get<int>("t.small"), -3);
  EXPECT_EQ(file.get<std::uint64_t>("t.large"), std::uint64_t{1} << 63);
  EXPECT_EQ(file.get<double>("t.half"), 0.5);
  EXPECT_EQ(file.get<double>("t.third"), 1.0 / 3);
  EXPECT_EQ(file.get<int>("t.none", 4), 4);
  EXPECT_THAT(file.array<std::string_view>("t.strings"), ElementsAre("a", "", "caf\u00e9"));
  EXPECT_THAT(file.array<index_t>("t.numbers"), ElementsAre(-1, 7));
  EXPECT_FALSE(file.has("t.none"));

  const auto value_error = [&](auto f) { return error_of<ValueError>(f); };
  const auto type_error = [&](auto f) { return error_of<DTypeError>(f); };
  EXPECT_TRUE(contains(value_error([&] { file.get<int>("t.none"); }),
                       R"("sample": key "t.none" must be in the file)"));
  EXPECT_TRUE(
      contains(value_error([&] { file.get<index_t>("t.large"); }), "found 9223372036854775808"));
  EXPECT_TRUE(contains(value_error([&] { file.get<unsigned>("t.small"); }),
                       "must lie in 0 .. 4294967295; found -3"));
  EXPECT_TRUE(contains(value_error([&] { file.array<unsigned>("t.numbers"); }), "found -1"));
  EXPECT_TRUE(
      contains(type_error([&] { file.get<bool>("t.small"); }), "must be of type BOOL; found I8"));
  EXPECT_TRUE(
      contains(type_error([&] { file.get<int>("t.half"); }), "must be of type integer; found F32"));
  EXPECT_TRUE(contains(type_error([&] { file.get<int>("t.numbers"); }),
                       "must be a single integer; found an array of I32"));
  EXPECT_TRUE(contains(type_error([&] { file.array<int>("t.small"); }),
                       "must be an array of integer; found I8"));
  EXPECT_TRUE(contains(type_error([&] { file.array<float>("t.numbers"); }),
                       "must be an array of F32 or F64"));
}

TEST(Gguf, TensorsAreViewedAndLoaded) {
  const std::string text = attn_test::sample_gguf();
  const ExactBytes bytes(text);
  const GgufFile file(bytes.span(), "sample");
  EXPECT_THAT(file.names(), ElementsAre("matrix", "scalar", "none", "blocks", "other"));
  EXPECT_EQ(file.view<2>("matrix")(1, 0), 4.0f);
  EXPECT_EQ(file.view<1>("scalar")(0), 7.0f);
  EXPECT_EQ((file.load<2>("none").shape()), (Shape<2>{4, 0}));
  EXPECT_EQ((file.load<2>("blocks")(0, 31)), 2.0f);
  EXPECT_EQ(file.tensor("blocks").bytes.size(), 34u);
  EXPECT_EQ(file.tensor("blocks").type, GgufType::Q8_0);
  Tensor2<float> into({2, 3});
  file.load("matrix", into.view());
  EXPECT_EQ(into(1, 2), 6.0f);

  EXPECT_TRUE(contains(error_of<DTypeError>([&] { file.load<1>("other"); }), "found IQ2_XXS"));
  EXPECT_TRUE(contains(error_of<DTypeError>([&] { file.view<2>("blocks"); }),
                       "must hold F32 (load() converts); found Q8_0"));
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { file.load<1>("matrix"); }),
                       "must have rank 1; found shape (2, 3)"));
  EXPECT_TRUE(contains(error_of<ShapeError>([&] {
                         file.load("matrix", Tensor2<float>({3, 2}).view());
                       }),
                       "have shape (3, 2)"));
  EXPECT_TRUE(contains(error_of<ShapeError>([&] {
                         file.load("matrix", Tensor2<float>({3, 2}).view().transpose(0, 1));
                       }),
                       "contiguous"));
  const std::pair<const char*, std::function<void()>> calls[] = {{"load", [&] { file.load<1>("bias"); }},
                                                                 {"view", [&] { file.view<1>("bias"); }},
                                                                 {"shape", [&] { file.shape("bias"); }},
                                                                 {"tensor", [&] { file.tensor("bias"); }},
                                                                 {"release", [&] { file.release("bias"); }},
                                                                 {"load", [&] { file.check("bias", Shape<1>{1}); }}};
  for (const auto& [function, call] : calls) {
    EXPECT_TRUE(contains(error_of<ValueError>(call),
                         std::string("[GgufFile::") + function +
                             R"(] "sample": tensor "bias" must be in the file)"));
  }
}

TEST(Gguf, WhatIsSavedIsRead) {
  attn_test::Random random(1);
  const auto values = random.tensor<float, 2>({3, 64});
  const std::span floats(values.data(), static_cast<std::size_t>(values.size()));
  const auto q8 = quantize_gguf(GgufType::Q8_0, floats);
  const auto f32 = quantize_gguf(GgufType::F32, floats);
  GgufMetadata metadata;
  metadata.set("general.architecture", std::string("test"));
  metadata.set("a.flag", true);
  metadata.set("a.count", std::uint32_t{7});
  metadata.set("a.count", std::uint32_t{8});
  metadata.set("a.list", std::vector<std::string>{"x", "", "\xff"});
  metadata.set("a.numbers", std::vector<std::int32_t>{1, -2});
  metadata.set("a.copy", golden().metadata().at("general.architecture"));
  const NamedGgufTensor tensors[] = {{"q", {GgufType::Q8_0, {3, 64}, q8}},
                                     {"f", {GgufType::F32, {3, 64}, f32}}};
  const attn_test::TempFolder folder;
  save_gguf(folder / "a.gguf", metadata, tensors);
  save_gguf(folder / "a.gguf", metadata, tensors);
  EXPECT_EQ(folder.number_of_files(), 1u);
  const GgufFile file(folder / "a.gguf");
  EXPECT_TRUE(file.get<bool>("a.flag"));
  EXPECT_EQ(file.get<int>("a.count"), 8);
  EXPECT_EQ(file.get<std::string_view>("a.copy"), "test");
  EXPECT_THAT(file.array<std::string_view>("a.list"), ElementsAre("x", "", "\xff"));
  EXPECT_THAT(file.array<int>("a.numbers"), ElementsAre(1, -2));
  EXPECT_EQ(differences(file.load<2>("f").elements(), values.elements()), 0u);
  const auto loaded = file.load<2>("q");
  for (index_t i = 0; i < 3; ++i) {
    for (index_t begin = 0; begin < 64; begin += 32) {
      float most = 0;
      for (index_t j = begin; j < begin + 32; ++j) most = std::max(most, std::abs(values(i, j)));
      // Half a step of most / 127, and half of the last of the scale's 11 bits times at most 127.
      const float bound = most / 127 * 0.5f + most * 0x1p-11f;
      for (index_t j = begin; j < begin + 32; ++j) EXPECT_NEAR(loaded(i, j), values(i, j), bound);
    }
  }
}

TEST(Gguf, WhatCannotBeWrittenIsNamed) {
  const float one[33] = {};
  const float infinite[32] = {0, INFINITY};
  EXPECT_TRUE(contains(error_of<ShapeError>([&] { quantize_gguf(GgufType::Q4_0, one); }),
                       "blocks of 32 (Q4_0); found 33"));
  EXPECT_TRUE(contains(error_of<ValueError>([&] { quantize_gguf(GgufType::Q4_0, infinite); }),
                       "finite; found inf at element 1"));
  EXPECT_TRUE(
      contains(error_of<ValueError>([&] { quantize_gguf(GgufType::Q4_K, one); }), "found Q4_K"));
  // Scales and offsets beyond the range of float16.
  for (const GgufType type :
       {GgufType::Q8_0, GgufType::Q4_0, GgufType::Q4_1, GgufType::Q5_0, GgufType::Q5_1}) {
    for (const float large : {1e9f, -3e38f}) {
      std::vector<float> values(96, 1.0f);
      values[70] = large;
      values[80] = -large;  // their difference is infinite
      EXPECT_TRUE(contains(error_of<ValueError>([&] { quantize_gguf(type, values); }),
                           "of at most 65504 (float16); found a larger one in the block that "
                           "begins with element 64"))
          << name(type);
    }
  }
  const std::vector<float> alike(32, 70000.0f);  // only the offset overflows
  EXPECT_THROW(quantize_gguf(GgufType::Q4_1, alike), ValueError);
  EXPECT_NO_THROW(quantize_gguf(GgufType::Q8_0, alike));
  const auto bytes = quantize_gguf(GgufType::F32, one);
  const attn_test::TempFolder folder;
  const auto save = [&](std::vector<NamedGgufTensor> tensors) {
    save_gguf(folder / "b.gguf", {}, tensors);
  };
  EXPECT_TRUE(
      contains(error_of<ValueError>([&] {
                 save({{"a", {GgufType::F32, {33}, bytes}}, {"a", {GgufType::F32, {33}, bytes}}});
               }),
               "\"a\""));
  EXPECT_TRUE(contains(error_of<ShapeError>([&] {
                         save({{"a", {GgufType::F32, {34}, bytes}}});
                       }),
                       "found 132 bytes of shape (34)"));
  EXPECT_EQ(folder.number_of_files(), 0u);
}

// If a scale has no inverse, all quantised values are 0 and the block reads as zeros, not as NaN.
TEST(Gguf, TinyValuesBecomeZeros) {
  float tiny[32];
  std::fill_n(tiny, 32, 1e-40f);
  tiny[3] = -1e-40f;
  for (const GgufType type :
       {GgufType::Q8_0, GgufType::Q4_0, GgufType::Q4_1, GgufType::Q5_0, GgufType::Q5_1}) {
    float back[32];
    dequantize_gguf(type, quantize_gguf(type, tiny), back);
    for (const float x : back) EXPECT_EQ(x, 0.0f) << name(type);
  }
}

}  // namespace
}  // namespace attn
