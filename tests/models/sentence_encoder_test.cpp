// SentenceEncoder: tiny folders against sentence-transformers, batches, threads, errors.
#include "attn/models/sentence_encoder.hpp"

#include <cstring>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "attn/models/quantize.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/thread_executor.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::TempFolder;
using Path = std::filesystem::path;
using Json = nlohmann::json;

const Path kSentenceEncoders = ATTN_TEST_DATA_DIR "/sentence_encoder";

Json read_sentence_json(const Path& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

template <class T>
void check_sentences(const std::string& name, double bound) {
  const SentenceEncoder<T> encoder(kSentenceEncoders / name);
  const Json golden = read_sentence_json(kSentenceEncoders / name / "golden.json");
  for (const auto& [prompt, cases] : golden.items()) {
    std::vector<std::string> lines;
    for (const auto& item : cases.items()) lines.push_back(item.key());
    ASSERT_EQ(lines.size(), 7u);
    const Tensor2<T> found = encoder.encode(lines, {.prompt = prompt, .batch_size = 3});
    ASSERT_EQ(found.shape(), (Shape<2>{7, encoder.dim()}));
    for (index_t i = 0; i < found.extent(0); ++i) {
      const std::string& line = lines[static_cast<std::size_t>(i)];
      const auto expected = cases[line].template get<std::vector<double>>();
      ASSERT_EQ(std::ssize(expected), encoder.dim());
      for (index_t x = 0; x < encoder.dim(); ++x) {
        ASSERT_NEAR(found(i, x), expected[static_cast<std::size_t>(x)], bound)
            << name << ", prompt \"" << prompt << "\", line \"" << line << '"';
      }
    }
  }
}

// "<pad>" in a text is padding to RoBERTa's positions, as in sentence-transformers.
TEST(SentenceEncoder, PaddingWrittenInAText) {
  const SentenceEncoder<double> encoder(kSentenceEncoders / "roberta");
  const std::vector<std::string> lines = {"hello<pad>"};
  EXPECT_NEAR(encoder.encode(lines)(0, 0), 0.1544, 5e-5);
}

TEST(SentenceEncoder, EmbeddingsAreThoseOfSentenceTransformers) {
  for (const std::string name : {"mean", "cls", "multilingual", "roberta", "mpnet"}) {
    check_sentences<float>(name, 5e-6);
    check_sentences<double>(name, 1e-11);
  }
  // transformers computes their rotary embedding, and Gemma's norms, in float.
  for (const std::string name : {"modernbert", "nomic_bert", "embedding_gemma"}) {
    check_sentences<float>(name, 5e-6);
    check_sentences<double>(name, 1e-6);
  }
}

TEST(SentenceEncoder, HasTheDenseLayersOfTheFolder) {
  const SentenceEncoder<float> gemma(kSentenceEncoders / "embedding_gemma"),
      modern(kSentenceEncoders / "modernbert"), nomic(kSentenceEncoders / "nomic_bert");
  ASSERT_EQ(gemma.dense().size(), 2u);
  EXPECT_FALSE(gemma.dense()[0].tanh);
  EXPECT_TRUE(gemma.dense()[1].tanh);
  EXPECT_EQ(gemma.dim(), 8);
  EXPECT_EQ(gemma.bert().hidden_size(), 16);
  EXPECT_TRUE(gemma.options().normalize);
  EXPECT_EQ(gemma.options().max_tokens, 30);
  EXPECT_TRUE(modern.dense().empty());
  EXPECT_EQ(nomic.options().max_tokens, 18);
}

TEST(SentenceEncoder, ReadsWhatTheFolderAsksFor) {
  const SentenceEncoder<float> mean(kSentenceEncoders / "mean"), cls(kSentenceEncoders / "cls");
  EXPECT_EQ(mean.options().pooling, Pooling::mean);
  EXPECT_TRUE(mean.options().normalize);
  EXPECT_FALSE(mean.options().include_prompt);
  EXPECT_EQ(mean.options().max_tokens, 14);
  EXPECT_EQ(mean.options().prompts.at("query"), "query: ");
  EXPECT_EQ(cls.options().pooling, Pooling::cls);
  EXPECT_FALSE(cls.options().normalize);
  EXPECT_TRUE(cls.options().include_prompt);
  EXPECT_EQ(cls.options().max_tokens, 18);
  EXPECT_EQ(cls.options().default_prompt, "passage");
  // [CLS] the cat [SEP], with query : before it.
  EXPECT_EQ(mean.count_tokens("The cat"), 4);
  EXPECT_EQ(mean.count_tokens("The cat", "query"), 6);
  const auto words = [](std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text += "the ";
    return text;
  };
  EXPECT_FALSE(mean.is_cut(words(12)));
  EXPECT_TRUE(mean.is_cut(words(13)));
  EXPECT_FALSE(mean.is_cut(words(10), "query"));
  EXPECT_TRUE(mean.is_cut(words(11), "query"));
}

TEST(SentenceEncoder, TakesTokenizersOfOtherKinds) {
  const SentenceEncoder<float> unigram(kSentenceEncoders / "multilingual"),
      bytes(kSentenceEncoders / "roberta");
  EXPECT_EQ(unigram.options().max_tokens, 12);
  EXPECT_EQ(bytes.options().max_tokens, 20);  // of 22 positions
  for (const auto* encoder : {&unigram, &bytes}) {
    // <s> and </s>; one token more if no special token is spelled out.
    EXPECT_EQ(encoder->tokenizer().encode(""), (std::vector<std::int32_t>{0, 2}));
    EXPECT_EQ(encoder->tokenizer().encode("<pad>"), (std::vector<std::int32_t>{0, 1, 2}));
    EXPECT_EQ(encoder->tokenizer().encode("hello hello hello", 3).size(), 3u);
    EXPECT_EQ(encoder->tokenizer().encode("hello hello hello", 3).back(), 2);
    EXPECT_EQ(encoder->tokenizer().encode("hello", 2), (std::vector<std::int32_t>{0, 2}));
    EXPECT_TRUE(contains(error_of<ValueError>([&] { encoder->tokenizer().encode("hello", 1); }),
                         "max_tokens must be at least 2; found 1"));
    const index_t limit = encoder->options().max_tokens;
    std::string line;
    for (index_t i = 0; i < limit - 2; ++i) line += "<mask>";
    EXPECT_EQ(encoder->count_tokens(line), limit);
    EXPECT_FALSE(encoder->is_cut(line));
    EXPECT_TRUE(encoder->is_cut(line + "<mask>"));
  }
  EXPECT_EQ(unigram.tokenizer().piece(unigram.tokenizer().encode("hello")[1]), " hello");
  EXPECT_EQ(bytes.tokenizer().piece(bytes.tokenizer().encode("hello")[1]), "hello");
}

TEST(SentenceEncoder, LinesHaveTheSameBitsInAnyCompany) {
  const SentenceEncoder<float> bert(kSentenceEncoders / "mean"),
      modern(kSentenceEncoders / "modernbert"), gemma(kSentenceEncoders / "embedding_gemma");
  const std::vector<std::string> words = {"the", "cat", "dogs", "ran", "in", "rain", "!"};
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < 40; ++i) {
    std::string& line = lines.emplace_back();
    for (std::size_t n = 0; n < i * 7 % 13; ++n) line += words[(i + n * n) % words.size()] + " ";
  }
  const attn_test::ThreadExecutor threads(3);
  for (const SentenceEncoder<float>* encoder : {&bert, &modern, &gemma}) {
    const Tensor2<float> alone = encoder->encode(lines, {.batch_size = 1});
    for (const index_t batch_size : {2, 5, 32, 100}) {
      const Tensor2<float> together =
          encoder->encode(lines, {.batch_size = batch_size, .execution = {.executor = &threads}});
      EXPECT_EQ(std::memcmp(alone.data(), together.data(),
                            static_cast<std::size_t>(alone.size()) * sizeof(float)),
                0)
          << batch_size;
    }
    EXPECT_EQ(encoder->encode(std::vector<std::string>{}).shape(), (Shape<2>{0, encoder->dim()}));
  }
}

TEST(SentenceEncoder, IsNormalisedWhereACallAsksForIt) {
  const SentenceEncoder<double> encoder(kSentenceEncoders / "cls");
  const std::vector<std::string> lines = {"a cat", "who ran?"};
  const auto plain = encoder.encode(lines), unit = encoder.encode(lines, {.normalize = true});
  for (index_t i = 0; i < 2; ++i) {
    double plain_square = 0, unit_square = 0;
    for (index_t x = 0; x < encoder.dim(); ++x) {
      plain_square += plain(i, x) * plain(i, x);
      unit_square += unit(i, x) * unit(i, x);
    }
    EXPECT_GT(std::abs(plain_square - 1), 0.01);
    EXPECT_NEAR(unit_square, 1, 1e-12);
    EXPECT_NEAR(unit(i, 3) * std::sqrt(plain_square), plain(i, 3), 1e-12);
  }
}

TEST(SentenceEncoder, IsQuantisedAsItsBertIs) {
  SentenceEncoder<float> encoder(kSentenceEncoders / "mean");
  const std::vector<std::string> lines = {"the cat sat on the mat", "dogs running in rain"};
  const Tensor2<float> exact = encoder.encode(lines);
  const index_t bytes = weight_bytes(encoder);
  quantize(encoder, {.activations = ActivationFormat::int8});
  EXPECT_LT(weight_bytes(encoder), bytes / 2);
  const Tensor2<float> small = encoder.encode(lines);
  for (index_t i = 0; i < 2; ++i) {
    double cosine = 0;
    for (index_t x = 0; x < encoder.dim(); ++x) cosine += double{exact(i, x)} * small(i, x);
    EXPECT_GT(cosine, 0.99);
    EXPECT_LT(cosine, 1 - 1e-7);
  }
}

/// A copy of a folder with one JSON file changed.
class ChangedFolder {
 public:
  explicit ChangedFolder(const std::string& name) {
    std::filesystem::copy(kSentenceEncoders / name, dir(),
                          std::filesystem::copy_options::recursive);
  }
  Path dir() const { return folder_ / "model"; }
  void change(const std::string& file, const std::function<void(Json&)>& edit) const {
    Json value = read_sentence_json(dir() / file);
    edit(value);
    std::ofstream(dir() / file) << value.dump();
  }
  template <class Error = ValueError>
  std::string error() const {
    return error_of<Error>([&] { SentenceEncoder<float>{dir()}; });
  }

 private:
  TempFolder folder_;
};

TEST(SentenceEncoderErrors, NameFileAndKey) {
  const auto fails = [](const std::string& name, const std::string& file,
                        const std::function<void(Json&)>& edit, std::string_view part) {
    const ChangedFolder changed(name);
    changed.change(file, edit);
    const std::string error = changed.error();
    EXPECT_TRUE(contains(error, part));
    EXPECT_TRUE(contains(error, file));
  };
  const auto set = [](const std::string& key, const Json& value) {
    return [=](Json& file) { file[key] = value; };
  };
  const std::string kinds =
      "must be Transformer, Pooling, any number of Dense and optionally Normalize, in this order";
  fails(
      "mean", "modules.json", [](Json& j) { j[2]["type"] = "sentence_transformers.models.LSTM"; },
      "key \"2.type\" " + kinds + "; found \"LSTM\"");
  fails(
      "mean", "modules.json", [](Json& j) { j.push_back(j[2]); }, "key \"3.type\" " + kinds);
  fails(
      "mean", "modules.json", [](Json& j) { j.erase(j.begin()); }, "key \"0.type\" " + kinds);
  fails(
      "cls", "modules.json", [](Json& j) { j.erase(j.begin() + 1); },
      "list a Transformer and a Pooling; found 1 modules");
  for (const std::string out : {"../other", "/tmp", "a/../../b", "\\\\host\\share"}) {
    fails(
        "cls", "modules.json", [&](Json& j) { j[1]["path"] = out; },
        "key \"1.path\" must be a subfolder of the model's folder");
  }
  fails("mean", "1_Pooling/config.json", set("pooling_mode", "weightedmean"),
        "must be mean or cls; found 1 modes (\"weightedmean\")");
  fails("cls", "1_Pooling/config.json", set("pooling_mode_max_tokens", true),
        "must be mean or cls; found 2 modes (\"cls\", \"max_tokens\")");
  fails("cls", "1_Pooling/config.json", set("pooling_mode_cls_token", false),
        "must be mean or cls; found 0 modes");
  fails("mean", "1_Pooling/config.json", set("pooling_mode", {"mean", "cls"}), "be a text");
  fails("embedding_gemma", "3_Dense/config.json", set("in_features", 16),
        "key \"in_features\" must be 24, the width of its input; found 16");
  fails("embedding_gemma", "2_Dense/config.json",
        set("activation_function", "torch.nn.modules.activation.ReLU"),
        "key \"activation_function\" must be Tanh or Identity of torch.nn; found");
  fails("embedding_gemma", "2_Dense/config.json", set("use_residual", true),
        "key \"use_residual\" must be false or missing");
  fails("embedding_gemma", "2_Dense/config.json", set("made_up", 1),
        "found 1 of them (\"made_up\")");
  fails(
      "embedding_gemma", "modules.json", [](Json& j) { std::swap(j[3], j[4]); },
      "key \"4.type\" " + kinds + "; found \"Dense\"");
  fails("cls", "config_sentence_transformers.json", set("default_prompt_name", "none"),
        "key \"default_prompt_name\" must be one of the prompts; found \"none\"");
  fails("cls", "config_sentence_transformers.json", set("prompts", {{"query", 3}}),
        "key \"prompts.query\" must be a text");
  fails("cls", "0_Transformer/tokenizer_config.json", set("do_lower_case", false),
        "key \"do_lower_case\" must be true: cased models are not supported or missing");
  fails("cls", "0_Transformer/sentence_bert_config.json", set("do_lower_case", true),
        "must be false or missing");
  fails("cls", "0_Transformer/config.json", set("model_type", "mamba"),
        "key \"model_type\" must be one of bert, roberta,");
  fails(
      "mean", "tokenizer.json", [](Json& j) { j["model"]["type"] = "WordLevel"; },
      "key \"model.type\" must be BPE or Unigram; found \"WordLevel\"");
  fails(
      "roberta", "tokenizer.json", [](Json& j) { j["post_processor"]["sep"] = "</s>"; },
      "key \"post_processor.sep\" must be a");
  fails(
      "roberta", "tokenizer.json", [](Json& j) { j["post_processor"]["cls"][0] = "[CLS]"; },
      "key \"post_processor\" must be a token; found \"[CLS]\"");
  fails(
      "multilingual", "tokenizer.json",
      [](Json& j) { j["post_processor"]["type"] = "SplitProcessing"; },
      "must be ByteLevel, TemplateProcessing, RobertaProcessing or BertProcessing");
  fails(
      "mean", "tokenizer.json", [](Json& j) { j["model"]["vocab"]["cat"] = 8; },
      "key \"model.vocab\" must give pieces without line ends different ids without gaps");
  fails(
      "mean", "tokenizer.json", [](Json& j) { j["model"]["vocab"]["cat"] = 1000; },
      "without gaps; found \"cat\": 1000");
  fails(
      "mean", "tokenizer.json",
      [](Json& j) {
        Json& vocab = j["model"]["vocab"];
        vocab["cat\r"] = vocab["cat"];
        vocab.erase("cat");
      },
      "key \"model.vocab\" must give pieces without line ends");
  fails(
      "mean", "tokenizer.json", [](Json& j) { j["normalizer"]["lowercase"] = false; },
      "key \"normalizer.lowercase\" must be true or missing");
}

TEST(SentenceEncoderErrors, OfFilesCallsAndSizes) {
  EXPECT_TRUE(
      contains(error_of<IoError>([] { SentenceEncoder<float>("/nonexistent"); }), "/nonexistent"));
  ChangedFolder changed("cls");
  std::filesystem::remove(changed.dir() / "0_Transformer/vocab.txt");
  EXPECT_TRUE(contains(changed.error<IoError>(), "vocab.txt"));
  std::ofstream(changed.dir() / "modules.json") << "{}";
  EXPECT_TRUE(contains(changed.error<IoError>(), "hold a list of JSON objects; found object"));
  std::ofstream(changed.dir() / "modules.json") << "[3]";
  EXPECT_TRUE(contains(changed.error<IoError>(), "hold a list of JSON objects; found number"));
  ChangedFolder large("cls");
  std::ofstream(large.dir() / "0_Transformer/vocab.txt", std::ios::app) << "one\ntwo\n";
  EXPECT_TRUE(contains(large.error(), "have at most 33 pieces"));

  const SentenceEncoder<float> encoder(kSentenceEncoders / "cls");
  const std::vector<std::string> lines = {"a"};
  EXPECT_TRUE(
      contains(error_of<ValueError>([&] { encoder.encode(lines, {.prompt = "document"}); }),
               "prompt must be one of 2 prompts (\"passage\", \"query\"); found \"document\""));
  EXPECT_TRUE(contains(error_of<ValueError>([&] { encoder.encode(lines, {.batch_size = 0}); }),
                       "[SentenceEncoder] batch_size must be at least 1; found 0"));
}

TEST(SentenceEncoder, AFolderWithoutModulesIsAMean) {
  const ChangedFolder changed("mean");
  std::filesystem::remove(changed.dir() / "modules.json");
  const SentenceEncoder<double> plain(changed.dir()), whole(kSentenceEncoders / "mean");
  EXPECT_FALSE(plain.options().normalize);
  const std::vector<std::string> lines = {"a cat sat"};
  const auto found = plain.encode(lines, {.normalize = true}), expected = whole.encode(lines);
  for (index_t x = 0; x < whole.dim(); ++x) EXPECT_NEAR(found(0, x), expected(0, x), 1e-13);
}

}  // namespace
}  // namespace attn
