// ChatTemplate: messages to the text that a model was trained to continue.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/text/bpe.hpp"

ATTN_NAMESPACE_BEGIN

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};

namespace detail {

/// A template's text in one of its many spellings: white space and the quotes' kind within tags,
/// line ends behind tags and what the tags' dashes take away do not count. Text and strings stay as
/// they are, \n in strings becomes a line end.
inline std::string normal_template(std::string_view text) {
  std::string result;
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  std::size_t text_begin = 0;  // within result: of the text since the last tag
  bool begins_line = true;     // there
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
      // Before a block tag only what indents it.
      const bool indents = end == text_begin ? begins_line : result[end - 1] == '\n';
      if (strips || indents) result.resize(end);
    }
    result += open;
    char quote = 0;
    while (at < text.size() && (quote != 0 || text.substr(at, 2) != close)) {
      const char c = text[at++];
      if (quote != 0 && c == '\\' && at < text.size()) {
        const char escaped = text[at++];
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

}  // namespace detail

/// How a conversation is written for a model. What messages say is never read as control tokens; a
/// role that is none of the three is written as it is given.
class ChatTemplate {
 public:
  /// What a template is: messages to pieces, of which those with control tokens say so. The answer
  /// is to follow.
  using Function = std::function<std::vector<TextPiece>(std::span<const ChatMessage>)>;

  /// One of the caller's own.
  explicit ChatTemplate(Function function) : function_(std::move(function)) {}

  /// Of a text in Jinja, such as a file's tokenizer.chat_template: ChatML, SmolLM2's and others'
  /// ChatML with a system message of its own, and Llama 3's. Nothing where it is none of these: a
  /// text that is like one may still mean another thing. `bos` is what the text calls bos_token.
  static std::optional<ChatTemplate> recognise(std::string_view text, std::string_view bos = "") {
    std::string normal = detail::normal_template(text);
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

  /// The conversation so far, and the beginning of an answer.
  std::vector<TextPiece> render(std::span<const ChatMessage> messages) const {
    if (function_) return function_(messages);
    std::vector<TextPiece> pieces;
    add(pieces, bos_, true);
    if (!default_system_.empty() && (messages.empty() || messages[0].role != "system")) {
      add_message(pieces, {"system", default_system_});
    }
    for (const ChatMessage& message : messages) add_message(pieces, message);
    add_opening(pieces, "assistant");
    return pieces;
  }

  /// What follows the last answer, which is message `answer`, in render(messages): nothing before
  /// it is written again, so that a session that has seen an answer goes on from its own tokens.
  /// Not for a function of the caller's: nothing then.
  std::optional<std::vector<TextPiece>> render_after(std::span<const ChatMessage> messages,
                                                     std::size_t answer) const {
    if (function_ || answer >= messages.size()) return std::nullopt;
    std::vector<TextPiece> pieces;
    add(pieces, close_, true);
    add(pieces, after_, false);
    for (const ChatMessage& message : messages.subspan(answer + 1)) add_message(pieces, message);
    add_opening(pieces, "assistant");
    return pieces;
  }

  /// The control token behind each message, with which an answer ends; empty where that is not
  /// known.
  const std::string& end_of_message() const { return close_; }

 private:
  ChatTemplate() = default;

  static void add(std::vector<TextPiece>& pieces, std::string_view text, bool special) {
    if (!text.empty()) pieces.push_back({std::string(text), special});
  }
  void add_opening(std::vector<TextPiece>& pieces, std::string_view role) const {
    add(pieces, open_, true);
    add(pieces, role, false);
    add(pieces, role_end_, true);
    add(pieces, gap_, false);
  }
  void add_message(std::vector<TextPiece>& pieces, const ChatMessage& message) const {
    add_opening(pieces, message.role);
    std::string_view content = message.content;
    if (trims_) {
      constexpr std::string_view kSpace = " \t\n\v\f\r";
      content.remove_prefix((std::min)(content.find_first_not_of(kSpace), content.size()));
      content = content.substr(0, content.find_last_not_of(kSpace) + 1);
    }
    add(pieces, content, false);
    add(pieces, close_, true);
    add(pieces, after_, false);
  }

  Function function_;
  std::string bos_, default_system_;
  std::string open_, role_end_, gap_, close_,
      after_;  ///< open role role_end gap content close after
  bool trims_ = false;
};

ATTN_NAMESPACE_END
