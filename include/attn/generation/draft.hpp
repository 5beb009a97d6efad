// Drafts: proposals of the next tokens for speculative decoding.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "attn/generation/decoding_session.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Capacity of a session's caches, at most the model's number of positions.
template <class T>
index_t max_session_tokens(const GptSession<T>& session) {
  const index_t seen = session.length();
  return seen + (std::min)(session.capacity() - seen, session.room());
}

}  // namespace detail

/// Proposes tokens that may follow `ids`, at most `max_tokens`; none without a good guess.
using Draft = std::function<std::vector<index_t>(std::span<const index_t> ids, index_t max_tokens)>;

/// Prompt lookup: guesses that the last tokens continue as they did before. Finds the longest
/// sequence of last tokens, at most max_ngram, that occurred earlier, and takes its latest
/// occurrence.
/// Source: Saxena, "Prompt lookup decoding" (2023).
class PromptLookup {
 public:
  /// Throws ValueError for max_ngram < 1.
  explicit PromptLookup(index_t max_ngram) : max_ngram_(max_ngram) {
    detail::check_generation("PromptLookup", "max_ngram", max_ngram, 1);
  }

  std::vector<index_t> operator()(std::span<const index_t> ids, index_t max_tokens) const {
    const index_t length = std::ssize(ids);
    index_t longest = 0, after = length;
    for (index_t end = length - 1; end >= 1 && longest < max_ngram_; --end) {
      index_t same = 0;
      while (same < (std::min)(end, max_ngram_) && at(ids, end - same) == at(ids, length - same))
        ++same;
      if (same > longest) longest = same, after = end;
    }
    const auto begin = ids.begin() + after;
    return {begin, begin + (std::min)(max_tokens, length - after)};
  }

 private:
  /// The token that ends before `end`.
  static index_t at(std::span<const index_t> ids, index_t end) {
    return ids[static_cast<std::size_t>(end - 1)];
  }

  index_t max_ngram_;
};

/// Greedy guesses of a smaller model with the same vocabulary. Not copyable: options take it by
/// std::ref(). Source: Leviathan et al., "Fast inference from Transformers via speculative
/// decoding" (2023).
template <class T>
class DraftModel {
 public:
  /// The session, of one row, must outlive this draft, which keeps track of its tokens. Throws
  /// ValueError for more rows, and for a session that already holds tokens.
  explicit DraftModel(GptSession<T>& session) : session_(&session) {
    detail::check_generation("DraftModel", "the session's batch", session.batch(), 1, 1);
    detail::check_generation("DraftModel", "the session's length", session.length(), 0, 0);
    logits_ = Tensor2<Accumulator<T>>({1, session.vocab_size()});
  }
  DraftModel(const DraftModel&) = delete;
  DraftModel& operator=(const DraftModel&) = delete;

  /// Proposes nothing if the session has no room.
  std::vector<index_t> operator()(std::span<const index_t> ids, index_t max_tokens) {
    const index_t room = detail::max_session_tokens(*session_) - std::ssize(ids);
    max_tokens = (std::min)(max_tokens, room + 1);
    std::vector<index_t> draft;
    if (ids.empty() || max_tokens < 1) return draft;
    // Always computes the last token: its logits are not stored.
    const auto known = std::mismatch(seen_.begin(), seen_.end(), ids.begin(), ids.end() - 1);
    seen_.erase(known.first, seen_.end());
    session_->truncate_to(std::ssize(seen_));
    std::vector<index_t> next(known.second, ids.end());
    while (std::ssize(draft) < max_tokens) {
      session_->step({next.data(), {1, std::ssize(next)}}, logits_);
      seen_.insert(seen_.end(), next.begin(), next.end());
      draft.push_back(likeliest_token(logits_.view().select(0, 0)));
      next.assign(1, draft.back());
    }
    return draft;
  }

 private:
  GptSession<T>* session_;
  std::vector<index_t> seen_;  ///< ids that the session has processed
  Tensor2<Accumulator<T>> logits_;
};

ATTN_NAMESPACE_END
