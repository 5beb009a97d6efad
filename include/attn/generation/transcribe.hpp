// transcribe(): speech to text with times, by a Whisper model.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/generation/decoding_session.hpp"
#include "attn/generation/sampling.hpp"

ATTN_NAMESPACE_BEGIN

/// Tokens of Whisper's vocabulary. Its last tokens, those after no_timestamps, are the times 0.00,
/// 0.02, .. of a window.
struct TranscribeOptions {
  std::vector<index_t> prompt = {};    ///< <|startoftranscript|>, a language, a task
  index_t end = 0;                     ///< <|endoftext|>, which ends a window; ids of text are
                                       ///< below it
  index_t no_timestamps = 0;           ///< <|notimestamps|>
  std::vector<index_t> suppress = {};  ///< tokens that are never generated, such as music notes
  std::vector<index_t> begin_suppress = {};  ///< tokens that are not generated first
  index_t max_first_time =
      50;  ///< the first segment begins at most this many steps of 0.02 s after the window
};

/// A piece of speech between two times.
struct TranscribedSegment {
  double begin = 0, end = 0;  ///< seconds
  std::vector<index_t> tokens = {};
};

namespace detail {

inline constexpr index_t kSamplesPerTime = 320;  // 0.02 s at 16 kHz: a position of the encoder

/// Sets the logits (vocab_size) of tokens that must not follow `tokens` to -inf. Times come in
/// pairs, begin and end, and never decrease. A window begins with a time. If the times together are
/// likelier than every text token, the next token is a time. Source: transformers,
/// WhisperTimeStampLogitsProcessor.
template <class T>
void allow_timed_tokens(TensorView1<T> logits, std::span<const index_t> tokens,
                        const TranscribeOptions& o) {
  constexpr T kNever = -std::numeric_limits<T>::infinity();
  const index_t times = o.no_timestamps + 1, vocab_size = logits.extent(0);
  const auto forbid = [&](index_t begin, index_t end) {
    for (index_t id = begin; id < end; ++id) logits(id) = kNever;
  };
  for (const index_t id : o.suppress) logits(id) = kNever;
  logits(o.no_timestamps) = kNever;
  if (tokens.empty()) {
    forbid(0, times);
    forbid(times + (std::min)(o.max_first_time, vocab_size - times - 1) + 1, vocab_size);
    return;
  }
  const bool behind_time = tokens.back() >= times;
  const bool behind_pair = behind_time && (tokens.size() < 2 || tokens[tokens.size() - 2] >= times);
  if (behind_pair) {
    forbid(times, vocab_size);
  } else if (behind_time) {
    forbid(0, o.end);
  }
  const auto last =
      std::find_if(tokens.rbegin(), tokens.rend(), [&](index_t id) { return id >= times; });
  if (last != tokens.rend()) forbid(times, *last + (behind_time && !behind_pair ? 0 : 1));
  const auto number = [&](index_t id) { return static_cast<double>(logits(id)); };
  double likeliest_text = -std::numeric_limits<double>::infinity(), likeliest_time = likeliest_text;
  for (index_t id = 0; id < times; ++id) likeliest_text = (std::max)(likeliest_text, number(id));
  for (index_t id = times; id < vocab_size; ++id) {
    likeliest_time = (std::max)(likeliest_time, number(id));
  }
  if (likeliest_time == -std::numeric_limits<double>::infinity()) return;
  double sum = 0;
  for (index_t id = times; id < vocab_size; ++id) sum += std::exp(number(id) - likeliest_time);
  if (likeliest_time + std::log(sum) > likeliest_text) forbid(0, times);
}

/// Appends the segments of one window, of samples [begin, end), and returns where the next window
/// begins: at the last two times in a row, unless a single time ends the window. Tokens after them
/// belong to a segment without end, which the next window decodes again. Source: transformers,
/// WhisperGenerationMixin._retrieve_segment().
inline index_t append_segments(std::span<const index_t> tokens, const TranscribeOptions& options,
                               index_t begin, index_t end,
                               std::vector<TranscribedSegment>& segments) {
  const auto is_time = [&](index_t id) { return id > options.no_timestamps; };
  const auto time_of = [&](index_t id) {
    return begin + (id - options.no_timestamps - 1) * kSamplesPerTime;
  };
  const auto seconds = [](index_t samples) { return static_cast<double>(samples) / 16000; };
  index_t next = end;
  const auto ends_at = [&](std::size_t n) { return n > 0 && is_time(tokens[n - 1]); };
  if (!ends_at(tokens.size()) || ends_at(tokens.size() - 1)) {
    std::size_t n = tokens.size();
    while (n > 1 && !(ends_at(n) && ends_at(n - 1))) --n;
    // A pair at the beginning would repeat this window.
    if (n > 1 && time_of(tokens[n - 2]) > begin) {
      next = time_of(tokens[n - 2]);
      tokens = tokens.first(n - 1);
    }
  }
  TranscribedSegment segment{.begin = seconds(begin)};
  const auto append = [&](index_t time) {
    segment.end = seconds(time);
    if (!segment.tokens.empty()) segments.push_back(std::move(segment));
    segment = {.begin = seconds(time)};
  };
  for (const index_t id : tokens) {
    if (is_time(id)) {
      append(time_of(id));
    } else {
      segment.tokens.push_back(id);
    }
  }
  append(end);
  return next;
}

}  // namespace detail

/// Greedy decoding of one window, features (1, num_mel_bins, frames), up to options.end, which is
/// left out, or to the last position of the model. Throws ShapeError or ValueError.
template <class T, TensorLike Features>
std::vector<index_t> transcribe_window(const Whisper<T>& model, const Features& features,
                                       const TranscribeOptions& options,
                                       const Execution& execution = {}) {
  const index_t vocab_size = model.options().vocab_size;
  const auto check_id = [&](std::string_view argument, index_t id) {
    if (id >= 0 && id < vocab_size) return;
    throw ValueError(message("transcribe", argument,
                             "lie in 0 .. " + std::to_string(vocab_size - 1), std::to_string(id)));
  };
  check_id("end", options.end);
  check_id("no_timestamps", options.no_timestamps);
  for (const index_t id : options.suppress) check_id("suppress", id);
  for (const index_t id : options.begin_suppress) check_id("begin_suppress", id);
  if (options.prompt.empty() || options.max_first_time < 0) {
    throw ValueError(
        message("transcribe", options.prompt.empty() ? "prompt" : "max_first_time",
                options.prompt.empty() ? "have a token" : "be at least 0",
                options.prompt.empty() ? "none" : std::to_string(options.max_first_time)));
  }
  WhisperSession<T> session(model, features, model.options().max_target_positions, 1, execution);
  auto logits = Tensor2<Accumulator<T>>::uninitialized({1, vocab_size});
  std::vector<index_t> next = options.prompt, result;
  while (session.room() >= std::ssize(next)) {
    session.step({next.data(), {1, std::ssize(next)}}, logits);
    if (result.empty()) {
      for (const index_t id : options.begin_suppress) {
        logits(0, id) = -std::numeric_limits<Accumulator<T>>::infinity();
      }
    }
    detail::allow_timed_tokens(logits.view().select(0, 0), std::span<const index_t>(result),
                               options);
    next = {likeliest_token(logits.view().select(0, 0))};
    if (next[0] == options.end) break;
    result.push_back(next[0]);
  }
  return result;
}

/// Transcribes samples of any length at 16 kHz, in windows of 320 max_source_positions samples (30
/// s), each decoded independently. If another segment begins after the last complete one of a
/// window, the next window begins at the end of the last complete one. Features are those of the
/// whole recording, whose loudest sound sets their lower limit. Throws ShapeError or ValueError.
template <class T, TensorLike Samples>
std::vector<TranscribedSegment> transcribe(const Whisper<T>& model, const Samples& samples,
                                           const TranscribeOptions& options,
                                           const Execution& execution = {}) {
  ATTN_ASSERT_INPUT(Samples, float, 1, "transcribe: samples", "(length)", "samples");
  const auto x = detail::view_as<const float, 1>(samples);
  const index_t window = model.options().max_source_positions * detail::kSamplesPerTime;
  const index_t bins = model.options().num_mel_bins, frames = window / detail::kMelHop;
  const Tensor2<float> mel = log_mel_spectrogram(
      x, {.num_mel_bins = bins, .num_samples = (std::max)(window, x.extent(0))}, execution);
  const index_t length = (std::min)(x.extent(0), mel.extent(1) * detail::kMelHop);
  std::vector<TranscribedSegment> result;
  for (index_t begin = 0; begin < length;) {
    const index_t first = begin / detail::kMelHop, last = (std::min)(first + frames, mel.extent(1));
    Tensor3<float> features({1, bins, frames});
    copy(mel.view().slice(1, first, last), features.view().select(0, 0).slice(1, 0, last - first));
    const std::vector<index_t> tokens =
        transcribe_window(model, convert<T>(features), options, execution);
    begin = detail::append_segments(tokens, options, begin, (std::min)(begin + window, x.extent(0)),
                                    result);
  }
  return result;
}

ATTN_NAMESPACE_END
