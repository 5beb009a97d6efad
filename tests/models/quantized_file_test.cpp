// Quantised modules in files: round trips keep bits, contents, errors; no training.
#include "attn/models/quantized_file.hpp"

#include <cstring>

#include <gtest/gtest.h>

#include "attn/models/bert_backward.hpp"
#include "attn/models/gpt_backward.hpp"
#include "attn/models/quantize.hpp"
#include "attn/train/parameters.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;
using attn_test::TempFolder;

template <class Module>
void draw_parameters(Module& module, std::uint64_t seed) {
  Random random(seed);
  module.visit_parameters([&]<class T, int Rank>(std::string_view, TensorView<T, Rank> p) {
    for (index_t i = 0; i < p.size(); ++i) {
      p.data()[i] = static_cast<T>(static_cast<float>(0.2 * random.normal()));
    }
  });
}

const BertOptions kSmallBert{.vocab_size = 40,
                             .hidden_size = 24,
                             .num_hidden_layers = 2,
                             .num_attention_heads = 3,
                             .intermediate_size = 37,
                             .max_position_embeddings = 16,
                             .pooler = true};
const GptOptions kSmallGpt{
    .vocab_size = 50,
    .num_layers = 2,
    .layer = {.d_model = 32, .nhead = 4, .dim_feedforward = 64, .norm_first = true, .gated = true},
    .max_positions = 40,
    .tied = true};

template <class Module>
Tensor3<float> outputs_of(const Module& module) {
  const Tensor2<index_t> ids({2, 5}, {1, 7, 3, 39, 0, 8, 8, 2, 30, 11});
  return module(ids);
}

bool same_outputs(const Tensor3<float>& a, const Tensor3<float>& b) {
  return a.shape() == b.shape() &&
         std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(float)) == 0;
}

template <class Module, class Options>
void check_round_trip(const Options& module_options, const QuantizeOptions& how,
                      const SaveOptions& names = {}) {
  const TempFolder folder;
  const auto path = folder / "small.safetensors";
  Module module(module_options), loaded(module_options);
  draw_parameters(module, 1);
  draw_parameters(loaded, 2);
  quantize(module, how);
  save_quantized(path, module, names);
  const auto report = load_quantized(loaded, SafetensorsFile(path), how.activations,
                                     {.prefix = names.prefix, .rename = names.rename});
  EXPECT_TRUE(report.missing.empty());
  EXPECT_EQ(report.loaded.size(), SafetensorsFile(path).names().size());
  EXPECT_TRUE(same_outputs(outputs_of(loaded), outputs_of(module)));
  EXPECT_EQ(weight_bytes(loaded), weight_bytes(module));
}

TEST(QuantizedFile, ModelsComeBackWithTheirBits) {
  const QuantizeOptions ways[] = {{},
                                  {.activations = ActivationFormat::int8},
                                  {.weights = WeightFormat::bf16},
                                  {WeightFormat::bf16, ActivationFormat::bf16},
                                  {.weights = WeightFormat::f16}};
  for (const QuantizeOptions& how : ways) {
    check_round_trip<Bert<float>>(kSmallBert, how, {.prefix = "bert.", .rename = bert_name});
    check_round_trip<Gpt<float>>(kSmallGpt, how);
    check_round_trip<Gpt<bfloat16>>(kSmallGpt, how);
  }
  TransformerStackOptions stack{.num_layers = 1, .layer = {.d_model = 8, .nhead = 2}};
  Encoder<float> encoder(stack),
      loaded(stack);  // with one input projection matrix under another name
  draw_parameters(encoder, 3);
  quantize(encoder);
  const TempFolder folder;
  save_quantized(folder / "e.safetensors", encoder);
  load_quantized(loaded, SafetensorsFile(folder / "e.safetensors"));
  const auto x = Random(4).tensor<float, 3>({1, 3, 8});
  EXPECT_TRUE(same_outputs(loaded(x), encoder(x)));
}

TEST(QuantizedFile, HoldsCodesAndScales) {
  const TempFolder folder;
  Linear<float> linear(3, 2);
  linear.weight = Tensor2<float>({2, 3}, {1.0f, -2.54f, 0.04f, 0, 0, 0});
  linear.bias = Tensor1<float>({2}, {5, 6});
  quantize(linear);
  save_quantized(folder / "l.safetensors", linear, {.prefix = "x."});
  const SafetensorsFile file(folder / "l.safetensors");
  EXPECT_EQ(file.names(), (std::vector<std::string>{"x.bias", "x.weight", "x.weight_scale"}));
  const auto codes = file.load<std::int8_t, 2>("x.weight");
  const auto scales = file.load<float, 1>("x.weight_scale");
  EXPECT_EQ(scales(0), 2.54f / 127);
  EXPECT_EQ(scales(1), 0);
  const int expected[] = {50, -127, 2, 0, 0, 0};
  for (index_t i = 0; i < 6; ++i) EXPECT_EQ(codes.data()[i], expected[i]) << i;
  // A float module is saved as by save_state_dict().
  Linear<float> dense(3, 2);
  draw_parameters(dense, 5);
  save_quantized(folder / "d.safetensors", dense);
  save_state_dict(folder / "s.safetensors", dense);
  EXPECT_EQ(folder.read("d.safetensors"), folder.read("s.safetensors"));
}

TEST(QuantizedFile, TakesEveryCodeThatAFileMayHold) {
  const TempFolder folder;
  Tensor2<std::int8_t> codes({2, 256});
  for (index_t i = 0; i < 512; ++i) codes.data()[i] = static_cast<std::int8_t>(i % 256 - 128);
  const Tensor1<float> scales({2}, {0.5f, -2.0f});
  save_safetensors(folder / "c.safetensors", {{"weight", codes}, {"weight_scale", scales}});
  Linear<float> linear(256, 2, false);
  load_quantized(linear, SafetensorsFile(folder / "c.safetensors"));
  Tensor2<float> one({256, 256});
  for (index_t i = 0; i < 256; ++i) one(i, i) = 1;
  const Tensor2<float> columns = linear(one);
  for (index_t i = 0; i < 256; ++i) {
    EXPECT_EQ(columns(i, 0), 0.5f * static_cast<float>(i - 128));
    EXPECT_EQ(columns(i, 1), -2.0f * static_cast<float>(i - 128));
  }
}

TEST(QuantizedFileErrors, LeaveModuleAndFileAsTheyWere) {
  const TempFolder folder;
  const auto path = folder / "x.safetensors";
  Gpt<float> blocks(kSmallGpt);
  draw_parameters(blocks, 6);
  quantize(blocks, {.weights = WeightFormat::q4_0});
  EXPECT_TRUE(contains(error_of<ValueError>([&] { save_quantized(path, blocks); }),
                       "be int8 with one scale per row, bfloat16 or float16 (only GGUF files store "
                       "blocks); found blocks"));
  EXPECT_EQ(folder.number_of_files(), 0u);

  Gpt<float> saved(kSmallGpt), module(kSmallGpt);
  draw_parameters(saved, 7);
  draw_parameters(module, 8);
  quantize(saved);
  save_quantized(path, saved);
  const SafetensorsFile file(path);
  const auto without = [&](const std::string& name, std::optional<NamedTensor> instead) {
    std::vector<NamedTensor> tensors;
    for (const std::string& one : file.names()) {
      if (one != name) tensors.push_back(file.tensor(one));
    }
    if (instead) tensors.push_back(*instead);
    const auto changed = folder / "changed.safetensors";
    save_safetensors(changed, tensors);
    const auto before = outputs_of(module);
    std::string error;
    try {
      load_quantized(module, SafetensorsFile(changed));
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    EXPECT_TRUE(contains(error, name));
    EXPECT_TRUE(same_outputs(outputs_of(module), before));
    return error;
  };
  const std::string weight = "blocks.layers.1.down_proj.weight", scale = weight + "_scale";
  EXPECT_TRUE(contains(without(scale, {}), "exist"));
  EXPECT_TRUE(contains(without(weight, {}), "missing"));
  EXPECT_TRUE(contains(without("blocks.norm.weight", {}), "missing"));
  const Tensor1<float> long_scales({33});
  EXPECT_TRUE(contains(without(scale, NamedTensor(scale, long_scales)), "have shape (32)"));
  const Tensor2<std::int8_t> turned({64, 32});
  EXPECT_TRUE(contains(without(weight, NamedTensor(weight, turned)), "have shape (32, 64)"));
  load_quantized(module, file);
  EXPECT_TRUE(same_outputs(outputs_of(module), outputs_of(saved)));
}

TEST(QuantizedFileErrors, QuantisedModelsAreNotTrained) {
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::bf16, WeightFormat::f16}) {
    Gpt<float> gpt(kSmallGpt);
    Bert<float> bert(kSmallBert);
    Linear<float> linear(8, 8);
    quantize(gpt, {.weights = format});
    quantize(bert, {.weights = format});
    quantize(linear, {.weights = format});
    const auto throws = [](auto&& f) {
      EXPECT_TRUE(contains(error_of<ValueError>(f),
                           "the weight must be a tensor, to be shown, "
                           "trained, loaded or saved"));
    };
    {
      Gpt<float> gradients(kSmallGpt);
      throws([&] { parameters_of<float>(gpt, gradients); });
    }
    const Tensor2<index_t> ids({1, 4}, {1, 2, 3, 4});
    Tensor3<float> logits({1, 4, 50}), hidden({1, 4, 24}), y({1, 4, 8});
    const Tensor3<float> x({1, 4, 8});
    GptSaved<float> gpt_saved;
    BertSaved<float> bert_saved;
    LinearSaved<float> linear_saved;
    throws([&] { forward(gpt, ids, logits, gpt_saved); });
    throws([&] { forward(bert, ids, hidden, bert_saved); });
    throws([&] { forward<float>(linear, x.view(), y.view(), linear_saved); });
    // Its attention and feed-forward cannot be trained alone, either.
    EncoderLayer<float> layer({.d_model = 8, .nhead = 2});
    quantize(layer, {.weights = format});
    EncoderLayerSaved<float> layer_saved;
    throws([&] { forward<float>(layer, x.view(), y.view(), layer_saved); });
  }
}

}  // namespace
}  // namespace attn
