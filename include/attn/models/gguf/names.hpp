// Where GGUF files hold the parameters of Gpt: tensors, and parts of tensors of all experts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "attn/io/gguf.hpp"
#include "attn/io/rename.hpp"

ATTN_NAMESPACE_BEGIN

/// The rows of a tensor that form a parameter: all rows, the first n, the last n, or the n before
/// the last n, where n is the parameter's number of rows.
enum class GgufRows { all, first, last_but_one, last };

/// A parameter of Gpt in GGUF files: a tensor or rows of it, or one expert's part of a tensor of
/// all experts.
struct GgufPart {
  std::string tensor;
  std::optional<index_t> expert = {};
  GgufRows rows = GgufRows::all;
};

/// A part of a parameter's name, and what replaces it in files of one architecture.
struct GgufName {
  std::string_view ours, theirs;
  GgufRows rows = GgufRows::all;
};

/// Where GGUF files hold a parameter of Gpt. `own_names`: those of its architecture.
inline GgufPart gguf_part(std::string_view name, std::span<const GgufName> own_names = {}) {
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
      {".self_attn.sinks", ".attn_sinks.weight"},
      {".self_attn.q_proj.", ".attn_q."},
      {".self_attn.q_a_proj.", ".attn_q_a."},
      {".self_attn.q_a_norm.", ".attn_q_a_norm."},
      {".self_attn.q_b_proj.", ".attn_q_b."},
      {".self_attn.kv_a_proj.", ".attn_kv_a_mqa."},
      {".self_attn.kv_a_norm.", ".attn_kv_a_norm."},
      {".self_attn.kv_b_proj.", ".attn_kv_b."},
      {".norm1.", ".attn_norm."},
      {".norm1_behind.", ".post_attention_norm."},
      {".norm2_behind.", ".post_ffw_norm."},
      {".norm2.", ".ffn_norm."},
      {".moe.router.", ".ffn_gate_inp."},
      {".moe.correction_bias", ".exp_probs_b.bias"},
      {".moe.shared_expert_gate.", ".ffn_gate_inp_shexp."},
      {".moe.shared_expert.gate_proj.", ".ffn_gate_shexp."},
      {".moe.shared_expert.up_proj.", ".ffn_up_shexp."},
      {".moe.shared_expert.down_proj.", ".ffn_down_shexp."},
      {".gate_proj.", ".ffn_gate."},
      {".up_proj.", ".ffn_up."},
      {".down_proj.", ".ffn_down."},
  };
  constexpr std::string_view kExperts = ".moe.experts.";
  std::string own(name);
  GgufRows rows = GgufRows::all;
  for (const GgufName& one : own_names) {
    if (const std::size_t at = own.find(one.ours); at != own.npos) {
      own.replace(at, one.ours.size(), one.theirs);
      rows = one.rows;
    }
  }
  const std::size_t at = own.find(kExperts);
  if (at == own.npos) return {.tensor = detail::renamed(own, kNames), .rows = rows};
  // blocks.layers.0.moe.experts.3.gate_proj.weight: part 3 of blk.0.ffn_gate_exps.weight.
  const std::size_t number = at + kExperts.size(), dot = own.find('.', number);
  const index_t expert = std::stoll(own.substr(number, dot - number));
  own.erase(at, dot - at);
  std::string tensor = detail::renamed(own, kNames);
  tensor.insert(tensor.rfind('.'), "_exps");
  return {.tensor = std::move(tensor), .expert = expert};
}

/// The tensor or the part as a tensor of its own. Throws ShapeError unless it has this shape; a
/// matrix of one row may be a vector in the file.
inline GgufTensor gguf_tensor(const GgufFile& file, const GgufPart& part,
                              std::span<const index_t> shape) {
  if (part.rows != GgufRows::all) {
    GgufTensor tensor = file.tensor(part.tensor);
    const index_t all = tensor.shape.empty() ? 0 : tensor.shape[0], rows = shape[0];
    const index_t from_end = part.rows == GgufRows::last_but_one ? 2 * rows : rows;
    std::vector<index_t> whole(shape.begin(), shape.end());
    whole[0] = (std::max)(all, from_end);
    file.check(part.tensor, whole);
    const index_t begin = part.rows == GgufRows::first ? 0 : all - from_end;
    const std::size_t bytes = tensor.bytes.size() / static_cast<std::size_t>(all);
    tensor.bytes = tensor.bytes.subspan(static_cast<std::size_t>(begin) * bytes,
                                        static_cast<std::size_t>(rows) * bytes);
    tensor.shape.assign(shape.begin(), shape.end());
    return tensor;
  }
  if (!part.expert) {
    const bool is_vector =
        shape.size() == 2 && shape[0] == 1 && file.shape(part.tensor).size() == 1;
    file.check(part.tensor, is_vector ? shape.subspan(1) : shape);
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
