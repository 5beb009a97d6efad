// generate: continues a batch of prompts with any decoder that has a cache.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "attn/generation/choose_token.hpp"
#include "attn/generation/draft_tree.hpp"

ATTN_NAMESPACE_BEGIN

/// A decoder with state: its key/value caches hold the tokens of every batch row so far.
///
///   step(tokens, logits)  takes the next tokens (batch, n), returns the logits (batch, vocab_size)
///                         of the last one
///   reorder(rows)         row b continues from the state of row rows(b) (batch); rows may repeat
///   batch(), vocab_size() of const models; value_type is the type of logits
template <class Model>
concept CachedDecoder =
    requires(Model& model, const Model& same, TensorView2<const index_t> tokens,
             TensorView2<typename Model::value_type> logits, TensorView1<const index_t> rows) {
      model.step(tokens, logits);
      model.reorder(rows);
      { same.batch() } -> std::convertible_to<index_t>;
      { same.vocab_size() } -> std::convertible_to<index_t>;
    };

struct GenerationOptions {
  index_t max_new_tokens = 0;             ///< per row, at least 1
  index_t min_new_tokens = 0;             ///< per row, before a stop token may come
  std::vector<index_t> stop_tokens = {};  ///< each ends a row and is its last token
  /// The first new tokens of each row; a stop token among them ends it, also before min_new_tokens.
  std::vector<index_t> forced_tokens = {};
  std::optional<SamplingOptions> sampling = {};  ///< greedy if not given
  LogitOptions logits = {};  ///< penalties and biases; penalties include the prompt's tokens
  /// Called with the logits of each row's next token, unless it is forced, and with the row's
  /// prompt and new tokens. Only for sessions whose logits are float.
  LogitProcessor logit_processor = {};
  TensorView1<const index_t> prompt_lengths = {};  ///< (batch); all prompt_len if not given
  /// Proposes tokens after the prompt and the new tokens, for speculative decoding of one row,
  /// which does not change the result.
  Draft draft = {};
};

namespace detail {

template <class Model, class Prompts>
concept Generates =
    CachedDecoder<Model> && std::convertible_to<const Prompts&, TensorView2<const index_t>>;

template <class Model, class Prompts>
void assert_generates() {
  static_assert(CachedDecoder<Model>,
                "generating takes a session, as GptSession<float> session(model, batch, capacity), "
                "and not the model itself");
  ATTN_ASSERT_INPUT(Prompts, index_t, 2, "generating: prompts", "(batch, prompt_len)",
                    "ids, index_t");
}

/// Adds up to `left` tokens to ids, of which the session has processed all but the last, in steps
/// that verify drafts. Calls next(logits (vocab_size)) for each, which adds the token to ids and
/// returns it and whether more may follow.
template <VerifiesDrafts Session, class Next>
void generate_with_draft(Session& session, const Draft& draft, const std::vector<index_t>& ids,
                         index_t left, const Next& next) {
  Tensor3<typename Session::value_type> memory;
  const index_t end = std::ssize(ids) + left;
  for (bool goes_on = true; goes_on;) {
    const DraftTree tree = ask_draft("generate", session, draft, ids, end - std::ssize(ids));
    goes_on = step_with_draft("generate", session, {ids.back()}, tree, memory, next).goes_on;
  }
}

}  // namespace detail

/// Generates new tokens for each batch row, without the prompt: up to the stop token, at most
/// max_new_tokens.
///
/// Shapes: prompts (batch, prompt_len), where batch is the model's. Of shorter prompts only
/// prompt_lengths(b) tokens are read: rows with shorter prompts generate while others still read
/// theirs, without padding. Row b draws from stream b of the seed, independently of the other rows.
/// Prompts continue the model's state: a second call continues after the first. Afterwards the
/// model has processed all tokens of the result but the last, which the next prompt must begin
/// with; a row that ends before others is fed its last token until they end. clear() of a session
/// starts anew. With a draft, one step verifies several tokens, and the result has the same bits. A
/// session needs room for the longest prompt and max_new_tokens - 1 tokens. Throws ShapeError or
/// ValueError before the model is called, then what its step(), adjust_logits() and
/// likeliest_token() throw, and ValueError for a draft that is no tree or changes the session.
template <CachedDecoder Model>
std::vector<std::vector<index_t>> generate(Model& model, TensorView2<const index_t> prompts,
                                           const GenerationOptions& options) {
  const index_t batch = model.batch(), prompt_len = prompts.extent(1);
  check_shape("generate", "prompts", "(batch, prompt_len)", Shape<2>{batch, prompt_len},
              prompts.shape());
  detail::check_generation("generate", "prompt_len", prompt_len, 1);
  detail::check_generation("generate", "max_new_tokens", options.max_new_tokens, 1);
  index_t shortest = prompt_len, longest = options.prompt_lengths ? 0 : prompt_len;
  if (options.prompt_lengths) {
    check_shape("generate", "prompt_lengths", "(batch)", Shape<1>{batch},
                options.prompt_lengths.shape());
    for (index_t b = 0; b < batch; ++b) {
      const index_t length = options.prompt_lengths(b);
      detail::check_generation("generate", "prompt_lengths", length, 1, prompt_len);
      shortest = (std::min)(shortest, length);
      longest = (std::max)(longest, length);
    }
  }
  detail::check_generation("generate", "min_new_tokens", options.min_new_tokens, 0,
                           options.max_new_tokens);
  for (const index_t stop : options.stop_tokens) {
    detail::check_generation("generate", "stop_tokens", stop, 0, model.vocab_size() - 1);
  }
  for (const index_t forced : options.forced_tokens) {
    detail::check_generation("generate", "forced_tokens", forced, 0, model.vocab_size() - 1);
  }
  detail::check_generation("generate", "the number of forced_tokens",
                           std::ssize(options.forced_tokens), 0, options.max_new_tokens);
  using Logit = typename Model::value_type;
  detail::check_logit_processor<Logit>("generate", options.logit_processor);
  if (options.draft) {
    if (!detail::VerifiesDrafts<Model>) {
      throw ValueError(message("generate", "draft",
                               "be empty for a session that has no step_tree()", "a function"));
    }
    detail::check_generation("generate", "the session's batch with a draft", batch, 1, 1);
  }
  if (batch > 0) detail::check_room("generate", model, longest, options.max_new_tokens);
  std::vector<Sampler> samplers;
  for (index_t b = 0; options.sampling && b < batch; ++b) {
    samplers.emplace_back(*options.sampling, model.vocab_size(), static_cast<std::uint32_t>(b));
  }

  const auto length_of = [&](index_t b) {
    return options.prompt_lengths ? options.prompt_lengths(b) : prompt_len;
  };
  std::vector<std::vector<index_t>> rows(static_cast<std::size_t>(batch));  // prompts, new tokens
  for (index_t b = 0; b < batch; ++b) {
    std::vector<index_t>& row = rows[static_cast<std::size_t>(b)];
    for (index_t i = 0; i < length_of(b); ++i) row.push_back(prompts(b, i));
  }
  const auto generated = [&](index_t b) {
    return std::span<const index_t>(rows[static_cast<std::size_t>(b)])
        .subspan(static_cast<std::size_t>(length_of(b)));
  };
  const auto is_done = [&](index_t b) {
    const auto row = generated(b);
    return std::ssize(row) == options.max_new_tokens ||
           (!row.empty() && std::ranges::count(options.stop_tokens, row.back()) > 0);
  };
  const auto choose = [&](index_t b, TensorView1<Logit> scores) {
    std::vector<index_t>& row = rows[static_cast<std::size_t>(b)];
    const std::size_t count = generated(b).size();
    if (count < options.forced_tokens.size()) {
      row.push_back(options.forced_tokens[count]);
    } else {
      Sampler* const sampler = options.sampling ? &samplers[static_cast<std::size_t>(b)] : nullptr;
      row.push_back(detail::choose_token(scores, row, static_cast<index_t>(count),
                                         options.stop_tokens, options, sampler));
    }
    return row.back();
  };
  const auto result = [&] {
    for (index_t b = 0; b < batch; ++b) {
      std::vector<index_t>& row = rows[static_cast<std::size_t>(b)];
      row.erase(row.begin(), row.begin() + length_of(b));
    }
    return std::move(rows);
  };

  Tensor2<Logit> logits({batch, model.vocab_size()});
  Tensor2<index_t> next({batch, 1});
  model.step(prompts.slice(1, 0, shortest), logits);
  if constexpr (detail::VerifiesDrafts<Model>) {
    if (options.draft) {
      const auto choose_next = [&](TensorView1<Logit> scores) {
        const index_t id = choose(0, scores);
        return std::pair(id, !is_done(0));
      };
      if (choose_next(logits.view().select(0, 0)).second) {
        detail::generate_with_draft(model, options.draft, rows[0], options.max_new_tokens - 1,
                                    choose_next);
      }
      return result();
    }
  }
  for (index_t seen = shortest;; ++seen) {
    bool is_any_left = false;
    for (index_t b = 0; b < batch; ++b) {
      if (seen < length_of(b)) {
        next(b, 0) = prompts(b, seen);
      } else if (!is_done(b)) {
        next(b, 0) = choose(b, logits.view().select(0, b));
      }  // otherwise its last token again; the result is ignored
      is_any_left = is_any_left || !is_done(b);
    }
    if (!is_any_left) return result();
    model.step(next, logits);
  }
}

/// Deleted: a session comes first, then ids.
template <class Model, TensorLike Prompts>
  requires(!detail::Generates<Model, Prompts>)
void generate(Model&, const Prompts&, const GenerationOptions&) {
  detail::assert_generates<Model, Prompts>();
}

ATTN_NAMESPACE_END
