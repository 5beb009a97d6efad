// Clip from folders: vectors and similarities against transformers.
#include "attn/models/pretrained/clip.hpp"

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/references/pretrained_goldens.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::kPretrained;
using attn_test::relative_difference;

template <class T>
void check(const std::string& name, const PretrainedOptions& options = {}) {
  SCOPED_TRACE(name);
  const auto model = detail::clip_from_folder<T>(kPretrained / name, options);
  const SafetensorsFile golden(kPretrained / name / "golden.safetensors");
  const auto images = model.embed_images(convert<T>(golden.load<float, 4>("images")));
  const auto texts = model.embed_texts(golden.load<index_t, 2>("ids"));
  EXPECT_LT(relative_difference(images, golden.load<float, 2>("image_embeds")), 1e-5);
  EXPECT_LT(relative_difference(texts, golden.load<float, 2>("text_embeds")), 1e-5);
  EXPECT_LT(relative_difference(model.similarities(images, texts), golden.load<float, 2>("logits")),
            1e-5);
}

TEST(PretrainedClip, HasTheVectorsOfTransformers) {
  for (const char* name : {"clip", "clip_old", "siglip"}) {
    check<float>(name);
    check<float>(name, {.pack = false});
    check<double>(name);
  }
}

TEST(PretrainedClip, ConfigsBecomeOptions) {
  const ClipOptions options = clip_options_of(ConfigFile(kPretrained / "clip/config.json"));
  EXPECT_EQ(options.end_id, 95);
  EXPECT_EQ(options.projection_dim, 12);
  EXPECT_EQ(options.vision.hidden_act, Activation::quick_gelu);
  EXPECT_TRUE(options.vision.embedding_norm);
  EXPECT_FALSE(clip_options_of(ConfigFile(kPretrained / "clip_old/config.json")).end_id);
}

// Configs with all default values (2022), and objects that take precedence.
TEST(PretrainedClip, ConfigsOfTheFirstFiles) {
  const attn_test::TempFolder folder;
  auto config = nlohmann::json::parse(std::ifstream(kPretrained / "clip/config.json"));
  for (const char* key : {"text_config", "vision_config"}) {
    config[key]["pruned_heads"] = nlohmann::json::object();
    config[key]["is_decoder"] = false;
    config[key]["add_cross_attention"] = false;
    config[std::string(key) + "_dict"] = nullptr;
  }
  const auto options_of = [&] {
    std::ofstream(folder / "config.json") << config;
    return clip_options_of(ConfigFile(folder / "config.json"));
  };
  EXPECT_EQ(options_of().end_id, 95);
  config["text_config_dict"] = config["text_config"];
  config["text_config"]["eos_token_id"] = 7;
  EXPECT_EQ(options_of().end_id, 95);
  config["text_config_dict"]["pruned_heads"] = {{"1", {0}}};
  EXPECT_TRUE(contains(error_of<ValueError>(options_of), "pruned_heads"));
}

// Published files of SigLIP lack most keys.
TEST(PretrainedClip, MissingKeysHaveTheValuesOfTransformers) {
  const attn_test::TempFolder folder;
  const auto options_of = [&](const nlohmann::json& config) {
    std::ofstream(folder / "config.json") << config;
    return clip_options_of(ConfigFile(folder / "config.json"));
  };
  const auto empty = nlohmann::json::object();
  nlohmann::json config = {
      {"model_type", "siglip"}, {"text_config", empty}, {"vision_config", empty}};
  const ClipOptions siglip = options_of(config);
  EXPECT_EQ(siglip.form, ClipForm::siglip);
  EXPECT_EQ(siglip.projection_dim, 768);
  EXPECT_EQ(siglip.vision.patch_size, 16);
  EXPECT_EQ(siglip.vision.intermediate_size, 3072);
  EXPECT_EQ(siglip.vision.layer_norm_eps, 1e-6);
  EXPECT_EQ(siglip.vision.hidden_act, Activation::gelu_tanh);
  EXPECT_EQ(siglip.text_embedding.vocab_size, 32000);
  EXPECT_EQ(siglip.text_embedding.max_positions, 64);
  EXPECT_EQ(siglip.text.num_layers, 12);
  EXPECT_EQ(siglip.text.layer.nhead, 12);
  config["model_type"] = "clip";
  const ClipOptions clip = options_of(config);
  EXPECT_EQ(clip.vision.patch_size, 32);
  EXPECT_EQ(clip.text_embedding.vocab_size, 49408);
  EXPECT_EQ(clip.text.layer.d_model, 512);
  EXPECT_EQ(clip.text.layer.nhead, 8);
  config["model_type"] = "siglip";
  config["vision_config"]["hidden_size"] = 384;
  EXPECT_TRUE(contains(error_of<ValueError>([&] { options_of(config); }),
                       "projection_size\" must be the width of the vision tower, 384; found 768"));
}

TEST(PretrainedClip, WhatContradictsTheFormIsRefused) {
  const auto fails = [](const ClipOptions& options, std::string_view part) {
    EXPECT_TRUE(contains(error_of<ValueError>([&] { Clip<float>{options}; }), part));
  };
  fails({.form = ClipForm::siglip}, "vision.class_token must be false with ClipForm::siglip");
  fails({.vision = {.class_token = false}}, "vision.class_token must be true; found false");
  fails({.form = ClipForm::siglip, .vision = {.class_token = false}},
        "projection_dim must be vision.hidden_size = 768 with ClipForm::siglip; found 512");
}

TEST(PretrainedClip, TextsWithoutAnEnd) {
  const auto model = detail::clip_from_folder<float>(kPretrained / "clip", {});
  // The first token, whatever the others are.
  const auto found = model.embed_texts(Tensor2<index_t>({2, 3}, {94, 5, 6, 94, 7, 8}));
  for (index_t d = 0; d < 12; ++d) EXPECT_EQ(found(0, d), found(1, d));
  EXPECT_TRUE(contains(error_of<ShapeError>([&] {
                         model.embed_texts(Tensor2<index_t>({1, 0}));
                       }),
                       "[Clip] ids must have at least one token"));
}

}  // namespace
}  // namespace attn
