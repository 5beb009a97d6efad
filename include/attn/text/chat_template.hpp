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

#include "attn/text/chat_formats.hpp"
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
  /// variants of it with a default system message, as SmolLM2's; Llama 2's and 3's; without tools
  /// those of Llama 3.1 and 3.2, Qwen 2.5 and 3, Mistral 7B 0.1 to 0.3, Nemo and Large 2411,
  /// Granite 3.0, 3.3, 4.0 and 4.1, LFM2, DeepSeek V2, V3 and R1, GLM-4 9B and gpt-oss; Gemma's
  /// (1 to 3, without images), Phi 3's to 4's, Command R's, Aya's, OLMo 2's and Zephyr's. Returns
  /// nothing for others: even a similar text may have another meaning. `bos` and `eos` are the
  /// values of bos_token and eos_token in the text. Templates that write the date (that of gpt-oss,
  /// and that of Granite 3.3 without a system message) use today's, in UTC; set_date() changes it.
  static std::optional<ChatTemplate> recognise(std::string_view text, std::string_view bos = "",
                                               std::string_view eos = "") {
    ChatTemplate result;
    result.bos_ = bos;
    result.eos_ = eos;
    result.set_date(std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()));
    const std::string normal = detail::normal_template(text);
    if (!result.find_known(normal) && !result.find_chat_ml(normal) && !result.find_llama3(normal))
      return std::nullopt;
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
    long_date_ = std::string(kMonths[month - 1]) + " " + day + ", " + year;
  }

  /// The conversation so far, and the beginning of an answer. Throws ValueError for roles, or an
  /// order of them, that the template does not support.
  std::vector<TextPiece> render(std::span<const ChatMessage> messages) const {
    if (function_) return function_(messages);
    check(messages);
    std::vector<TextPiece> pieces;
    add(pieces, format_.begin);
    const bool has_system = begins_with_system(messages) && !is_left_out(messages[0], 0);
    const std::string own = resolved(format_.system_head) +
                            (own_system_.empty() ? resolved(format_.default_system) : own_system_);
    if (!has_system && !own.empty()) {
      add(pieces, format_.system.before);
      add_given(pieces, own);
      add(pieces, format_.system.behind);
    }
    add_messages(pieces, messages, 0);
    return pieces;
  }

  /// The text after the last answer, which is message `answer`, in render(messages): nothing before
  /// it is written again, so that a session continues from its own tokens. Returns nothing for a
  /// function of the caller, and if the template rewrites earlier messages once there are more:
  /// Qwen 3 and DeepSeek R1 remove thoughts, gpt-oss writes another channel, Llama 2 adds a space
  /// after an answer, and Mistral moves the system message to the last question. Throws what
  /// render() throws.
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

  /// Whether the table of known templates has this text.
  bool find_known(std::string normal) {
    constexpr std::string_view kBefore = "{%else%}{{'<|im_start|>system\n",
                               kBehind = "<|im_end|>\n'}}{%endif%}{%endif%}";
    std::string own;
    if (const std::size_t at = normal.find(kBefore); at != normal.npos) {
      const std::string_view rest = std::string_view(normal).substr(at + kBefore.size());
      const std::size_t end = rest.find(kBehind);
      // A text that contains a quote may be an expression.
      if (end == rest.npos || end == 0 || rest.find('\'') < end) return false;
      own = rest.substr(0, end);
      for (std::size_t one = normal.find(own); one != normal.npos; one = normal.find(own, one))
        normal.erase(one, own.size());
    }
    const std::uint64_t fingerprint = detail::fingerprint(normal);
    for (const detail::KnownTemplate& known : detail::kKnownTemplates) {
      if (known.fingerprint != fingerprint) continue;
      format_ = known.format;
      own_system_ = own;
      return true;
    }
    return false;
  }
  /// Whether this is ChatML, with or without a default system message.
  bool find_chat_ml(std::string_view normal) {
    detail::ChatFormat format = detail::kChatMl;
    format.roles = detail::ChatRoles::any;
    const auto drop = [&](std::string_view prefix) {
      if (!normal.starts_with(prefix)) return false;
      normal.remove_prefix(prefix.size());
      return true;
    };
    drop("{%ifnotadd_generation_promptisdefined%}{%setadd_generation_prompt=false%}{%endif%}");
    if (drop("{{bos_token}}")) format.begin = "{bos}";
    if (!drop("{%formessageinmessages%}")) return false;
    std::string own;
    if (drop("{%ifloop.firstandmessages[0]['role']!='system'%}{{'<|im_start|>system\n")) {
      constexpr std::string_view kBehind = "<|im_end|>\n'}}{%endif%}";
      const std::size_t end = normal.find(kBehind);
      if (end == normal.npos || normal.find('\'') < end) return false;
      own = normal.substr(0, end);
      normal.remove_prefix(end + kBehind.size());
    }
    if (normal !=
        "{{'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>'+'\n'}}{%endfor%}"
        "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\n'}}{%endif%}") {
      return false;
    }
    format_ = format;
    own_system_ = own;
    return true;
  }
  /// Whether this is Llama 3's, with the beginning of an answer always or if asked for.
  bool find_llama3(std::string_view normal) {
    constexpr std::string_view kMessages =
        "{%setloop_messages=messages%}{%formessageinloop_messages%}{%setcontent='<|start_"
        "header_id|>'"
        "+message['role']+'<|end_header_id|>\n\n'+message['content']|trim+'<|eot_id|>'%}"
        "{%ifloop.index0==0%}{%setcontent=bos_token+content%}{%endif%}{{content}}{%endfor%}";
    if (!normal.starts_with(kMessages)) return false;
    normal.remove_prefix(kMessages.size());
    const std::string prompt = "{{'<|start_header_id|>assistant<|end_header_id|>\n\n'}}";
    if (normal != prompt && normal != "{%ifadd_generation_prompt%}" + prompt + "{%endif%}")
      return false;
    format_ = detail::kLlama3;
    format_.roles = detail::ChatRoles::any;
    return true;
  }

  static bool begins_with_system(std::span<const ChatMessage> messages) {
    return !messages.empty() && messages[0].role == "system";
  }
  bool is_left_out(const ChatMessage& message, std::size_t n) const {
    if (!message.content.empty()) return false;
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
                                      {"{long_date}", long_date_}})
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
    // Of any role: as a question's, with this role.
    const std::size_t at = before.find(kUser);
    add(pieces, before.substr(0, at));
    add_given(pieces, role);
    add(pieces, before.substr(at + kUser.size()));
  }
  /// The content of a message, and the system message within it.
  std::string content(const ChatMessage& message, std::string_view system) const {
    const bool is_answer = message.role == "assistant";
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
      if (message.role == "assistant" && format_.thoughts == detail::Thoughts::removed) {
        if (const std::size_t end = message.content.rfind(kThoughtsEnd); end != std::string::npos)
          message.content.erase(0, end + kThoughtsEnd.size());
      } else if (message.role == "assistant" &&
                 format_.thoughts == detail::Thoughts::before_last_question) {
        message.content = with_thoughts(message.content, n > last_question(messages), is_last);
      }
      const bool takes_system =
          format_.system_place == detail::SystemPlace::in_last_question ? is_last : n == 1;
      const bool has_system = moves_system && takes_system && message.role == "user";
      add_opening(pieces, message.role);
      std::string system;
      if (n == 0 && message.role == "system") system = format_.system_head;
      if (has_system)
        system = std::string(format_.system_begin) + messages[0].content +
                 std::string(format_.system_end);
      add_given(pieces, content(message, system));
      add(pieces, behind(message.role, is_last));
    }
    add(pieces, format_.prompt.value_or(format_.assistant.before));
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
  std::string bos_, eos_, date_, long_date_, end_;
  std::string own_system_;  ///< the default system message in the template's text
};

ATTN_NAMESPACE_END
