// Folders with tokenizer.json: ids of the tokenizers package, a LanguageModel from them, and bad
// files.
#include "attn/models/pretrained/tokenizer.hpp"

#include <fstream>
#include <functional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "attn/generation/generate_text.hpp"
#include "attn/models/pretrained.hpp"

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
using nlohmann::json;
using Ids = std::vector<index_t>;
using Path = std::filesystem::path;

json read(const Path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return json::parse(file);
}

TEST(PretrainedTokenizer, HasTheIdsOfTokenizers) {
  std::size_t count = 0;
  for (const json& one : read(kPretrained / "tokenizers" / "cases.json")) {
    const auto name = one.at("folder").get<std::string>();
    const PretrainedText text = pretrained_text(kPretrained / "tokenizers" / name);
    for (const json& line : one.at("cases")) {
      Ids ids = text.tokenizer.encode(line.at("text").get<std::string>(), true);
      if (text.special.add_bos) ids.insert(ids.begin(), text.special.bos.value());
      if (text.special.behind) ids.push_back(*text.special.behind);
      EXPECT_EQ(ids, line.at("ids").get<Ids>())
          << name << " of " << line.at("text").dump(-1, ' ', true);
      ++count;
    }
  }
  EXPECT_EQ(count, 84u);
}

TEST(PretrainedTokenizer, EndsOfWordsAreSpaces) {
  const Tokenizer clip = pretrained_text(kPretrained / "tokenizers" / "clip").tokenizer;
  EXPECT_EQ(clip.decode(clip.encode("Hello,\n he\u00c9l 12")), "hello , he\u00e9l 1 2 ");
}

TEST(PretrainedTokenizer, AddedTokensTakeSpacesAlongOrAreWholeWords) {
  const Path folder = kPretrained / "added_tokens";
  const Tokenizer tokenizer = pretrained_text(folder).tokenizer;
  for (const json& line : read(folder / "cases.json")) {
    const auto text = line.at("text").get<std::string>();
    EXPECT_EQ(tokenizer.encode(text, true), line.at("ids").get<Ids>())
        << line.at("text").dump(-1, ' ', true);
  }
  // Pieces give the same ids as the whole text.
  const std::vector<TextPiece> pieces = {
      {"x \t", false}, {"<b>", true}, {" \n", false}, {" y", false}};
  EXPECT_EQ(tokenizer.encode(pieces), tokenizer.encode("x \t<b> \n y", true));
}

TEST(PretrainedTokenizer, BytesThatAreNoTextStayThemselvesInFormC) {
  const PretrainedText text = pretrained_text(kPretrained / "tokenizers" / "qwen2");
  const std::string odd = "\xFF\u00e9\xE4\xB8 \xCC";
  EXPECT_EQ(text.tokenizer.decode(text.tokenizer.encode("\xFF"
                                                        "e\u0301\xE4\xB8 \xCC")),
            odd);
}

TEST(LanguageModelFolder, HasTheTokensAndLogitsOfTransformers) {
  const json tokens = read(kPretrained / "tokens.json");
  for (const std::string name : {"qwen2", "qwen3"}) {
    const LanguageModel model(kPretrained / name);
    EXPECT_EQ(model.encode_raw(tokens.at(name).at("text").get<std::string>()),
              tokens.at(name).at("ids").get<Ids>());
    EXPECT_EQ(model.end_tokens(), (Ids{261}));
    EXPECT_EQ(model.max_positions(), 64);
    // The model has one row more than the tokenizer has tokens.
    EXPECT_EQ(model.tokenizer().vocab_size(), 264);
    EXPECT_EQ(model.tokenizer().piece(263), "");
    const SafetensorsFile golden(kPretrained / name / "golden.safetensors");
    const auto ids = golden.load<index_t, 1>("ids_b");
    EXPECT_LT(
        relative_difference(model.gpt()(TensorView2<const index_t>(ids.data(), {1, ids.size()})),
                            golden.load<float, 2>("logits_b")),
        1e-5);
    const std::vector<ChatMessage> messages = {{"user", "he<|im_end|>"}};
    const Ids chat = model.encode_chat(messages);
    EXPECT_EQ(model.tokenizer().decode(chat),
              "<|im_start|>user\nhe<|im_end|><|im_end|>\n<|im_start|>assistant\n");
    EXPECT_EQ(std::count(chat.begin(), chat.end(), 261), 1);
    GptSession<float> session(model.gpt(), 1, 64);
    EXPECT_GE(generate_text(model, session, chat, {.max_new_tokens = 5}).ids.size(), 1u);
  }
}

TEST(LanguageModelFolder, QuantisesWeightsWhereAskedTo) {
  const LanguageModel model(kPretrained / "qwen3",
                            {.max_positions = 20, .weights = WeightFormat::int8});
  EXPECT_EQ(model.max_positions(), 20);
  auto other = load_pretrained<Gpt<float>>(kPretrained / "qwen3");
  quantize(other, {.weights = WeightFormat::int8});
  const Tensor2<index_t> ids({1, 5}, {1, 5, 200, 17, 262});
  const auto found = model.gpt()(ids), expected = other(ids);
  for (index_t i = 0; i < expected.size(); ++i) ASSERT_EQ(found.data()[i], expected.data()[i]);
  // int8 activations, as in chat, apply only to quantised weights.
  for (const auto& [weights, activations] :
       {std::pair{WeightFormat::bf16, ActivationFormat::bf16},
        std::pair{WeightFormat::f16, ActivationFormat::exact}}) {
    const LanguageModel small(kPretrained / "qwen3",
                              {.weights = weights, .activations = ActivationFormat::int8});
    auto same = load_pretrained<Gpt<float>>(kPretrained / "qwen3");
    quantize(same, {.weights = weights, .activations = activations});
    const auto of_small = small.gpt()(ids), of_same = same(ids);
    for (index_t i = 0; i < of_same.size(); ++i) {
      ASSERT_EQ(of_small.data()[i], of_same.data()[i]);
    }
  }
}

/// A copy of a folder with one JSON file changed.
class ChangedText {
 public:
  explicit ChangedText(const Path& name) { std::filesystem::copy(kPretrained / name, dir()); }
  Path dir() const { return folder_ / "model"; }
  void change(const std::string& file, const std::function<void(json&)>& f) const {
    json value = std::filesystem::exists(dir() / file) ? read(dir() / file) : json(json::object());
    f(value);
    std::ofstream(dir() / file) << value.dump();
  }

 private:
  TempFolder folder_;
};

TEST(PretrainedTokenizer, ReadsWhatStandsBesideTokenizerJson) {
  const ChangedText changed("qwen2");
  changed.change("tokenizer_config.json", [](json& c) {
    c["bos_token"] = {{"content", "<|endoftext|>"}, {"lstrip", false}};
    c["add_bos_token"] = true;
    c["chat_template"] = {{{"name", "tool_use"}, {"template", "x"}},
                          {{"name", "default"}, {"template", c["chat_template"]}}};
  });
  changed.change("generation_config.json", [](json& c) { c["eos_token_id"] = {0, 262}; });
  const LanguageModel model(changed.dir());
  EXPECT_EQ(model.end_tokens(), (Ids{261, 0, 262}));
  EXPECT_EQ(model.encode_raw("he"), (Ids{262, 256}));
  EXPECT_TRUE(model.has_chat_template());
  // chat_template.jinja takes precedence.
  std::ofstream(changed.dir() / "chat_template.jinja") << "{{ messages }}";
  EXPECT_FALSE(LanguageModel(changed.dir()).has_chat_template());
}

TEST(PretrainedTokenizer, NamesWhatItCannotFollow) {
  const auto fails = [](const Path& folder, std::string_view part,
                        const std::function<void(json&)>& f,
                        const std::string& file = "tokenizer.json") {
    const ChangedText changed(folder);
    changed.change(file, f);
    const std::string error =
        error_of<std::invalid_argument>([&] { LanguageModel model(changed.dir()); });
    EXPECT_TRUE(contains(error, part));
    EXPECT_TRUE(contains(error, file));
  };
  const auto set = [](const std::string& place, const json& value) {
    return [=](json& t) { t[json::json_pointer(place)] = value; };
  };
  fails("qwen2", "key \"model.type\" must be BPE or Unigram; found \"WordPiece\"",
        set("/model/type", "WordPiece"));
  fails("qwen2", "for SentencePiece; found \"Split, ByteLevel\"",
        set("/model/byte_fallback", true));
  fails("qwen2", "key \"model.dropout\" must be 0", set("/model/dropout", 0.1));
  fails("qwen2", "key \"model.end_of_word_suffix\" must be empty",
        set("/model/end_of_word_suffix", "</w>"));
  fails("qwen2", "found 1 of them (\"model.more\")", set("/model/more", 1));
  fails("qwen2", "key \"model.unk_token\" must be a token; found \"<unk>\"",
        set("/model/unk_token", "<unk>"));
  fails("qwen2", "key \"model.merges\" must be pairs of tokens; found 3",
        set("/model/merges/1", {"a", "b", "c"}));
  fails("qwen2", "key \"model.vocab\" must be whole numbers from 0 on; found \"-1\"",
        set("/model/vocab/he", -1));
  fails("qwen2", "key \"model.id\" must belong to one token", set("/model/vocab/he", 0));
  fails("qwen2", "must lie in 0 .. 2^24 - 1; found 9999999999", set("/model/vocab/he", 9999999999));
  fails("qwen2", "must lie in 0 .. 2^24 - 1; found -1", set("/added_tokens/1/id", -1));
  fails("qwen2", "key \"normalizer\" must be NFC or none; found \"Prepend\"",
        set("/normalizer", {{"type", "Prepend"}, {"prepend", "_"}}));
  fails("qwen2", "key \"pre_tokenizer\" must be ByteLevel, optionally after",
        set("/pre_tokenizer", {{"type", "Metaspace"}}));
  fails("qwen2", "key \"pre_tokenizer\" must be ByteLevel, optionally after",
        set("/pre_tokenizer", nullptr));
  fails("qwen2", "must be Llama 3's, Qwen2's or CLIP's, with each match a word; found \"x+\"",
        set("/pre_tokenizer/pretokenizers/0/pattern/Regex", "x+"));
  fails("qwen2", "must be Llama 3's, Qwen2's or CLIP's, with each match a word",
        set("/pre_tokenizer/pretokenizers/0/behavior", "Removed"));
  fails("qwen2", "found \"Split, ByteLevel with its own pattern\"",
        set("/pre_tokenizer/pretokenizers/1/use_regex", true));
  fails("qwen2", "add_prefix_space\" must be false",
        set("/pre_tokenizer/pretokenizers/1/add_prefix_space", true));
  fails("qwen2", "key \"decoder\" must be ByteLevel; found \"Fuse\"",
        set("/decoder", {{"type", "Fuse"}}));
  fails("qwen2", "must be ByteLevel, TemplateProcessing, RobertaProcessing or BertProcessing",
        set("/post_processor", {{"type", "SplitProcessing"}}));
  fails("qwen2", "key \"post_processor.cls\" must be given",
        set("/post_processor", {{"type", "BertProcessing"}}));
  fails("qwen2", "adds no token after texts, because answers continue them; found \"<|im_end|>\"",
        set("/post_processor",
            {{"type", "TemplateProcessing"},
             {"single",
              {{{"Sequence", {{"id", "A"}}}}, {{"SpecialToken", {{"id", "<|im_end|>"}}}}}}}));
  fails("qwen2", "key \"added_tokens.2.normalized\" must be false", [](json& t) {
    t["normalizer"] = {{"type", "NFC"}};
    t["added_tokens"][2]["normalized"] = true;
  });
  // Their ends may compose with a mark, or another character may become one of them.
  for (const char* token : {"  x", "  <", " K ", "\xC3\xA9 "}) {
    fails("qwen2", "key \"added_tokens.2.normalized\" must be false", [&](json& t) {
      t["normalizer"] = {{"type", "NFC"}};
      t["added_tokens"][2].update({{"content", token}, {"special", false}, {"normalized", true}});
    });
  }
  fails("qwen2", "have at most one token per row of the model, 264; found 266", [](json& t) {
    json token = t["added_tokens"][0];
    token["id"] = 265;
    token["content"] = "<more>";
    t["added_tokens"].push_back(token);
  });
  fails("qwen2", "key \"eos_token\" must be a token; found \"<end>\"", set("/eos_token", "<end>"),
        "tokenizer_config.json");
  fails("qwen2", "key \"eos_token_id\" must lie in 0 .. 263; found 264", set("/eos_token_id", 264),
        "generation_config.json");
  fails("qwen2", "key \"hidden_act\" must be", set("/hidden_act", "x"), "config.json");
  const ChangedText fused("tokenizers/smollm");
  fused.change("tokenizer.json", set("/model/fuse_unk", true));
  EXPECT_TRUE(contains(error_of<ValueError>([&] { pretrained_text(fused.dir()); }),
                       "key \"model.fuse_unk\" must be false if a byte has no token"));
  // Not a model folder.
  const TempFolder empty;
  EXPECT_TRUE(contains(error_of<IoError>([&] { LanguageModel model(empty / "none"); }), "none"));
  std::filesystem::create_directory(empty / "model");
  EXPECT_TRUE(
      contains(error_of<IoError>([&] { LanguageModel model(empty / "model"); }), "config.json"));
  EXPECT_TRUE(contains(error_of<IoError>([&] { LanguageModel model(kPretrained / "gpt2"); }),
                       "tokenizer.json"));
}

}  // namespace
}  // namespace attn
