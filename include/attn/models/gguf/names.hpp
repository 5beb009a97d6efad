// Where GGUF files hold the parameters of Gpt: tensors, and parts of tensors of all experts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "attn/io/gguf.hpp"
#include "attn/io/rename.hpp"

ATTN_NAMESPACE_BEGIN

/// A parameter of Gpt in GGUF files: a tensor, or one expert's part of a tensor of all experts.
struct GgufPart {
  std::string tensor;
  std::optional<index_t> expert = {};
};

/// Where GGUF files hold a parameter of Gpt.
inline GgufPart gguf_part(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"embedding.words.", "token_embd."},
      {"lm_head.", "output."},
      {"blocks.norm.", "output_norm."},
      {"blocks.layers.", "blk."},
      {".self_attn.q_norm.", ".attn_q_norm."},
      {".self_attn.k_norm.", ".attn_k_norm."},
      {".self_attn.q_proj_", ".attn_q."},
      {".self_attn.k_proj_", ".attn_k."},
      {".self_attn.v_proj_", ".attn_v."},
      {".self_attn.out_proj.", ".attn_output."},
      {".norm1.", ".attn_norm."},
      {".norm1_behind.", ".post_attention_norm."},
      {".norm2_behind.", ".post_ffw_norm."},
      {".norm2.", ".ffn_norm."},
      {".moe.router.", ".ffn_gate_inp."},
      {".gate_proj.", ".ffn_gate."},
      {".up_proj.", ".ffn_up."},
      {".down_proj.", ".ffn_down."},
  };
  constexpr std::string_view kExperts = ".moe.experts.";
  std::string own(name);
  const std::size_t at = own.find(kExperts);
  if (at == own.npos) return {.tensor = detail::renamed(own, kNames)};
  // blocks.layers.0.moe.experts.3.gate_proj.weight: part 3 of blk.0.ffn_gate_exps.weight.
  const std::size_t number = at + kExperts.size(), dot = own.find('.', number);
  const index_t expert = std::stoll(own.substr(number, dot - number));
  own.erase(at, dot - at);
  std::string tensor = detail::renamed(own, kNames);
  tensor.insert(tensor.rfind('.'), "_exps");
  return {.tensor = std::move(tensor), .expert = expert};
}

/// The tensor or the part as a tensor of its own. Throws ShapeError unless it has this shape.
inline GgufTensor gguf_tensor(const GgufFile& file, const GgufPart& part,
                              std::span<const index_t> shape) {
  if (!part.expert) {
    file.check(part.tensor, shape);
    return file.tensor(part.tensor);
  }
  GgufTensor tensor = file.tensor(part.tensor);
  const index_t experts = tensor.shape.empty() ? 0 : tensor.shape[0];
  std::vector<index_t> whole{(std::max)(experts, *part.expert + 1)};
  whole.insert(whole.end(), shape.begin(), shape.end());
  file.check(part.tensor, whole);
  const std::size_t bytes = tensor.bytes.size() / static_cast<std::size_t>(experts);
  tensor.bytes = tensor.bytes.subspan(static_cast<std::size_t>(*part.expert) * bytes, bytes);
  tensor.shape.assign(shape.begin(), shape.end());
  return tensor;
}

ATTN_NAMESPACE_END
