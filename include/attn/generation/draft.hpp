// PromptLookup, DraftModel: proposals of the next tokens for speculative decoding.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "attn/generation/gpt_session.hpp"
#include "attn/kernels/rows/softmax.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Capacity of a session's caches, at most the model's number of positions.
template <class T>
index_t max_session_tokens(const GptSession<T>& session) {
  const index_t seen = session.length();
  return seen + (std::min)(session.capacity() - seen, session.room());
}

}  // namespace detail

/// Prompt lookup: guesses that the last tokens continue as they did before. Finds the longest
/// sequence of last tokens, at most max_ngram, that occurred earlier, and takes its latest
/// occurrence; then, for more than one continuation, the next best occurrences that went on
/// differently. Source: Saxena, "Prompt lookup decoding" (2023).
class PromptLookup {
 public:
  /// Throws ValueError for max_ngram or continuations < 1.
  explicit PromptLookup(index_t max_ngram, index_t continuations = 1)
      : max_ngram_(max_ngram), continuations_(continuations) {
    detail::check_generation("PromptLookup", "max_ngram", max_ngram, 1);
    detail::check_generation("PromptLookup", "continuations", continuations, 1);
  }

  DraftTree operator()(std::span<const index_t> ids, index_t max_tokens) const {
    const index_t length = std::ssize(ids);
    DraftTree tree;
    index_t left = continuations_;
    const auto add_after = [&](index_t end) {
      const index_t before = tree.size();
      index_t parent = -1;
      for (index_t i = end + 1; i <= end + (std::min)(length - end, max_tokens); ++i)
        parent = tree.add(parent, at(ids, i));
      if (tree.size() > before) --left;
    };
    std::vector<std::pair<index_t, index_t>> shorter;  // tokens in common, and where they end
    for (index_t end = length - 1; end >= 1 && left > 0; --end) {
      index_t same = 0;
      while (same < (std::min)(end, max_ngram_) && at(ids, end - same) == at(ids, length - same))
        ++same;
      if (same == max_ngram_) {
        add_after(end);
      } else if (same > 0) {
        shorter.emplace_back(same, end);
      }
    }
    std::stable_sort(shorter.begin(), shorter.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (auto next = shorter.begin(); next != shorter.end() && left > 0; ++next)
      add_after(next->second);
    return tree;
  }

 private:
  /// The token that ends before `end`.
  static index_t at(std::span<const index_t> ids, index_t end) {
    return ids[static_cast<std::size_t>(end - 1)];
  }

  index_t max_ngram_, continuations_;
};

/// Guesses of a smaller model with the same vocabulary: greedy ones, or with width > 1 a tree that
/// has in each depth the `width` most probable continuations of those in the depth before. Not
/// copyable: options take it by std::ref(). Sources: Leviathan et al., "Fast inference from
/// Transformers via speculative decoding" (2023); Li et al., "EAGLE-2: Faster Inference of Language
/// Models with Dynamic Draft Trees" (2024), section 4.1.
template <class T>
class DraftModel {
 public:
  /// The session, of one row, must outlive this draft, which keeps track of its tokens. Throws
  /// ValueError for more rows, for a session that already holds tokens, and unless width is 1 to
  /// the vocabulary's size.
  explicit DraftModel(GptSession<T>& session, index_t width = 1)
      : session_(&session), width_(width) {
    detail::check_generation("DraftModel", "width", width, 1, session.vocab_size());
    detail::check_generation("DraftModel", "the session's batch", session.batch(), 1, 1);
    detail::check_generation("DraftModel", "the session's length", session.length(), 0, 0);
    is_recurrent_ = std::ranges::any_of(session.model().blocks.layers,
                                        [](const auto& layer) { return layer.is_recurrent(); });
    logits_ = Tensor2<Accumulator<T>>({1, session.vocab_size()});
  }
  DraftModel(const DraftModel&) = delete;
  DraftModel& operator=(const DraftModel&) = delete;

  /// Proposes nothing if the session has no room.
  DraftTree operator()(std::span<const index_t> ids, index_t max_tokens) {
    const index_t room = detail::max_session_tokens(*session_) - std::ssize(ids);
    if (ids.empty() || room < 0) return {};
    max_tokens = (std::min)(max_tokens, room / width_ + 1);
    if (max_tokens < 1) return {};
    // Always computes the last token: its logits are not stored.
    const auto known = std::mismatch(seen_.begin(), seen_.end(), ids.begin(), ids.end() - 1);
    seen_.erase(known.first, seen_.end());
    // A recurrent layer keeps few states, and a window few keys.
    if (!session_->can_truncate_to(std::ssize(seen_))) seen_.clear();
    session_->truncate_to(std::ssize(seen_));
    read({ids.begin() + std::ssize(seen_), ids.end()});
    // chain() adds tokens to the session in several steps, which a state could not take back.
    return width_ == 1 && !is_recurrent_ ? chain(max_tokens) : tree(max_tokens);
  }

 private:
  using Logit = Accumulator<T>;

  void read(const std::vector<index_t>& next) {
    session_->step({next.data(), {1, std::ssize(next)}}, logits_);
    seen_.insert(seen_.end(), next.begin(), next.end());
  }

  DraftTree chain(index_t max_tokens) {
    std::vector<index_t> draft;
    while (std::ssize(draft) < max_tokens) {
      if (!draft.empty()) read({draft.back()});
      draft.push_back(likeliest_token(logits_.view().select(0, 0)));
    }
    return draft;
  }

  DraftTree tree(index_t max_depth) {
    struct Candidate {
      Logit score;  ///< the logarithm of the probability of its path
      index_t parent, token;
    };
    DraftTree draft;
    std::vector<Logit> scores;
    std::vector<Candidate> candidates;
    const auto add = [&](TensorView1<const Logit> logits, index_t parent, Logit score) {
      Tensor1<Logit> logs(logits.shape());
      log_softmax(logits, logs);
      const auto best = top_k(logs, width_);
      for (index_t i = 0; i < width_; ++i)
        candidates.push_back({score + best.values(i), parent, best.indices(i)});
    };
    add(const_view(logits_).select(0, 0), -1, 0);
    for (index_t depth = 1;; ++depth) {
      std::stable_sort(candidates.begin(), candidates.end(),
                       [](const auto& a, const auto& b) { return a.score > b.score; });
      const index_t before = draft.size();
      for (index_t i = 0; i < width_; ++i) {
        const Candidate& one = candidates[static_cast<std::size_t>(i)];
        draft.add(one.parent, one.token);
        scores.push_back(one.score);
      }
      if (depth == max_depth) return draft;
      const index_t n = draft.size();
      Tensor3<Logit> logits({1, n, session_->vocab_size()});
      session_->step_tree({draft.tokens.data(), {1, n}}, {draft.parents.data(), {n}}, logits);
      session_->keep_path(n, {});
      candidates.clear();
      for (index_t i = before; i < n; ++i) {
        add(const_view(logits).select(0, 0).select(0, i), i, scores[static_cast<std::size_t>(i)]);
      }
    }
  }

  GptSession<T>* session_;
  index_t width_;
  bool is_recurrent_;
  std::vector<index_t> seen_;  ///< ids that the session has processed
  Tensor2<Accumulator<T>> logits_;
};

ATTN_NAMESPACE_END
