// Spaces and Unicode normalisation of SentencePiece tokenizers in tokenizer.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cctype>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/io/base64.hpp"
#include "attn/io/config_file.hpp"
#include "attn/text/tokenizer.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The steps of a Sequence, or the single step, or none.
inline std::vector<ConfigFile> tokenizer_steps(const ConfigFile& file, std::string_view key,
                                               std::string_view list) {
  if (!file.has(key)) return {};
  const ConfigFile one = file.object(key);
  if (one.get<std::string>("type") != "Sequence") return {one};
  return one.objects(list);
}

/// How a tokenizer.json of SentencePiece treats spaces.
struct SpaceRules {
  SpacePrefix prefix = SpacePrefix::none;
  bool cuts_words = false, drops_space = false;
  SpaceStrip strip = SpaceStrip::none;
  SentencePieceNormal normal = {};
};

/// Whether a step replaces one text by another: spaces by U+2581, or the other way round.
inline void check_replaces(const ConfigFile& step, std::string_view from, std::string_view to) {
  if (const auto text = step.object("pattern").get<std::string>("String", ""); text != from)
    step.fail("pattern", concat("be the text ", quote(from)), quote(text));
  if (const auto text = step.get<std::string>("content"); text != to)
    step.fail("content", concat("be ", quote(to)), quote(text));
}

inline SpacePrefix metaspace_prefix(const ConfigFile& step) {
  if (const auto letter = step.get<std::string>("replacement"); letter != kSpaceLetter)
    step.fail("replacement", "be U+2581", quote(letter));
  const auto scheme = step.get<std::string>("prepend_scheme", "always");
  const bool has_prefix = step.get<bool>("add_prefix_space", scheme != "never");
  if (has_prefix != (scheme != "never"))
    step.fail("add_prefix_space", "fit prepend_scheme", scheme);
  if (scheme == "always") return SpacePrefix::every_word;
  if (scheme == "first") return SpacePrefix::first_word;
  if (scheme != "never") step.fail("prepend_scheme", "be always, first or never", quote(scheme));
  return SpacePrefix::none;
}

/// The types of the steps, joined.
inline std::string step_types(const std::vector<ConfigFile>& steps) {
  std::string types;
  for (const ConfigFile& step : steps)
    types += (types.empty() ? "" : ", ") + step.get<std::string>("type");
  return types;
}

inline Charsmap charsmap_of(const ConfigFile& step) {
  constexpr std::string_view kKey = "precompiled_charsmap";
  const auto bytes = bytes_of_base64(step.get<std::string>(kKey));
  if (!bytes) step.fail(kKey, "be base64", "another text");
  try {
    return Charsmap(*bytes);
  } catch (const ValueError& error) {
    step.fail(kKey, "be a character map", quote(error.what()));
  }
}

/// The characters of a regular expression such as `[!\.]`; none unless it is a list of ASCII
/// punctuation.
inline std::optional<std::string> punctuation_of(std::string_view pattern) {
  if (pattern.size() < 3 || !pattern.starts_with('[') || !pattern.ends_with(']')) return {};
  const std::string_view list = pattern.substr(1, pattern.size() - 2);
  std::string result;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const bool is_escaped = list[i] == '\\';
    if (is_escaped && ++i == list.size()) return {};
    const auto c = static_cast<unsigned char>(list[i]);
    const bool is_sign = c > ' ' && c < 0x7F && std::isalnum(c) == 0;
    const bool has_meaning = !is_escaped && std::string_view("[]^&~-").find(list[i]) != list.npos;
    if (!is_sign || has_meaning) return {};
    result += list[i];
  }
  return result;
}

/// Replace of a list of punctuation by nothing and Replace of white space by a space, as SigLIP has
/// them; Precompiled, Strip and a Replace of repeated spaces: each optional, in this order.
inline SentencePieceNormal sentencepiece_normal(const std::vector<ConfigFile>& steps) {
  constexpr std::string_view kOrder[] = {"punctuation", "white space", "Precompiled", "Strip",
                                         "Replace"};
  SentencePieceNormal normal;
  std::size_t next = 0;
  for (const ConfigFile& step : steps) {
    auto type = step.get<std::string>("type");
    const auto pattern =
        type == "Replace" ? step.object("pattern").get<std::string>("Regex", "") : "";
    const auto punctuation = punctuation_of(pattern);
    if (punctuation && step.get<std::string>("content").empty()) type = "punctuation";
    if (pattern == "\\s+" && step.get<std::string>("content") == " ") type = "white space";
    while (next < std::size(kOrder) && kOrder[next] != type) ++next;
    if (next == std::size(kOrder)) {
      step.fail("type",
                "be Replace of punctuation and of white space, Precompiled, Strip or Replace, in "
                "this order",
                quote(type));
    }
    ++next;
    if (type == "punctuation") {
      normal.removed = *punctuation;
    } else if (type == "white space") {
      normal.joins_white_space = true;
    } else if (type == "Precompiled") {
      normal.charsmap = charsmap_of(step);
    } else if (type == "Strip") {
      normal.strips_left = step.get<bool>("strip_left");
      normal.strips_right = step.get<bool>("strip_right");
    } else {
      if (pattern != " {2,}") step.fail("pattern", "be \" {2,}\"", quote(pattern));
      normal.several_spaces = step.get<std::string>("content");
    }
  }
  return normal;
}

/// Replace, or Prepend and Replace, as in Llama's files; or Metaspace, as in T5's and
/// XLM-RoBERTa's. A Lowercase before all others is of SigLIP.
inline SpaceRules space_rules_of(const ConfigFile& file, bool has_bytes) {
  SpaceRules rules;
  auto normalizers = tokenizer_steps(file, "normalizer", "normalizers");
  const bool is_lowercase =
      !normalizers.empty() && normalizers[0].get<std::string>("type") == "Lowercase";
  if (is_lowercase) normalizers.erase(normalizers.begin());
  const std::string normal = step_types(normalizers);
  const bool has_letters = normal == "Prepend, Replace" ||
                           (normal == "Replace" && normalizers[0].object("pattern").has("String"));
  if (has_letters) {
    check_replaces(normalizers.back(), " ", kSpaceLetter);
    if (normalizers.size() == 2) {
      const auto text = normalizers[0].get<std::string>("prepend");
      if (text != kSpaceLetter) normalizers[0].fail("prepend", "be U+2581", quote(text));
      rules.prefix = SpacePrefix::every;
    }
  } else {
    rules.normal = sentencepiece_normal(normalizers);
  }
  rules.normal.lowercase = is_lowercase;
  const auto cutters = tokenizer_steps(file, "pre_tokenizer", "pretokenizers");
  const std::string cuts = step_types(cutters);
  if ((cuts == "Metaspace" || cuts == "WhitespaceSplit, Metaspace") && !has_letters) {
    rules.prefix = metaspace_prefix(cutters.back());
    rules.cuts_words = cutters.back().get<bool>("split", true);
    rules.drops_space = cutters.size() == 2;
    // A word after white space is not the first one, although the white space was removed.
    if ((rules.drops_space || rules.normal.strips_left) &&
        rules.prefix == SpacePrefix::first_word) {
      cutters.back().fail("prepend_scheme",
                          "be always or never after WhitespaceSplit or Strip with strip_left",
                          "first");
    }
  } else if (cuts == "Split" && has_letters) {
    // A split at spaces has no effect: the normalizer has already replaced them.
    const auto pattern = cutters[0].object("pattern").get<std::string>("String", "");
    if (pattern != " ") cutters[0].fail("pattern", "be a space", quote(pattern));
  } else if (!cuts.empty() || !has_letters) {
    file.fail("pre_tokenizer",
              "be Metaspace, optionally after WhitespaceSplit, or none with a normalizer that "
              "replaces spaces, for SentencePiece",
              quote(cuts.empty() ? "none" : cuts));
  }
  const auto decoders = tokenizer_steps(file, "decoder", "decoders");
  bool has_spaces = false, joins_bytes = false;
  for (const ConfigFile& step : decoders) {
    const auto type = step.get<std::string>("type");
    if (type == "Replace") {
      check_replaces(step, kSpaceLetter, " ");
      has_spaces = true;
    } else if (type == "Metaspace") {
      has_spaces = true;
      if (metaspace_prefix(step) != SpacePrefix::none) rules.strip = SpaceStrip::first_token;
    } else if (type == "Strip") {
      if (step.get<std::string>("content") != " " || step.get<index_t>("start") != 1 ||
          step.get<index_t>("stop") != 0) {
        step.fail("start", "strip one space at the beginning", "another strip");
      }
      rules.strip = SpaceStrip::one;
    } else if (type == "ByteFallback") {
      joins_bytes = true;
    } else if (type != "Fuse") {
      file.fail("decoder", "consist of Replace, ByteFallback, Fuse, Strip and Metaspace",
                quote(type));
    }
  }
  if (!has_spaces || joins_bytes != has_bytes) {
    file.fail("decoder",
              "replace U+2581 by spaces (Replace or Metaspace), and have ByteFallback if "
              "byte_fallback is true",
              quote(step_types(decoders)));
  }
  return rules;
}

}  // namespace detail

ATTN_NAMESPACE_END
