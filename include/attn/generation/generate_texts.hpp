// generate_texts, generate_samples: several texts at once, one token of each per step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>

#include "attn/generation/generate_text.hpp"

ATTN_NAMESPACE_BEGIN

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
    const std::span<const index_t> ids = one.context();
    const std::optional<index_t> least = session.min_prefill_tokens();
    if (!least || session.length() > 0 || one.is_full() || std::ssize(ids) < *least) return;
    copy_beginning({ids.begin(), ids.end() - *least}, session);
    one.prefill();
    all_.push_back(&one);
  }
  /// Takes the first step of a conversation. Returns whether the answer continues.
  bool step(TextGeneration& one) const {
    return std::ranges::count(all_, &one) > 0 ? one.accept_prefilled() : one.step();
  }

 private:
  void copy_beginning(std::span<const index_t> ids, GptSession<float>& to) const {
    index_t most = 0;
    const GptSession<float>* from = nullptr;
    for (TextGeneration* one : all_) {
      const index_t same = std::ranges::mismatch(ids, one->context()).in1 - ids.begin();
      if (same <= most || !to.has_bits_of(one->session())) continue;
      most = same;
      from = &one->session();
    }
    if (from != nullptr) to.copy_beginning(*from, most);
  }

  std::vector<TextGeneration*> all_;
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
  std::deque<detail::TextGeneration> all;
  std::vector<detail::TextGeneration*> going, together;
  for (const Conversation& one : conversations) {
    const bool is_new = std::all_of(
        all.begin(), all.end(), [&](const auto& other) { return &other.session() != one.session; });
    if (one.session == nullptr || !is_new) {
      throw ValueError(message("generate_texts", "sessions", "be one for each conversation",
                               is_new ? "none" : "one twice"));
    }
    all.emplace_back("generate_texts", model, *one.session, one.ids, one.options);
  }
  detail::PrefilledPrompts prompts;
  for (detail::TextGeneration& one : all) {
    if (!one.next_token()) prompts.prefill(one);
  }
  for (detail::TextGeneration& one : all) {
    if (one.next_token() || prompts.step(one)) going.push_back(&one);
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
  for (detail::TextGeneration& one : all) result.push_back(one.result());
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
  session.check_forkable("generate_samples", "the session's options");
  std::deque<detail::TextGeneration> all;
  for (const TextGenerationOptions& one : options) {
    if (one.draft || one.keep) {
      throw ValueError(message("generate_samples", "options", "have neither draft nor keep",
                               one.draft ? "draft" : "keep"));
    }
    all.emplace_back("generate_samples", model, session, ids, one);
  }
  if (all.empty()) return {};
  const index_t batch = std::ssize(all);
  Tensor2<float> logits({batch, session.vocab_size()});
  const TensorView1<const float> first = all.front().prefill();
  for (index_t b = 0; b < batch; ++b) copy(first, logits.view().select(0, b));
  GptSession<float> fork = session.fork(batch);
  std::vector<bool> goes_on(all.size(), true);
  Tensor2<index_t> tokens({batch, 1});
  while (true) {
    for (index_t b = 0; b < batch; ++b) {
      const auto at = static_cast<std::size_t>(b);
      if (!goes_on[at]) continue;
      detail::TextGeneration& one = all[at];
      goes_on[at] = one.accept(logits.view().select(0, b));
      if (goes_on[at] && one.is_full()) goes_on[at] = one.finish(AnswerEnd::context);
      tokens(b, 0) = one.context().back();
    }
    if (std::ranges::count(goes_on, true) == 0) break;
    fork.step(tokens, logits);
  }
  std::vector<GeneratedText> result;
  for (detail::TextGeneration& one : all) result.push_back(one.result());
  return result;
}

ATTN_NAMESPACE_END
