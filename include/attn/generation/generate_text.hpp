// generate_text, score_text: a text that a language model generates, or its log-probability.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <functional>
#include <limits>

#include "attn/generation/choose_token.hpp"
#include "attn/generation/draft.hpp"
#include "attn/models/language_model.hpp"
#include "attn/text/stop_filter.hpp"
#include "attn/text/text_stream.hpp"

ATTN_NAMESPACE_BEGIN

struct TextGenerationOptions {
  index_t max_new_tokens = 0;                    ///< at least 1, including the end token
  index_t min_new_tokens = 0;                    ///< before an end token may come
  std::optional<SamplingOptions> sampling = {};  ///< default: greedy
  LogitOptions logits = {};  ///< penalties and biases; penalties include the prompt's tokens
  LogitProcessor logit_processor = {};  ///< called with all tokens so far
  std::vector<std::string> stop = {};   ///< texts before which the answer ends, even across tokens
  /// Called with each piece of the text as soon as it is certain, whole characters; false ends the
  /// answer.
  std::function<bool(std::string_view)> on_text = {};
  /// Return the natural logarithm of the probability of each token.
  bool log_probabilities = false;
  /// When the session is full, keep its first `keep` tokens and the newest half of the others, and
  /// prefill them at their new positions: see shortened_context(). If not given, the answer ends.
  std::optional<index_t> keep = {};
  Draft draft = {};  ///< proposes tokens for speculative decoding, which does not change the result
};

enum class AnswerEnd {
  end_token,
  stop_text,
  length,   ///< max_new_tokens
  context,  ///< the session is full
  caller,   ///< on_text returned false
};

struct GeneratedText {
  std::vector<index_t> ids;  ///< including the end token
  std::string text;          ///< without the end token and a stop text; valid UTF-8
  AnswerEnd end = AnswerEnd::length;
  /// For each token, the natural logarithm of its probability in the model, before any change of
  /// the logits.
  std::vector<double> log_probabilities;
  /// All tokens up to the last of ids; fewer if the context was shortened. The session has
  /// processed all but the last.
  std::vector<index_t> context;
  index_t drafted = 0, accepted = 0;  ///< draft tokens verified, and draft tokens accepted
};

/// log(softmax(logits))(id), summed in double. Shape: logits (vocab_size).
inline double log_probability(TensorView1<const float> logits, index_t id) {
  double max_logit = -std::numeric_limits<double>::infinity(), sum = 0;
  for (index_t i = 0; i < logits.extent(0); ++i)
    max_logit = (std::max)(max_logit, static_cast<double>(logits(i)));
  for (index_t i = 0; i < logits.extent(0); ++i)
    sum += std::exp(static_cast<double>(logits(i)) - max_logit);
  return static_cast<double>(logits(id)) - max_logit - std::log(sum);
}

/// The first `keep` of ids and the newest half of the others, repeated while there are more than
/// `capacity`. Throws ValueError unless keep is in 0 .. capacity - 1.
inline std::vector<index_t> shortened_context(std::vector<index_t> ids, index_t capacity,
                                              index_t keep) {
  detail::check_generation("shortened_context", "keep", keep, 0, capacity - 1);
  while (std::ssize(ids) > capacity) {
    ids.erase(ids.begin() + keep, ids.end() - (std::ssize(ids) - keep) / 2);
  }
  return ids;
}

namespace detail {

/// An answer of generate_text(), generate_texts() or generate_samples(), whose name is `function`:
/// its tokens, and how each new one extends it.
class TextGeneration {
 public:
  TextGeneration(std::string_view function, const LanguageModel& model, GptSession<float>& session,
                 std::span<const index_t> ids, const TextGenerationOptions& options)
      : function_(function),
        model_(model),
        session_(session),
        options_(options),
        limit_(max_session_tokens(session)),
        filter_(options.stop),
        stream_(model.tokenizer()) {
    const index_t seen = session.length();
    check_generation(function, "the session's batch", session.batch(), 1, 1);
    check_generation(function, "max_new_tokens", options.max_new_tokens, 1);
    check_generation(function, "min_new_tokens", options.min_new_tokens, 0, options.max_new_tokens);
    check_ids(function, ids, session.vocab_size());
    if (options.keep) {
      check_generation(function, "keep", *options.keep, 0, limit_ - 1);
      check_generation(function, "the number of ids", std::ssize(ids), seen + 1);
    } else {
      check_generation(function, "the number of ids", std::ssize(ids), seen + 1, limit_);
    }
    if (options.sampling) sampler_.emplace(*options.sampling, session.vocab_size());
    result_.context.assign(ids.begin(), ids.end());
  }

  GeneratedText run() {
    while (step()) {
    }
    return result();
  }
  GeneratedText result() { return std::move(result_); }

  GptSession<float>& session() const { return session_; }

  /// Whether the next token has no place in the session.
  bool is_full() const { return std::ssize(result_.context) > limit_; }
  std::span<const index_t> context() const { return result_.context; }

  /// The token of this conversation for a joint step of several sessions; none if it needs a step
  /// of its own: to prefill, to verify a draft, to shorten its context or to end.
  std::optional<index_t> next_token() const {
    const bool is_one = std::ssize(result_.context) == session_.length() + 1;
    const bool has_room = session_.length() < limit_;
    if (!is_one || !has_room || options_.draft) return std::nullopt;
    return result_.context.back();
  }
  /// Takes the logits of the next token from a joint step, (vocab_size). Returns whether the answer
  /// continues.
  bool accept(TensorView1<float> logits) { return take(choose(logits)); }

  /// The first step in two parts, for a prompt that fits: the first calls no callback and returns
  /// the logits of the next token, (vocab_size); the second returns whether the answer continues.
  TensorView1<const float> prefill() {
    logits_ = Tensor3<float>({1, 1, session_.vocab_size()});
    const TensorView1<const index_t> all(result_.context.data(), {std::ssize(result_.context)});
    session_.step(all.slice(0, session_.length(), all.extent(0)).unsqueeze(0),
                  logits_.view().select(1, 0));
    return prefilled();
  }
  bool accept_prefilled() { return accept(prefilled()); }

  /// Feeds the session its unprocessed tokens, and a draft after them. Returns whether the answer
  /// continues.
  bool step() {
    std::vector<index_t>& all = result_.context;
    if (is_full()) {
      if (!options_.keep) return finish(AnswerEnd::context);
      all = shortened_context(std::move(all), limit_, *options_.keep);
      session_.clear();
    }
    const bool has_draft = options_.draft && std::ssize(all) == session_.length() + 1;
    const DraftTree draft = has_draft ? ask_draft(function_, session_, options_.draft, all,
                                                  options_.max_new_tokens - std::ssize(result_.ids))
                                      : DraftTree{};
    check_generation(function_, "the session's length after callbacks", session_.length(), 0,
                     std::ssize(all) - 1);
    const VerifiedDraft verified =
        step_with_draft(function_, session_, {all.begin() + session_.length(), all.end()}, draft,
                        logits_, [&](TensorView1<float> logits) {
                          const index_t id = choose(logits);
                          return std::pair(id, take(id));
                        });
    result_.drafted += draft.size();
    result_.accepted += verified.accepted;
    return verified.goes_on;
  }

  /// Adds the text that was still held back, and ends the answer. Returns false.
  bool finish(AnswerEnd how) {
    say(filter_.push(stream_.finish()));
    if (filter_.stopped()) return end(AnswerEnd::stop_text);
    say(filter_.finish());
    return end(how);
  }

 private:
  TensorView1<float> prefilled() { return logits_.view().select(0, 0).select(0, 0); }

  index_t choose(TensorView1<float> row) {
    const std::vector<index_t>& all = result_.context;
    Tensor1<float> plain;
    if (options_.log_probabilities) plain = Tensor1<float>(TensorView1<const float>(row));
    const index_t id = choose_token(row, all, std::ssize(result_.ids), model_.end_tokens(),
                                    options_, sampler_ ? &*sampler_ : nullptr);
    if (options_.log_probabilities) {
      result_.log_probabilities.push_back(log_probability(plain.view(), id));
    }
    return id;
  }

  /// Returns whether the answer continues after this token.
  bool take(index_t id) {
    result_.context.push_back(id);
    result_.ids.push_back(id);
    if (model_.is_end(id)) return finish(AnswerEnd::end_token);
    const bool goes_on = say(filter_.push(stream_.push(id)));
    if (filter_.stopped()) return end(AnswerEnd::stop_text);
    if (!goes_on) return end(AnswerEnd::caller);
    if (std::ssize(result_.ids) == options_.max_new_tokens) return finish(AnswerEnd::length);
    return true;
  }

  bool end(AnswerEnd how) {
    result_.end = how;
    return false;
  }

  bool say(const std::string& text) {
    if (text.empty()) return true;
    result_.text += text;
    return !options_.on_text || options_.on_text(text);
  }

  std::string_view function_;
  const LanguageModel& model_;
  GptSession<float>& session_;
  const TextGenerationOptions& options_;
  index_t limit_;
  std::optional<Sampler> sampler_;
  StopFilter filter_;
  TextStream stream_;
  Tensor3<float> logits_;  ///< (1, rows, vocab_size), of the last step
  GeneratedText result_;
};

}  // namespace detail

/// Generates an answer after `ids`. The session, of one row and of this model, must have processed
/// the first session.length() of ids: only the rest is computed. Afterwards it has processed all
/// tokens but the last. Throws ValueError for options and ids out of range, if ids do not extend
/// the processed tokens or do not fit in the session, and if a callback changes the session so that
/// it no longer fits the tokens; if a callback throws, the session keeps the tokens that it has
/// processed.
inline GeneratedText generate_text(const LanguageModel& model, GptSession<float>& session,
                                   std::span<const index_t> ids,
                                   const TextGenerationOptions& options) {
  return detail::TextGeneration("generate_text", model, session, ids, options).run();
}

/// result[i] = log P(ids[first + i] | the ids before), natural logarithm. Throws ValueError for ids
/// outside the vocabulary, more ids than the model has positions, and first < 1.
inline std::vector<double> score_text(const LanguageModel& model, std::span<const index_t> ids,
                                      const Execution& execution = {}, index_t first = 1) {
  std::vector<double> result;
  detail::check_generation("score_text", "first", first, 1);
  const index_t count = std::ssize(ids) - 1;
  if (count < first) return result;
  detail::check_generation("score_text", "the number of ids", count + 1, 1, model.max_positions());
  auto caches = model.gpt().make_caches(1, count);
  AttentionOptions<float> options;
  options.execution = execution;
  // Computes the logits of this many tokens at a time: 12 MB for a vocabulary of 49,152.
  constexpr index_t kAtOnce = 64;
  for (index_t begin = 0, n = 0; begin < count; begin += n) {
    const bool is_scored = begin >= first - 1;
    n = is_scored ? (std::min)(kAtOnce, count - begin) : first - 1;
    auto logits = Tensor3<float>::uninitialized({1, is_scored ? n : 1, model.gpt().vocab_size()});
    model.gpt().forward(TensorView2<const index_t>(ids.data() + begin, {1, n}), logits, options,
                        caches);
    for (index_t i = 0; is_scored && i < n; ++i) {
      const index_t next = ids[static_cast<std::size_t>(begin + i + 1)];
      detail::check_generation("score_text", "every id", next, 0, model.gpt().vocab_size() - 1);
      result.push_back(log_probability(logits.view().select(0, 0).select(0, i), next));
    }
  }
  return result;
}

ATTN_NAMESPACE_END
