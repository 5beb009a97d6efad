// Saved sessions: a restored session continues with the same bits; files of another model, of
// another element, or broken ones are refused.
#include "attn/generation/saved_session.hpp"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "attn/generation/generate_text.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/models/tiny_model.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::TempFolder;
using attn_test::tiny_language_model;
using Ids = std::vector<index_t>;

TEST(SavedSession, GoesOnBitForBit) {
  const TempFolder folder;
  const auto path = folder.path() / "session.safetensors";
  for (const ActivationFormat activations : {ActivationFormat::exact, ActivationFormat::int8}) {
    const LanguageModel model = tiny_language_model(activations);
    for (const DType element : {DType::F32, DType::BF16, DType::F16, DType::I8}) {
      SCOPED_TRACE(name(element));
      GptSession<float> session(model.gpt(), 1, 60, {}, element);
      Ids ids = model.encode_raw("hello world, hello");
      const TextGenerationOptions options{.max_new_tokens = 9, .log_probabilities = true};
      ids = generate_text(model, session, ids, options).context;
      save_session(path, session, ids);
      // Restores into a session of another size that has processed other tokens.
      GptSession<float> other(model.gpt(), 1, 50, {}, element);
      (void)generate_text(model, other, Ids{1, 2, 3}, options);
      const Ids seen = load_session(path, other);
      EXPECT_EQ(seen, Ids(ids.begin(), ids.end() - 1));
      EXPECT_EQ(other.length(), std::ssize(seen));
      const GeneratedText expected = generate_text(model, session, ids, options),
                          found = generate_text(model, other, ids, options);
      EXPECT_EQ(found.ids, expected.ids);
      EXPECT_EQ(found.log_probabilities, expected.log_probabilities);
    }
  }
}

TEST(SavedSession, OfNothingIsNothing) {
  const TempFolder folder;
  const LanguageModel model = tiny_language_model();
  GptSession<float> session(model.gpt(), 1, 10);
  save_session(folder.path() / "empty", session, {});
  (void)generate_text(model, session, Ids{1, 2}, {.max_new_tokens = 3});
  EXPECT_TRUE(load_session(folder.path() / "empty", session).empty());
  EXPECT_EQ(session.length(), 0);
}

TEST(SavedSession, TakesNothingThatDoesNotFit) {
  const TempFolder folder;
  const auto path = folder.path() / "session.safetensors";
  const LanguageModel model = tiny_language_model(),
                      other = tiny_language_model(ActivationFormat::exact, 8),
                      int8 = tiny_language_model(ActivationFormat::int8);
  GptSession<float> session(model.gpt(), 1, 60);
  const Ids ids =
      generate_text(model, session, model.encode_raw("hello"), {.max_new_tokens = 20}).context;
  save_session(path, session, ids);
  const auto error = [&]<class E>(const E*, GptSession<float> into) {
    const std::string what = error_of<E>([&] { (void)load_session(path, into); });
    EXPECT_EQ(into.length(), 0);
    return what;
  };
  const ValueError* value = nullptr;
  const DTypeError* dtype = nullptr;
  const IoError* io = nullptr;
  const std::string another =
      "must be of this model, these options and this instruction set; found others.";
  EXPECT_TRUE(contains(error(value, {other.gpt(), 1, 60}), another));
  EXPECT_TRUE(contains(error(value, {int8.gpt(), 1, 60}), another));
  EXPECT_TRUE(contains(error(value, {model.gpt(), 1, 60, {.scale = 0.3}}), another));
  EXPECT_TRUE(contains(error(value, {model.gpt(), 1, 10}),
                       "the number of ids must lie in 0 .. 10; found 2"));
  EXPECT_TRUE(contains(error(value, {model.gpt(), 2, 60}), "batch must lie in 1 .. 1; found 2"));
  EXPECT_TRUE(contains(error(dtype, {model.gpt(), 1, 60, {}, DType::I8}),
                       "\"layers.0.keys\" must hold I8, the cache's type; found F32."));
  EXPECT_TRUE(contains(error_of<ValueError>([&] {
                         save_session(path, session, Ids{1, 2});
                       }),
                       "[save_session] the number of ids must lie in"));
  // Ids outside the vocabulary, in an otherwise valid file.
  std::string bytes;
  {
    std::ifstream in(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto ids_at =
      bytes.find(std::string_view(reinterpret_cast<const char*>(ids.data()), 2 * sizeof(index_t)));
  ASSERT_NE(ids_at, std::string::npos);
  for (const index_t bad : {index_t{-1}, model.gpt().vocab_size(), index_t{1} << 62}) {
    std::string changed = bytes;
    std::memcpy(changed.data() + ids_at + sizeof(index_t), &bad, sizeof(bad));
    const auto of_others = folder.path() / "others.safetensors";
    std::ofstream(of_others, std::ios::binary) << changed;
    GptSession<float> into(model.gpt(), 1, 60);
    EXPECT_TRUE(contains(
        error_of<ValueError>([&] { (void)load_session(of_others, into); }),
        detail::concat("must hold ids of 0 .. ", model.gpt().vocab_size() - 1, "; found ", bad)));
    EXPECT_EQ(into.length(), 0);
  }
  const auto size = std::filesystem::file_size(path);
  for (const auto cut : {size - 1, size / 2, std::uintmax_t{100}, std::uintmax_t{0}}) {
    std::filesystem::resize_file(path, cut);
    EXPECT_TRUE(contains(error(io, {model.gpt(), 1, 60}), "session.safetensors"));
  }
  const Tensor1<float> x({1});
  save_safetensors(path, {{"ids", x}});
  EXPECT_TRUE(
      contains(error(value, {model.gpt(), 1, 60}), "must be a saved session; found another file."));
}

}  // namespace
}  // namespace attn
