// State dicts of layers: PyTorch's names, saved and loaded; strictness, the report.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attn/io/state_dict.hpp"
#include "attn/models/bert.hpp"
#include "attn/models/gpt.hpp"
#include "attn/models/seq2seq_transformer.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::names_of;
using attn_test::Random;
using attn_test::TempFolder;

TransformerLayerOptions layer_options() {
  return {.d_model = 8, .nhead = 2, .dim_feedforward = 12};
}

/// Saves a random module of the options and loads it into a new one, strictly.
template <class Module, class Options>
void expect_round_trip(const Options& options) {
  const TempFolder folder;
  Random random(1);
  Module saved(options), loaded(options);
  attn_test::randomize(saved, random);
  save_state_dict(folder / "a", saved, {.metadata = {{"format", "pt"}}});
  const LoadReport report = load_state_dict(loaded, SafetensorsFile(folder / "a"));
  EXPECT_EQ(report.loaded, names_of(saved));
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  const auto expected = attn_test::parameters_of<float>(saved);
  for (const auto& [name, value] : attn_test::parameters_of<float>(loaded)) {
    EXPECT_EQ(value.data, expected.at(name).data) << name;
  }
}

TEST(StateDictOfModules, ComeBackTheSame) {
  using Attention = MultiHeadAttentionOptions;
  expect_round_trip<MultiHeadAttention<float>>(Attention{.embed_dim = 8, .num_heads = 2});
  expect_round_trip<MultiHeadAttention<float>>(
      Attention{.embed_dim = 8, .num_heads = 2, .kdim = 3, .vdim = 5, .add_bias_kv = true});
  expect_round_trip<MultiHeadAttention<float>>(Attention{.embed_dim = 8,
                                                         .num_heads = 4,
                                                         .num_kv_heads = 2,
                                                         .query_key_norm = NormKind::rms,
                                                         .separate_in_proj = true});
  expect_round_trip<EncoderLayer<float>>(layer_options());
  expect_round_trip<DecoderLayer<float>>(layer_options());
  const TransformerStackOptions stack{.num_layers = 2, .layer = layer_options(), .norm = true};
  expect_round_trip<Encoder<float>>(stack);
  expect_round_trip<Decoder<float>>(stack);
  expect_round_trip<Transformer<float>>(TransformerOptions{
      .layer = layer_options(), .num_encoder_layers = 1, .num_decoder_layers = 2});
  expect_round_trip<Bert<float>>(BertOptions{.vocab_size = 5,
                                             .hidden_size = 8,
                                             .num_hidden_layers = 2,
                                             .num_attention_heads = 2,
                                             .intermediate_size = 6,
                                             .pooler = true});
  TransformerLayerOptions gated = layer_options();
  gated.gated = true;
  for (const bool tied : {false, true}) {
    expect_round_trip<Gpt<float>>(
        GptOptions{.vocab_size = 5, .num_layers = 2, .layer = gated, .tied = tied});
    expect_round_trip<Seq2SeqTransformer<float>>(
        Seq2SeqOptions{.src_vocab_size = 5,
                       .tgt_vocab_size = 6,
                       .transformer = {.layer = layer_options(), .num_encoder_layers = 1},
                       .tied = tied});
  }
}

/// A PyTorch module with bias = False has no biases, neither in linear maps nor in norms.
TEST(StateDictOfModules, StrictNamesWhatIsMissingAndWhatIsNotExpected) {
  const TempFolder folder;
  Random random(2);
  TransformerLayerOptions plain = layer_options();
  plain.bias = false;
  EncoderLayer<float> without(plain);
  attn_test::randomize(without, random);
  save_state_dict(folder / "a", without);
  const SafetensorsFile file(folder / "a");
  EncoderLayer<float> with(layer_options());
  const auto before = attn_test::parameters_of<float>(with);
  const std::string text = error_of<ValueError>([&] { load_state_dict(with, file); });
  EXPECT_TRUE(contains(text, "found 6 missing (\"self_attn.in_proj_bias\"")) << text;
  EXPECT_TRUE(contains(text, "\"norm2.bias\") and 0 unexpected")) << text;
  for (const auto& [name, value] : attn_test::parameters_of<float>(with)) {
    EXPECT_EQ(value.data, before.at(name).data) << name;
  }
  const LoadReport report = load_state_dict(with, file, {.strict = false});
  EXPECT_EQ(report.loaded, names_of(without));
  EXPECT_EQ(report.missing.size(), 6U);

  save_state_dict(folder / "b", with);
  EXPECT_TRUE(contains(
      error_of<ValueError>([&] { load_state_dict(without, SafetensorsFile(folder / "b")); }),
      "0 missing and 6 unexpected (\"linear1.bias\""));
}

/// A file like BERT's, with tensors that are not parameters.
TEST(StateDictOfModules, BertsNamesWithWhatIsIgnored) {
  const TempFolder folder;
  Random random(3);
  BertOptions options{.vocab_size = 5,
                      .hidden_size = 8,
                      .num_hidden_layers = 2,
                      .num_attention_heads = 2,
                      .intermediate_size = 6,
                      .pooler = true};
  Bert<float> saved(options);
  attn_test::randomize(saved, random);
  std::vector<NamedTensor> tensors = state_dict(saved, {.prefix = "bert.", .rename = bert_name});
  const Tensor2<std::int64_t> position_ids({1, 512});
  tensors.emplace_back("bert.embeddings.position_ids", position_ids.view());
  save_safetensors(folder / "a", tensors);

  const SafetensorsFile file(folder / "a");
  options.pooler = false;
  Bert<float> loaded(options);
  LoadOptions load{.prefix = "bert.", .rename = bert_name};
  EXPECT_TRUE(contains(
      error_of<ValueError>([&] { load_state_dict(loaded, file, load); }),
      "0 missing and 3 unexpected (\"bert.embeddings.position_ids\", \"bert.pooler.dense.bias\""));
  load.ignore = {"embeddings.position_ids", "pooler."};
  const LoadReport report = load_state_dict(loaded, file, load);
  EXPECT_TRUE(report.unexpected.empty());
  EXPECT_EQ(report.loaded.front(), "bert.embeddings.word_embeddings.weight");
  const auto expected = attn_test::parameters_of<float>(saved);
  for (const auto& [name, value] : attn_test::parameters_of<float>(loaded)) {
    EXPECT_EQ(value.data, expected.at(name).data) << name;
  }
  // Saved under BERT's names, it loads again by the same options.
  save_state_dict(folder / "b", loaded, {.prefix = "bert.", .rename = bert_name});
  Bert<float> again(options);
  EXPECT_EQ(load_state_dict(again, SafetensorsFile(folder / "b"), load).loaded, report.loaded);
  EXPECT_EQ(attn_test::parameters_of<float>(again).at("embeddings.words.weight").data,
            expected.at("embeddings.words.weight").data);
}

}  // namespace
}  // namespace attn
