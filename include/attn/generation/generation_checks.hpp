// Checks of the arguments of generation: ranges, layers, and a session's room.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "attn/core/shape.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

inline void check_generation(std::string_view function, std::string_view argument, index_t found,
                             index_t lowest,
                             index_t highest = (std::numeric_limits<index_t>::max)()) {
  if (found >= lowest && found <= highest) return;
  throw ValueError(message(function, argument,
                           "lie in " + std::to_string(lowest) + " .. " + std::to_string(highest),
                           std::to_string(found)));
}

inline void check_ids(std::string_view function, std::span<const index_t> ids, index_t vocab_size) {
  for (const index_t id : ids) check_generation(function, "every id", id, 0, vocab_size - 1);
}

/// Throws ValueError for no layers: the caches of the layers hold the number of tokens.
inline void check_has_layers(std::string_view function, std::size_t found) {
  if (found == 0) throw ValueError(message(function, "model", "have at least one layer", "none"));
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

ATTN_NAMESPACE_END
