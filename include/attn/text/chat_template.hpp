// ChatTemplate: chat messages to the prompt format of a model.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/text/chat_format.hpp"
#include "attn/text/known_templates.hpp"
#include "attn/text/template_text.hpp"
#include "attn/text/token.hpp"
#include "attn/text/utf8.hpp"

ATTN_NAMESPACE_BEGIN

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};

/// How a conversation is formatted for a model. Text in messages never becomes control tokens; in
/// ChatML and Llama 3's format a role other than the three is written as given.
class ChatTemplate {
 public:
  /// A template: converts messages to pieces, marked if they contain control tokens, up to the
  /// beginning of an answer.
  using Function = std::function<std::vector<TextPiece>(std::span<const ChatMessage>)>;

  /// A function of the caller.
  explicit ChatTemplate(Function function) : function_(std::move(function)) {}

  /// From a Jinja text, such as a file's tokenizer.chat_template. Known templates: ChatML, and
  /// variants of it with a default system message, as SmolLM2's; Llama 3's; and those of the table
  /// kKnownTemplates, without tools, images and documents (docs/language_models.md lists the
  /// models). Returns nothing for others: even a similar text may have another meaning. `bos` and
  /// `eos` are the values of bos_token and eos_token in the text. Templates that write the date
  /// (those of gpt-oss and SmolLM3, and those of Granite 3.1 to 3.3 without a system message) use
  /// today's, in UTC; set_date() changes it.
  static std::optional<ChatTemplate> recognise(std::string_view text, std::string_view bos = "",
                                               std::string_view eos = "") {
    ChatTemplate result;
    result.bos_ = bos;
    result.eos_ = eos;
    result.set_date(std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()));
    const auto found = detail::find_format(text);
    if (!found) return std::nullopt;
    result.format_ = found->format;
    result.own_system_ = found->own_system;
    const detail::ChatFormat& format = result.format_;
    result.end_ = result.resolved(format.end.empty() ? detail::stripped(format.assistant.behind)
                                                     : format.end);
    return result;
  }

  /// The date that the template writes, if it writes one.
  void set_date(std::chrono::year_month_day date) {
    constexpr std::string_view kMonths[] = {"January",   "February", "March",    "April",
                                            "May",       "June",     "July",     "August",
                                            "September", "October",  "November", "December"};
    const auto two_digits = [](unsigned number) {
      return std::string(number < 10 ? "0" : "") + std::to_string(number);
    };
    if (!date.ok()) {
      throw ValueError(message("ChatTemplate::set_date", "date", "be a day of the calendar",
                               "a date that does not exist"));
    }
    const std::string year = std::to_string(static_cast<int>(date.year()));
    const auto month = static_cast<unsigned>(date.month());
    const std::string day = two_digits(static_cast<unsigned>(date.day()));
    date_ = year + "-" + two_digits(month) + "-" + day;
    const std::string month_name(kMonths[month - 1]);
    long_date_ = month_name + " " + day + ", " + year;
    day_first_date_ = day + " " + month_name + " " + year;
    short_date_ = day + " " + month_name.substr(0, 3) + " " + year;
  }

  /// The conversation so far, and the beginning of an answer. Throws ValueError for roles, or an
  /// order of them, that the template does not support, and for empty messages and modes of
  /// thinking that would change the rest.
  std::vector<TextPiece> render(std::span<const ChatMessage> messages) const {
    if (function_) return function_(messages);
    check(messages);
    std::vector<TextPiece> pieces;
    add(pieces, format_.begin);
    const bool has_system = begins_with_system(messages) && !is_left_out(messages[0], 0);
    const std::string own = resolved(format_.system_head) +
                            (own_system_.empty() ? resolved(format_.default_system) : own_system_);
    if (!has_system) add(pieces, format_.without_system);
    if (!has_system && !own.empty()) {
      add(pieces, format_.system.before);
      pieces.push_back({own, true});
      add(pieces, format_.system.behind);
    }
    add_messages(pieces, messages, 0);
    return pieces;
  }

  /// The text after the last answer, which is message `answer`, in render(messages): nothing before
  /// it is written again, so that a session continues from its own tokens. Returns nothing for a
  /// function of the caller, and if the template rewrites earlier messages once there are more:
  /// Qwen 3, LFM2.5, EXAONE 4 and DeepSeek R1 remove thoughts, gpt-oss writes another channel,
  /// Llama 2 adds a space after an answer, and Mistral moves the system message to the last
  /// question. Throws what render() throws.
  std::optional<std::vector<TextPiece>> render_after(std::span<const ChatMessage> messages,
                                                     std::size_t answer) const {
    if (function_ || answer >= messages.size() || format_.changes_answers) return std::nullopt;
    if (format_.thoughts != detail::Thoughts::kept &&
        messages[answer].content.find(kThoughtsEnd) != std::string::npos)
      return std::nullopt;
    if (format_.system_place == detail::SystemPlace::in_last_question &&
        begins_with_system(messages))
      return std::nullopt;
    check(messages);
    std::vector<TextPiece> pieces;
    add(pieces, behind("assistant", answer + 1 == messages.size()));
    add_messages(pieces, messages, answer + 1);
    return pieces;
  }

  /// The answer in a text that the model wrote, in which control tokens are left out: what a
  /// message contains. That is the whole text, except for gpt-oss, which writes its thoughts in the
  /// channel "analysis" and the answer in the channel "final"; empty if this has not begun.
  std::string answer_in(std::string_view text) const {
    if (format_.thoughts != detail::Thoughts::channel) return std::string(text);
    constexpr std::string_view kAnalysis = "analysis", kAnswer = "assistantfinal", kFinal = "final";
    if (text.starts_with(kFinal)) return std::string(text.substr(kFinal.size()));
    if (!text.starts_with(kAnalysis)) return std::string(text);
    const std::size_t at = text.find(kAnswer);
    return at == text.npos ? "" : std::string(text.substr(at + kAnswer.size()));
  }

  /// The control token that ends an answer; empty if unknown.
  const std::string& end_of_message() const { return end_; }

 private:
  static constexpr std::string_view kThoughtsEnd = "</think>";

  ChatTemplate() = default;

  static bool begins_with_system(std::span<const ChatMessage> messages) {
    return !messages.empty() && messages[0].role == "system";
  }
  bool is_left_out(const ChatMessage& message, std::size_t n) const {
    if (!content(message, "").empty()) return false;
    switch (format_.left_out) {
      case detail::LeftOut::none:
        return false;
      case detail::LeftOut::first_system:
        return n == 0 && message.role == "system";
      case detail::LeftOut::any_system:
        return message.role == "system";
      case detail::LeftOut::any_message:
        return true;
    }
    return false;
  }

  void check(std::span<const ChatMessage> messages) const {
    const bool has_system = begins_with_system(messages);
    const auto fail = [](std::string_view what, const std::string& expected,
                         const std::string& found) {
      throw ValueError(message("ChatTemplate::render", what, expected, found));
    };
    if (has_system && format_.system_place == detail::SystemPlace::none)
      fail("messages", "have no system message, because this model's template does not support one",
           "one");
    if (has_system && format_.refused == detail::Refused::empty_system &&
        messages[0].content.empty())
      fail("the system message", "not be empty", "an empty one");
    if (has_system && format_.refused == detail::Refused::modes) {
      for (const std::string_view mode : {"/think", "/no_think", "/system_override"})
        if (messages[0].content.find(mode) != std::string::npos)
          fail("the system message", "not change the mode, which is thinking", std::string(mode));
    }
    for (std::size_t n = has_system ? 1 : 0; n < messages.size(); ++n) {
      const std::string& role = messages[n].role;
      const std::string name = "the role of message " + std::to_string(n);
      const bool only_questions = format_.roles == detail::ChatRoles::user_assistant;
      const bool is_known =
          role == "user" || role == "assistant" || (role == "system" && !only_questions);
      if (format_.roles != detail::ChatRoles::any && !is_known) {
        fail(name, only_questions ? "be user or assistant" : "be system, user or assistant", role);
      }
      const bool is_question = (n % 2 == 1) == has_system;
      if (format_.alternates && is_question != (role == "user"))
        fail(name,
             is_question ? "be user, because roles alternate"
                         : "not be user, because roles alternate",
             role);
      if (format_.refused == detail::Refused::empty_answers && role == "assistant" &&
          content(messages[n], "").empty())
        fail("message " + std::to_string(n),
             "not be empty, because this model's template has no "
             "empty answers",
             "an empty one");
      if (format_.thoughts != detail::Thoughts::channel || role != "assistant") continue;
      for (const std::string_view mark :
           {"<|channel|>analysis<|message|>", "<|channel|>final<|message|>"}) {
        if (messages[n].content.find(mark) != std::string::npos)
          fail("message " + std::to_string(n), "be the text of the channel final alone",
               std::string(mark) + " in it");
      }
    }
  }

  /// A text of the format, in which names in braces are replaced by their values.
  std::string resolved(std::string_view text) const {
    std::string result(text);
    for (const auto& [name, value] : {std::pair<std::string_view, std::string_view>{"{bos}", bos_},
                                      {"{eos}", eos_},
                                      {"{date}", date_},
                                      {"{long_date}", long_date_},
                                      {"{day_first_date}", day_first_date_},
                                      {"{short_date}", short_date_}})
      result = detail::replaced(result, name, value);
    return result;
  }
  /// Adds a text of the format.
  void add(std::vector<TextPiece>& pieces, std::string_view text) const {
    if (std::string piece = resolved(text); !piece.empty())
      pieces.push_back({std::move(piece), true});
  }
  static void add_given(std::vector<TextPiece>& pieces, std::string_view text) {
    if (!text.empty()) pieces.push_back({std::string(text), false});
  }
  const detail::MessageFrame& frame(std::string_view role) const {
    return role == "system"      ? format_.system
           : role == "assistant" ? format_.assistant
                                 : format_.user;
  }
  std::string_view behind(std::string_view role, bool is_last) const {
    return role == "assistant" && is_last && format_.last_behind ? *format_.last_behind
                                                                 : frame(role).behind;
  }
  /// The text before a message.
  void add_opening(std::vector<TextPiece>& pieces, std::string_view role) const {
    const std::string_view before = frame(role).before;
    constexpr std::string_view kUser = "user";
    if (role == "system" || role == "assistant" || role == kUser) return add(pieces, before);
    // Any other role: as a question, with the role's name.
    const std::size_t at = before.find(kUser);
    add(pieces, before.substr(0, at));
    add_given(pieces, role);
    add(pieces, before.substr(at + kUser.size()));
  }
  /// The content of a message, and the system message within it.
  std::string content(const ChatMessage& message, std::string_view system) const {
    const bool is_answer = message.role == "assistant";
    if (format_.trimmed == detail::Trimmed::one_end && is_answer)
      return message.content.substr(
          (std::min)(message.content.find_first_not_of('\n'), message.content.size()));
    if (format_.trimmed == detail::Trimmed::one_end && message.role == "system")
      return std::string(detail::stripped_behind(message.content));
    const bool trims = format_.trimmed == detail::Trimmed::all ||
                       (format_.trimmed == detail::Trimmed::turns && message.role != "system") ||
                       (format_.trimmed == detail::Trimmed::answers && is_answer);
    const auto trimmed = [&](const std::string& text) {
      return trims ? std::string(detail::stripped(text)) : text;
    };
    return format_.system_place == detail::SystemPlace::in_first_question
               ? trimmed(std::string(system) + message.content)
               : std::string(system) + trimmed(message.content);
  }
  /// The messages from `first` on, and the beginning of an answer.
  void add_messages(std::vector<TextPiece>& pieces, std::span<const ChatMessage> messages,
                    std::size_t first) const {
    const bool moves_system =
        format_.system_place != detail::SystemPlace::message && begins_with_system(messages);
    for (std::size_t n = (std::max)(first, std::size_t{moves_system ? 1u : 0u});
         n < messages.size(); ++n) {
      ChatMessage message = messages[n];
      const bool is_last = n + 1 == messages.size();
      if (is_left_out(message, n)) continue;
      if (message.role == "assistant") message.content = answer(messages, n);
      const bool takes_system =
          format_.system_place == detail::SystemPlace::in_last_question ? is_last : n == 1;
      const bool has_system = moves_system && takes_system && message.role == "user";
      if (message.role != "assistant" || begins(messages, n)) add_opening(pieces, message.role);
      std::string system;
      if (n == 0 && message.role == "system") system = resolved(format_.system_head);
      if (has_system)
        system = std::string(format_.system_begin) + messages[0].content +
                 std::string(format_.system_end);
      add_given(pieces, content(message, system));
      add(pieces, behind(message.role, is_last));
    }
    if (begins(messages, messages.size()))
      add(pieces, format_.prompt.value_or(format_.assistant.before));
  }
  /// Whether the beginning of an answer is written if it is message n.
  bool begins(std::span<const ChatMessage> messages, std::size_t n) const {
    const bool is_behind_question = n > 0 && messages[n - 1].role == "user";
    switch (format_.beginnings) {
      case detail::Beginnings::everywhere:
        return true;
      case detail::Beginnings::behind_questions:
        return is_behind_question;
      case detail::Beginnings::behind_others:
        return !is_behind_question;
    }
    return true;
  }
  /// The answer that is message n, without the thoughts that the template removes.
  std::string answer(std::span<const ChatMessage> messages, std::size_t n) const {
    const std::string& content = messages[n].content;
    const auto behind = [&](std::size_t end) {
      return end == content.npos ? content : content.substr(end + kThoughtsEnd.size());
    };
    const auto trimmed = [&] {
      const std::size_t end = content.rfind(kThoughtsEnd);
      return end == content.npos ? content : std::string(detail::stripped(behind(end)));
    };
    const auto precedes_a = [&](std::string_view role) {
      return std::any_of(messages.begin() + static_cast<std::ptrdiff_t>(n) + 1, messages.end(),
                         [&](const ChatMessage& other) { return other.role == role; });
    };
    switch (format_.thoughts) {
      case detail::Thoughts::kept:
      case detail::Thoughts::channel:
        return content;
      case detail::Thoughts::before_last_question:
        return with_thoughts(content, n > last_question(messages), n + 1 == messages.size());
      case detail::Thoughts::removed:
        return behind(content.rfind(kThoughtsEnd));
      case detail::Thoughts::removed_first:
        return behind(content.find(kThoughtsEnd));
      case detail::Thoughts::trimmed:
        return trimmed();
      case detail::Thoughts::trimmed_before_last_question:
        return precedes_a("user") ? trimmed() : content;
      case detail::Thoughts::trimmed_before_last_answer:
        return precedes_a("assistant") ? trimmed() : content;
    }
    return content;
  }
  /// The index of the last message of the user that is no response of a tool; without one, the
  /// number of messages.
  static std::size_t last_question(std::span<const ChatMessage> messages) {
    for (std::size_t n = messages.size(); n-- > 0;) {
      const std::string& content = messages[n].content;
      const bool is_response =
          content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
      if (messages[n].role == "user" && !is_response) return n;
    }
    return messages.size();
  }
  /// An answer of Qwen 3: with its thoughts if it follows the last question, else without.
  static std::string with_thoughts(const std::string& content, bool is_behind, bool is_last) {
    constexpr std::string_view kBegin = "<think>", kEnd = kThoughtsEnd;
    std::string thoughts, answer = content;
    if (const std::size_t end = content.find(kEnd); end != content.npos) {
      std::string_view before = std::string_view(content).substr(0, end);
      if (const std::size_t begin = before.rfind(kBegin); begin != before.npos)
        before.remove_prefix(begin + kBegin.size());
      thoughts = detail::trimmed(before, "\n");
      const std::size_t behind = content.rfind(kEnd) + kEnd.size();
      answer = content.substr((std::min)(content.find_first_not_of('\n', behind), content.size()));
    }
    if (!is_behind || (!is_last && thoughts.empty())) return answer;
    answer.erase(0, answer.find_first_not_of('\n'));
    return std::string(kBegin) + "\n" + thoughts + "\n" + std::string(kEnd) + "\n\n" + answer;
  }

  Function function_;
  detail::ChatFormat format_ = {};
  std::string bos_, eos_, date_, long_date_, day_first_date_, short_date_, end_;
  std::string own_system_;  ///< the default system message in the template's text
};

ATTN_NAMESPACE_END
