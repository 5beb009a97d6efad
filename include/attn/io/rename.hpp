// rename_by: maps a module's parameter names to those of a file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/core/config.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// For each pair, in order, replaces the first occurrence of its first text by its second.
template <class Pairs>
std::string renamed(std::string_view name, const Pairs& pairs) {
  std::string result(name);
  for (const auto& [ours, theirs] : pairs) {
    if (const std::size_t at = result.find(ours); at != std::string::npos) {
      result.replace(at, ours.size(), theirs);
    }
  }
  return result;
}

}  // namespace detail

/// For LoadOptions::rename: {{"self_attn.out_proj.", "attention.o_proj."}, ..} turns
/// "layers.0.self_attn.out_proj.weight" into "layers.0.attention.o_proj.weight". Pairs apply in
/// order, each at the first occurrence of its text in the result so far.
inline std::function<std::string(std::string_view)> rename_by(
    std::vector<std::pair<std::string, std::string>> pairs) {
  return [pairs = std::move(pairs)](std::string_view name) { return detail::renamed(name, pairs); };
}

ATTN_NAMESPACE_END
