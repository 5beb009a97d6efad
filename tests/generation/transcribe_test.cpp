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
    // Beyond the last time.
    TranscribeOptions far = tiny_options();
    far.max_first_time = std::numeric_limits<index_t>::max();
    EXPECT_EQ(transcribe_window(model, golden.load<float, 3>("features_" + key), far), found);
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

// Results of transformers' _retrieve_segment() for a window of 0.2 s that begins at 0.2 s.
TEST(Transcribe, SegmentsAndTheNextWindowAreThoseOfTransformers) {
  struct Case {
    std::vector<index_t> tokens;
    std::vector<TranscribedSegment> segments;
    index_t next;
  };
  const index_t begin = 3200, end = 6400, frame = 160;
  const Case cases[] = {{{262, 1, 2, 265, 265, 3, 4}, {{0.2, 0.26, {1, 2}}}, begin + 6 * frame},
                        {{262, 1, 265, 265, 3, 268}, {{0.2, 0.26, {1}}, {0.26, 0.32, {3}}}, end},
                        {{262, 1, 265, 265}, {{0.2, 0.26, {1}}}, begin + 6 * frame},
                        {{262, 1, 265, 266}, {{0.2, 0.26, {1}}}, begin + 6 * frame},
                        {{262, 1, 2}, {{0.2, 0.4, {1, 2}}}, end},
                        {{262, 1, 265, 265, 2, 267, 268, 3},
                         {{0.2, 0.26, {1}}, {0.26, 0.3, {2}}},
                         begin + 10 * frame},
                        {{262, 1, 265}, {{0.2, 0.26, {1}}}, end},
                        // There the next window would be this one again.
                        {{262, 1, 262, 262, 3}, {{0.2, 0.2, {1}}, {0.2, 0.4, {3}}}, end},
                        {{}, {}, end}};
  for (const Case& one : cases) {
    std::vector<TranscribedSegment> found;
    EXPECT_EQ(detail::append_segments(one.tokens, tiny_options(), begin, end, found), one.next);
    ASSERT_EQ(found.size(), one.segments.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i].begin, one.segments[i].begin, 1e-12);
      EXPECT_NEAR(found[i].end, one.segments[i].end, 1e-12);
      EXPECT_EQ(found[i].tokens, one.segments[i].tokens);
    }
  }
}

// As in transformers, 8 below the loudest sound of the recording, not of each window, is silence.
TEST(Transcribe, FeaturesAreThoseOfTheWholeRecording) {
  Random random(2);
  auto samples = random.tensor<float, 1>({6400});
  for (index_t i = 3200; i < 6400; ++i) samples(i) *= 1e-6f;
  const Whisper<float> model = tiny();
  const Tensor2<float> mel = log_mel_spectrogram(samples, {.num_mel_bins = 8, .num_samples = 6400});
  std::vector<TranscribedSegment> expected;
  for (index_t begin = 0; begin < 6400;) {
    const index_t first = begin / 160, last = std::min<index_t>(first + 20, 40);
    Tensor3<float> features({1, 8, 20});
    copy(mel.view().slice(1, first, last), features.view().select(0, 0).slice(1, 0, last - first));
    begin =
        detail::append_segments(transcribe_window(model, features, tiny_options()), tiny_options(),
                                begin, std::min<index_t>(begin + 3200, 6400), expected);
  }
  const auto found = transcribe(model, samples, tiny_options());
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].tokens, expected[i].tokens);
    EXPECT_EQ(found[i].end, expected[i].end);
  }
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
