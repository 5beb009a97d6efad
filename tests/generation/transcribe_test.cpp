// transcribe: transformers' rules for times on a tiny Whisper, and windows.
#include "attn/generation/transcribe.hpp"

#include <gtest/gtest.h>

#include "attn/models/pretrained/whisper.hpp"

#include "support/error_of.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::error_of;
using attn_test::Random;

const std::filesystem::path kFolder = ATTN_TEST_DATA_DIR "/pretrained/whisper";
constexpr index_t kEnd = 256, kNoTimes = 261;

Whisper<float> tiny() { return detail::whisper_from_folder<float>(kFolder, {}); }

TranscribeOptions tiny_options() {
  return {.prompt = {257, 258, 259}, .end = kEnd, .no_timestamps = kNoTimes};
}

TEST(Transcribe, TokensFollowTransformersRules) {
  const SafetensorsFile golden(kFolder / "golden.safetensors");
  const Whisper<float> model = tiny();
  for (const std::string key : {"a", "b"}) {
    const auto expected = golden.load<index_t, 1>("timed_" + key);
    const auto found =
        transcribe_window(model, golden.load<float, 3>("features_" + key), tiny_options());
    EXPECT_EQ(found, std::vector<index_t>(expected.elements().begin(), expected.elements().end()));
    // A suppressed token is never generated.
    TranscribeOptions options = tiny_options();
    options.suppress = {found[1]};
    options.begin_suppress = {found[0]};
    const auto other = transcribe_window(model, golden.load<float, 3>("features_" + key), options);
    EXPECT_NE(other[0], found[0]);
    EXPECT_EQ(std::ranges::count(other, found[1]), 0);
  }
}

TEST(Transcribe, SegmentsHaveTimesAndNoTimeTokens) {
  Random random(1);
  const auto samples = random.tensor<float, 1>({16000});  // a second: at least five windows
  const Whisper<float> model = tiny();
  const auto segments = transcribe(model, samples, tiny_options());
  ASSERT_GE(segments.size(), std::size_t{5});
  double before = 0;
  for (const TranscribedSegment& segment : segments) {
    EXPECT_GE(segment.begin, before);
    EXPECT_GE(segment.end, segment.begin);
    EXPECT_LE(segment.end, 1.2);  // with windows of 0.2 seconds
    EXPECT_FALSE(segment.tokens.empty());
    for (const index_t id : segment.tokens) EXPECT_LT(id, kNoTimes);
    before = segment.begin;
  }
  EXPECT_TRUE(transcribe(model, Tensor1<float>({0}), tiny_options()).empty());
}

TEST(TranscribeErrors, IdsAndPrompts) {
  const Whisper<float> model = tiny();
  const Tensor1<float> samples({400});
  const auto error = [&](const TranscribeOptions& options) {
    return error_of<ValueError>([&] { transcribe(model, samples, options); });
  };
  TranscribeOptions options = tiny_options();
  options.prompt = {};
  EXPECT_EQ(error(options), "[transcribe] prompt must have a token; found none.");
  options = tiny_options();
  options.end = 273;
  EXPECT_EQ(error(options), "[transcribe] end must lie in 0 .. 272; found 273.");
  options = tiny_options();
  options.suppress = {-1};
  EXPECT_EQ(error(options), "[transcribe] suppress must lie in 0 .. 272; found -1.");
  options = tiny_options();
  options.max_first_time = -1;
  EXPECT_EQ(error(options), "[transcribe] max_first_time must be at least 0; found -1.");
}

}  // namespace
}  // namespace attn
