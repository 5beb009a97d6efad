// A shape of JSON to which a language model's answer is restricted: tokens that would violate it
// are masked out of the logits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/models/language_model.hpp"

#include "json.hpp"

namespace examples {

// A JSON value as an example of the answer. Its texts name the values to fill in: "string",
// "integer", or "one|of|these". Objects of the answer have these keys in this order, arrays this
// number of elements; other values are literal.
class JsonShape {
 public:
  // Strings have at most most_bytes and integers kMostDigits, so that each answer ends.
  static constexpr std::size_t kMostDigits = 15;

  explicit JsonShape(const Json& example, std::size_t most_bytes = 120) : most_bytes_(most_bytes) {
    if (!example.is_object() && !example.is_array()) {
      throw std::invalid_argument("a shape must be an object or an array; found " + example.dump());
    }
    std::string text;
    add(example, text);
    add_choices({text});
  }

  // The state of a text that matches the shape so far.
  struct State {
    std::size_t part = 0, at = 0;                 // bytes of this part
    std::size_t choice = 0;                       // a choice that the text may still become
    std::size_t digits = 0;                       // of an integer,
    bool zero = false;                            // whose first digit is 0: no further digit
    bool escaped = false;                         // by a backslash before
    int continuation = 0;                         // bytes missing from a character,
    unsigned char least = 0x80, greatest = 0xBF;  // and the range of the next one
  };

  // Whether the text may continue with this byte; the state is then the one after it, otherwise
  // unspecified.
  bool push(State& s, char byte) const {
    if (s.part == parts_.size()) return false;
    const Part& part = parts_[s.part];
    switch (part.kind) {
      case Kind::choice:
        return push_choice(s, part.choices, byte);
      case Kind::string:
        return push_string(s, static_cast<unsigned char>(byte));
      default:
        return push_integer(s, byte);
    }
  }
  bool push(State& s, std::string_view bytes) const {
    return std::all_of(bytes.begin(), bytes.end(), [&](char byte) { return push(s, byte); });
  }
  bool is_whole(const State& s) const { return s.part == parts_.size(); }

 private:
  enum class Kind { choice, string, integer };
  struct Part {
    Kind kind;
    std::vector<std::string> choices = {};
  };

  // Literal text before the next value is collected in `text`.
  void add(const Json& example, std::string& text) {
    if (example.is_object() || example.is_array()) {
      text += example.is_object() ? "{" : "[";
      bool is_first = true;
      for (const auto& [key, value] : example.items()) {
        if (!std::exchange(is_first, false)) text += ", ";
        if (example.is_object()) text += Json(key).dump() + ": ";
        add(value, text);
      }
      text += example.is_object() ? "}" : "]";
      return;
    }
    const std::string word = example.is_string() ? example.get<std::string>() : "";
    if (word == "string" || word == "integer") {
      add_choices({std::exchange(text, "")});
      parts_.push_back({word == "string" ? Kind::string : Kind::integer});
    } else if (word.find('|') != std::string::npos) {
      add_choices({std::exchange(text, "")});
      std::vector<std::string> choices;
      for (std::size_t begin = 0; begin <= word.size();) {
        const std::size_t end = std::min(word.find('|', begin), word.size());
        choices.push_back(Json(word.substr(begin, end - begin)).dump());
        begin = end + 1;
      }
      add_choices(std::move(choices));
    } else {
      text += example.dump();
    }
  }

  void add_choices(std::vector<std::string> choices) {
    if (choices != std::vector<std::string>{""}) {
      parts_.push_back({Kind::choice, std::move(choices)});
    }
  }

  static bool next_part(State& s) {
    s = {.part = s.part + 1};
    return true;
  }

  // No choice is a prefix of another: all end with a quotation mark, or there is only one.
  static bool push_choice(State& s, const std::vector<std::string>& choices, char byte) {
    const std::string_view before = std::string_view(choices[s.choice]).substr(0, s.at);
    for (std::size_t n = 0; n < choices.size(); ++n) {
      const std::string& choice = choices[n];
      if (!choice.starts_with(before) || choice.size() <= s.at || choice[s.at] != byte) continue;
      s.choice = n;
      return ++s.at == choice.size() ? next_part(s) : true;
    }
    return false;
  }

  // Valid UTF-8: Unicode 15, table 3-7.
  bool push_string(State& s, unsigned char c) const {
    if (s.at++ == 0) return c == '"';
    if (s.continuation > 0) {
      const bool good = c >= s.least && c <= s.greatest;
      --s.continuation, s.least = 0x80, s.greatest = 0xBF;
      return good;
    }
    if (std::exchange(s.escaped, false)) {
      return std::string_view("\"\\/bfnrt").find(static_cast<char>(c)) != std::string_view::npos;
    }
    if (c == '"') return next_part(s);
    if (c < 0x20 || c == 0x7F || s.at > most_bytes_) return false;
    s.escaped = c == '\\';
    if (c < 0x80) return true;
    s.continuation = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
    if (c == 0xE0) s.least = 0xA0;
    if (c == 0xED) s.greatest = 0x9F;
    if (c == 0xF0) s.least = 0x90;
    if (c == 0xF4) s.greatest = 0x8F;
    return c >= 0xC2 && c <= 0xF4;
  }

  // It ends where the next part begins.
  bool push_integer(State& s, char byte) const {
    if (byte == '-' && s.at == 0) return ++s.at > 0;
    if (byte < '0' || byte > '9') return s.digits > 0 && next_part(s) && push(s, byte);
    if (s.zero || s.digits == kMostDigits) return false;
    s.zero = byte == '0' && s.digits == 0;
    ++s.at, ++s.digits;
    return true;
  }

  std::size_t most_bytes_;
  std::vector<Part> parts_;
};

// A logit processor (TextGenerationOptions) for answers after `prompt` tokens. Model and shape must
// outlive it.
class JsonOnly {
 public:
  JsonOnly(const attn::LanguageModel& model, const JsonShape& shape, std::size_t prompt)
      : model_(&model), shape_(&shape), prompt_(prompt) {}

  void operator()(attn::TensorView1<float> logits, std::span<const attn::index_t> ids) const {
    const attn::Tokenizer& tokenizer = model_->tokenizer();
    JsonShape::State so_far;
    for (const attn::index_t id : ids.subspan(prompt_)) shape_->push(so_far, tokenizer.piece(id));
    const bool is_whole = shape_->is_whole(so_far);
    for (attn::index_t id = 0; id < logits.extent(0); ++id) {
      JsonShape::State state = so_far;
      const bool is_text = !tokenizer.is_control(id) && !tokenizer.piece(id).empty();
      const bool good =
          is_whole ? model_->is_end(id) : is_text && shape_->push(state, tokenizer.piece(id));
      if (!good) logits(id) = -std::numeric_limits<float>::infinity();
    }
  }

 private:
  const attn::LanguageModel* model_;
  const JsonShape* shape_;
  std::size_t prompt_;
};

}  // namespace examples
