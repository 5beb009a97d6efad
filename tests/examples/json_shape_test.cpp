// JSON shapes: every allowed text is JSON of that shape, whatever the model prefers.
#include "support/json_shape.hpp"

#include <gtest/gtest.h>

#include "attn/generation/generate_text.hpp"

#include "support/files/temp_folder.hpp"
#include "support/models/tiny_llama.hpp"
#include "support/random.hpp"

namespace {

using examples::Json;
using examples::JsonOnly;
using examples::JsonShape;

const Json kExample = Json::parse(
    R"({"name": "string", "sizes": ["integer", "integer"], "kind": "big|bigger|small", "\"": [], "fixed": [1, true, null, "x"]})");

// Whether the whole text is allowed and complete.
bool takes(const JsonShape& shape, std::string_view text) {
  JsonShape::State state;
  return shape.push(state, text) && shape.is_whole(state);
}

TEST(JsonShape, TakesWhatHasItAlone) {
  const JsonShape shape(kExample);
  const auto with = [](const std::string& name, const std::string& size, const std::string& kind) {
    return R"({"name": ")" + name + R"(", "sizes": [)" + size + R"(, -7], "kind": ")" + kind +
           R"(", "\"": [], "fixed": [1, true, null, "x"]})";
  };
  for (const char* name : {"", "A b", R"(q\"\\\n)", "caf\u00e9 \u4e2d \U0001F600 \u0905"}) {
    EXPECT_TRUE(takes(shape, with(name, "0", "bigger"))) << name;
  }
  EXPECT_TRUE(takes(shape, with("a", "123456789012345", "big")));
  EXPECT_TRUE(takes(shape, with(std::string(119, 'a'), "-3", "small")));
  for (const char* name : {"\n", R"(\x)", "\xC0\x80", "\xED\xA0\x80", "\xFF", "\xE2\x82", "\x7F"}) {
    EXPECT_FALSE(takes(shape, with(name, "0", "big"))) << name;
  }
  EXPECT_FALSE(takes(shape, with(std::string(120, 'a'), "0", "big")));
  for (const char* size : {"", "-", "01", "1.5", "1234567890123456", "--1", "1e3"}) {
    EXPECT_FALSE(takes(shape, with("a", size, "big"))) << size;
  }
  for (const char* kind : {"", "bigg", "biggest", "BIG"}) {
    EXPECT_FALSE(takes(shape, with("a", "1", kind))) << kind;
  }
  EXPECT_FALSE(takes(shape, with("a", "1", "big") + " "));
  EXPECT_FALSE(takes(shape, "{"));
  EXPECT_THROW(JsonShape(Json("integer")), std::invalid_argument);
}

// Holds for a model with random weights, too.
TEST(JsonShape, HoldsAnyModelToIt) {
  const JsonShape shape(
      Json::parse(R"({"name": "string", "sizes": ["integer"], "kind": "big|bigger|small"})"), 12);
  const attn_test::TempFolder folder;
  const attn::LanguageModel model(attn_test::TinyLlama(7).save(folder));
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<attn::index_t> ids = {'a', 'b', 'c'};
    attn::GptSession<float> session(model.gpt(), 1, 120);
    attn::TextGenerationOptions options{.max_new_tokens = 1000,
                                        .logit_processor = JsonOnly(model, shape, ids.size())};
    options.sampling = attn::SamplingOptions{.temperature = 1, .seed = seed};
    const attn::GeneratedText answer = attn::generate_text(model, session, ids, options);
    JsonShape::State state;
    EXPECT_TRUE(shape.push(state, answer.text)) << answer.text;
    EXPECT_TRUE(answer.end == attn::AnswerEnd::end_token);
    ASSERT_TRUE(Json::accept(answer.text)) << answer.text;
    const Json found = Json::parse(answer.text);
    ASSERT_EQ(found.size(), 3u);
    EXPECT_TRUE(found["name"].is_string() && found["sizes"][0].is_number_integer());
  }
}

}  // namespace
