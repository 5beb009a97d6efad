// Metadata of GGUF files: every key of the architecture is read, without effect, or an error.
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "attn/models/language_model.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/models/tiny_llama.hpp"

namespace attn {
namespace {

using attn_test::error_of;
using attn_test::TempFolder;
using attn_test::TinyLlama;
using Change = std::function<void(TinyLlama&)>;

template <class T>
Change set(const std::string& key, const T& value) {
  return [=](TinyLlama& t) { t.metadata.set(key, value); };
}

LanguageModel load(const std::vector<Change>& changes, const LanguageModelOptions& options = {}) {
  const TempFolder folder;
  TinyLlama tiny(7);
  for (const Change& change : changes) change(tiny);
  return LanguageModel(tiny.save(folder), options);
}

Tensor3<float> logits(const std::vector<Change>& changes,
                      const LanguageModelOptions& options = {}) {
  const Tensor2<index_t> ids({1, 12}, {5, 90, 33, 200, 17, 64, 1, 2, 3, 250, 100, 31});
  return load(changes, options).gpt()(ids);
}

double difference(const Tensor3<float>& a, const Tensor3<float>& b) {
  return static_cast<double>(max_abs_difference(a, b));
}

TEST(GgufKeys, WhatGptDoesNotImplementIsAnError) {
  const auto error = [](const Change& change) {
    return error_of<ValueError>([&] { load({change}); });
  };
  const auto expect = [&](const Change& change, const std::string& key, const std::string& text) {
    const std::string found = error(change);
    EXPECT_NE(found.find("tiny.gguf"), found.npos) << found;
    EXPECT_NE(found.find("key \"llama." + key + "\" must " + text), found.npos) << found;
  };
  expect(set("llama.attention.causal", false), "attention.causal", "be 1");
  expect(set("llama.attention.clamp_kqv", 8.0f), "attention.clamp_kqv", "be 0");
  expect(set("llama.attention.max_alibi_bias", 8.0f), "attention.max_alibi_bias", "be 0");
  expect(set("llama.logit_scale", 0.5f), "logit_scale", "be 1");
  expect(set("llama.embedding_scale", 12.0f), "embedding_scale", "be 1");
  expect(set("llama.residual_scale", 0.2f), "residual_scale", "be 1");
  expect(set("llama.attn_logit_softcapping", 50.0f), "attn_logit_softcapping", "be 0");
  expect(set("llama.final_logit_softcapping", 30.0f), "final_logit_softcapping", "be 0");
  expect(set("llama.use_parallel_residual", true), "use_parallel_residual", "be 0");
  expect(set("llama.expert_count", std::uint32_t{8}), "expert_count", "be 0");
  expect(set("llama.rope.scaling.yarn_ext_factor", 0.5f), "rope.scaling.yarn_ext_factor",
         "be one that attn implements");
  expect(set("llama.rope.dimension_sections", std::vector<std::int32_t>{1, 1, 2, 0}),
         "rope.dimension_sections", "be one that attn implements");
  expect(set("llama.attention.temperature_scale", 0.1f), "attention.temperature_scale",
         "be one that attn implements");
  expect(set("llama.invented", std::string("x")), "invented", "be one that attn implements");
}

TEST(GgufKeys, WithoutEffectTheyPass) {
  const Tensor3<float> plain = logits({});
  const std::vector<Change> neutral = {
      set("llama.attention.causal", true),
      set("llama.attention.clamp_kqv", 0.0f),
      set("llama.attention.max_alibi_bias", 0.0f),
      set("llama.attention.scale", 0.0f),
      set("llama.logit_scale", 1.0f),
      set("llama.embedding_scale", 0.0f),
      set("llama.residual_scale", 1.0f),
      set("llama.expert_count", std::uint32_t{0}),
      set("llama.expert_used_count", std::uint32_t{0}),
      set("llama.vocab_size", std::uint32_t{262}),
      set("llama.tensor_data_layout", std::string("Meta AI original pth")),
      set("llama.rope.scaling.type", std::string("none")),
      set("llama.rope.scaling.finetuned", false),
      set("llama.rope.scaling.attn_factor", 1.0f),
      set("llamas.invented", 3.0f),
      set("general.name", std::string("tiny"))};
  for (const Change& change : neutral) EXPECT_EQ(difference(logits({change}), plain), 0);
  EXPECT_EQ(difference(logits(neutral), plain), 0);
  EXPECT_EQ(difference(logits({set("llama.rope.scaling.type", std::string("none")),
                               set("llama.rope.scaling.factor", 4.0f)}),
                       plain),
            0);
  for (const char* name : {"logit_scale", "llama.logit_scale"}) {
    const Tensor3<float> ignored =
        logits({set("llama.logit_scale", 0.5f)}, {.ignore_keys = {name}});
    EXPECT_EQ(difference(ignored, plain), 0);
  }
}

TEST(GgufKeys, AttentionScale) {
  const double usual = 1 / std::sqrt(static_cast<double>(TinyLlama::kHeadDim));
  EXPECT_LT(
      difference(logits({set("llama.attention.scale", static_cast<float>(usual))}), logits({})),
      1e-5);
  EXPECT_GT(difference(logits({set("llama.attention.scale", 1.0f)}), logits({})), 0.1);
}

// As llama.cpp reads them: a factor without a type is linear; rope.scale_linear is its old name.
TEST(GgufKeys, RotaryFactorWithoutTypeIsLinear) {
  const Change factor = set("llama.rope.scaling.factor", 4.0f);
  const Tensor3<float> linear =
      logits({set("llama.rope.scaling.type", std::string("linear")), factor});
  EXPECT_GT(difference(linear, logits({})), 1);
  EXPECT_EQ(difference(logits({factor}), linear), 0);
  EXPECT_EQ(difference(logits({set("llama.rope.scale_linear", 4.0f)}), linear), 0);
  EXPECT_EQ(difference(logits({set("llama.rope.scaling.type", std::string("linear"))}), logits({})),
            0);
}

// Scores have the square of what cos and sin are multiplied by.
TEST(GgufKeys, AttentionFactorMultipliesWithAnyType) {
  const double factor = 1.25, scale = factor * factor / std::sqrt(double{TinyLlama::kHeadDim});
  const Change given = set("llama.rope.scaling.attn_factor", static_cast<float>(factor));
  const Change scaled = set("llama.attention.scale", static_cast<float>(scale));
  for (const std::string type : {"", "none", "linear", "yarn"}) {
    std::vector<Change> changes;
    if (!type.empty()) changes.push_back(set("llama.rope.scaling.type", type));
    if (type == "linear" || type == "yarn") {
      changes.push_back(set("llama.rope.scaling.factor", 2.0f));
    }
    auto with_factor = changes, with_scale = changes;
    with_factor.push_back(given);
    with_scale.push_back(scaled);
    EXPECT_GT(difference(logits(with_factor), logits(changes)), 0.01) << type;
    EXPECT_LT(difference(logits(with_factor), logits(with_scale)), 1e-4) << type;
  }
  const auto with_tensor = [](TinyLlama& t) {
    t.weights["rope_freqs.weight"] = {GgufType::F32, {4}, {}, {1, 1, 2, 4}};
    t.weights["rope_freqs.weight"].blocks =
        quantize_gguf(GgufType::F32, std::vector<float>{1, 1, 2, 4});
    t.order.push_back("rope_freqs.weight");
  };
  EXPECT_LT(difference(logits({with_tensor, given}), logits({with_tensor, scaled})), 1e-4);
}

TEST(GgufKeys, WellKnownControlTokensEndAnswers) {
  for (const char* name : {"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>",
                           "<eos>", "</s>", "<|end_of_text|>"}) {
    for (const std::int32_t kind : {3, 1}) {
      const LanguageModel model = load({[&](TinyLlama& t) {
        std::vector<std::string> tokens;
        std::vector<std::int32_t> kinds(256 + 4, 1);
        for (const std::int32_t letter : detail::byte_letters())
          append_utf8(letter, tokens.emplace_back());
        tokens.insert(tokens.end(), {"he", "ll", "\u0120w", "\u00c3\u00a9", name, "<|stop|>"});
        kinds.insert(kinds.end(), {kind, 3});
        t.metadata.set("tokenizer.ggml.tokens", tokens);
        t.metadata.set("tokenizer.ggml.token_type", kinds);
        t.metadata.set("tokenizer.chat_template", std::string("none"));
      }});
      EXPECT_TRUE(model.is_end(261));
      EXPECT_EQ(model.is_end(260), kind == 3) << name;
    }
  }
  const LanguageModel model = load({set("tokenizer.ggml.eot_token_id", std::uint32_t{97})});
  EXPECT_TRUE(model.is_end(97));
}

}  // namespace
}  // namespace attn
