// DraftTree, Draft: proposed tokens, and how a session verifies them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "attn/attention/tree_mask.hpp"
#include "attn/core/tensor.hpp"
#include "attn/generation/generation_checks.hpp"

ATTN_NAMESPACE_BEGIN

/// A tree of proposed tokens: tokens[i] follows tokens[parents[i]], where parents[i] < i, or the
/// last id if parents[i] is -1.
struct DraftTree {
  std::vector<index_t> tokens = {}, parents = {};

  DraftTree() = default;
  /// A chain: each token follows the one before.
  DraftTree(std::vector<index_t> chain) : tokens(std::move(chain)) {
    for (index_t i = 0; i < size(); ++i) parents.push_back(i - 1);
  }

  index_t size() const { return std::ssize(tokens); }
  /// The index of the first such token after `parent`; -1: none.
  index_t find(index_t parent, index_t token) const {
    for (index_t i = parent + 1; i < std::ssize(parents); ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (parents[at] == parent && tokens[at] == token) return i;
    }
    return -1;
  }
  /// Adds a token after `parent` unless it is there, and returns its index.
  index_t add(index_t parent, index_t token) {
    const index_t known = find(parent, token);
    if (known >= 0) return known;
    tokens.push_back(token);
    parents.push_back(parent);
    return size() - 1;
  }

  bool operator==(const DraftTree&) const = default;
};

namespace detail {

/// The same tree in depth-first order, since GptSession::step_tree() attends to runs of tokens that
/// follow one another.
inline DraftTree depth_first(const DraftTree& tree) {
  DraftTree result;
  std::vector<std::pair<index_t, index_t>> open = {{-1, -1}};  // a token here and in `result`
  while (!open.empty()) {
    const auto [from, to] = open.back();
    open.pop_back();
    if (from >= 0) {
      const auto at = static_cast<std::size_t>(from);
      result.tokens.push_back(tree.tokens[at]);
      result.parents.push_back(to);
    }
    const index_t parent = from < 0 ? -1 : result.size() - 1;
    for (index_t i = tree.size() - 1; i > from; --i) {
      if (tree.parents[static_cast<std::size_t>(i)] == from) open.emplace_back(i, parent);
    }
  }
  return result;
}

}  // namespace detail

/// Proposes tokens that may follow `ids`, at most `max_tokens` in a row; none without a good guess.
/// A function may return a chain as a vector of ids.
using Draft = std::function<DraftTree(std::span<const index_t> ids, index_t max_tokens)>;

namespace detail {

/// A session of one row that can verify drafts, such as GptSession.
template <class Session>
concept VerifiesDrafts =
    requires(Session& session, const Session& same, TensorView2<const index_t> tokens,
             TensorView1<const index_t> indices, TensorView3<typename Session::value_type> logits) {
      session.step_tree(tokens, indices, logits);
      session.keep_path(index_t{}, indices);
      { same.max_decode_tokens() } -> std::convertible_to<index_t>;
      { same.room() } -> std::convertible_to<index_t>;
      { same.length() } -> std::convertible_to<index_t>;
    };

/// What `draft` proposes after `ids`, of which the session has processed all but the last, for an
/// answer of `left` more tokens; depth-first. Throws ValueError for a tree out of range, and if
/// `draft` changes the session.
template <VerifiesDrafts Session>
DraftTree ask_draft(std::string_view function, const Session& session, const Draft& draft,
                    std::span<const index_t> ids, index_t left) {
  // The last requested token needs no step of its own.
  const index_t max_drafted = (std::min)(session.max_decode_tokens(), left) - 1;
  if (max_drafted < 1) return {};
  const index_t length = session.length();
  DraftTree tree = draft(ids, max_drafted);
  check_generation(function, "the session's length after callbacks", session.length(), length,
                   length);
  check_generation(function, "the number of parents of a draft", std::ssize(tree.parents),
                   tree.size(), tree.size());
  const TensorView1<const index_t> parents(tree.parents.data(), {tree.size()});
  for (const index_t depth : tree_depths(std::string(function) + ": draft", parents)) {
    check_generation(function, "the number of drafted tokens in a row", depth + 1, 0, max_drafted);
  }
  // Branches that do not fit in the session are dropped.
  const index_t room = session.room() - 1;
  if (tree.size() > room) {
    tree.tokens.resize(static_cast<std::size_t>(room));
    tree.parents.resize(static_cast<std::size_t>(room));
  }
  return depth_first(tree);
}

struct VerifiedDraft {
  index_t accepted = 0;  ///< number of tokens of the draft that came true
  bool goes_on = true;   ///< what `next` returned last
};

/// Feeds a session of one row its next tokens, one if there is a draft, and the draft after them.
/// Then calls next(logits (vocab_size)), which returns the token that follows and whether more may
/// follow, once for each token until the draft is wrong. The session keeps what came true, also if
/// `next` throws. `memory` is reused for logits. Throws ValueError if `next` changes the session.
template <VerifiesDrafts Session, class Next>
VerifiedDraft step_with_draft(std::string_view function, Session& session,
                              std::vector<index_t> tokens, const DraftTree& draft,
                              Tensor3<typename Session::value_type>& memory, const Next& next) {
  tokens.insert(tokens.end(), draft.tokens.begin(), draft.tokens.end());
  const index_t rows = draft.size() + 1;
  if (!memory || memory.extent(1) < rows) {
    memory = Tensor3<typename Session::value_type>({1, rows, session.vocab_size()});
  }
  const auto logits = memory.view().slice(1, 0, rows);
  const TensorView2<const index_t> all(tokens.data(), {1, std::ssize(tokens)});
  if (draft.size() == 0) {
    session.step(all, logits.select(1, 0));
    return {.goes_on = next(logits.select(0, 0).select(0, 0)).second};
  }
  std::vector<index_t> parents = {-1};  // of the last known token and of the draft's
  for (const index_t parent : draft.parents) parents.push_back(parent + 1);
  session.step_tree(all, {parents.data(), {rows}}, logits);
  VerifiedDraft result;
  std::vector<index_t> kept;
  const index_t length = session.length();
  const auto keep_accepted = [&] { session.keep_path(rows, {kept.data(), {std::ssize(kept)}}); };
  try {
    for (index_t i = -1; result.goes_on;) {
      kept.push_back(i + 1);
      const auto [id, goes_on] = next(logits.select(0, 0).select(0, i + 1));
      result.goes_on = goes_on;
      i = draft.find(i, id);
      if (i < 0) break;
      ++result.accepted;
    }
  } catch (...) {
    if (session.length() == length) keep_accepted();
    throw;
  }
  check_generation(function, "the session's length after callbacks", session.length(), length,
                   length);
  keep_accepted();
  return result;
}

}  // namespace detail

ATTN_NAMESPACE_END
