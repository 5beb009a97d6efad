// ChatFormat: what a chat template writes, and the table of known templates.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "attn/core/config.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The text around a message. In every text of a ChatFormat, {bos} and {eos} are the values of
/// bos_token and eos_token, {date} is a day as 2026-11-27 and {long_date} as November 27, 2026.
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
/// The messages that lose white space at both ends.
enum class Trimmed { none, answers, turns, all };
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
  channel,               ///< in a channel of their own, which answers lack (gpt-oss)
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
  SystemPlace system_place = SystemPlace::message;
  ChatRoles roles = ChatRoles::system_user_assistant;
  Trimmed trimmed = Trimmed::none;
  LeftOut left_out = LeftOut::none;
  Thoughts thoughts = Thoughts::kept;
  bool alternates = false;       ///< questions and answers
  bool changes_answers = false;  ///< adds to an answer what the model did not write
};

template <class Change>
constexpr ChatFormat changed(ChatFormat format, Change change) {
  change(format);
  return format;
}

inline constexpr ChatFormat kChatMl = {.system = {"<|im_start|>system\n", "<|im_end|>\n"},
                                       .user = {"<|im_start|>user\n", "<|im_end|>\n"},
                                       .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"}};
inline constexpr ChatFormat kQwen3 =
    changed(kChatMl, [](ChatFormat& f) { f.thoughts = Thoughts::before_last_question; });
inline constexpr ChatFormat kLfm2 = changed(kChatMl, [](ChatFormat& f) {
  f.begin = "{bos}";
  f.left_out = LeftOut::first_system;
});
inline constexpr ChatFormat kLlama3 = {
    .begin = "{bos}",
    .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
    .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
    .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
    .trimmed = Trimmed::all};
inline constexpr ChatFormat kLlama31 = changed(kLlama3, [](ChatFormat& f) {
  // The date is the template's default.
  f.system_head = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
});
inline constexpr ChatFormat kGemma = {.begin = "{bos}",
                                      .system = {"<start_of_turn>system\n", "<end_of_turn>\n"},
                                      .user = {"<start_of_turn>user\n", "<end_of_turn>\n"},
                                      .assistant = {"<start_of_turn>model\n", "<end_of_turn>\n"},
                                      .system_place = SystemPlace::none,
                                      .trimmed = Trimmed::all,
                                      .alternates = true};
inline constexpr ChatFormat kGemma3 =
    changed(kGemma, [](ChatFormat& f) { f.system_place = SystemPlace::before_first_question; });
inline constexpr ChatFormat kPhi3 = {.system = {"<|system|>\n", "<|end|>\n"},
                                     .user = {"<|user|>\n", "<|end|>\n"},
                                     .assistant = {"<|assistant|>\n", "<|end|>\n"}};
inline constexpr ChatFormat kPhi35 =
    changed(kPhi3, [](ChatFormat& f) { f.left_out = LeftOut::any_system; });
inline constexpr ChatFormat kPhi4Mini = {.system = {"<|system|>", "<|end|>"},
                                         .user = {"<|user|>", "<|end|>"},
                                         .assistant = {"<|assistant|>", "<|end|>"}};
inline constexpr ChatFormat kPhi4 = {
    .system = {"<|im_start|>system<|im_sep|>", "<|im_end|>"},
    .user = {"<|im_start|>user<|im_sep|>", "<|im_end|>"},
    .assistant = {"<|im_start|>assistant<|im_sep|>", "<|im_end|>"}};
/// Its questions begin the answers.
inline constexpr ChatFormat kFirstPhi4 = changed(kPhi4, [](ChatFormat& f) {
  f.user.behind = "<|im_end|><|im_start|>assistant<|im_sep|>";
  f.assistant.before = "";
});
inline constexpr ChatFormat kZephyr = {.system = {"<|system|>\n", "{eos}\n"},
                                       .user = {"<|user|>\n", "{eos}\n"},
                                       .assistant = {"<|assistant|>\n", "{eos}\n"}};
inline constexpr ChatFormat kMistral01 = {.begin = "{bos}",
                                          .user = {"[INST] ", " [/INST]"},
                                          .assistant = {"", "{eos} "},
                                          .prompt = "",
                                          .system_place = SystemPlace::none,
                                          .roles = ChatRoles::user_assistant,
                                          .alternates = true};
inline constexpr ChatFormat kMistral02 =
    changed(kMistral01, [](ChatFormat& f) { f.assistant.behind = "{eos}"; });
inline constexpr ChatFormat kMistral2024 = changed(kMistral02, [](ChatFormat& f) {
  f.user.before = " [INST] ";
  f.assistant.before = " ";
  f.system_place = SystemPlace::in_first_question;
});
inline constexpr ChatFormat kMistral03 = changed(kMistral02, [](ChatFormat& f) {
  f.user.behind = "[/INST]";
  f.assistant.before = " ";
  f.system_place = SystemPlace::in_last_question;
  f.trimmed = Trimmed::answers;
});
inline constexpr ChatFormat kMistralNemo = changed(kMistral02, [](ChatFormat& f) {
  f.user = {"[INST]", "[/INST]"};
  f.system_place = SystemPlace::in_last_question;
});
inline constexpr ChatFormat kMistralLarge2411 = {.begin = "{bos}",
                                                 .system = {"[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"},
                                                 .user = {"[INST] ", "[/INST]"},
                                                 .assistant = {" ", "{eos}"},
                                                 .prompt = ""};
inline constexpr ChatFormat kLlama2 = {.user = {"{bos}[INST] ", " [/INST]"},
                                       .assistant = {" ", " {eos}"},
                                       .prompt = "",
                                       .system_begin = "<<SYS>>\n",
                                       .system_end = "\n<</SYS>>\n\n",
                                       .system_place = SystemPlace::in_first_question,
                                       .roles = ChatRoles::user_assistant,
                                       .trimmed = Trimmed::all,
                                       .alternates = true,
                                       .changes_answers = true};
inline constexpr ChatFormat kCohere = {
    .begin = "{bos}",
    .system = {"<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
    .user = {"<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
    .assistant = {"<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
    .roles = ChatRoles::user_assistant,
    .trimmed = Trimmed::turns,
    .alternates = true};
inline constexpr ChatFormat kDeepSeek2 = {.begin = "{bos}",
                                          .system = {"", "\n\n"},
                                          .user = {"User: ", "\n\n"},
                                          .assistant = {"Assistant: ", "{eos}"},
                                          .prompt = "Assistant:"};
inline constexpr ChatFormat kDeepSeek3 = {
    .begin = "{bos}",
    .user = {"<\uff5cUser\uff5c>", ""},
    .assistant = {"<\uff5cAssistant\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"},
    .roles = ChatRoles::user_assistant};
inline constexpr ChatFormat kDeepSeekR1 = changed(kDeepSeek3, [](ChatFormat& f) {
  f.prompt = "<\uff5cAssistant\uff5c><think>\n";
  f.thoughts = Thoughts::removed;
});
inline constexpr ChatFormat kGranite = {
    .system = {"<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\n"},
    .user = {"<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"},
    .assistant = {"<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"}};
inline constexpr ChatFormat kGranite33 = changed(kGranite, [](ChatFormat& f) {
  f.default_system =
      "Knowledge Cutoff Date: April 2024. Today's Date: {long_date}. You are Granite, developed by "
      "IBM. You are a helpful AI assistant.";
});
/// Granite 4.1; 4.0 has a system message of its own.
inline constexpr ChatFormat kGranite41 =
    changed(kGranite, [](ChatFormat& f) { f.left_out = LeftOut::first_system; });
inline constexpr ChatFormat kGranite40 = changed(kGranite41, [](ChatFormat& f) {
  f.default_system =
      "You are a helpful assistant. Please ensure responses are professional, accurate, and safe.";
});
inline constexpr ChatFormat kOlmo2 = {.begin = "{bos}",
                                      .system = {"<|system|>\n", "\n"},
                                      .user = {"<|user|>\n", "\n"},
                                      .assistant = {"<|assistant|>\n", "{eos}\n"},
                                      .last_behind = "{eos}"};
inline constexpr ChatFormat kGlm4 = {.begin = "[gMASK]<sop>",
                                     .system = {"<|system|>\n", ""},
                                     .user = {"<|user|>\n", ""},
                                     .assistant = {"<|assistant|>\n", ""},
                                     .left_out = LeftOut::any_message};
inline constexpr ChatFormat kFirstGlm4 =
    changed(kGlm4, [](ChatFormat& f) { f.prompt = "<|assistant|>"; });
inline constexpr ChatFormat kGptOss = {
    .begin =
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by "
        "OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: {date}\n\nReasoning: medium\n\n# "
        "Valid channels: analysis, commentary, final. Channel must be included for every "
        "message.<|end|>",
    .system = {"<|start|>developer<|message|># Instructions\n\n", "\n\n<|end|>"},
    .user = {"<|start|>user<|message|>", "<|end|>"},
    .assistant = {"<|start|>assistant<|channel|>final<|message|>", "<|end|>"},
    .prompt = "<|start|>assistant",
    .end = "<|return|>",
    .roles = ChatRoles::user_assistant,
    .left_out = LeftOut::first_system,
    .thoughts = Thoughts::channel,
    .changes_answers = true};

/// Templates too long to compare in full, by fingerprint() of normal_template(); that of Qwen 2.5
/// is taken without its default system message.
struct KnownTemplate {
  std::uint64_t fingerprint;
  const ChatFormat& format;
};
inline constexpr KnownTemplate kKnownTemplates[] = {
    {0xC80132804E683159, kChatMl},  // Qwen 2.5
    {0xD5209829363EFE62, kChatMl},  // Qwen 3 of July 2025, which does not think
    {0xD9FF075E61A59303, kQwen3},   // Qwen 3
    {0x838A6250646E1860, kQwen3},   // a later version
    {0xD9AFBF5BD37C8A7F, kGemma},   // Gemma 1 and 2
    {0x60933F4C9D6F4865, kGemma3},
    {0x9A5A118BCD77C789, kLlama2},
    {0x7F1675B530134291, kLlama31},
    {0x16ADF31303DB253F, kLlama31},  // Llama 3.2
    {0x8BB9C3C64FB6E3B7, kPhi3},
    {0x3B6307939C2729E4, kPhi35},
    {0x0B6A1E8EBB1EC584, kZephyr},
    {0xBB4524ED7672EE76, kMistral01},
    {0xDD39F833422AA4A9, kMistral02},
    {0x43BCA759783C354A, kMistral2024},  // 7B 0.2, of September 2024
    {0x4454795C8CCD2DF3, kMistral03},
    {0x75AE29CC2B7A3183, kMistralNemo},
    {0x1E2371314C5B81E2, kMistralLarge2411},
    {0x96E97370723377FE, kFirstPhi4},
    {0xF78EF52ACEA4A8C2, kPhi4Mini},
    {0x4E1232C6B0F73B6D, kCohere},  // Aya Expanse
    {0xA671CC3F959FA977, kCohere},  // Command R, Aya 23
    {0x82A93FA88D8FB642, kDeepSeek2},
    {0x2AF07AA40E07A2EA, kDeepSeek3},
    {0xB54C81ED5CA28168, kDeepSeekR1},
    {0xDA4E81BABFB7C1B1, kDeepSeekR1},  // its distilled models
    {0xF41CCB3BA725FF82, kGranite},
    {0xA2E4AEC32D894326, kGranite33},
    {0x391070935381E066, kGranite40},
    {0xD43B57DF42FD82DA, kGranite41},
    {0xF1308DB0F9B3BD01, kOlmo2},
    {0x89516C455B08E3E6, kGlm4},
    {0x8AAD2D60CDDDDA30, kFirstGlm4},
    {0x3556E836E695FB4D, kLfm2},
    {0xB64C99EBC84D9775, kLfm2},  // a later version
    {0xD6FA70FC60897DA5, kGptOss},
};

}  // namespace detail

ATTN_NAMESPACE_END
