// load_pretrained: tiny models of each architecture against transformers, and bad folders.
#include "attn/models/pretrained.hpp"

#include <algorithm>
#include <fstream>
#include <functional>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "attn/generation/decoding_session.hpp"
#include "attn/generation/gpt_session.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/references/pretrained_goldens.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::kPretrained;
using attn_test::relative_difference;
using attn_test::TempFolder;
using Path = std::filesystem::path;

Tensor2<index_t> row_of(const Tensor1<index_t>& ids) {
  Tensor2<index_t> result({1, ids.extent(0)});
  copy(ids.view(), result.view().select(0, 0));
  return result;
}

struct Golden {
  explicit Golden(const std::string& name) : file(kPretrained / name / "golden.safetensors") {}

  Tensor2<index_t> ids(const std::string& name) const {
    return row_of(file.load<index_t, 1>(name));
  }
  Tensor2<float> matrix(const std::string& name) const { return file.load<float, 2>(name); }
  std::vector<index_t> tokens(const std::string& name) const {
    const auto tensor = file.load<index_t, 1>(name);
    return {tensor.elements().begin(), tensor.elements().end()};
  }

  SafetensorsFile file;
};

/// Logits of both prompts and greedily decoded tokens, alone and in a batch, packed and unpacked.
template <class T>
void check_decoder(const std::string& name, const Gpt<T>& model) {
  SCOPED_TRACE(name);
  const Golden golden(name);
  for (const std::string key : {"a", "b"}) {
    const auto ids = golden.ids("ids_" + key);
    EXPECT_LT(relative_difference(model(ids), golden.matrix("logits_" + key)), 1e-5);
    const auto expected = golden.tokens("greedy_" + key);
    GptSession<T> session(model, 1, ids.size() + std::ssize(expected));
    const auto tokens = generate(session, ids, {.max_new_tokens = std::ssize(expected)});
    EXPECT_EQ(tokens[0], expected);
  }
}

TEST(Pretrained, DecodersHaveTheLogitsAndTokensOfTransformers) {
  for (const bool pack : {true, false}) {
    // Beyond the config's positions, where dynamic scaling begins.
    const PretrainedOptions options{.max_positions = 40, .pack = pack};
    check_decoder("llama", load_llama<float>(kPretrained / "llama", options));
    check_decoder("llama_yarn", load_llama<float>(kPretrained / "llama_yarn", options));
    check_decoder("llama_dynamic", load_llama<float>(kPretrained / "llama_dynamic", options));
    check_decoder("mistral", load_mistral<float>(kPretrained / "mistral", options));
    check_decoder("qwen2", load_qwen2<float>(kPretrained / "qwen2", options));
    check_decoder("qwen3", load_qwen3<float>(kPretrained / "qwen3", options));
    check_decoder("gemma", load_gemma<float>(kPretrained / "gemma", options));
    check_decoder("gemma2", load_gemma2<float>(kPretrained / "gemma2", options));
    check_decoder("gpt2", load_gpt2<float>(kPretrained / "gpt2", options));
  }
  check_decoder("qwen2", load_pretrained<Gpt<double>>(kPretrained / "qwen2"));
}

// Fails for a model_type without a folder here.
TEST(Pretrained, EveryDecoderTypeHasTheLogitsAndTokensOfTransformers) {
  for (const auto types : detail::kDecoderTypes) {
    for (const detail::DecoderType& type : types) {
      for (const bool pack : {true, false}) {
        const std::string name(type.model_type);
        const PretrainedOptions options{.max_positions = 40, .pack = pack};
        check_decoder(name, load_pretrained<Gpt<float>>(kPretrained / name, options));
      }
    }
  }
  // phi3_longrope: the first prompt is short, the second beyond the trained length.
  for (const char* name : {"phi3_longrope", "gpt_oss_mxfp4", "falcon_multi_query",
                           "falcon_sequential", "olmoe_clipped", "mpt_clipped", "lfm2_old"}) {
    check_decoder(name, load_pretrained<Gpt<float>>(kPretrained / name));
  }
}

// 2^40 experts, whose tensors have no elements.
TEST(Pretrained, EmptyTensorsOfAllExpertsAreRefused) {
  const TempFolder folder;
  std::string header = R"({"a.experts.gate_up_proj":{"dtype":"F32","shape":[1099511627776,0,2],)"
                       R"("data_offsets":[0,0]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = header.size();
  std::ofstream(folder / "model.safetensors", std::ios::binary)
      .write(reinterpret_cast<const char*>(&size), sizeof size)
      .write(header.data(), std::ssize(header));
  const SafetensorsFolder file(folder.path());
  EXPECT_TRUE(contains(
      error_of<ShapeError>([&] { detail::ExpertsFile(file, detail::kGptOssTypes[0].fused); }),
      "must not be empty"));
}

TEST(Pretrained, ConfigsBecomeOptions) {
  const auto mistral = gpt_options_of(ConfigFile(kPretrained / "mistral" / "config.json"));
  EXPECT_EQ(mistral.windows, (std::vector<index_t>{4, 4}));
  EXPECT_EQ(mistral.layer.attention.rotary->theta, 5000);
  EXPECT_EQ(mistral.layer.attention.rotary->scaling.kind, RotaryScalingKind::linear);
  EXPECT_EQ(mistral.max_positions, 128);  // twice the trained length
  const auto qwen2 = gpt_options_of(ConfigFile(kPretrained / "qwen2" / "config.json"));
  EXPECT_EQ(qwen2.windows, (std::vector<index_t>{-1, 3}));
  EXPECT_TRUE(*qwen2.layer.attention.in_proj_bias);
  EXPECT_FALSE(*qwen2.layer.attention.out_proj_bias);
  EXPECT_TRUE(gpt_options_of(ConfigFile(kPretrained / "gemma" / "config.json")).scale_embedding);
  const auto gemma2 = gpt_options_of(ConfigFile(kPretrained / "gemma2" / "config.json"));
  EXPECT_TRUE(gemma2.layer.norm_behind);
  EXPECT_EQ(gemma2.windows, (std::vector<index_t>{3, -1}));
  EXPECT_EQ(gemma2.logit_softcap, 5);
}

TEST(Pretrained, WhatAConfigLeavesOutIsAsInTransformers) {
  const TempFolder folder;
  nlohmann::json config = nlohmann::json::parse(std::ifstream(kPretrained / "gemma/config.json"));
  config.erase("hidden_act");
  config.erase("hidden_activation");
  std::ofstream(folder.path() / "config.json") << config;
  EXPECT_EQ(gpt_options_of(ConfigFile(folder.path() / "config.json")).layer.activation,
            Activation::gelu_tanh);
  config = nlohmann::json::parse(std::ifstream(kPretrained / "mistral/config.json"));
  const auto windows = [&] {
    std::ofstream(folder.path() / "config.json") << config;
    return gpt_options_of(ConfigFile(folder.path() / "config.json")).windows;
  };
  config["sliding_window"] = nullptr;
  EXPECT_EQ(windows(), (std::vector<index_t>{-1, -1}));
  config.erase("sliding_window");
  EXPECT_EQ(windows(), (std::vector<index_t>{4095, 4095}));
}

TEST(Pretrained, PublishedKeysOfQwen3NextGiveTheSameOptions) {
  const TempFolder folder;
  const Path golden = kPretrained / "qwen3_next/config.json";
  nlohmann::json config = nlohmann::json::parse(std::ifstream(golden));
  config.erase("layer_types");
  config.erase("rope_parameters");
  config.update({{"full_attention_interval", 3},
                 {"partial_rotary_factor", 0.5},
                 {"rope_theta", 10000.0},
                 {"rope_scaling", nullptr},
                 {"use_sliding_window", false}});
  std::ofstream(folder.path() / "config.json") << config;
  const GptOptions found = gpt_options_of(ConfigFile(folder.path() / "config.json")),
                   expected = gpt_options_of(ConfigFile(golden));
  EXPECT_EQ(found.mixers, expected.mixers);
  EXPECT_EQ(found.layer.attention.rotary, expected.layer.attention.rotary);
  EXPECT_EQ(found.layer.attention.rotary->dim, 4);
}

/// Copies a folder and adds tensors (rows, columns) to its file, or replaces those of equal size.
void add_tensors(const Path& from, const Path& to,
                 const std::vector<std::pair<std::string, Tensor2<float>>>& tensors) {
  std::filesystem::copy(from, to);
  std::ifstream in(from / "model.safetensors", std::ios::binary);
  std::uint64_t size = 0;
  in.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string text(size, ' ');
  in.read(text.data(), static_cast<std::streamsize>(size));
  std::string data{std::istreambuf_iterator<char>(in), {}};
  nlohmann::json header = nlohmann::json::parse(text);
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = static_cast<std::size_t>(tensor.size()) * sizeof(float);
    if (header.contains(name)) {
      const std::size_t begin = header[name]["data_offsets"][0];
      data.replace(begin, bytes, reinterpret_cast<const char*>(tensor.data()), bytes);
      continue;
    }
    header[name] = {{"dtype", "F32"},
                    {"shape", tensor.shape()},
                    {"data_offsets", {data.size(), data.size() + bytes}}};
    data.append(reinterpret_cast<const char*>(tensor.data()), bytes);
  }
  text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  size = text.size();
  std::ofstream out(to / "model.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), sizeof size);
  out << text << data;
}

TEST(Pretrained, AHeadInTheFileIsNotTied) {
  const TempFolder folder;
  const auto add_head = [&](const std::string& name, const std::string& table,
                            const std::string& head) {
    const Shape<2> shape = SafetensorsFolder(kPretrained / name).load<float, 2>(table).shape();
    add_tensors(kPretrained / name, folder / name, {{head, Tensor2<float>(shape)}});
  };
  add_head("gemma2", "model.embed_tokens.weight", "lm_head.weight");
  const auto gemma = load_gemma2<float>(folder / "gemma2");
  EXPECT_FALSE(gemma.options().tied);
  const auto logits = gemma(Golden("gemma2").ids("ids_a"));
  EXPECT_EQ(max_abs_difference(logits, Tensor3<float>(logits.shape())), 0);
  add_head("bart", "model.shared.weight", "lm_head.weight");
  const auto bart = load_bart<float>(folder / "bart");
  EXPECT_FALSE(bart.options().tied);
  // Only final_logits_bias, for every token.
  const Golden golden("bart");
  const auto biases = bart(golden.ids("ids_a"), golden.ids("target_a"));
  EXPECT_EQ(max_abs_difference(biases.view().select(1, 0), biases.view().select(1, 1)), 0);
  add_head("whisper", "model.decoder.embed_tokens.weight", "proj_out.weight");
  const auto whisper = load_pretrained<Whisper<float>>(folder / "whisper");
  EXPECT_FALSE(whisper.options().tied);
  const Golden speech("whisper");
  const auto silent = whisper(speech.file.load<float, 3>("features_a"), speech.ids("target_a"));
  EXPECT_EQ(max_abs_difference(silent, Tensor3<float>(silent.shape())), 0);
}

template <class T>
void check_encoder(const std::string& name, const Bert<T>& model, bool pools) {
  SCOPED_TRACE(name);
  const Golden golden(name);
  for (const std::string key : {"a", "b"}) {
    const auto hidden = model(golden.ids("ids_" + key));
    EXPECT_LT(relative_difference(hidden, golden.matrix("hidden_" + key)), 1e-5);
    EXPECT_EQ(static_cast<bool>(model.pooler.weight), pools);
    if (!pools) continue;
    Tensor2<T> pooled({1, hidden.extent(2)});
    model.pool(hidden, pooled);
    EXPECT_LT(relative_difference(pooled, golden.file.load<float, 1>("pooled_" + key)), 1e-5);
  }
}

TEST(Pretrained, EncodersHaveTheHiddenStatesOfTransformers) {
  check_encoder("bert", load_bert<float>(kPretrained / "bert"), true);
  check_encoder("roberta", load_roberta<float>(kPretrained / "roberta"), true);
  check_encoder("distilbert", load_distilbert<float>(kPretrained / "distilbert"), false);
  check_encoder("roberta", load_pretrained<Bert<double>>(kPretrained / "roberta"), true);
}

/// Whether Bert reads this folder of the tests.
bool is_encoder(const std::string& name) {
  return contains(name, "bert") || name == "mpnet" || name == "electra" ||
         name == "embedding_gemma";
}

// Fails for a model_type without a folder here.
TEST(Pretrained, EveryEncoderTypeHasTheHiddenStatesOfTransformers) {
  const auto check = [](const std::string& name) {
    const SafetensorsFile golden(kPretrained / name / "golden.safetensors");
    const bool pools = golden.contains("pooled_a");
    for (const bool pack : {true, false}) {
      check_encoder(name, load_pretrained<Bert<float>>(kPretrained / name, {.pack = pack}), pools);
    }
    check_encoder(name, load_pretrained<Bert<double>>(kPretrained / name), pools);
  };
  for (const auto types : detail::kEncoderTypes) {
    for (const detail::EncoderType& type : types) {
      std::string name(type.model_type);
      std::replace(name.begin(), name.end(), '-', '_');
      check(name == "gemma3_text" ? "embedding_gemma" : name);
    }
  }
  // Keys of older files; a ModernBERT file with a head, which is ignored.
  check("modernbert_old");
  check("nomic_bert_old");
}

TEST(Pretrained, ConfigsOfEncodersBecomeOptions) {
  const auto options_of = [](const std::string& name) {
    return bert_options_of(ConfigFile(kPretrained / name / "config.json"));
  };
  const BertOptions modern = options_of("modernbert"), gemma = options_of("embedding_gemma");
  EXPECT_EQ(modern.encoder.windows, (std::vector<index_t>{-1, 3, 3, -1}));
  EXPECT_TRUE(modern.encoder.layer.attention.symmetric_window);
  EXPECT_EQ(modern.encoder.rotary[0]->theta, 160000);
  EXPECT_EQ(modern.encoder.rotary[1]->theta, 10000);
  EXPECT_FALSE(modern.encoder.first_norm);
  EXPECT_EQ(options_of("modernbert_old").encoder.windows, modern.encoder.windows);
  EXPECT_EQ(options_of("modernbert_old").encoder.rotary[3]->theta, 5000);
  EXPECT_EQ(gemma.encoder.windows, (std::vector<index_t>{3, -1}));
  EXPECT_TRUE(gemma.scale_embedding);
  EXPECT_EQ(options_of("albert").encoder.num_groups, 2);
  EXPECT_EQ(options_of("albert").embedding_size, 8);
  EXPECT_EQ(options_of("mpnet").encoder.relative_buckets, 32);
  EXPECT_EQ(options_of("nomic_bert").encoder.layer.attention.rotary->theta, 1000);
  EXPECT_EQ(bert_names_of(ConfigFile(kPretrained / "albert/config.json"), "albert.")
                .rename("encoder.layers.1.linear1.weight"),
            "encoder.albert_layer_groups.1.albert_layers.0.ffn.weight");
}

TEST(Pretrained, VitHasTheHiddenStatesAndLogitsOfTransformers) {
  const SafetensorsFile golden(kPretrained / "vit" / "golden.safetensors");
  const auto images = golden.load<float, 4>("images");
  const auto model = load_vit<float>(kPretrained / "vit");
  EXPECT_EQ(model.options().num_patches(), 6);
  EXPECT_LT(relative_difference(model(images), golden.load<float, 3>("hidden")), 1e-5);
  EXPECT_LT(relative_difference(model.classify(images), golden.load<float, 2>("logits")), 1e-5);
  // Results of an image do not depend on the rest of the batch.
  const auto second = model(Tensor4<float>(const_view(images).slice(0, 1, 2)));
  const auto both = model(images);
  for (index_t i = 0; i < second.size(); ++i)
    EXPECT_EQ(second.data()[i], both.data()[second.size() + i]);
}

/// A folder with a changed config, and its error.
class Changed {
 public:
  explicit Changed(const std::string& name) {
    std::filesystem::copy(kPretrained / name, folder_ / "model");
    std::ifstream file(path());
    config = nlohmann::json::parse(file);
  }
  Path dir() const { return folder_ / "model"; }
  Path path() const { return dir() / "config.json"; }
  template <class Model>
  std::string error() const {
    std::ofstream(path()) << config.dump();
    return error_of<ValueError>([&] { load_pretrained<Model>(dir()); });
  }

  nlohmann::json config;

 private:
  TempFolder folder_;
};

/// expect() for an encoder-decoder; also with both prompts in one batch, the shorter one padded.
template <class T>
void check_seq2seq(const std::string& name, const Seq2SeqTransformer<T>& model) {
  SCOPED_TRACE(name);
  const Golden golden(name);
  const std::vector<index_t> start = target_start_of(kPretrained / name);
  const index_t first = std::ssize(start), steps = 21 - first;
  // The golden tokens begin after the first one.
  const auto greedy = [&](const std::string& key) {
    const auto tokens = golden.tokens("greedy_" + key);
    EXPECT_TRUE(std::equal(start.begin() + 1, start.end(), tokens.begin()));
    return std::vector<index_t>(tokens.begin() + (first - 1), tokens.end());
  };
  Tensor2<index_t> prompt({2, first});
  for (index_t row = 0; row < 2; ++row) std::copy(start.begin(), start.end(), &prompt(row, 0));
  for (const std::string key : {"a", "b"}) {
    const auto ids = golden.ids("ids_" + key);
    EXPECT_LT(relative_difference(model(ids, golden.ids("target_" + key)),
                                  golden.matrix("logits_" + key)),
              1e-5);
    Seq2SeqSession<T> session(model, ids, 21);
    const auto tokens = generate(session, prompt.slice(0, 0, 1), {.max_new_tokens = steps});
    EXPECT_EQ(tokens[0], greedy(key));
  }
  const auto a = golden.ids("ids_a"), b = golden.ids("ids_b");
  Tensor2<index_t> both({2, b.extent(1)});
  both.fill(*model.options().pad_id);
  copy(a, both.slice(0, 0, 1).slice(1, 0, a.extent(1)));
  copy(b, both.slice(0, 1, 2));
  Seq2SeqSession<T> session(model, both, 21);
  const auto tokens = generate(session, prompt, {.max_new_tokens = steps});
  EXPECT_EQ(tokens[0], greedy("a"));
  EXPECT_EQ(tokens[1], greedy("b"));
}

TEST(Pretrained, EncoderDecodersHaveTheLogitsAndTokensOfTransformers) {
  check_seq2seq("bart", load_bart<float>(kPretrained / "bart"));
  check_seq2seq("t5", load_t5<float>(kPretrained / "t5"));
  check_seq2seq("t5", load_pretrained<Seq2SeqTransformer<double>>(kPretrained / "t5"));
}

// Fails for a model_type without a folder here.
TEST(Pretrained, EveryEncoderDecoderTypeHasTheLogitsAndTokensOfTransformers) {
  const auto check = [](const std::string& name) {
    for (const bool pack : {true, false}) {
      check_seq2seq(name,
                    load_pretrained<Seq2SeqTransformer<float>>(kPretrained / name, {.pack = pack}));
    }
  };
  for (const auto types : detail::kSeq2SeqTypes) {
    for (const detail::Seq2SeqType& type : types) check(std::string(type.model_type));
  }
  check("t5_v1_1");
  check("marian_two_tables");
}

TEST(Pretrained, PaddingThatTargetsBeginWithIsNotMaskedOut) {
  const SafetensorsFile expected(kPretrained / "changed_seq2seq.safetensors");
  for (const std::string name : {"bart", "mbart", "m2m_100"}) {
    SCOPED_TRACE(name);
    Changed changed(name);
    const index_t pad = changed.config["pad_token_id"];
    changed.config["decoder_start_token_id"] = pad;
    std::ofstream(changed.path()) << changed.config.dump();
    const Golden golden(name);
    Tensor2<index_t> target = golden.ids("target_b");
    target(0, 0) = pad;
    const auto model = load_pretrained<Seq2SeqTransformer<float>>(changed.dir());
    EXPECT_LT(relative_difference(model(golden.ids("ids_b"), target),
                                  expected.load<float, 2>(name + ".logits")),
              1e-5);
    EXPECT_EQ(load_pretrained<Seq2SeqTransformer<float>>(kPretrained / name).options().tgt_pad_id(),
              pad);
  }
  Changed t5("t5");
  t5.config["decoder_start_token_id"] = 5;
  std::ofstream(t5.path()) << t5.config.dump();
  EXPECT_TRUE(seq2seq_options_of(ConfigFile(t5.path())).pad_target);
}

/// Marian's files may contain the tables, PEGASUS's always do; here they are rounded to bfloat16.
TEST(Pretrained, StoredTablesOfSinusoidalPositionsAreLoaded) {
  const SafetensorsFile expected(kPretrained / "changed_seq2seq.safetensors");
  const auto table = expected.load<float, 2>("positions");
  const TempFolder folder;
  for (const std::string name : {"marian", "pegasus"}) {
    SCOPED_TRACE(name);
    add_tensors(kPretrained / name, folder / name,
                {{"model.encoder.embed_positions.weight", table},
                 {"model.decoder.embed_positions.weight", table}});
    const auto model = load_pretrained<Seq2SeqTransformer<float>>(folder / name);
    const Golden golden(name);
    const auto logits = model(golden.ids("ids_b"), golden.ids("target_b"));
    EXPECT_LT(relative_difference(logits, expected.load<float, 2>(name + ".logits")), 1e-5);
    EXPECT_GT(relative_difference(logits, golden.matrix("logits_b")), 1e-4);
  }
}

template <class T>
void check_whisper(const Whisper<T>& model) {
  const Golden golden("whisper");
  for (const std::string key : {"a", "b"}) {
    const auto features = convert<T>(golden.file.load<float, 3>("features_" + key));
    EXPECT_LT(relative_difference(model(features, golden.ids("target_" + key)),
                                  golden.matrix("logits_" + key)),
              1e-5);
    const auto prompt = golden.ids("prompt");
    WhisperSession<T> session(model, features, 24);
    const auto tokens = generate(session, prompt, {.max_new_tokens = 20});
    EXPECT_EQ(tokens[0], golden.tokens("greedy_" + key));
  }
}

TEST(Pretrained, WhisperHasTheLogitsAndTokensOfTransformers) {
  for (const bool pack : {true, false}) {
    check_whisper(load_pretrained<Whisper<float>>(kPretrained / "whisper", {.pack = pack}));
  }
  check_whisper(load_pretrained<Whisper<double>>(kPretrained / "whisper"));
}

TEST(Pretrained, TargetsBeginWithTheTokensOfTheFolder) {
  EXPECT_EQ(target_start_of(kPretrained / "marian"), (std::vector<index_t>{1}));
  EXPECT_EQ(target_start_of(kPretrained / "mbart"), (std::vector<index_t>{2, 7}));
  const TempFolder folder;
  const auto write = [&](const char* name, std::string_view text) {
    std::ofstream(folder / name) << text;
  };
  write("config.json", R"({"decoder_start_token_id": 3, "forced_bos_token_id": 4})");
  EXPECT_EQ(target_start_of(folder.path()), (std::vector<index_t>{3, 4}));
  write("generation_config.json", R"({"decoder_start_token_id": 5})");
  EXPECT_EQ(target_start_of(folder.path()), (std::vector<index_t>{5, 4}));
  write("config.json", "{}");
  write("generation_config.json", "{}");
  EXPECT_TRUE(contains(error_of<ValueError>([&] { target_start_of(folder.path()); }),
                       "key \"decoder_start_token_id\" must be given"));
}

/// PretrainedOptions::weights gives the bits of store_weights() afterwards; a 16-bit model rounds
/// every parameter.
TEST(Pretrained, WeightsAreOfTheElementThatIsAskedFor) {
  const Path folder = kPretrained / "bert";
  const auto floats = load_pretrained<Bert<float>>(folder, {.pack = false});
  const Tensor2<index_t> ids = Golden("bert").ids("ids_a");
  const SafetensorsFolder file(folder);
  for (const DType element : {DType::F32, DType::BF16, DType::F16}) {
    Bert<float> rounded = floats;
    visit_weights<float>(rounded, [&](std::string_view, WeightSlot<float>& slot) {
      if (element == DType::BF16) convert(convert<bfloat16>(slot.dense), slot.dense);
      if (element == DType::F16) convert(convert<float16>(slot.dense), slot.dense);
    });
    const auto found = load_pretrained<Bert<float>>(folder, {.weights = element});
    const Tensor3<float> hidden = found(ids), expected = rounded(ids);
    EXPECT_EQ(hidden.elements().size(), expected.elements().size());
    EXPECT_TRUE(std::ranges::equal(hidden.elements(), expected.elements())) << name(element);
  }
  const auto small = load_pretrained<Bert<bfloat16>>(folder);
  EXPECT_EQ(float{small.encoder.layers[0].norm1.weight(1)},
            float{bfloat16(floats.encoder.layers[0].norm1.weight(1))});
  EXPECT_LT(relative_difference(small(ids), floats(ids)), 0.05);
  EXPECT_LT(relative_difference(
                load_pretrained<Gpt<float16>>(kPretrained / "llama")(Golden("llama").ids("ids_a")),
                Golden("llama").matrix("logits_a")),
            0.01);
  EXPECT_LT(relative_difference(load_t5<bfloat16>(kPretrained / "t5")(Golden("t5").ids("ids_a"),
                                                                      Golden("t5").ids("target_a")),
                                Golden("t5").matrix("logits_a")),
            0.05);
  EXPECT_TRUE(contains(error_of<ValueError>([&] {
                         load_pretrained<Bert<bfloat16>>(folder, {.weights = DType::F32});
                       }),
                       "[load_pretrained] weights must be BF16, the model's own; found F32"));

  Linear<float> linear(3, 2), loaded(3, 2);
  linear.weight = Tensor2<float>({2, 3}, {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f});
  const TempFolder temporary;
  save_state_dict(temporary / "linear.safetensors", linear);
  load_state_dict(loaded, SafetensorsFile(temporary / "linear.safetensors"), {}, DType::F16);
  EXPECT_FALSE(loaded.weight);
  const Tensor2<float> one({1, 3}, {1, 0, 0});
  EXPECT_EQ(loaded(one)(0, 1), float{float16(0.4f)});
}

// transformers keeps parts of T5 in float, and the residual stream of Gemma passes 65504.
TEST(Pretrained, ActivationsThatOverflowFloat16AreRefused) {
  for (const char* name : {"t5", "t5_v1_1", "mt5"}) {
    EXPECT_TRUE(contains(error_of<ValueError>([&] {
                           load_pretrained<Seq2SeqTransformer<float16>>(kPretrained / name);
                         }),
                         "be a model whose activations fit float16"));
    load_pretrained<Seq2SeqTransformer<float>>(kPretrained / name, {.weights = DType::F16});
  }
  for (const char* name : {"gemma", "gemma2", "gemma3_text"}) {
    EXPECT_TRUE(
        contains(error_of<ValueError>([&] { load_pretrained<Gpt<float16>>(kPretrained / name); }),
                 "be a model whose activations fit float16"));
    load_pretrained<Gpt<bfloat16>>(kPretrained / name);
  }
  EXPECT_TRUE(contains(error_of<ValueError>([&] {
                         load_pretrained<Bert<float16>>(kPretrained / "embedding_gemma");
                       }),
                       "be a model whose activations fit float16"));
  for (const char* name : {"embedding_gemma", "modernbert", "mpnet", "albert"}) {
    const Golden golden(name);
    const auto model = load_pretrained<Bert<bfloat16>>(kPretrained / name);
    EXPECT_LT(relative_difference(model(golden.ids("ids_a")), golden.matrix("hidden_a")), 0.1)
        << name;
  }
}

TEST(Pretrained, NameMapsAreOfUseAlone) {
  GptOptions options = gpt_options_of(ConfigFile(kPretrained / "gpt2" / "config.json"));
  Gpt<float> model(options);
  load_state_dict(model, SafetensorsFile(kPretrained / "gpt2" / "model.safetensors"), gpt2_names());
  check_decoder("gpt2", model);
  EXPECT_EQ(gpt2_names("").rename("blocks.layers.3.linear1.weight"), "h.3.mlp.c_fc.weight");
  EXPECT_EQ(llama_names().rename("blocks.layers.3.self_attn.q_proj_bias"),
            "model.layers.3.self_attn.q_proj.bias");
}

TEST(Pretrained, WhatAConfigAsksAndThereIsNotIsNamed) {
  const auto fails = [](const std::string& name, const std::string& key,
                        const nlohmann::json& value, std::string_view part) {
    Changed changed(name);
    changed.config[key] = value;
    const std::string error = changed.error<Gpt<float>>();
    EXPECT_TRUE(contains(error, part)) << key;
    EXPECT_TRUE(contains(error, "config.json")) << key;
  };
  fails("llama", "model_type", "mamba", "key \"model_type\" must be one of llama, mistral,");
  fails("llama", "model_type", nullptr, "key \"model_type\" must be given; found none");
  fails("llama", "hidden_act", "mish", "key \"hidden_act\" must be relu, relu2, gelu,");
  fails("llama", "hidden_size", "16", "key \"hidden_size\" must be a whole number that fits");
  fails("llama", "hidden_size", 1e300, "key \"hidden_size\" must be a whole number that fits");
  fails("llama", "hidden_size", -16, "key \"hidden_size\" must lie in 1 .. 2^24; found -16");
  fails("gpt2", "n_embd", 17, "divide the width of 17");
  fails("llama", "num_hidden_layers", 1 << 24, "describe a model that ");
  fails("llama", "vocab_size", 1 << 24, "describe a model that ");
  fails("llama", "max_position_embeddings", 1 << 24, "for weights of this size");
  fails("gpt2", "n_positions", 1 << 24, "describe a model that ");
  fails("lfm2", "conv_L_cache", 1 << 22, "describe a model that ");
  for (const char* size : {"linear_key_head_dim", "linear_value_head_dim", "linear_num_value_heads",
                           "linear_conv_kernel_dim"}) {
    fails("qwen3_next", size, 1 << 20, "describe a model that ");
  }
  fails("llama", "num_key_value_heads", 3, "divide num_attention_heads = 4; found 3");
  fails("llama", "rms_norm_eps", "no", "key \"rms_norm_eps\" must be a finite number");
  fails("llama", "tie_word_embeddings", 1, "key \"tie_word_embeddings\" must be true or false");
  fails("llama", "quantization_config", nlohmann::json::object(),
        "found 1 of them (\"quantization_config\")");
  fails("llama", "sliding_window", 5, "found 1 of them (\"sliding_window\")");
  fails("llama", "rope_parameters", {{"rope_type", "proportional"}},
        "key \"rope_parameters.rope_type\" must be default, linear, dynamic, llama3, yarn or "
        "longrope");
  fails("llama", "rope_parameters",
        {{"rope_type", "longrope"}, {"short_factor", {1, 2, 3}}, {"long_factor", {1, 2}}},
        "key \"rope_scaling\" must have one short_factor and one long_factor for each of 2 pairs");
  fails("llama", "rope_parameters", {{"rope_type", "linear"}},
        "key \"rope_parameters.factor\" must be given");
  fails("llama", "rope_parameters", {{"rope_type", "default"}, {"mrope_section", {1, 2}}},
        "found 1 of them (\"rope_parameters.mrope_section\")");
  fails("exaone4", "sliding_window_pattern", "LLX", "be a number or a text of L and G");
  fails("gpt_neox", "num_key_value_heads", 2, "must be num_attention_heads or missing");
  fails("phi3", "lm_head_bias", true, "must be false or missing");
  fails("olmoe_clipped", "clip_qkv", -1.0, "must be positive, null or missing; found -1");
  fails("ministral3", "rope_parameters", nullptr, "key \"rope_parameters\" must be given");
  fails("ministral3", "rope_parameters", {{"rope_type", "default"}, {"llama_4_scaling_beta", 0.1}},
        "be yarn with llama_4_scaling_beta");
  fails("deepseek_v2", "topk_method", "noaux_tc", "be greedy or group_limited_greedy");
  fails("deepseek_v2", "norm_topk_prob", true, "must be false or missing");
  fails("deepseek_v3", "scoring_func", "softmax", "must be sigmoid or missing");
  fails("deepseek_v3", "n_group", 3, "divide n_routed_experts = 4; found 3");
  fails("deepseek_v3", "topk_group", 3, "be at most n_group = 2; found 3");
  fails("deepseek_v3", "num_experts_per_tok", 3, "be at most 2; found 3");
  fails("deepseek_v3", "first_k_dense_replace", 3, "lie in 0 .. 2; found 3");
  fails("deepseek_v3", "num_key_value_heads", 2, "must be num_attention_heads or missing");
  fails("lfm2", "conv_L_cache", 1, "must be at least 2; found 1");
  fails("lfm2", "full_attn_idxs", {0}, "must agree with layer_types");
  fails("lfm2_old", "full_attn_idxs", {4}, "must lie in 0 .. 3; found 4");
  fails("lfm2_old", "conv_dim", 17, "must be hidden_size or missing");
  fails("qwen3_next", "linear_num_value_heads", 3, "a multiple of linear_num_key_heads = 2");
  fails("qwen3_next", "layer_types", {"full_attention"}, "must be one per layer, 3; found 1");
  fails("qwen3_next", "hidden_act", "gelu", "must be silu or missing");
  fails("llama", "partial_rotary_factor", 0.5,
        "key \"partial_rotary_factor\" must be 1 or missing");
  fails("qwen2", "layer_types", {"full_attention"}, "be one per layer, 2; found 1");
  fails("qwen2", "layer_types", {"full_attention", "chunked_attention"},
        "contain only full_attention and sliding_attention; found \"chunked_attention\"");
  fails("gemma", "use_bidirectional_attention", true, "must be false or missing");
  fails("gemma2", "use_bidirectional_attention", true, "must be false or missing");
  fails("gemma2", "attn_logit_softcapping", nullptr, "must be given; found none");
  fails("gpt2", "scale_attn_by_inverse_layer_idx", true, "must be false or missing");
  fails("gpt2", "add_cross_attention", true, "must be false or missing");
  // Other models.
  Changed bert("bert");
  bert.config["position_embedding_type"] = "relative_key";
  EXPECT_TRUE(contains(bert.error<Bert<float>>(), "must be absolute or missing"));
  EXPECT_TRUE(contains(bert.error<Gpt<float>>(), "found \"bert\""));
  Changed roberta("roberta");
  roberta.config["pad_token_id"] = 40;
  EXPECT_TRUE(contains(roberta.error<Bert<float>>(), "key \"pad_token_id\" must lie in"));
  const auto encoder_fails = [](const std::string& name, const std::string& key,
                                const nlohmann::json& value, std::string_view part) {
    Changed changed(name);
    changed.config[key] = value;
    EXPECT_TRUE(contains(changed.error<Bert<float>>(), part)) << key;
  };
  encoder_fails("modernbert", "rope_theta", 10000, "key \"rope_theta\" must be missing; found one");
  encoder_fails("modernbert", "max_position_embeddings", 1 << 24, "for weights of this size");
  encoder_fails("nomic_bert_old", "rotary_scaling_factor", 2.0,
                "key \"rotary_scaling_factor\" must be null or missing; found a number");
  encoder_fails("nomic_bert_old", "hidden_size", 32,
                "key \"n_embd\" must be hidden_size or missing");
  encoder_fails("mpnet", "relative_attention_num_buckets", 16, "must be 32 or missing");
  encoder_fails("albert", "num_hidden_groups", 5, "must be at most 4; found 5");
  encoder_fails("albert", "inner_group_num", 2, "must be 1 or missing");
  encoder_fails("embedding_gemma", "use_bidirectional_attention", false,
                "must be true for Bert (Gpt reads causal models); found false");
  EXPECT_TRUE(contains(Changed("embedding_gemma").error<Gpt<float>>(),
                       "key \"use_bidirectional_attention\" must be false or missing"));
  Changed vit("vit");
  vit.config["patch_size"] = {4, 2};
  EXPECT_TRUE(contains(vit.error<Vit<float>>(), "be square"));
  vit.config["patch_size"] = 13;
  EXPECT_TRUE(contains(vit.error<Vit<float>>(), "be at most image_size"));
  Changed bart("bart");
  bart.config["decoder_ffn_dim"] = 25;
  EXPECT_TRUE(
      contains(bart.error<Seq2SeqTransformer<float>>(), "be encoder_ffn_dim = 24; found 25"));
  const auto t5_fails = [](const std::string& key, const nlohmann::json& value,
                           std::string_view part) {
    Changed t5("t5");
    t5.config[key] = value;
    EXPECT_TRUE(contains(t5.error<Seq2SeqTransformer<float>>(), part)) << key;
  };
  const auto seq2seq_fails = [](const std::string& name, const std::string& key,
                                const nlohmann::json& value, std::string_view part) {
    Changed changed(name);
    changed.config[key] = value;
    EXPECT_TRUE(contains(changed.error<Seq2SeqTransformer<float>>(), part)) << key;
  };
  seq2seq_fails("marian", "decoder_vocab_size", 95, "be vocab_size = 96 of shared embeddings");
  seq2seq_fails("marian", "max_position_embeddings", 1 << 24,
                "be at most 1048576 for weights of this size");
  seq2seq_fails("marian", "normalize_before", true, "must be false or missing");
  seq2seq_fails("mbart", "normalize_before", false, "must be true or missing");
  seq2seq_fails("pegasus", "static_position_embeddings", false, "must be true or missing");
  Changed whisper("whisper");
  whisper.config["scale_embedding"] = true;
  EXPECT_TRUE(contains(whisper.error<Whisper<float>>(), "must be false or missing"));
  EXPECT_TRUE(contains(whisper.error<Seq2SeqTransformer<float>>(), "found \"whisper\""));
  seq2seq_fails("m2m_100", "model_type", "m2m", "key \"model_type\" must be one of bart, mbart,");
  t5_fails("feed_forward_proj", "gated-relu", "be relu, gelu, silu, gated-gelu or gated-silu");
  t5_fails("dense_act_fn", "gelu", "key \"dense_act_fn\" must be relu or missing");
  t5_fails("is_decoder", true, "key \"is_decoder\" must be false or missing");
  t5_fails("relative_attention_num_buckets", 3, "be at least 4; found 3");
  t5_fails("relative_attention_max_distance", 4, "exceed 4; found 4");
  t5_fails("pad_token_id", 96, "lie in 0 .. vocab_size - 1; found 96");
  EXPECT_TRUE(contains(error_of<ValueError>([&] { load_mistral<float>(kPretrained / "llama"); }),
                       "key \"model_type\" must be mistral; found \"llama\""));
}

/// Whether Seq2SeqTransformer reads this folder of the tests.
bool is_seq2seq(const std::string& name) {
  return exists(kPretrained / name / "config.json") &&
         ConfigFile(kPretrained / name / "config.json").get<bool>("is_encoder_decoder", false);
}

/// Whether Clip reads this folder of the tests.
bool is_comparison(const std::string& name) { return name.starts_with("clip") || name == "siglip"; }

/// Results of a folder's model for its longer prompt or its images.
std::vector<float> result_of(const std::string& name, const Path& dir) {
  const SafetensorsFile golden(dir / "golden.safetensors");
  const auto row = [&](const std::string& key) { return row_of(golden.load<index_t, 1>(key)); };
  Tensor3<float> result;
  if (name == "vit") {
    const Tensor2<float> logits = load_vit<float>(dir).classify(golden.load<float, 4>("images"));
    result = Tensor3<float>(logits.view().unsqueeze(0));
  } else if (is_comparison(name)) {
    const auto model = load_pretrained<Clip<float>>(dir);
    const Tensor2<float> logits =
        model.similarities(model.embed_images(golden.load<float, 4>("images")),
                           model.embed_texts(golden.load<index_t, 2>("ids")));
    result = Tensor3<float>(logits.view().unsqueeze(0));
  } else if (name.starts_with("dinov2")) {
    result = load_pretrained<Vit<float>>(dir)(golden.load<float, 4>("images_b"));
  } else if (is_encoder(name)) {
    result = load_pretrained<Bert<float>>(dir)(row("ids_b"));
  } else if (name == "whisper") {
    result =
        load_pretrained<Whisper<float>>(dir)(golden.load<float, 3>("features_b"), row("target_b"));
  } else if (is_seq2seq(name)) {
    result = load_pretrained<Seq2SeqTransformer<float>>(dir)(row("ids_b"), row("target_b"));
  } else {
    result = load_pretrained<Gpt<float>>(dir)(row("ids_b"));
  }
  return {result.elements().begin(), result.elements().end()};
}

/// Other values of a setting, of the same type and of others.
std::vector<nlohmann::json> others_than(const nlohmann::json& value) {
  using Json = nlohmann::json;
  std::vector<Json> result{Json::array({Json::object()})};
  if (value.is_boolean()) {
    result.emplace_back(!value.get<bool>());
  } else if (value.is_number_integer()) {
    const auto n = value.get<std::int64_t>();
    result.insert(result.end(), {n + 1, n - 1, -1, 0});
  } else if (value.is_number()) {
    result.insert(result.end(), {value.get<double>() * 2 + 0.25, "0.5"});
  } else if (value.is_string()) {
    result.emplace_back("nonsense");
  } else if (value.is_array()) {
    Json reversed = value;
    std::reverse(reversed.begin(), reversed.end());
    result.insert(result.end(), {reversed, Json::array()});
  } else if (value.is_null()) {
    result.insert(result.end(), {true, 3, "nonsense"});
  } else {
    for (const auto& [key, inner] : value.items()) {
      for (const Json& other : others_than(inner)) {
        Json changed = value;
        changed[key] = other;
        result.push_back(changed);
      }
    }
    Json more = value;
    more["made_up"] = 1;
    result.push_back(more);
  }
  result.erase(std::remove(result.begin(), result.end(), value), result.end());
  return result;
}

/// Whether a folder's file holds a head apart from the word embeddings; mT5 never ties it.
bool has_head(const std::string& name) {
  const SafetensorsFolder file(kPretrained / name);
  return name == "mt5" || file.contains("lm_head.weight") || file.contains("embed_out.weight");
}

/// Each setting of each model, changed alone, changes the result or is an error with the file's
/// name.
TEST(Pretrained, EverySettingIsHonouredOrRefused) {
  const std::set<std::string> change_no_result = {
      // training
      "activation_dropout", "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop",
      "classifier_dropout", "decoder_layerdrop", "dropout", "dropout_rate", "embd_pdrop",
      "classifier_dropout_prob", "embedding_dropout", "encoder_layerdrop", "hidden_dropout",
      "hidden_dropout_prob", "init_std", "initializer_cutoff_factor", "initializer_factor",
      "initializer_range", "layerdrop", "mlp_dropout", "qa_dropout", "resid_pdrop",
      "residual_dropout", "router_aux_loss_coef", "router_jitter_noise", "seq_classif_dropout",
      "summary_first_dropout", "summary_last_dropout", "apply_spec_augment", "mask_feature_length",
      "mask_feature_min_masks", "mask_feature_prob", "mask_time_length", "mask_time_min_masks",
      "mask_time_prob", "block_mlp_init_scale", "block_use_xavier_init",
      // generation, tokens and labels
      "begin_suppress_tokens", "bos_token_id", "cls_token_id", "decoder_start_token_id",
      "eos_token_id", "forced_eos_token_id", "id2label", "label2id", "mask_token_id",
      "median_filter_width", "sep_token_id", "suppress_tokens", "use_cache",
      // how another program computes
      "deterministic_flash_attn", "fused_bias_fc", "fused_dropout_add_ln", "max_trained_positions",
      "use_flash_attn",
      // origin and storage
      "architectures", "dtype", "output_past", "torch_dtype", "transformers_version",
      "drop_path_rate", "layerscale_value", "logit_scale_init_value",
      // other heads and backbones
      "apply_layernorm", "out_features", "out_indices", "reshape_hidden_states", "stage_names",
      "use_mask_token", "classifier_activation", "classifier_bias", "classifier_pooling",
      "classifier_proj_size", "decoder_bias", "encoder_stride", "output_router_logits",
      "pooler_act", "pooler_output_size", "sparse_pred_ignore_index", "sparse_prediction",
      "summary_activation", "summary_proj_to_labels", "summary_type", "summary_use_proj",
      "use_weighted_layer_sum",
      // the same sums in another order
      "pretraining_tp", "reorder_and_upcast_attn", "is_encoder_decoder", "slow_but_exact",
      // layers that predict further tokens, which are not loaded
      "num_nextn_predict_layers"};
  const auto is_exempt = [&](const std::string& name, const std::string& key,
                             const nlohmann::json& other) {
    if (change_no_result.contains(key)) return true;
    // One key of a tower at a time: see others_than().
    if (is_comparison(name) && key.ends_with("_config") && other.is_object()) {
      const nlohmann::json config =
          nlohmann::json::parse(std::ifstream(kPretrained / name / "config.json"));
      for (const auto& [inner, value] : config[key].items()) {
        const bool is_of_other_model =
            inner == "projection_dim" || inner == "pad_token_id" || inner == "model_type";
        // The end token of CLIP's texts.
        const bool has_effect = (inner == "eos_token_id" && name != "siglip") || inner == "made_up";
        if (value != other[inner]) {
          return !has_effect && (is_of_other_model || change_no_result.contains(inner));
        }
      }
    }
    // Keys of a head that is not loaded.
    const bool has_no_head = is_encoder(name) || name == "vit" || name.starts_with("dinov2");
    if (has_no_head && key == "tie_word_embeddings") return true;
    if (name == "embedding_gemma" && key == "final_logit_softcapping") return other == 3;
    // Keys of BERT in files of ModernBERT.
    if (name == "modernbert_old" && (key == "layer_norm_eps" || key == "position_embedding_type"))
      return true;
    // Pixels behind the last whole patch have no effect.
    if (key == "image_size" && name.starts_with("dinov2")) return other == 13;
    // Half of the window is on each side.
    if (key == "local_attention" || (key == "sliding_window" && name == "embedding_gemma"))
      return other == 7;
    const bool is_t5 = name.starts_with("t5") || name == "mt5";
    const bool is_count = other.is_number_integer() && other >= (key == "pad_token_id" ? 0 : 1);
    if (key == "pad_token_id") {
      // The embedding row of padding is an ordinary weight. RoBERTa counts positions by it; bart
      // and t5 mask it out, but the prompts have no padding.
      // M2M100 counts positions from it on.
      if (name == "m2m_100") return false;
      return is_seq2seq(name) && name != "whisper"
                 ? is_count
                 : !name.ends_with("roberta") && name != "camembert";
    }
    if (key == "n_positions" && is_t5) return true;  // T5 has no position table
    // The file has a separate head.
    if (key == "tie_word_embeddings" && has_head(name)) return other.is_boolean();
    // Larger than the positions of the prompts.
    if (key == "original_max_position_embeddings") return is_count;  // of an unused scaling
    if (key == "max_position_embeddings" ||
        (key == "n_positions" && (name == "gptj" || name == "nomic_bert_old"))) {
      return is_count;
    }
    // layer_types takes precedence, and so does the list no_rope_layers.
    const bool is_window = key == "sliding_window" || key == "use_sliding_window";
    if (key == "max_window_layers" || key.ends_with("sliding_window_pattern") ||
        key == "no_rope_layer_interval" ||
        (is_window && (name.starts_with("qwen3") || name == "qwen2_moe" || name == "smollm3"))) {
      return true;
    }
    // For layers without experts, which these models do not have.
    const bool is_qwen_moe = name.starts_with("qwen") && name.ends_with("_moe");
    if (key == "intermediate_size" && (is_qwen_moe || name == "qwen3_next")) {
      return is_count;
    }
    // Rounded up; the same set in another order.
    if (key == "block_ff_dim" || (key == "intermediate_size" && name == "lfm2")) {
      return other == 23 || other == 25;
    }
    if (key == "full_attn_idxs") return other == nlohmann::json({2, 0});
    // Only for initialisation: the file contains the trained weights.
    if (key == "sinusoidal_pos_embds") return other.is_boolean();
    // As in transformers: MPT has no position table; of Falcon, only the new architecture reads
    // these keys, and it does not read those.
    const std::set<std::string> of_mpt = {"max_seq_len", "emb_pdrop", "init_device",
                                          "learned_pos_emb"};
    if (of_mpt.contains(key)) return true;
    if (name == "gpt_neox" && key == "is_decoder") return other.is_boolean();
    if (name.starts_with("falcon_") && key.starts_with("num_")) {
      if (key == "num_kv_heads" || key == "num_ln_in_parallel_attn") return is_count;
    }
    if (name == "falcon" && (key == "multi_query" || key == "parallel_attn")) {
      return other.is_boolean();
    }
    // The types of tensors decide which are in MXFP4.
    if (key == "quantization_config" && other.is_object()) {
      return other.size() == 2 && other["quant_method"] == "mxfp4";
    }
    // This prompt is a long one.
    if (name == "phi3_longrope" && other.is_object() && other.contains("short_factor") &&
        other["short_factor"] == nlohmann::json{1.5, 1.0}) {
      return true;
    }
    // The bounds are rounded to whole pairs.
    if (key == "rope_parameters" &&
        (name == "llama_yarn" || name == "olmo3" || name.starts_with("deepseek"))) {
      const std::string text = other.dump(), trained = "\"original_max_position_embeddings\":1";
      return contains(text, trained + "5") || contains(text, trained + "7");
    }
    return false;
  };
  int honoured = 0, refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kPretrained)) {
    if (!exists(entry.path() / "config.json")) continue;
    const std::string name = entry.path().filename().string();
    const std::vector<float> expected = result_of(name, entry.path());
    Changed changed(name);
    const nlohmann::json config = changed.config;
    nlohmann::json with_one_more = config;
    with_one_more["made_up"] = nullptr;
    for (const auto& [key, value] : with_one_more.items()) {
      for (const nlohmann::json& other : others_than(value)) {
        if (is_exempt(name, key, other)) continue;
        nlohmann::json edited = config;
        edited[key] = other;
        std::ofstream(changed.path()) << edited.dump();
        try {
          EXPECT_NE(result_of(name, changed.dir()), expected)
              << name << ": " << key << " = " << other;
          ++honoured;
        } catch (const std::exception& error) {
          const std::string text = error.what();
          const bool is_of_images = contains(text, "[Vit] images must have shape");
          EXPECT_TRUE(contains(text, "config.json") || contains(text, ".safetensors") ||
                      is_of_images)
              << name << ": " << key << " = " << other << ": " << text;
          ++refused;
        }
      }
    }
  }
  EXPECT_GT(honoured, 40);
  EXPECT_GT(refused, 300);
}

TEST(Pretrained, KeysCanBePassedOver) {
  Changed changed("llama");
  changed.config["made_by"] = "somebody";
  EXPECT_TRUE(contains(changed.error<Gpt<float>>(), "found 1 of them (\"made_by\")"));
  check_decoder("llama", load_pretrained<Gpt<float>>(changed.dir(), {.ignore_keys = {"made_by"}}));
}

TEST(Pretrained, KeysWithinObjectsCanBePassedOver) {
  for (const char* ignored : {"rope_scaling.attn_factor", "attn_factor"}) {
    Changed changed("qwen3");
    // As in the config of DeepSeek-R1-0528-Qwen3-8B.
    changed.config.erase("rope_parameters");
    changed.config["rope_scaling"] = {{"rope_type", "default"}, {"attn_factor", 0.878}};
    EXPECT_TRUE(
        contains(changed.error<Gpt<float>>(), "found 1 of them (\"rope_scaling.attn_factor\")"));
    load_pretrained<Gpt<float>>(changed.dir(), {.ignore_keys = {ignored}});
  }
}

// Keys without effect of popular models, by the test folder of their model_type.
TEST(Pretrained, KeysWithoutEffect) {
  using Json = nlohmann::json;
  const std::pair<const char*, Json> models[] = {
      {"llama",
       {{"is_llama_config", true},  // SmolLM2
        {"rope_interleaved", false},
        {"transformers.js_config", {{"dtype", "q4"}}},
        {"pretraining_tp", 1},
        {"_attn_implementation", "sdpa"}}},
      {"llama", {{"max_sequence_length", 2048}}},  // first files of Llama
      {"llama", {{"unsloth_version", "2024.9"}, {"unsloth_fixed", true}}},
      {"gpt2", {{"n_special", 0}, {"predict_special_tokens", true}}},  // gpt2-medium
      {"gpt2", {{"_num_labels", 1}, {"summary_type", "cls_index"}}},   // distilgpt2
      {"bert",
       {{"directionality", "bidi"},  // bert-base-chinese, multilingual BERT
        {"pooler_fc_size", 768},
        {"pooler_num_attention_heads", 12},
        {"pooler_num_fc_layers", 3},
        {"pooler_size_per_head", 128},
        {"pooler_type", "first_token_transform"}}},
      {"bert",
       {{"cell", Json::object()},  // TinyBERT
        {"structure", Json::array()},
        {"pre_trained", ""},
        {"training", ""}}},
      {"bert", {{"sbert_ce_default_activation_function", "torch.nn.modules.linear.Identity"}}},
      {"xlm_roberta", {{"output_past", true}, {"sentence_transformers", {{"version", "4.1"}}}}},
      {"qwen2", {{"use_mrope", false}}},  // Qwen2.5 and its distillates
      {"qwen2", {{"attention_bias", false}, {"mlp_bias", false}}},
      {"mistral", {{"attention_bias", false}}},
      {"xlm_roberta", {{"language", "english"}, {"name", "XLMRoberta"}}},
      {"bart",
       {{"extra_pos_embeddings", 2},
        {"force_bos_token_to_be_generated", true},
        {"replacing_rate", 0},
        {"do_blenderbot_90_layernorm", false}}},
      {"marian",  // OPUS-MT
       {{"add_bias_logits", false},
        {"add_final_layer_norm", false},
        {"normalize_before", false},
        {"normalize_embedding", false},
        {"static_position_embeddings", true},
        {"bad_words_ids", {{1}}},
        {"_num_labels", 3}}},
      {"mbart",
       {{"add_final_layer_norm", true},
        {"normalize_before", true},
        {"normalize_embedding", true},
        {"static_position_embeddings", false},
        {"extra_pos_embeddings", 2}}},
      {"pegasus",
       {{"normalize_before", true},
        {"normalize_embedding", false},
        {"static_position_embeddings", true},
        {"extra_pos_embeddings", 1},
        {"gradient_checkpointing", false}}},
      {"m2m_100", {{"max_length", 200}, {"num_beams", 5}, {"tokenizer_class", "NllbTokenizer"}}},
      {"whisper", {{"forced_decoder_ids", {{1, 50259}}}, {"num_hidden_layers", 2}}},
      {"dinov2", {{"out_features", {"stage2"}}, {"torch_dtype", "float32"}}},
      {"t5", {{"output_past", true}, {"task_specific_params", {{"summarization", {}}}}}},
      {"phi3",  // Phi-4-mini
       {{"full_attn_mod", 1}, {"interpolate_factor", 1}, {"lm_head_bias", false}}},
      {"cohere", {{"model_max_length", 131072}}},  // Command R
      {"cohere2",                                  // Command R7B
       {{"use_parallel_embedding", true},
        {"use_embedding_sharing", true},
        {"position_embedding_type", "rope_gptj"},
        {"order_of_interleaved_layers", "local_attn_first"}}},
      {"starcoder2",
       {{"activation_function", "gelu_pytorch_tanh"},
        {"layer_norm_epsilon", 1e-5},
        {"attention_softmax_in_fp32", true},
        {"scale_attention_softmax_in_fp32", true},
        {"scale_attn_weights", true},
        {"norm_type", "layer_norm"},
        {"mlp_type", "default"}}},
      {"nemotron", {{"kv_channels", 16}}},                                // Minitron
      {"gpt2", {{"is_decoder", false}, {"add_cross_attention", false}}},  // whole dumps of 2020
      {"gpt2", {{"author", "A"}, {"created_date", "2021-04-28"}, {"license", "CC"}}},  // KoGPT2
      {"roberta", {{"eos_token_ids", 0}}},
      {"bart", {{"kobart_version", 2.0}, {"author", "A"}}},
      {"gpt_neox", {{"custom_pipelines", Json::object()}, {"num_steps", "global_step320000"}}},
      {"gpt_neox", {{"is_decoder", true}}},
      {"mpt",  // with what transformers adds
       {{"init_config", Json::object()},
        {"attn_config",
         {{"alibi", true},
          {"attn_impl", "triton"},
          {"attn_pdrop", 0},
          {"id2label", {{"0", "LABEL_0"}}},
          {"model_type", ""}}}}},
      {"opt", {{"learned_embeddings", true}, {"scale_embeddings", false}}},  // Galactica
  };
  for (const auto& [name, keys] : models) {
    SCOPED_TRACE(name);
    const std::vector<float> expected = result_of(name, kPretrained / name);
    Changed changed(name);
    for (const auto& [key, value] : keys.items()) changed.config[key] = value;
    std::ofstream(changed.path()) << changed.config.dump();
    EXPECT_EQ(result_of(name, changed.dir()), expected);
  }
  for (const auto& [name, key] : {std::pair("llama", "rope_interleaved"), {"qwen2", "use_mrope"}}) {
    Changed changed(name);
    changed.config[key] = true;
    EXPECT_TRUE(contains(changed.error<Gpt<float>>(), std::string("(\"") + key + "\")"));
  }
}

/// Renames a tensor in the single file of a folder, to a name of at most the same length.
void rename_tensor(const Path& dir, const std::string& from, const std::string& to) {
  std::ifstream in(dir / "model.safetensors", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const std::size_t at = bytes.find("\"" + from + "\":");
  ASSERT_NE(at, bytes.npos);
  const std::string quoted = "\"" + to + "\"", spaces(from.size() - to.size(), ' ');
  bytes.replace(at, from.size() + 2, quoted + spaces);
  std::ofstream(dir / "model.safetensors", std::ios::binary) << bytes;
}

// A tied table may be stored under the name of any layer that shares it.
TEST(Pretrained, TiedTablesUnderOtherNames) {
  const std::tuple<const char*, const char*, const char*> files[] = {
      {"gemma", "model.embed_tokens.weight", "lm_head.weight"},
      {"qwen3", "model.embed_tokens.weight", "lm_head.weight"},
      {"gpt2", "transformer.wte.weight", "lm_head.weight"},
  };
  for (const auto& [name, from, to] : files) {
    SCOPED_TRACE(name);
    Changed changed(name);
    rename_tensor(changed.dir(), from, to);
    const auto model = load_pretrained<Gpt<float>>(changed.dir());
    EXPECT_TRUE(model.options().tied);
    check_decoder(name, model);
  }
  Changed bart("bart");
  rename_tensor(bart.dir(), "model.shared.weight", "lm_head.weight");
  EXPECT_EQ(result_of("bart", bart.dir()), result_of("bart", kPretrained / "bart"));
  // Of two tables, the head shares the target's.
  Changed marian("marian_two_tables");
  rename_tensor(marian.dir(), "model.decoder.embed_tokens.weight", "lm_head.weight");
  EXPECT_EQ(result_of("marian_two_tables", marian.dir()),
            result_of("marian_two_tables", kPretrained / "marian_two_tables"));
  Changed one_table("marian_two_tables");
  rename_tensor(one_table.dir(), "model.decoder.embed_tokens.weight", "model.shared.weight");
  EXPECT_TRUE(contains(one_table.error<Seq2SeqTransformer<float>>(), "model.decoder.embed_tokens"));
  Changed whisper("whisper");
  rename_tensor(whisper.dir(), "model.decoder.embed_tokens.weight", "proj_out.weight");
  EXPECT_EQ(result_of("whisper", whisper.dir()), result_of("whisper", kPretrained / "whisper"));
  // Without tying, one table is missing.
  Changed untied("gemma");
  rename_tensor(untied.dir(), "model.embed_tokens.weight", "lm_head.weight");
  untied.config["tie_word_embeddings"] = false;
  EXPECT_TRUE(contains(untied.error<Gpt<float>>(), "describe a model that"));
}

TEST(Pretrained, FoldersThatLackSomething) {
  const TempFolder folder;
  EXPECT_TRUE(contains(error_of<IoError>([&] { load_pretrained<Gpt<float>>(folder / "none"); }),
                       "config.json"));
  const auto fails = [](const std::string& name, std::function<void(const Path&)> change,
                        std::string_view part) {
    Changed changed(name);
    change(changed.dir());
    std::string error;
    try {
      load_pretrained<Gpt<float>>(changed.dir());
      ADD_FAILURE() << "no exception";
    } catch (const std::exception& e) {
      error = e.what();
    }
    EXPECT_TRUE(contains(error, part));
  };
  const auto write = [](const Path& path, std::string_view text) { std::ofstream(path) << text; };
  const std::string index = "model.safetensors.index.json";
  fails(
      "gpt2", [](const Path& p) { std::filesystem::remove(p / "model.safetensors"); },
      "model.safetensors");
  fails(
      "llama",
      [](const Path& p) { std::filesystem::remove(p / "model-00002-of-00003.safetensors"); },
      "model-00002-of-00003.safetensors");
  fails(
      "llama", [&](const Path& p) { write(p / index, "{"); }, "be JSON");
  fails(
      "llama", [&](const Path& p) { write(p / index, "{}"); }, "\"weight_map\"");
  fails(
      "llama", [&](const Path& p) { write(p / index, R"({"weight_map": {"w": 3}})"); },
      "the file of tensor \"w\" must be a text");
  fails(
      "llama",
      [&](const Path& p) { write(p / index, R"({"weight_map": {"w": "../x.safetensors"}})"); },
      "beside the index; found \"../x.safetensors\"");
  fails(
      "llama",
      [&](const Path& p) {
        write(p / index, R"({"weight_map": {"w": "model-00001-of-00003.safetensors"}})");
      },
      "the file of tensor \"w\" must hold it");
  fails(
      "llama",
      [&](const Path& p) {
        write(p / index, R"({"weight_map": {"lm_head.weight": "model-00003-of-00003.safetensors",
                               "lm_head.weight": "model-00003-of-00003.safetensors"}})");
      },
      "key \"lm_head.weight\" again");
  fails(
      "gpt2", [&](const Path& p) { write(p / "config.json", "[1]"); }, "hold a JSON object");
  fails(
      "gpt2", [&](const Path& p) { write(p / "config.json", std::string(100000, '[')); }, "JSON");
  fails(
      "gpt2", [&](const Path& p) { write(p / "config.json", R"({"a": 1e999})"); }, "be JSON");
}

}  // namespace
}  // namespace attn
