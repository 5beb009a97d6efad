// LogitProcessor, and the choice of a token from its logits by the options of generation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <type_traits>

#include "attn/generation/logits.hpp"
#include "attn/generation/sampling.hpp"

ATTN_NAMESPACE_BEGIN

/// Called once for each new token, with its logits (vocab_size) and the tokens before it, before
/// penalties; may change the logits. Tokens whose logits become -inf are not chosen.
using LogitProcessor = std::function<void(TensorView1<float>, std::span<const index_t>)>;

namespace detail {

/// Throws ValueError for a processor of logits that are not float.
template <class T>
void check_logit_processor(std::string_view function, const LogitProcessor& processor) {
  if (std::is_same_v<T, float> || !processor) return;
  throw ValueError(message(function, "logit_processor",
                           "be empty for a session whose logits are not float", "a function"));
}

/// The token after `ids`, of which the last `count` are new, by the options of generate() or
/// generate_text(): none of `ends` before min_new_tokens; the likeliest if `sampler` is null.
/// Changes the logits (vocab_size). A logit processor needs logits in float.
template <class T, class Options>
index_t choose_token(TensorView1<T> logits, std::span<const index_t> ids, index_t count,
                     std::span<const index_t> ends, const Options& options, Sampler* sampler) {
  if constexpr (std::is_same_v<T, float>) {
    if (options.logit_processor) options.logit_processor(logits, ids);
  }
  if (options.logits.changes()) adjust_logits(logits, ids, options.logits);
  if (count < options.min_new_tokens) {
    for (const index_t end : ends) logits(end) = -std::numeric_limits<T>::infinity();
  }
  return sampler != nullptr ? (*sampler)(logits) : likeliest_token(logits);
}

}  // namespace detail

ATTN_NAMESPACE_END
