// generate_text, generate_texts, score_text: text in, text or log-probabilities out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "attn/generation/draft.hpp"
#include "attn/generation/logits.hpp"
#include "attn/models/language_model.hpp"
#include "attn/text/stop_filter.hpp"
#include "attn/text/text_stream.hpp"

ATTN_NAMESPACE_BEGIN

struct TextGenerationOptions {
  index_t max_new_tokens = 0;                    ///< at least 1, including the end token
  index_t min_new_tokens = 0;                    ///< before an end token may come
  std::optional<SamplingOptions> sampling = {};  ///< default: greedy
  LogitOptions logits = {};  ///< penalties and biases; penalties include the prompt's tokens
  /// Called with the logits (vocab_size) and all tokens so far, before penalties; may change the
  /// logits.
  std::function<void(TensorView1<float>, std::span<const index_t>)> logit_processor = {};
  std::vector<std::string> stop = {};  ///< texts before which the answer ends, even across tokens
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

/// One call of generate_text(): its tokens, and how each new one extends the answer.
class TextGeneration {
 public:
  TextGeneration(const LanguageModel& model, GptSession<float>& session,
                 std::span<const index_t> ids, const TextGenerationOptions& options)
      : model_(model),
        session_(session),
        options_(options),
        limit_(max_session_tokens(session)),
        filter_(options.stop),
        stream_(model.tokenizer()) {
    const index_t seen = session.length();
    check_generation("generate_text", "the session's batch", session.batch(), 1, 1);
    check_generation("generate_text", "max_new_tokens", options.max_new_tokens, 1);
    if (options.keep) {
      check_generation("generate_text", "keep", *options.keep, 0, limit_ - 1);
      check_generation("generate_text", "the number of ids", std::ssize(ids), seen + 1);
    } else {
      check_generation("generate_text", "the number of ids", std::ssize(ids), seen + 1, limit_);
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

  GptSession<float>& session() { return session_; }

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

  /// Feeds the session its unprocessed tokens, and a draft after them. Returns whether the answer
  /// continues.
  bool step() {
    std::vector<index_t>& all = result_.context;
    if (std::ssize(all) > limit_) {
      if (!options_.keep) return finish(AnswerEnd::context);
      all = shortened_context(std::move(all), limit_, *options_.keep);
      session_.clear();
    }
    const index_t vocab = session_.vocab_size();
    const DraftTree draft = std::ssize(all) == session_.length() + 1 ? guesses() : DraftTree{};
    check_unchanged(0, std::ssize(all) - 1);
    std::vector<index_t> tokens(all.begin() + session_.length(), all.end());
    tokens.insert(tokens.end(), draft.tokens.begin(), draft.tokens.end());
    const index_t rows = draft.size() + 1;
    if (!logits_ || logits_.extent(1) < rows) logits_ = Tensor3<float>({1, rows, vocab});
    const TensorView3<float> logits = logits_.view().slice(1, 0, rows);
    const TensorView2<const index_t> next(tokens.data(), {1, std::ssize(tokens)});
    if (draft.size() == 0) {
      session_.step(next, logits.select(1, 0));
      return take(choose(logits.select(0, 0).select(0, 0)));
    }
    std::vector<index_t> parents = {-1};  // of the last known token and of the draft's
    for (const index_t parent : draft.parents) parents.push_back(parent + 1);
    session_.step_tree(next, {parents.data(), {rows}}, logits);
    result_.drafted += draft.size();
    // Removes rejected draft tokens from the session, also if a callback throws.
    std::vector<index_t> kept;
    const index_t length = session_.length();
    const auto reject = [&] { session_.keep_path(rows, {kept.data(), {std::ssize(kept)}}); };
    bool goes_on = true;
    try {
      for (index_t i = -1; goes_on;) {
        kept.push_back(i + 1);
        const index_t id = choose(logits.select(0, 0).select(0, i + 1));
        i = draft.find(i, id);
        if (i >= 0) ++result_.accepted;
        goes_on = take(id);
        if (i < 0) break;
      }
    } catch (...) {
      if (session_.length() == length) reject();
      throw;
    }
    check_unchanged(length, length);
    reject();
    return goes_on;
  }

 private:
  /// Throws ValueError if a callback changed the session to a length beyond these.
  void check_unchanged(index_t least, index_t most) const {
    check_generation("generate_text", "the session's length after callbacks", session_.length(),
                     least, most);
  }

  DraftTree guesses() {
    if (!options_.draft) return {};
    // The last requested token needs no step of its own.
    const index_t max_drafted = (std::min)(session_.max_decode_tokens(),
                                           options_.max_new_tokens - std::ssize(result_.ids)) -
                                1;
    if (max_drafted < 1) return {};
    DraftTree draft = options_.draft(result_.context, max_drafted);
    check_generation("generate_text", "the number of parents of a draft", std::ssize(draft.parents),
                     draft.size(), draft.size());
    for (const index_t depth :
         tree_depths("generate_text: draft", {draft.parents.data(), {draft.size()}})) {
      check_generation("generate_text", "the number of drafted tokens in a row", depth + 1, 0,
                       max_drafted);
    }
    // Branches that do not fit in the session are dropped.
    const index_t room = session_.room() - 1;
    if (draft.size() > room) {
      draft.tokens.resize(static_cast<std::size_t>(room));
      draft.parents.resize(static_cast<std::size_t>(room));
    }
    return depth_first(draft);
  }

  index_t choose(TensorView1<float> row) {
    const std::vector<index_t>& all = result_.context;
    Tensor1<float> plain;
    if (options_.log_probabilities) plain = Tensor1<float>(TensorView1<const float>(row));
    if (options_.logit_processor) options_.logit_processor(row, all);
    if (options_.logits.changes()) adjust_logits(row, all, options_.logits);
    if (std::ssize(result_.ids) < options_.min_new_tokens) {
      for (const index_t end : model_.end_tokens())
        row(end) = -std::numeric_limits<float>::infinity();
    }
    const index_t id = sampler_ ? (*sampler_)(row) : likeliest_token(row);
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

  /// Adds the text that was still held back, and ends the answer.
  bool finish(AnswerEnd how) {
    say(filter_.push(stream_.finish()));
    if (filter_.stopped()) return end(AnswerEnd::stop_text);
    say(filter_.finish());
    return end(how);
  }

  bool say(const std::string& text) {
    if (text.empty()) return true;
    result_.text += text;
    return !options_.on_text || options_.on_text(text);
  }

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
/// tokens but the last. Throws ValueError for options out of range, if ids do not extend the
/// processed tokens or do not fit in the session, and if a callback changes the session so that it
/// no longer fits the tokens; if a callback throws, the session keeps the tokens that it has
/// processed.
inline GeneratedText generate_text(const LanguageModel& model, GptSession<float>& session,
                                   std::span<const index_t> ids,
                                   const TextGenerationOptions& options) {
  return detail::TextGeneration(model, session, ids, options).run();
}

/// One of several conversations that generate_texts() answers together.
struct Conversation {
  GptSession<float>* session = nullptr;  ///< of one row, used by no other conversation
  std::vector<index_t> ids = {};         ///< the session has processed the first of them
  TextGenerationOptions options = {};    ///< options of this conversation
};

/// Answers several conversations of any lengths, each bit for bit as generate_text() alone. Prompts
/// are prefilled sequentially; then one step decodes a token of each conversation, which reads the
/// weights once for all of them, until every answer has ended. A conversation with a draft takes
/// steps of its own in between. All callbacks come from this thread. Throws for the reasons of
/// generate_text(), and ValueError if sessions do not fit together, see
/// GptSession::step_together().
inline std::vector<GeneratedText> generate_texts(const LanguageModel& model,
                                                 std::span<const Conversation> conversations) {
  std::vector<std::unique_ptr<detail::TextGeneration>> all;
  std::vector<detail::TextGeneration*> going, together;
  for (const Conversation& one : conversations) {
    const bool is_new = std::all_of(all.begin(), all.end(), [&](const auto& other) {
      return &other->session() != one.session;
    });
    if (one.session == nullptr || !is_new) {
      throw ValueError(message("generate_texts", "sessions", "be one for each conversation",
                               is_new ? "none" : "one twice"));
    }
    all.push_back(
        std::make_unique<detail::TextGeneration>(model, *one.session, one.ids, one.options));
    going.push_back(all.back().get());
  }
  std::vector<GptSession<float>*> sessions;
  std::vector<index_t> tokens;
  Tensor2<float> logits({std::ssize(conversations), model.gpt().vocab_size()});
  while (!going.empty()) {
    together.clear(), sessions.clear(), tokens.clear();
    std::erase_if(going, [&](detail::TextGeneration* one) {
      const std::optional<index_t> token = one->next_token();
      if (!token) return !one->step();
      together.push_back(one);
      sessions.push_back(&one->session());
      tokens.push_back(*token);
      return false;
    });
    const index_t rows = std::ssize(together);
    if (rows == 0) continue;
    const TensorView2<float> next = logits.view().slice(0, 0, rows);
    GptSession<float>::step_together(sessions, {tokens.data(), {rows}}, next);
    for (index_t i = 0; i < rows; ++i) {
      detail::TextGeneration* one = together[static_cast<std::size_t>(i)];
      if (!one->accept(next.select(0, i))) std::erase(going, one);
    }
  }
  std::vector<GeneratedText> result;
  for (const auto& one : all) result.push_back(one->result());
  return result;
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
