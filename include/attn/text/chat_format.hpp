// ChatFormat: what a chat template writes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "attn/core/config.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The text around a message. In every text of a ChatFormat, {bos} and {eos} are the values of
/// bos_token and eos_token, {date} is a day as 2026-11-27, {long_date} as November 27, 2026,
/// {day_first_date} as 27 November 2026 and {short_date} as 27 Nov 2026.
struct MessageFrame {
  std::string_view before = {}, behind = {};
};

/// Where a system message at the beginning is written.
enum class SystemPlace {
  message,
  none,  ///< refused
  in_first_question,
  before_first_question,  ///< in the first question, trimmed separately
  in_last_question,
};
/// The roles of messages. A system message at the beginning is always one of them.
enum class ChatRoles {
  any,  ///< any text
  system_user_assistant,
  user_assistant,
};
/// The messages that lose white space, at both ends unless said otherwise.
enum class Trimmed {
  none,
  answers,
  turns,
  all,
  one_end,  ///< a system message at its end only; an answer, of line ends at its beginning
};
/// The messages that are left out if they are empty.
enum class LeftOut {
  none,
  first_system,  ///< a system message at the beginning
  any_system,
  any_message,  ///< of any role
};
/// What happens to thoughts in an answer.
enum class Thoughts {
  kept,
  before_last_question,  ///< removed from answers before the last question (Qwen 3)
  removed,               ///< also from later ones
  removed_first,         ///< likewise, up to the first end of thoughts (DeepSeek V3.1)
  // Of these, the rest of the answer loses white space at both ends.
  trimmed,                       ///< removed from all answers (EXAONE 4)
  trimmed_before_last_question,  ///< from answers before the last question (LFM2.5 230M, 8B)
  trimmed_before_last_answer,    ///< from all answers but the last (LFM2.5 1.2B)
  channel,                       ///< in a channel of their own, which answers lack (gpt-oss)
};
/// Where the beginning of an answer is written.
enum class Beginnings {
  everywhere,
  behind_questions,  ///< of the user (DeepSeek V3.1)
  behind_others,     ///< questions contain it (DeepSeek R1 0528)
};
/// What is refused, because the template refuses it or gives it another meaning.
enum class Refused {
  none,
  empty_answers,
  empty_system,  ///< a system message at the beginning
  modes,         ///< /think, /no_think and /system_override in a system message (SmolLM3)
};

/// What a template writes for messages without tools and images.
struct ChatFormat {
  std::string_view begin = {};
  MessageFrame system = {}, user = {}, assistant = {};
  std::optional<std::string_view> prompt = {};       ///< of an answer, if not assistant.before
  std::optional<std::string_view> last_behind = {};  ///< an answer at the end, likewise
  std::string_view end = {};             ///< the token that ends an answer, if not in its frame
  std::string_view default_system = {};  ///< written if there is no system message
  std::string_view system_head = {};     ///< begins a system message, which is then always written
  std::string_view system_begin = {}, system_end = "\n\n";  ///< of one within a question
  std::string_view without_system = {};  ///< in place of a system message and its frame
  SystemPlace system_place = SystemPlace::message;
  ChatRoles roles = ChatRoles::system_user_assistant;
  Trimmed trimmed = Trimmed::none;
  LeftOut left_out = LeftOut::none;
  Thoughts thoughts = Thoughts::kept;
  Beginnings beginnings = Beginnings::everywhere;
  Refused refused = Refused::none;
  bool alternates = false;       ///< questions and answers
  bool changes_answers = false;  ///< adds to an answer what the model did not write
};

}  // namespace detail

ATTN_NAMESPACE_END
