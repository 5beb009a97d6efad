// generate: continues a batch of prompts with any decoder that has a cache.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "attn/generation/sampling.hpp"

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
  index_t max_new_tokens = 0;                      ///< per row, at least 1
  index_t min_new_tokens = 0;                      ///< per row, before a stop token may come
  std::vector<index_t> stop_tokens = {};           ///< each ends a row and is its last token
  std::optional<SamplingOptions> sampling = {};    ///< greedy if not given
  TensorView1<const index_t> prompt_lengths = {};  ///< (batch); all prompt_len if not given
};

namespace detail {

inline void check_generation(std::string_view function, std::string_view argument, index_t found,
                             index_t lowest,
                             index_t highest = (std::numeric_limits<index_t>::max)()) {
  if (found >= lowest && found <= highest) return;
  throw ValueError(message(function, argument,
                           "lie in " + std::to_string(lowest) + " .. " + std::to_string(highest),
                           std::to_string(found)));
}

/// The number of further tokens per row that a session takes; unlimited for a session without
/// room().
template <class Model>
index_t room_of(const Model& model) {
  if constexpr (requires {
                  { model.room() } -> std::convertible_to<index_t>;
                }) {
    return model.room();
  } else {
    return (std::numeric_limits<index_t>::max)();
  }
}

/// Checks that the session has room for the prompt and all new tokens but the last, which is not
/// processed.
template <class Model>
void check_room(std::string_view function, const Model& model, index_t prompt_len,
                index_t max_new_tokens) {
  const index_t room = room_of(model);
  if (prompt_len <= room && max_new_tokens - 1 <= room - prompt_len) return;
  throw ValueError(message(function, "the session",
                           "have room for the prompt and all new tokens but the last, " +
                               std::to_string(prompt_len) + " + " +
                               std::to_string(max_new_tokens - 1),
                           "room for " + std::to_string(room)));
}

/// Checks that batch * num_beams, and twice that, does not overflow.
inline void check_num_beams(std::string_view function, index_t num_beams, index_t batch) {
  check_generation(function, "num_beams", num_beams, 1,
                   (std::numeric_limits<index_t>::max)() / 2 / (std::max)(batch, index_t{1}));
}

}  // namespace detail

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
/// starts anew. A session needs room for the longest prompt and max_new_tokens - 1 tokens. Throws
/// ShapeError or ValueError before the model is called, then what its step() and likeliest_token()
/// throw.
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
  if (batch > 0) detail::check_room("generate", model, longest, options.max_new_tokens);
  std::vector<Sampler> samplers;
  for (index_t b = 0; options.sampling && b < batch; ++b) {
    samplers.emplace_back(*options.sampling, model.vocab_size(), static_cast<std::uint32_t>(b));
  }

  std::vector<std::vector<index_t>> generated(static_cast<std::size_t>(batch));
  Tensor2<typename Model::value_type> logits({batch, model.vocab_size()});
  Tensor2<index_t> next({batch, 1});
  model.step(prompts.slice(1, 0, shortest), logits);
  for (index_t seen = shortest;; ++seen) {
    bool is_any_left = false;
    for (index_t b = 0; b < batch; ++b) {
      std::vector<index_t>& row = generated[static_cast<std::size_t>(b)];
      const auto is_done = [&] {
        return std::ssize(row) == options.max_new_tokens ||
               (!row.empty() && std::ranges::count(options.stop_tokens, row.back()) > 0);
      };
      if (seen < (options.prompt_lengths ? options.prompt_lengths(b) : prompt_len)) {
        next(b, 0) = prompts(b, seen);
      } else if (!is_done()) {
        const auto scores = logits.view().select(0, b);
        if (std::ssize(row) < options.min_new_tokens) {
          using Logit = typename Model::value_type;
          for (const index_t stop : options.stop_tokens)
            scores(stop) = -std::numeric_limits<Logit>::infinity();
        }
        next(b, 0) = options.sampling ? samplers[static_cast<std::size_t>(b)](scores)
                                      : likeliest_token(scores);
        row.push_back(next(b, 0));
      }  // otherwise its last token again; the result is ignored
      is_any_left = is_any_left || !is_done();
    }
    if (!is_any_left) return generated;
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
