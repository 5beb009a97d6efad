// The gated delta rule in GGUF files: keys, checks of tensors, the joint projection, A_log.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/core/view.hpp"
#include "attn/io/gguf.hpp"
#include "attn/io/gguf/blocks.hpp"
#include "attn/models/gguf/keys.hpp"
#include "attn/models/gpt.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A layer has attention if attention.recurrent_layers says so or, without it, if it is the last of
/// full_attention_interval layers.
inline void set_gguf_delta_layers(const GgufKeys& keys, GptOptions& options) {
  constexpr const char* kRecurrent = "attention.recurrent_layers";
  const index_t interval = keys.count("full_attention_interval", 4);
  std::vector<bool> recurrent;
  if (keys.has(kRecurrent)) {
    recurrent = keys.array<bool>(kRecurrent);
    if (std::ssize(recurrent) != options.num_layers) {
      keys.fail(kRecurrent, concat("be one per layer, ", options.num_layers),
                std::to_string(recurrent.size()));
    }
  } else {
    for (index_t n = 1; n <= options.num_layers; ++n) recurrent.push_back(n % interval != 0);
  }
  for (const bool one : recurrent) {
    options.mixers.push_back(one ? TokenMixer::gated_delta : TokenMixer::attention);
  }
}

/// Sets the layers with the gated delta rule and its sizes.
inline void read_gguf_delta(const GgufKeys& keys, GptOptions& options) {
  set_gguf_delta_layers(keys, options);
  TransformerLayerOptions& layer = options.layer;
  const index_t key_heads = keys.count("ssm.group_count"),
                value_heads = keys.count("ssm.time_step_rank"),
                values = keys.count("ssm.inner_size"), width = keys.count("ssm.conv_kernel");
  if (value_heads % key_heads != 0) {
    keys.fail("ssm.time_step_rank", concat("be a multiple of ssm.group_count = ", key_heads),
              std::to_string(value_heads));
  }
  if (values % value_heads != 0) {
    keys.fail("ssm.inner_size", concat("be a multiple of ssm.time_step_rank = ", value_heads),
              std::to_string(values));
  }
  if (width < 2) keys.fail("ssm.conv_kernel", "be at least 2", "1");
  layer.gated_delta = {.num_key_heads = key_heads,
                       .num_value_heads = value_heads,
                       .key_dim = keys.count("ssm.state_size"),
                       .value_dim = values / value_heads,
                       .width = width,
                       .norm_eps = layer.layer_norm_eps};
}

/// Throws if a matrix of the gated delta rule in block n is missing or has another shape.
inline void check_gguf_delta(const GgufFile& file, index_t n, const GptOptions& options) {
  const GatedDeltaOptions& delta = options.layer.gated_delta;
  const index_t dim = options.layer.d_model, keys = delta.keys_width(),
                values = delta.values_width();
  const auto check = [&](std::string_view part, std::initializer_list<index_t> shape) {
    file.check(concat("blk.", n, ".", part, ".weight"), std::span(shape.begin(), shape.size()));
  };
  if (file.contains(concat("blk.", n, ".ssm_in.weight"))) {
    check("ssm_in", {2 * (keys + values), dim});
  } else {
    check("attn_qkv", {2 * keys + values, dim});
    check("attn_gate", {values, dim});
  }
  check("ssm_ba", {2 * delta.num_value_heads, dim});
  check("ssm_conv1d", {delta.channels(), delta.width});
  check("ssm_out", {dim, values});
}

/// The tensors that hold a parameter together: `tensor` or, for the joint projection in newer
/// files, attn_qkv and attn_gate.
inline std::vector<std::string> gguf_tensors_of(const GgufFile& file, const std::string& tensor) {
  constexpr std::string_view kJoint = ".ssm_in.weight";
  if (!tensor.ends_with(kJoint) || file.contains(tensor)) return {tensor};
  const std::string block = tensor.substr(0, tensor.size() - kJoint.size());
  return {block + ".attn_qkv.weight", block + ".attn_gate.weight"};
}
/// The type of the matrix that gguf_delta_projection() makes of these tensors, or of the only one.
inline GgufType gguf_type_of(const GgufFile& file, const std::vector<std::string>& names) {
  const GgufType type = file.tensor(names.front()).type;
  return file.tensor(names.back()).type == type ? type : GgufType::F32;
}

/// The rows of in_proj_qkvz, for each key head those of its query, key, values and gates, from the
/// tensors of newer files: attn_qkv, all queries, all keys, all values, and attn_gate, all gates.
/// Rows stay as they are, in `memory`, if both tensors have the same type; else they are floats.
inline GgufTensor gguf_delta_projection(const GgufTensor& qkv, const GgufTensor& gate,
                                        const GatedDeltaOptions& options,
                                        std::vector<std::byte>& memory) {
  const bool is_same = qkv.type == gate.type;
  const auto rows_of = [&](const GgufTensor& tensor, std::vector<float>& floats) {
    if (is_same) return tensor.bytes;
    floats.resize(static_cast<std::size_t>(tensor.shape[0] * tensor.shape[1]));
    dequantize_gguf(tensor.type, tensor.bytes, floats);
    return std::as_bytes(std::span<const float>(floats));
  };
  std::vector<float> first, second;
  const std::span<const std::byte> from_qkv = rows_of(qkv, first),
                                   from_gate = rows_of(gate, second);
  const std::size_t row = from_gate.size() / static_cast<std::size_t>(gate.shape[0]);
  memory.clear();
  memory.reserve(from_qkv.size() + from_gate.size());
  const auto add = [&](std::span<const std::byte> from, index_t begin, index_t count) {
    const auto part =
        from.subspan(static_cast<std::size_t>(begin) * row, static_cast<std::size_t>(count) * row);
    memory.insert(memory.end(), part.begin(), part.end());
  };
  const index_t keys = options.keys_width(), key_dim = options.key_dim,
                values = options.values_width() / options.num_key_heads;
  for (index_t h = 0; h < options.num_key_heads; ++h) {
    add(from_qkv, h * key_dim, key_dim);
    add(from_qkv, keys + h * key_dim, key_dim);
    add(from_qkv, 2 * keys + h * values, values);
    add(from_gate, h * values, values);
  }
  return {.type = is_same ? qkv.type : GgufType::F32,
          .shape = {qkv.shape[0] + gate.shape[0], qkv.shape[1]},
          .bytes = memory};
}

/// If this tensor is ssm_a, -e^A_log, replaces its values by A_log. Throws ValueError for numbers
/// that are not negative.
inline void set_gguf_a_log(const GgufFile& file, const std::string& name,
                           const TensorView1<float>& values) {
  if (!name.ends_with(".ssm_a")) return;
  for (index_t n = 0; n < values.size(); ++n) {
    if (!(values(n) < 0)) {
      throw ValueError(message("LanguageModel", concat(quote(file.file_name()), ": ", name),
                               "be negative", attn::to_string(double{values(n)})));
    }
    values(n) = std::log(-values(n));
  }
}

}  // namespace detail

ATTN_NAMESPACE_END
