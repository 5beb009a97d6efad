// pretrained_model_of: the kind of model in each folder of the tests.
#include <gtest/gtest.h>

#include "attn/models/pretrained.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/references/pretrained_goldens.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::kPretrained;

TEST(PretrainedModelOf, IsTheModelOfTheType) {
  const std::pair<const char*, PretrainedModel> folders[] = {
      {"llama", PretrainedModel::gpt},
      {"gemma3_text", PretrainedModel::gpt},
      {"embedding_gemma", PretrainedModel::bert},
      {"xlm_roberta", PretrainedModel::bert},
      {"vit", PretrainedModel::vit},
      {"dinov2_with_registers", PretrainedModel::vit},
      {"clip", PretrainedModel::clip},
      {"siglip", PretrainedModel::clip},
      {"mt5", PretrainedModel::seq2seq_transformer},
      {"marian", PretrainedModel::seq2seq_transformer},
      {"whisper", PretrainedModel::whisper}};
  for (const auto& [name, model] : folders) {
    EXPECT_EQ(pretrained_model_of(ConfigFile(kPretrained / name / "config.json")), model) << name;
  }
}

TEST(PretrainedModelOf, OtherTypesAreErrors) {
  const attn_test::TempFolder folder;
  std::ofstream(folder / "config.json") << R"({"model_type": "mamba"})";
  EXPECT_TRUE(contains(
      error_of<ValueError>([&] { pretrained_model_of(ConfigFile(folder / "config.json")); }),
      "key \"model_type\" must be a type that load_pretrained() reads; found \"mamba\""));
}

}  // namespace
}  // namespace attn
