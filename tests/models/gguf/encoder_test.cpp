// SentenceEncoder from GGUF files that the gguf package wrote: ids and embeddings of transformers,
// bad files.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "attn/io/gguf/writer.hpp"
#include "attn/models/quantize.hpp"
#include "attn/models/sentence_encoder.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::TempFolder;
using Path = std::filesystem::path;
using Json = nlohmann::json;

const Path kGgufFiles = ATTN_TEST_DATA_DIR "/gguf";

template <class T>
void check_gguf_encoder(const std::string& name, double bound,
                        const PretrainedOptions& options = {}) {
  SCOPED_TRACE(name);
  std::ifstream file(kGgufFiles / "encoders.json");
  const Json golden = Json::parse(file);
  const SentenceEncoder<T> encoder(kGgufFiles / (name + ".gguf"), options);
  const auto lines = golden.at("lines").get<std::vector<std::string>>();
  const Json& expected = golden.at(name);
  const Tensor2<T> found = encoder.encode(lines, {.batch_size = 3});
  ASSERT_EQ(found.shape(), (Shape<2>{std::ssize(lines), 32}));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(encoder.tokenizer().encode(lines[i], 20),
              expected.at("ids")[i].get<std::vector<std::int32_t>>())
        << lines[i];
    const auto vector = expected.at("embeddings")[i].get<std::vector<double>>();
    for (index_t x = 0; x < 32; ++x) {
      ASSERT_NEAR(static_cast<double>(found(static_cast<index_t>(i), x)),
                  vector[static_cast<std::size_t>(x)], bound)
          << lines[i];
    }
  }
}

TEST(GgufEncoder, HasTheIdsAndEmbeddingsOfTransformers) {
  for (const char* name : {"bert", "nomic_bert"}) {
    check_gguf_encoder<float>(name, 1e-5);
    check_gguf_encoder<float>(name, 1e-5, {.pack = false});
    // transformers computes the rotary embedding in float.
    check_gguf_encoder<double>(name, 1e-6);
  }
  check_gguf_encoder<float>("bert", 0.05, {.weights = DType::BF16});
}

TEST(GgufEncoder, HasThePoolingAndLengthOfTheFile) {
  const SentenceEncoder<float> bert(kGgufFiles / "bert.gguf"),
      nomic(kGgufFiles / "nomic_bert.gguf");
  EXPECT_EQ(bert.options().pooling, Pooling::cls);
  EXPECT_EQ(nomic.options().pooling, Pooling::mean);
  for (const auto* encoder : {&bert, &nomic}) {
    EXPECT_EQ(encoder->options().max_tokens, 20);
    EXPECT_FALSE(encoder->options().normalize);
    EXPECT_EQ(encoder->tokenizer().piece(10), "##s");
    EXPECT_EQ(encoder->tokenizer().piece(6), "the");
  }
}

/// The error of a file with one key changed, or without it, or without a tensor.
template <class... Value>
std::string error_without(const std::string& name, std::string_view removed,
                          const Value&... value) {
  const TempFolder folder;
  const GgufFile file(kGgufFiles / (name + ".gguf"));
  GgufMetadata metadata;
  for (const auto& [key, own] : file.metadata()) {
    if (key != removed) metadata.set(key, own);
  }
  (metadata.set(removed, value), ...);
  std::vector<NamedGgufTensor> tensors;
  for (const std::string& tensor : file.names()) {
    if (tensor != removed) tensors.push_back({tensor, file.tensor(tensor)});
  }
  save_gguf(folder / "changed.gguf", metadata, tensors);
  const std::string error =
      error_of<ValueError>([&] { SentenceEncoder<float>{folder / "changed.gguf"}; });
  EXPECT_TRUE(contains(error, "changed.gguf"));
  return error;
}

TEST(GgufEncoder, NamesFileAndKeyOfWhatItCannotRead) {
  const std::uint32_t three = 3;
  EXPECT_TRUE(contains(error_without("bert", "general.architecture", "llama"),
                       "\"general.architecture\" must be bert or nomic-bert; found \"llama\""));
  EXPECT_TRUE(contains(error_without("bert", "bert.attention.head_count", three),
                       "head_count\" must divide 32; found 3"));
  EXPECT_TRUE(contains(error_without("bert", "bert.attention.head_count_kv", three),
                       "head_count_kv\" must be 4 or missing; found 3"));
  EXPECT_TRUE(contains(error_without("bert", "bert.attention.causal", true),
                       "causal\" must be false or missing"));
  EXPECT_TRUE(contains(error_without("bert", "bert.pooling_type", three),
                       "pooling_type\" must be 1 (mean) or 2 (the first token); found 3"));
  EXPECT_TRUE(contains(error_without("bert", "bert.made_up", three), "bert.made_up"));
  EXPECT_TRUE(contains(error_without("bert", "tokenizer.ggml.model", "gpt2"),
                       "model\" must be bert (WordPiece): no other is supported"));
  EXPECT_TRUE(contains(error_without("bert", "tokenizer.ggml.normalizer.lowercase", false),
                       "must be true or missing: cased models are not supported"));
  EXPECT_TRUE(contains(error_without("bert", "tokenizer.ggml.mask_token_id", std::uint32_t{27}),
                       "mask_token_id\" must be less than 27; found 27"));
  EXPECT_TRUE(contains(error_without("bert", "tokenizer.ggml.made_up", true), "made_up"));
  EXPECT_TRUE(contains(error_without("bert", "blk.1.ffn_up.weight"), "blk.1.ffn_up.weight"));
  EXPECT_TRUE(contains(error_without("bert", "blk.1.attn_k.bias"), "blk.1.attn_k.bias"));
  EXPECT_TRUE(contains(error_without("nomic_bert", "nomic-bert.expert_count", three),
                       "expert_count\" must be 0 or missing"));
  EXPECT_TRUE(
      contains(error_without("nomic_bert", "nomic-bert.context_length", std::uint32_t{1} << 24),
               "context_length"));
}

TEST(GgufEncoder, TokensOccurOnceAndHaveNoLineEnds) {
  const auto error = [](std::size_t id, const std::string& token) {
    const GgufFile file(kGgufFiles / "bert.gguf");
    std::vector<std::string> tokens;
    for (const auto one : file.array<std::string_view>("tokenizer.ggml.tokens"))
      tokens.emplace_back(one);
    tokens[id] = token.empty() ? tokens[id - 1] : token;
    return error_without("bert", "tokenizer.ggml.tokens", tokens);
  };
  EXPECT_TRUE(contains(error(8, ""),
                       "changed.gguf\": key \"tokenizer.ggml.tokens\" must hold each token once; "
                       "found the same with ids 7 and 8"));
  for (const char* token : {"the\r", "th\ne"}) {
    EXPECT_TRUE(contains(error(8, token), "tokens\" must have no line ends"));
  }
}

/// Tables of no columns take no bytes, whatever their rows.
TEST(GgufEncoder, RefusesOtherShapesOfTablesBeforeItAllocates) {
  const TempFolder folder;
  const GgufFile file(kGgufFiles / "bert.gguf");
  GgufMetadata metadata;
  for (const auto& [key, value] : file.metadata()) metadata.set(key, value);
  for (const std::string_view table : {"position_embd.weight", "token_types.weight"}) {
    for (const index_t rows : {index_t{1} << 28, index_t{1} << 36}) {
      std::vector<NamedGgufTensor> tensors;
      for (const std::string& name : file.names()) {
        GgufTensor tensor = file.tensor(name);
        if (name == table) tensor = {GgufType::F32, {rows, 0}, {}};
        tensors.push_back({name, std::move(tensor)});
      }
      save_gguf(folder / "changed.gguf", metadata, tensors);
      const GgufFile changed(folder / "changed.gguf");
      EXPECT_TRUE(contains(
          error_of<ShapeError>([&] { (void)detail::gguf_bert_options(changed, {}); }), table));
    }
  }
}

TEST(GgufEncoder, IsQuantisedAsItsBertIs) {
  SentenceEncoder<float> encoder(kGgufFiles / "bert.gguf");
  const std::vector<std::string> lines = {"the cat sat on the mat"};
  const Tensor2<float> exact = encoder.encode(lines);
  quantize(encoder);
  const Tensor2<float> small = encoder.encode(lines);
  double cosine = 0, norms[2] = {};
  for (index_t x = 0; x < encoder.dim(); ++x) {
    cosine += double{exact(0, x)} * small(0, x);
    norms[0] += double{exact(0, x)} * exact(0, x);
    norms[1] += double{small(0, x)} * small(0, x);
  }
  EXPECT_GT(cosine, 0.99 * std::sqrt(norms[0] * norms[1]));
}

}  // namespace
}  // namespace attn
