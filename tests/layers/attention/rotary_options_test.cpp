// Rotary options: frequencies against transformers', angles by length, errors.
#include "attn/layers/attention/rotary_options.hpp"

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "attn/layers/multi_head_attention_backward.hpp"
#include "attn/models/gpt.hpp"

#include "support/error_of.hpp"
#include "support/random.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;
using attn_test::random_module;

RotaryScaling scaling_of(const nlohmann::json& one) {
  const auto type = one.at("rope_type").get<std::string>();
  RotaryScaling s{.factor = one.at("factor"),
                  .original_max_positions = one.value("original_max_position_embeddings", 64),
                  .low_freq_factor = one.value("low_freq_factor", 1.0),
                  .high_freq_factor = one.value("high_freq_factor", 4.0),
                  .beta_fast = one.value("beta_fast", 32.0),
                  .beta_slow = one.value("beta_slow", 1.0),
                  .truncate = one.value("truncate", true)};
  s.kind = type == "linear"    ? RotaryScalingKind::linear
           : type == "dynamic" ? RotaryScalingKind::dynamic
           : type == "llama3"  ? RotaryScalingKind::llama3
           : type == "yarn"    ? RotaryScalingKind::yarn
                               : RotaryScalingKind::longrope;
  return s;
}

TEST(RotaryOptions, FrequenciesAreThoseOfTransformers) {
  std::ifstream file(ATTN_TEST_DATA_DIR "/pretrained/rope.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 20u);
  for (const nlohmann::json& one : cases) {
    SCOPED_TRACE(one.at("scaling").dump());
    RotaryOptions options{.dim = 16, .theta = one.at("theta")};
    options.scaling = scaling_of(one.at("scaling"));
    const nlohmann::json& given = one.at("scaling");
    if (given.contains("attention_factor") || given.contains("mscale")) {
      options.scaling.attention_factor = one.at("attention_factor");
    }
    if (given.contains("short_factor")) {
      options.short_factors = given.at("short_factor").get<std::vector<double>>();
      options.long_factors = given.at("long_factor").get<std::vector<double>>();
    }
    const auto found = rotary_frequencies(options, one.at("length"));
    const auto expected = one.at("frequencies").get<std::vector<double>>();
    ASSERT_EQ(found.values.size(), expected.size());
    for (std::size_t j = 0; j < expected.size(); ++j) {
      // transformers computes them in float with about a dozen operations.
      EXPECT_NEAR(found.values[j], expected[j], 2e-6 * expected[j]) << j;
    }
    EXPECT_NEAR(found.attention_factor, one.at("attention_factor"), 1e-12);
  }
}

TEST(RotaryOptions, TheAttentionFactorMultipliesCosAndSinOfEveryKind) {
  using Kind = RotaryScalingKind;
  for (const Kind kind : {Kind::none, Kind::linear, Kind::dynamic, Kind::llama3, Kind::yarn}) {
    RotaryOptions options{.dim = 8, .max_positions = 40};
    options.scaling = {.kind = kind, .original_max_positions = 16};
    if (kind != Kind::none) options.scaling.factor = 2;
    RotaryOptions plain = options;
    plain.scaling.attention_factor = 1.0;
    options.scaling.attention_factor = 1.25;
    for (const bool given : {false, true}) {
      if (given) {
        options.scaling = {.attention_factor = 1.25};
        plain.scaling = {};
        options.frequencies = plain.frequencies = {1, 0.5, -0.25, 3};
      }
      const RotaryTable<double> table(options), of_1(plain);
      for (index_t p = 0; p < table.cos.extent(0); ++p) {
        for (index_t j = 0; j < 4; ++j) {
          ASSERT_NEAR(table.cos(p, j), 1.25 * of_1.cos(p, j), 1e-15);
          ASSERT_NEAR(table.sin(p, j), 1.25 * of_1.sin(p, j), 1e-15);
        }
      }
    }
  }
}

TEST(RotaryOptions, GivenFrequenciesAndPartsOfAHead) {
  RotaryOptions given{.dim = 4, .max_positions = 9, .frequencies = {0.5, -2}};
  const RotaryTable<double> table(given);
  EXPECT_EQ(table.cos(7, 1), std::cos(-14.0));
  EXPECT_EQ(table.sin(3, 0), std::sin(1.5));
  // In a head of 4 the first pair rotates by this frequency: only the distance of the two tokens
  // matters.
  given.dim = 2;
  given.frequencies = {1};
  Random random(1);
  const auto attention = random_module<MultiHeadAttention<double>>(
      random, MultiHeadAttentionOptions{.embed_dim = 4, .rotary = given});
  const auto x = random.tensor<double, 3>({1, 2, 4});
  const auto at = [&](index_t first, index_t second) {
    const Tensor2<index_t> ids({1, 2}, {first, second});
    return attention(x, {}, {.position_ids = ids});
  };
  EXPECT_NEAR(at(0, 3)(0, 1, 2), at(5, 8)(0, 1, 2), 1e-12);
  EXPECT_GT(std::abs(at(0, 3)(0, 1, 2) - at(0, 4)(0, 1, 2)), 1e-6);
}

MultiHeadAttentionOptions dynamic_options(index_t original) {
  return {.embed_dim = 16,
          .num_heads = 2,
          .rotary = RotaryOptions{.max_positions = 40,
                                  .scaling = {.kind = RotaryScalingKind::dynamic,
                                              .factor = 3,
                                              .original_max_positions = original}}};
}

// Each batch row is rotated by its own length, independent of the other rows.
TEST(RotaryOptions, DynamicScalingFollowsTheLength) {
  Random random(3);
  const auto attention = random_module<MultiHeadAttention<float>>(random, dynamic_options(8));
  const auto x = random.tensor<float, 3>({2, 6, 16});
  Tensor2<index_t> near({2, 6}), far({2, 6});
  for (index_t i = 0; i < 6; ++i) near(0, i) = near(1, i) = far(0, i) = i;
  for (index_t i = 0; i < 6; ++i) far(1, i) = 10 + i;
  const auto at = [&](const TensorView3<const float>& tokens, const Tensor2<index_t>& ids,
                      index_t begin, index_t end) {
    return attention(tokens.slice(0, begin, end), {.mask = causal()},
                     {.position_ids = TensorView2<const index_t>(ids).slice(0, begin, end)});
  };
  const auto both = at(x.view(), far, 0, 2), first = at(x.view(), near, 0, 1),
             second = at(x.view(), far, 1, 2);
  for (index_t i = 0; i < 6; ++i) {
    for (index_t d = 0; d < 16; ++d) {
      EXPECT_EQ(both(0, i, d), first(0, i, d));
      EXPECT_EQ(both(1, i, d), second(0, i, d));
    }
  }
  // The second row with the base for its last position, 15.
  MultiHeadAttentionOptions plain = dynamic_options(8);
  RotaryOptions fixed = *plain.rotary;
  fixed.dim = 8;
  fixed.frequencies = rotary_frequencies(fixed, 16).values;
  fixed.scaling = {};
  plain.rotary = fixed;
  Random again(3);
  const auto same = random_module<MultiHeadAttention<float>>(again, plain);
  const auto expected = same(x.view().slice(0, 1, 2), {.mask = causal()},
                             {.position_ids = TensorView2<const index_t>(far).slice(0, 1, 2)});
  for (index_t i = 0; i < 6; ++i) {
    for (index_t d = 0; d < 16; ++d) EXPECT_EQ(second(0, i, d), expected(0, i, d));
  }
  // Beyond the last position of the table.
  far(1, 5) = 40;
  EXPECT_TRUE(contains(error_of<ValueError>([&] { at(x.view(), far, 0, 2); }), "position_ids"));
  const Tensor1<index_t> starts({2}, {0, 6});
  EXPECT_TRUE(contains(error_of<ValueError>([&] {
                         attention(x.view().slice(0, 0, 1),
                                   {.cu_seqlens_q = starts, .cu_seqlens_k = starts});
                       }),
                       "be none with dynamic and longrope scaling"));
}

TEST(RotaryOptions, WhatIsRefused) {
  const auto fails = [](RotaryOptions rotary, std::string_view part) {
    const std::string error = error_of<ValueError>(
        [&] { MultiHeadAttention<float>({.embed_dim = 16, .num_heads = 2, .rotary = rotary}); });
    EXPECT_TRUE(contains(error, part)) << error;
  };
  using Kind = RotaryScalingKind;
  fails({.dim = 3}, "rotary.dim must be even");
  fails({.theta = 0}, "rotary.theta must be positive");
  fails({.max_positions = 0}, "rotary.max_positions must be positive");
  fails({.frequencies = {1, 2, 3}}, "one for each of 4 pairs; found 3");
  fails({.frequencies = {1, 2, 3, NAN}}, "rotary.frequencies must be finite");
  fails({.scaling = {.kind = Kind::linear, .factor = 2}, .frequencies = {1, 2, 3, 4}},
        "be none with given frequencies");
  fails({.scaling = {.query_beta = NAN}}, "rotary.scaling.query_beta must be finite");
  fails({.scaling = {.query_beta = 1}}, "be positive with query_beta; found 0");
  fails({.scaling = {.factor = 2}}, "be 1 without a kind of scaling");
  fails({.scaling = {.kind = Kind::linear, .factor = -2}},
        "rotary.scaling.factor must be positive");
  fails({.scaling = {.kind = Kind::yarn, .factor = 2}}, "original_max_positions must be positive");
  fails({.dim = 2, .scaling = {.kind = Kind::dynamic, .factor = 2, .original_max_positions = 4}},
        "be more than 2 with dynamic");
  fails({.scaling = {.kind = Kind::dynamic, .factor = 0.5, .original_max_positions = 4}},
        "be at least 1 with dynamic");
  fails({.scaling = {.kind = Kind::llama3,
                     .factor = 2,
                     .original_max_positions = 4,
                     .low_freq_factor = 4}},
        "be more than low_freq_factor = 4");
  fails({.scaling = {.kind = Kind::yarn,
                     .factor = 2,
                     .original_max_positions = 4,
                     .attention_factor = 0.0}},
        "attention_factor must be positive");
  fails({.scaling = {.attention_factor = -1.0}}, "attention_factor must be positive");
}

TEST(RotaryAngles, HeldWithin) {
  EXPECT_TRUE(RotaryOptions{}.frequencies.empty());
  const std::vector<double> values(256, 0.5);
  RotaryAngles angles = values;
  angles[255] = 2;
  EXPECT_EQ(angles.size(), 256u);
  EXPECT_EQ(*(angles.end() - 1), 2);
  EXPECT_TRUE(contains(error_of<ValueError>([] { RotaryAngles(std::vector<double>(257)); }),
                       "[RotaryAngles] the angles must be at most 256; found 257."));
}

// Nested braces, about which g++ 12 warned at -O2.
TEST(RotaryAngles, InNestedBraces) {
  const GptOptions options{
      .vocab_size = 9,
      .layer = {.d_model = 8, .nhead = 2, .attention = {.rotary = RotaryOptions{.theta = 500}}},
      .positions = Positions::none};
  EXPECT_EQ(options.layer.attention.rotary->theta, 500);
}

}  // namespace
}  // namespace attn
