// ChatTemplate: chat messages to the prompt format of a model.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/text/token.hpp"
#include "attn/text/utf8.hpp"

ATTN_NAMESPACE_BEGIN

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};

namespace detail {

/// A canonical form of a template's text. Removes white space within tags, the line end after a
/// tag, and text that the dash of a tag strips; writes all quotes of strings as the same character.
/// Keeps other text and strings, with \n as a line end. An unknown escape becomes a quote, which no
/// known template has in its place.
inline std::string normal_template(std::string_view text) {
  std::string result;
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  std::size_t text_begin = 0;  // within result: start of the text after the last tag
  bool begins_line = true;     // whether the text at text_begin begins a line
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view open = text.substr(at, 2);
    if (open != "{%" && open != "{{") {
      result += text[at++];
      continue;
    }
    const std::string_view close = open == "{%" ? "%}" : "}}";
    at += 2;
    const bool strips = text.substr(at).starts_with('-');
    if (strips) ++at;
    if (strips || open == "{%") {
      std::size_t end = result.size();
      while (end > text_begin && is_space(result[end - 1]) && (strips || result[end - 1] != '\n'))
        --end;
      // Before a block tag only its indentation.
      const bool indents = end == text_begin ? begins_line : result[end - 1] == '\n';
      if (strips || indents) result.resize(end);
    }
    result += open;
    char quote = 0;
    while (at < text.size() && (quote != 0 || text.substr(at, 2) != close)) {
      const char c = text[at++];
      if (quote != 0 && c == '\\' && at < text.size()) {
        const char escaped = text[at++];
        if (escaped != 'n' && escaped != '\'' && escaped != '"' && escaped != '\\') result += '\'';
        result += escaped == 'n' ? '\n' : escaped;
      } else if (quote != 0 && c != quote) {
        result += c;
      } else if (quote != 0 || c == '\'' || c == '"') {
        quote = quote != 0 ? '\0' : c;
        result += '\'';
      } else if (!is_space(c)) {
        result += c;
      }
    }
    const bool strips_behind = result.ends_with('-');
    if (strips_behind) result.pop_back();
    result += text.substr(at, 2);
    at = (std::min)(at + 2, text.size());
    begins_line = false;
    if (strips_behind) {
      while (at < text.size() && is_space(text[at])) ++at;
    } else if (close == "%}" && at < text.size() && text[at] == '\n') {
      ++at;
      begins_line = true;
    }
    text_begin = result.size();
  }
  return result;
}

/// FNV-1a, 64 bits: distinguishes known templates from all others.
constexpr std::uint64_t fingerprint(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

/// Python's text.strip(letters).
inline std::string_view trimmed(std::string_view text, std::string_view letters) {
  text.remove_prefix((std::min)(text.find_first_not_of(letters), text.size()));
  return text.substr(0, text.find_last_not_of(letters) + 1);
}

/// The characters that Python's text.strip() removes.
constexpr bool is_python_space(std::int32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
         code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}
/// Python's text.strip(), which is Jinja's trim.
inline std::string_view stripped(std::string_view text) {
  while (!text.empty() && is_python_space(first_char(text).code))
    text.remove_prefix(first_char(text).size);
  while (!text.empty() && is_python_space(last_char(text).code))
    text.remove_suffix(last_char(text).size);
  return text;
}

}  // namespace detail

/// How a conversation is formatted for a model. Text in messages never becomes control tokens; in
/// ChatML and Llama 3's format a role other than the three is written as given.
class ChatTemplate {
 public:
  /// A template: converts messages to pieces, marked if they contain control tokens, up to the
  /// beginning of an answer.
  using Function = std::function<std::vector<TextPiece>(std::span<const ChatMessage>)>;

  /// A function of the caller.
  explicit ChatTemplate(Function function) : function_(std::move(function)) {}

  /// From a Jinja text, such as a file's tokenizer.chat_template. Known templates: ChatML,
  /// SmolLM2's and other variants of ChatML with a default system message, Llama 2's and 3's;
  /// without tools Llama 3.1's and 3.2's, Qwen 2.5's and 3's; Gemma's (1 to 3, without images),
  /// Mistral's (7B, versions 0.1 to 0.3), Phi 3's and 3.5's, and Zephyr's. Returns nothing for
  /// others: even a similar text may have another meaning. `bos` and `eos` are the values of
  /// bos_token and eos_token in the text.
  static std::optional<ChatTemplate> recognise(std::string_view text, std::string_view bos = "",
                                               std::string_view eos = "") {
    std::string normal = detail::normal_template(text);
    if (auto known = of_fingerprint(normal, bos, eos)) return known;
    ChatTemplate result;
    const auto drop = [&](std::string_view prefix) {
      if (!normal.starts_with(prefix)) return false;
      normal.erase(0, prefix.size());
      return true;
    };
    drop("{%ifnotadd_generation_promptisdefined%}{%setadd_generation_prompt=false%}{%endif%}");
    if (drop("{{bos_token}}")) result.bos_ = bos;
    if (drop("{%formessageinmessages%}")) {
      constexpr std::string_view kBefore =
          "{%ifloop.firstandmessages[0]['role']!='system'%}{{'<|im_start|>system\n";
      constexpr std::string_view kBehind = "<|im_end|>\n'}}{%endif%}";
      if (drop(kBefore)) {
        const std::size_t end = normal.find(kBehind);
        if (end == normal.npos || normal.find('\'') < end) return std::nullopt;
        result.default_system_ = normal.substr(0, end);
        normal.erase(0, end + kBehind.size());
      }
      if (normal !=
          "{{'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>'+'\n'}}{%endfor%}"
          "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\n'}}{%endif%}") {
        return std::nullopt;
      }
      result.open_ = "<|im_start|>";
      result.gap_ = "\n";
      result.close_ = "<|im_end|>";
      result.after_ = "\n";
      return result;
    }
    if (!drop(
            "{%setloop_messages=messages%}{%formessageinloop_messages%}{%setcontent='<|start_"
            "header_id|>'"
            "+message['role']+'<|end_header_id|>\n\n'+message['content']|trim+'<|eot_id|>'%}"
            "{%ifloop.index0==0%}{%setcontent=bos_token+content%}{%endif%}{{content}}{%endfor%}")) {
      return std::nullopt;
    }
    const std::string_view prompt = "{{'<|start_header_id|>assistant<|end_header_id|>\n\n'}}";
    if (normal != prompt &&
        normal != "{%ifadd_generation_prompt%}" + std::string(prompt) + "{%endif%}") {
      return std::nullopt;
    }
    result.bos_ = bos;
    result.open_ = "<|start_header_id|>";
    result.role_end_ = "<|end_header_id|>";
    result.gap_ = "\n\n";
    result.close_ = "<|eot_id|>";
    result.trims_ = true;
    return result;
  }

  /// The conversation so far, and the beginning of an answer. Throws ValueError for roles, or an
  /// order of them, that the template does not support.
  std::vector<TextPiece> render(std::span<const ChatMessage> messages) const {
    if (function_) return function_(messages);
    check(messages);
    std::vector<TextPiece> pieces;
    if (!bos_before_questions_) add(pieces, bos_, true);
    if (!default_system_.empty() && (messages.empty() || messages[0].role != "system")) {
      add_message(pieces, {"system", default_system_});
    }
    if (!system_head_.empty() && (messages.empty() || messages[0].role != "system")) {
      add_message(pieces, {"system", ""}, system_head_);
    }
    add_messages(pieces, messages, 0);
    return pieces;
  }

  /// The text after the last answer, which is message `answer`, in render(messages): nothing before
  /// it is written again, so that a session continues from its own tokens. Returns nothing for a
  /// function of the caller, and if the template rewrites earlier messages once there are more:
  /// Qwen 3 removes thoughts, Llama 2 adds a space after an answer, and Mistral moves the system
  /// message to the last question. Throws what render() throws.
  std::optional<std::vector<TextPiece>> render_after(std::span<const ChatMessage> messages,
                                                     std::size_t answer) const {
    if (function_ || answer >= messages.size()) return std::nullopt;
    if (thinks_ && messages[answer].content.find("</think>") != std::string::npos)
      return std::nullopt;
    if (system_ == System::in_last_question && messages[0].role == "system") return std::nullopt;
    if (!behind_answer_.empty()) return std::nullopt;
    check(messages);
    std::vector<TextPiece> pieces;
    add(pieces, close_, true);
    add(pieces, after_, false);
    add_messages(pieces, messages, answer + 1);
    return pieces;
  }

  /// The control token after each message, which ends an answer; empty if unknown.
  const std::string& end_of_message() const { return close_; }

 private:
  /// What happens to a system message at the beginning.
  enum class System {
    message,
    none,
    in_first_question,
    before_first_question,  ///< in the first question, trimmed separately
    in_last_question,
  };

  ChatTemplate() = default;

  /// Templates too long to compare in full: compared by the hash of normal_template(), without the
  /// default system message of Qwen 2.5.
  static std::optional<ChatTemplate> of_fingerprint(std::string normal, std::string_view bos,
                                                    std::string_view eos) {
    ChatTemplate result;
    constexpr std::string_view kBefore = "{%else%}{{'<|im_start|>system\n",
                               kBehind = "<|im_end|>\n'}}{%endif%}{%endif%}";
    if (const std::size_t at = normal.find(kBefore); at != normal.npos) {
      const std::string_view rest = std::string_view(normal).substr(at + kBefore.size());
      const std::size_t end = rest.find(kBehind);
      // A text that contains a quote may be an expression.
      if (end == rest.npos || end == 0 || rest.find('\'') < end) return std::nullopt;
      result.default_system_ = rest.substr(0, end);
      for (std::size_t one = normal.find(result.default_system_); one != normal.npos;
           one = normal.find(result.default_system_, one)) {
        normal.erase(one, result.default_system_.size());
      }
    }
    const auto chat_ml = [&] {
      result.open_ = "<|im_start|>";
      result.gap_ = "\n";
      result.close_ = "<|im_end|>";
      result.after_ = "\n";
      result.only_known_roles_ = true;
    };
    const auto mistral = [&](System system, bool space_before_question, bool space_behind_question,
                             bool space_before_answer, bool space_behind_answer) {
      result.bos_ = bos;
      result.close_ = eos;
      result.system_ = system;
      result.alternates_ = result.only_known_roles_ = result.is_mistral_ = true;
      result.open_ = space_before_question ? " " : "";
      result.role_end_ = space_behind_question ? " " : "";
      result.gap_ = space_before_answer ? " " : "";
      result.after_ = space_behind_answer ? " " : "";
    };
    // <|user|>, a line, and what ends a message.
    const auto role_tokens = [&](std::string_view close, std::string_view after) {
      result.open_ = "<|";
      result.role_end_ = "|>";
      result.gap_ = "\n";
      result.close_ = close;
      result.after_ = after;
      result.role_is_token_ = result.only_known_roles_ = true;
    };
    const auto gemma = [&](System system) {
      result.bos_ = bos;
      result.open_ = "<start_of_turn>";
      result.gap_ = "\n";
      result.close_ = "<end_of_turn>";
      result.after_ = "\n";
      result.assistant_ = "model";
      result.system_ = system;
      result.trims_ = result.alternates_ = result.only_known_roles_ = true;
    };
    switch (detail::fingerprint(normal)) {
      case 0xC80132804E683159:  // Qwen 2.5
        if (result.default_system_.empty()) return std::nullopt;
        chat_ml();
        return result;
      case 0xD5209829363EFE62:  // Qwen 3 of July 2025, which does not think
        chat_ml();
        return result;
      case 0xD9FF075E61A59303:  // Qwen 3
      case 0x838A6250646E1860:  // a later version
        chat_ml();
        result.thinks_ = true;
        return result;
      case 0xD9AFBF5BD37C8A7F:  // Gemma 1 and 2
        gemma(System::none);
        return result;
      case 0x60933F4C9D6F4865:  // Gemma 3
        gemma(System::before_first_question);
        return result;
      case 0x9A5A118BCD77C789:  // Llama 2
        mistral(System::in_first_question, false, true, true, false);
        result.system_begin_ = "<<SYS>>\n";
        result.system_end_ = "\n<</SYS>>\n\n";
        result.behind_answer_ = " ";
        result.trims_ = result.bos_before_questions_ = true;
        return result;
      case 0x8BB9C3C64FB6E3B7:  // Phi 3
        role_tokens("<|end|>", "\n");
        return result;
      case 0x3B6307939C2729E4:  // Phi 3.5
        role_tokens("<|end|>", "\n");
        result.leaves_out_empty_system_ = true;
        return result;
      case 0x7F1675B530134291:  // Llama 3.1
      case 0x16ADF31303DB253F:  // Llama 3.2
        result.bos_ = bos;
        result.open_ = "<|start_header_id|>";
        result.role_end_ = "<|end_header_id|>";
        result.gap_ = "\n\n";
        result.close_ = "<|eot_id|>";
        // The date is the template's default.
        result.system_head_ = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
        result.trims_ = result.only_known_roles_ = true;
        return result;
      case 0x0B6A1E8EBB1EC584:  // Zephyr
        role_tokens(eos, "\n");
        return result;
      case 0xBB4524ED7672EE76:  // Mistral 7B 0.1
        mistral(System::none, false, true, false, true);
        return result;
      case 0xDD39F833422AA4A9:  // Mistral 7B 0.2
        mistral(System::none, false, true, false, false);
        return result;
      case 0x43BCA759783C354A:  // the version of September 2024
        mistral(System::in_first_question, true, true, true, false);
        return result;
      case 0x4454795C8CCD2DF3:  // Mistral 7B 0.3
        mistral(System::in_last_question, false, false, true, false);
        result.trims_answers_ = true;
        return result;
      default:
        return std::nullopt;
    }
  }

  void check(std::span<const ChatMessage> messages) const {
    const bool has_system = !messages.empty() && messages[0].role == "system";
    const auto fail = [](std::string_view what, const std::string& expected,
                         const std::string& found) {
      throw ValueError(message("ChatTemplate", what, expected, found));
    };
    if (has_system && system_ == System::none)
      fail("messages", "have no system message, because this model's template does not support one",
           "one");
    for (std::size_t n = has_system ? 1 : 0; n < messages.size(); ++n) {
      const std::string& role = messages[n].role;
      const std::string name = "the role of message " + std::to_string(n);
      const bool is_known =
          role == "user" || role == "assistant" || (role == "system" && !is_mistral_);
      if (only_known_roles_ && !is_known) {
        fail(name, is_mistral_ ? "be user or assistant" : "be system, user or assistant", role);
      }
      const bool is_question = (n % 2 == 1) == has_system;
      if (alternates_ && is_question != (role == "user"))
        fail(name,
             is_question ? "be user, because roles alternate"
                         : "not be user, because roles alternate",
             role);
    }
  }

  static void add(std::vector<TextPiece>& pieces, std::string_view text, bool special) {
    if (!text.empty()) pieces.push_back({std::string(text), special});
  }
  /// The text before a message.
  void add_opening(std::vector<TextPiece>& pieces, std::string_view role) const {
    if (role_is_token_) {
      add(pieces, open_ + std::string(role) + role_end_, true);
      add(pieces, gap_, false);
    } else if (!is_mistral_) {
      add(pieces, open_, true);
      add(pieces, role == "assistant" ? assistant_ : role, false);
      add(pieces, role_end_, true);
      add(pieces, gap_, false);
    } else if (role == "user") {
      if (bos_before_questions_) add(pieces, bos_, true);
      add(pieces, open_, false);
      add(pieces, "[INST]", true);
      add(pieces, " ", false);
    } else {
      add(pieces, gap_, false);
    }
  }
  /// Adds a message whose text begins with `system`.
  void add_message(std::vector<TextPiece>& pieces, const ChatMessage& message,
                   std::string_view system = "") const {
    if (leaves_out_empty_system_ && message.role == "system" && message.content.empty()) return;
    const auto trimmed = [](std::string_view text) { return std::string(detail::stripped(text)); };
    const bool trims = trims_ || (trims_answers_ && message.role == "assistant");
    const bool trims_apart = system_ == System::before_first_question || !system_head_.empty();
    std::string text =
        std::string(system) + (trims && trims_apart ? trimmed(message.content) : message.content);
    if (trims && !trims_apart) text = trimmed(text);
    add_opening(pieces, message.role);
    add(pieces, text, false);
    if (is_mistral_ && message.role == "user") {
      add(pieces, role_end_, false);
      add(pieces, "[/INST]", true);
    } else {
      add(pieces, behind_answer_, false);
      add(pieces, close_, true);
      add(pieces, after_, false);
    }
  }
  /// The messages from `first` on, and the beginning of an answer.
  void add_messages(std::vector<TextPiece>& pieces, std::span<const ChatMessage> messages,
                    std::size_t first) const {
    const bool moves_system =
        system_ != System::message && !messages.empty() && messages[0].role == "system";
    std::size_t last_question = messages.size();
    for (std::size_t n = 0; n < messages.size(); ++n) {
      const std::string& content = messages[n].content;
      const bool is_response =
          content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
      if (messages[n].role == "user" && !is_response) last_question = n;
    }
    for (std::size_t n = (std::max)(first, std::size_t{moves_system ? 1u : 0u});
         n < messages.size(); ++n) {
      ChatMessage message = messages[n];
      const bool takes_system =
          system_ == System::in_last_question ? n + 1 == messages.size() : n == 1;
      const bool has_system = moves_system && takes_system && message.role == "user";
      if (thinks_ && message.role == "assistant")
        message.content =
            with_thoughts(message.content, n > last_question, n + 1 == messages.size());
      const bool is_first_system = n == 0 && message.role == "system";
      add_message(pieces, message,
                  has_system        ? system_begin_ + messages[0].content + system_end_
                  : is_first_system ? system_head_
                                    : std::string());
    }
    if (!is_mistral_) add_opening(pieces, "assistant");
  }
  /// An answer of Qwen 3: with its thoughts if it follows the last question, else without.
  static std::string with_thoughts(const std::string& content, bool is_behind, bool is_last) {
    constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
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
  std::string bos_, default_system_, assistant_ = "assistant";
  /// open role role_end gap content close after. Mistral's: open [INST] content role_end [/INST],
  /// and gap content behind_answer close after.
  std::string open_, role_end_, gap_, close_, after_, behind_answer_;
  std::string system_begin_, system_end_ = "\n\n";  ///< of a system message within a question
  std::string system_head_;  ///< the beginning of a system message, which is then always written
  System system_ = System::message;
  bool trims_ = false, trims_answers_ = false, alternates_ = false, only_known_roles_ = false;
  bool thinks_ = false, is_mistral_ = false, role_is_token_ = false;
  bool bos_before_questions_ = false, leaves_out_empty_system_ = false;
};

ATTN_NAMESPACE_END
