// generate_text, generate_texts, generate_samples, score_text: text in, text or log-probabilities.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "attn/generation/text_generation.hpp"

ATTN_NAMESPACE_BEGIN

/// Generates an answer after `ids`. The session, of one row and of this model, must have processed
/// the first session.length() of ids: only the rest is computed. Afterwards it has processed all
/// tokens but the last. Throws ValueError for options and ids out of range, if ids do not extend
/// the processed tokens or do not fit in the session, and if a callback changes the session so that
/// it no longer fits the tokens; if a callback throws, the session keeps the tokens that it has
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

namespace detail {

/// The prompts that sessions have prefilled in one call of generate_texts().
class PrefilledPrompts {
 public:
  /// Prefills the prompt of a new session that may share keys and values; others remain for
  /// step(). If an earlier prompt has a beginning in common with it, copies keys and values of the
  /// tokens in common, where that keeps the bits. Calls no callback, which could change a session.
  void prefill(TextGeneration& one) {
    GptSession<float>& session = one.session();
    const std::vector<index_t> ids(one.context().begin(), one.context().end());
    const std::optional<index_t> least = session.min_prefill_tokens();
    if (!least || session.length() > 0 || one.is_full() || std::ssize(ids) < *least) return;
    copy_beginning({ids.begin(), ids.end() - *least}, session);
    one.prefill();
    all_.push_back({&one, ids});
  }
  /// Takes the first step of a conversation. Returns whether the answer continues.
  bool step(TextGeneration& one) const {
    const bool is_prefilled = std::ranges::count(all_, &one, &Prompt::text) > 0;
    return is_prefilled ? one.accept_prefilled() : one.step();
  }

 private:
  struct Prompt {
    TextGeneration* text;
    std::vector<index_t> ids;
  };

  void copy_beginning(std::span<const index_t> ids, GptSession<float>& to) const {
    index_t most = 0;
    const GptSession<float>* from = nullptr;
    for (const Prompt& one : all_) {
      const index_t same = std::ranges::mismatch(ids, one.ids).in1 - ids.begin();
      if (same <= most || !to.is_like(one.text->session())) continue;
      most = same;
      from = &one.text->session();
    }
    for (std::size_t n = 0; from != nullptr && n < to.caches().size(); ++n) {
      const KvCache<float>& cache = from->caches()[n];
      const auto first = [&](const auto& x) { return x ? x.slice(2, 0, most) : x; };
      with_cache_element<float>(*cache.options().element, [&]<class E>(E) {
        to.caches()[n].append_stored(first(cache.template keys<E>()),
                                     first(cache.template values<E>()), first(cache.key_scales()),
                                     first(cache.value_scales()));
      });
    }
  }

  std::vector<Prompt> all_;
};

}  // namespace detail

/// Answers several conversations of any lengths, each bit for bit as generate_text() alone. Prompts
/// are prefilled sequentially, those of new sessions before the first callback; the tokens with
/// which a prompt begins as an earlier one are not computed again, if both sessions are new, but
/// for at least GptSession::min_prefill_tokens() of the prompt. Then one step decodes a token of
/// each conversation, which reads the weights once for all of them, until every answer has ended. A
/// conversation with a draft takes steps of its own in between. All callbacks come from this
/// thread. Throws for the reasons of generate_text(), and ValueError if sessions do not fit
/// together, see GptSession::step_together().
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
  }
  detail::PrefilledPrompts prompts;
  for (const auto& one : all) {
    if (!one->next_token()) prompts.prefill(*one);
  }
  for (const auto& one : all) {
    if (one->next_token() || prompts.step(*one)) going.push_back(one.get());
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

/// Several continuations of `ids`, each bit for bit as generate_text() with one of `options`, which
/// usually differ in their seeds. The prompt is prefilled once. A fork of the session then decodes
/// a token of every continuation in each step: they share the keys of the prompt, and weights are
/// read once for all. Continuations that have ended are computed until all have. Afterwards the
/// session has processed all of ids, unless `options` are none. Throws for the reasons of
/// generate_text() and GptSession::fork(), and ValueError for options with a draft or keep.
inline std::vector<GeneratedText> generate_samples(const LanguageModel& model,
                                                   GptSession<float>& session,
                                                   std::span<const index_t> ids,
                                                   std::span<const TextGenerationOptions> options) {
  detail::check_ids("generate_samples", ids, session.vocab_size());
  detail::refuse_extents("generate_samples", "the session's options", session.options());
  std::vector<std::unique_ptr<detail::TextGeneration>> all;
  for (const TextGenerationOptions& one : options) {
    if (one.draft || one.keep) {
      throw ValueError(message("generate_samples", "options", "have neither draft nor keep",
                               one.draft ? "draft" : "keep"));
    }
    all.push_back(std::make_unique<detail::TextGeneration>(model, session, ids, one));
  }
  if (all.empty()) return {};
  const index_t batch = std::ssize(all), vocab = session.vocab_size();
  const std::span<const index_t> rest = ids.subspan(static_cast<std::size_t>(session.length()));
  Tensor2<float> first({1, vocab}), logits({batch, vocab});
  session.step({rest.data(), {1, std::ssize(rest)}}, first);
  for (index_t b = 0; b < batch; ++b) copy(first.view().select(0, 0), logits.view().select(0, b));
  GptSession<float> fork = session.fork(batch);
  std::vector<bool> goes_on(all.size(), true);
  Tensor2<index_t> tokens({batch, 1});
  while (true) {
    for (index_t b = 0; b < batch; ++b) {
      const auto at = static_cast<std::size_t>(b);
      if (!goes_on[at]) continue;
      goes_on[at] = all[at]->accept(logits.view().select(0, b));
      if (goes_on[at] && all[at]->is_full()) goes_on[at] = all[at]->step();  // ends it
      tokens(b, 0) = all[at]->context().back();
    }
    if (std::ranges::count(goes_on, true) == 0) break;
    fork.step(tokens, logits);
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
