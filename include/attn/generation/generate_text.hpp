// generate_text: a language model's answer, token by token, as text; score_text: how likely a text is.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "attn/generation/decoding_session.hpp"
#include "attn/generation/logits.hpp"
#include "attn/models/language_model.hpp"
#include "attn/text/stop_filter.hpp"
#include "attn/text/text_stream.hpp"

ATTN_NAMESPACE_BEGIN

struct TextGenerationOptions {
  index_t max_new_tokens = 0;                    ///< 1 at least; the end token counts
  std::optional<SamplingOptions> sampling = {};  ///< if not given, greedy
  LogitOptions logits = {};                      ///< penalties count the prompt's tokens too
  /// Called with the logits (vocab_size) and all tokens so far, before penalties: may change the
  /// logits.
  std::function<void(TensorView1<float>, std::span<const index_t>)> logit_processor = {};
  std::vector<std::string> stop = {};  ///< texts before which the answer ends, in whatever tokens
  /// Called with each piece of the text as soon as it is certain, whole characters; false ends the
  /// answer.
  std::function<bool(std::string_view)> on_text = {};
  bool log_probabilities = false;  ///< of each token, natural logarithms
};

enum class AnswerEnd {
  end_token,
  stop_text,
  length,   ///< max_new_tokens
  context,  ///< the session is full
  caller,   ///< on_text said so
};

struct GeneratedText {
  std::vector<index_t> ids;  ///< the end token included
  std::string text;          ///< without it, and without a stop text; valid UTF-8
  AnswerEnd end = AnswerEnd::length;
  /// Of each token, the natural logarithm of what the model gave it, before anything changed the
  /// logits.
  std::vector<double> log_probabilities;
};

/// log(softmax(logits))(id), summed in double. Shape: logits (vocab_size).
inline double log_probability(TensorView1<const float> logits, index_t id) {
  double most = -std::numeric_limits<double>::infinity(), sum = 0;
  for (index_t i = 0; i < logits.extent(0); ++i)
    most = std::max(most, static_cast<double>(logits(i)));
  for (index_t i = 0; i < logits.extent(0); ++i)
    sum += std::exp(static_cast<double>(logits(i)) - most);
  return static_cast<double>(logits(id)) - most - std::log(sum);
}

/// What the model says behind `ids`, of which the session, of one row and of this model, has seen
/// the first session.length(): only the rest is computed. Of the result it has then seen all but
/// the last token. Throws ValueError for options out of their range, where ids are not more than
/// what was seen, or do not fit the session; what the callbacks throw leaves the session behind the
/// tokens that it has seen.
inline GeneratedText generate_text(const LanguageModel& model, GptSession<float>& session,
                                   std::span<const index_t> ids,
                                   const TextGenerationOptions& options) {
  const index_t seen = session.length(), length = std::ssize(ids), vocab = session.vocab_size();
  detail::check_generation("generate_text", "the session's batch", session.batch(), 1, 1);
  detail::check_generation("generate_text", "max_new_tokens", options.max_new_tokens, 1);
  detail::check_generation("generate_text", "the number of ids", length, seen + 1,
                           session.capacity());
  std::optional<Sampler> sampler;
  if (options.sampling) sampler.emplace(*options.sampling, vocab);
  StopFilter filter(options.stop);
  TextStream stream(model.tokenizer());
  GeneratedText result;
  std::vector<index_t> all(ids.begin(), ids.end());
  Tensor2<float> logits({1, vocab});
  const auto say = [&](const std::string& text) {
    if (text.empty()) return true;
    result.text += text;
    return !options.on_text || options.on_text(text);
  };
  for (index_t begin = seen;;) {
    session.step({all.data() + begin, {1, std::ssize(all) - begin}}, logits);
    begin = std::ssize(all);
    const TensorView1<float> row = logits.view().select(0, 0);
    Tensor1<float> plain;
    if (options.log_probabilities) plain = Tensor1<float>(TensorView1<const float>(row));
    if (options.logit_processor) options.logit_processor(row, all);
    if (options.logits.changes()) adjust_logits(row, all, options.logits);
    const index_t id = sampler ? (*sampler)(row) : likeliest_token(row);
    if (options.log_probabilities) {
      result.log_probabilities.push_back(log_probability(plain.view(), id));
    }
    all.push_back(id);
    result.ids.push_back(id);
    if (model.is_end(id)) {
      result.end = AnswerEnd::end_token;
      break;
    }
    const bool goes_on = say(filter.push(stream.push(id)));
    if (filter.stopped()) {
      result.end = AnswerEnd::stop_text;
      return result;
    }
    if (!goes_on) {
      result.end = AnswerEnd::caller;
      return result;
    }
    if (std::ssize(result.ids) == options.max_new_tokens) break;
    if (std::ssize(all) > session.capacity()) {
      result.end = AnswerEnd::context;
      break;
    }
  }
  say(filter.push(stream.finish()));
  if (filter.stopped()) {
    result.end = AnswerEnd::stop_text;
  } else {
    say(filter.finish());
  }
  return result;
}

/// result[i] = log P(ids[i + 1] | ids[0 .. i]), natural: one less than there are ids. Throws
/// ValueError for ids that are no tokens or more than the model has positions.
inline std::vector<double> score_text(const LanguageModel& model, std::span<const index_t> ids,
                                      const Execution& execution = {}) {
  std::vector<double> result;
  const index_t count = std::ssize(ids) - 1;
  if (count < 1) return result;
  detail::check_generation("score_text", "the number of ids", count + 1, 1, model.max_positions());
  auto caches = model.gpt().make_caches(1, count);
  AttentionOptions<float> options;
  options.execution = execution;
  // The logits of so many tokens at a time: 12 MB for a vocabulary of 49,152.
  constexpr index_t kAtOnce = 64;
  for (index_t begin = 0; begin < count; begin += kAtOnce) {
    const index_t n = std::min(kAtOnce, count - begin);
    auto logits = Tensor3<float>::uninitialized({1, n, model.gpt().vocab_size()});
    model.gpt().forward(TensorView2<const index_t>(ids.data() + begin, {1, n}), logits, options,
                        caches);
    for (index_t i = 0; i < n; ++i) {
      const index_t next = ids[static_cast<std::size_t>(begin + i + 1)];
      detail::check_generation("score_text", "every id", next, 0, model.gpt().vocab_size() - 1);
      result.push_back(log_probability(logits.view().select(0, 0).select(0, i), next));
    }
  }
  return result;
}

ATTN_NAMESPACE_END
