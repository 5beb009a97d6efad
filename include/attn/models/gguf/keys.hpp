// GgufKeys: metadata of a GGUF file's architecture, with a check that every key was used.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "attn/io/gguf.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Keys that change no logits of the decoders read here. Source: llama.cpp,
/// gguf-py/gguf/constants.py.
inline constexpr std::string_view kGgufKeysWithoutEffect[] = {
    "attention.layer_norm_epsilon",  // norms here are root-mean-square norms
    "context_length",
    "embedding_length_per_layer_input",
    "pooling_type",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",  // read with yarn only
    "rope.scaling.yarn_beta_fast",           // read with yarn only
    "rope.scaling.yarn_beta_slow",           // read with yarn only
    "tensor_data_layout",
    "vocab_size",
};

/// Keys of operations that Gpt does not have: a file may contain them with a value that turns the
/// operation off.
struct GgufNeutralKey {
  std::string_view name;
  double off, also_off;
};
inline constexpr GgufNeutralKey kGgufNeutralKeys[] = {
    {"attention.causal", 1, 1},
    {"attention.clamp_kqv", 0, 0},
    {"attention.group_norm_groups", 0, 0},
    {"attention.max_alibi_bias", 0, 0},
    {"attn_logit_softcapping", 0, 0},
    {"embedding_scale", 1, 0},
    {"expert_count", 0, 0},
    {"final_logit_softcapping", 0, 0},
    {"leading_dense_block_count", 0, 0},
    {"logit_scale", 1, 0},
    {"nextn_predict_layers", 0, 0},
    {"residual_scale", 1, 0},
    {"rope.scaling.yarn_attn_factor", 1, 1},
    {"swin_norm", 0, 0},
    {"use_parallel_residual", 0, 0},
};

/// Keys such as "llama.block_count" by their name after the architecture. Errors name file and key.
/// Reading a key marks it as used: one thread at a time.
class GgufKeys {
 public:
  explicit GgufKeys(const GgufFile& file)
      : file_(file), architecture_(file.get<std::string_view>("general.architecture")) {}

  const std::string& architecture() const { return architecture_; }
  std::string key(std::string_view name) const { return concat(architecture_, ".", name); }
  bool has(std::string_view name) const {
    used_.emplace(name);
    return file_.has(key(name));
  }
  template <GgufElement T>
  T get(std::string_view name) const {
    used_.emplace(name);
    return file_.get<T>(key(name));
  }
  template <GgufElement T>
  T get(std::string_view name, T otherwise) const {
    used_.emplace(name);
    return file_.get<T>(key(name), otherwise);
  }

  /// A size: 1 .. 2^24.
  index_t count(std::string_view name) const {
    const index_t value{get<std::uint32_t>(name)};
    if (value < 1 || value > index_t{1} << 24) {
      fail_key(name, "lie in 1 .. 2^24", std::to_string(value));
    }
    return value;
  }
  index_t count(std::string_view name, index_t otherwise) const {
    return has(name) ? count(name) : otherwise;
  }

  /// Throws ValueError for the first key of the architecture that was not read and may change
  /// results. `ignored`: keys to accept anyway, with or without the architecture's name.
  void check_all_used(std::span<const std::string> ignored) const {
    const std::string prefix = architecture_ + ".";
    const auto& metadata = file_.metadata();
    for (auto it = metadata.lower_bound(prefix);
         it != metadata.end() && it->first.starts_with(prefix); ++it) {
      const std::string name = it->first.substr(prefix.size());
      const auto is_name = [&](const std::string& one) { return one == name || one == it->first; };
      if (used_.contains(name) || std::ranges::any_of(ignored, is_name) ||
          std::ranges::count(kGgufKeysWithoutEffect, name) > 0) {
        continue;
      }
      const auto* neutral =
          std::ranges::find(kGgufNeutralKeys, std::string_view(name), &GgufNeutralKey::name);
      // Without experts (expert_count) their settings are unused.
      if (name != "expert_count" && name.starts_with("expert_")) continue;
      if (neutral == std::ranges::end(kGgufNeutralKeys)) {
        fail_key(name, "be one that attn implements (LanguageModelOptions::ignore_keys accepts it)",
                 "unknown");
      }
      const double value = number(it->second);
      if (value != neutral->off && value != neutral->also_off) {
        fail_key(name,
                 concat("be ", attn::to_string(neutral->off),
                        ", since attn does not implement it "
                        "(LanguageModelOptions::ignore_keys accepts it)"),
                 attn::to_string(value));
      }
    }
  }

  [[noreturn]] void fail(std::string_view what, std::string_view expected,
                         std::string_view found) const {
    throw ValueError(
        message("LanguageModel", concat(quote(file_.file_name()), ": ", what), expected, found));
  }
  [[noreturn]] void fail_key(std::string_view name, std::string_view expected,
                             std::string_view found) const {
    fail(concat("key ", quote(key(name))), expected, found);
  }

 private:
  /// A single number or bool as a number; NaN for anything else.
  static double number(const GgufValue& value) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    if (value.is_array()) return kNone;
    switch (value.type()) {
      case GgufValueType::BOOL:
        return value.get<bool>("") ? 1 : 0;
      case GgufValueType::F32:
      case GgufValueType::F64:
        return value.get<double>("");
      case GgufValueType::STRING:
      case GgufValueType::ARRAY:
        return kNone;
      case GgufValueType::U64:
        return static_cast<double>(value.get<std::uint64_t>(""));
      case GgufValueType::U8:
      case GgufValueType::I8:
      case GgufValueType::U16:
      case GgufValueType::I16:
      case GgufValueType::U32:
      case GgufValueType::I32:
      case GgufValueType::I64:
        break;
    }
    return static_cast<double>(value.get<std::int64_t>(""));
  }

  const GgufFile& file_;
  std::string architecture_;
  mutable std::set<std::string, std::less<>> used_;
};

}  // namespace detail

ATTN_NAMESPACE_END
