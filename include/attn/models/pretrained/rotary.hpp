// Rotary embedding and sliding windows from config.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/models/pretrained/config.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Defaults of a model type.
struct RotaryDefaults {
  double theta = 10000;
  /// Rotated part of a head; none: all of it, and the config must not say otherwise.
  std::optional<double> partial = {};
  RotaryPairs pairs = RotaryPairs::halves;
  bool scales_queries = false;  ///< by llama_4_scaling_beta, which must be given
};

/// Whether rope_parameters describes each kind of layer separately.
inline bool holds_kinds(const ConfigFile& config) {
  return config.has("rope_parameters") && config.object("rope_parameters").has("full_attention");
}

/// Sets the scaling and the number of positions by rope_scaling or rope_parameters.
inline void read_rope_scaling(const ConfigFile& config, const ConfigFile& rope, index_t positions,
                              RotaryOptions& result) {
  const auto old_type = rope.get<std::string>("type", "default");
  const auto type = rope.get<std::string>("rope_type", old_type);
  RotaryScaling& s = result.scaling;
  using Kind = RotaryScalingKind;
  if (type == "linear") {
    s.kind = Kind::linear;
  } else if (type == "dynamic") {
    s.kind = Kind::dynamic;
  } else if (type == "llama3") {
    s.kind = Kind::llama3;
  } else if (type == "yarn") {
    s.kind = Kind::yarn;
  } else if (type == "longrope" || type == "su") {
    s.kind = Kind::longrope;
  } else if (type != "default") {
    rope.fail("rope_type", "be default, linear, dynamic, llama3, yarn or longrope", quote(type));
  }
  if (s.kind == Kind::dynamic) s.original_max_positions = positions;
  if (s.kind == Kind::llama3 || s.kind == Kind::yarn) {
    s.original_max_positions = rope.count("original_max_position_embeddings", positions);
  }
  if (s.kind == Kind::longrope) {
    // Phi-3 keeps the trained length beside rope_scaling.
    constexpr std::string_view kTrained = "original_max_position_embeddings";
    s.original_max_positions = rope.count(kTrained, config.count(kTrained, positions));
    const auto factors = [&](std::string_view key) {
      const std::vector<double> list = rope.numbers(key);
      if (list.size() > RotaryAngles::kMax) {
        rope.fail(key, concat("have at most ", RotaryAngles::kMax, " numbers"),
                  std::to_string(list.size()));
      }
      return RotaryAngles(list);
    };
    result.short_factors = factors("short_factor");
    result.long_factors = factors("long_factor");
    if (rope.has("attention_factor")) {
      s.attention_factor = rope.get<double>("attention_factor");
    }
  }
  if ((s.kind == Kind::yarn || s.kind == Kind::longrope) && !rope.has("factor")) {
    s.factor = static_cast<double>(positions) / static_cast<double>(s.original_max_positions);
  } else if (s.kind != Kind::none) {
    s.factor = rope.get<double>("factor");
  }
  if (s.kind == Kind::llama3) {
    s.low_freq_factor = rope.get<double>("low_freq_factor");
    s.high_freq_factor = rope.get<double>("high_freq_factor");
  } else if (s.kind == Kind::yarn) {
    s.beta_fast = rope.get<double>("beta_fast", s.beta_fast);
    s.beta_slow = rope.get<double>("beta_slow", s.beta_slow);
    s.truncate = rope.get<bool>("truncate", true);
    const double mscale = rope.get<double>("mscale", 0),
                 all = rope.get<double>("mscale_all_dim", 0);
    const auto grown = [&](double by) {
      return s.factor > 1 ? 0.1 * by * std::log(s.factor) + 1 : 1;
    };
    if (rope.has("attention_factor")) {
      s.attention_factor = rope.get<double>("attention_factor");
    } else if (mscale != 0 && all != 0) {
      s.attention_factor = grown(mscale) / grown(all);
    }
  }
  // Scaling extends the context, so the table covers factor times the trained length.
  const double trained =
      static_cast<double>(s.original_max_positions > 0 ? s.original_max_positions : positions);
  const double reach = (std::min)(s.factor * trained, 16777216.0);
  result.max_positions = (std::max)(positions, static_cast<index_t>((std::max)(reach, 1.0)));
}

/// Reads rope_scaling, or rope_parameters in newer files, beside rope_theta. `kind` selects the
/// object of a kind of layer if rope_parameters holds one for each.
inline RotaryOptions rotary_of(const ConfigFile& config, const PretrainedOptions& options,
                               index_t head_dim, const RotaryDefaults& defaults,
                               std::string_view kind = "full_attention") {
  const index_t positions = config.count("max_position_embeddings");
  const auto partial_of = [&](const ConfigFile& keys, double otherwise) {
    if (!defaults.partial) check_only<double>(keys, "partial_rotary_factor", 1, "1");
    return keys.get<double>("partial_rotary_factor", otherwise);
  };
  double partial = partial_of(config, defaults.partial.value_or(1));
  RotaryOptions result{.pairs = defaults.pairs,
                       .theta = config.get<double>("rope_theta", defaults.theta),
                       .max_positions = positions};
  const auto read = [&](const ConfigFile& rope) {
    result.theta = rope.get<double>("rope_theta", result.theta);
    partial = partial_of(rope, partial);
    read_rope_scaling(config, rope, positions, result);
    if (defaults.scales_queries) {
      result.scaling.query_beta = rope.get<double>("llama_4_scaling_beta");
      if (result.scaling.original_max_positions == 0) {
        rope.fail("rope_type", "be yarn with llama_4_scaling_beta", "another");
      }
      static_cast<void>(rope.has("max_position_embeddings"));  // a copy of the config's
    }
    check_all_read(rope, options);
  };
  if (holds_kinds(config)) {
    const ConfigFile kinds = config.object("rope_parameters");
    static_cast<void>(kinds.has("full_attention") && kinds.has("sliding_attention"));
    check_all_read(kinds, options);
    read(kinds.object(kind));
  } else if (const char* key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
             config.has(key)) {
    read(config.object(key));
  }
  const double dim = partial * static_cast<double>(head_dim);
  if (!(dim >= 2 && partial <= 1) || static_cast<index_t>(dim) % 2 != 0) {
    config.fail("partial_rotary_factor",
                concat("rotate an even number of the ", head_dim, " coordinates of a head"),
                attn::to_string(partial));
  }
  result.dim = static_cast<index_t>(dim);
  if (result.scaling.kind == RotaryScalingKind::longrope) {
    for (const RotaryAngles* factors : {&result.short_factors, &result.long_factors}) {
      if (static_cast<index_t>(factors->size()) == result.dim / 2) continue;
      config.fail("rope_scaling",
                  concat("have one short_factor and one long_factor for each of ", result.dim / 2,
                         " pairs"),
                  std::to_string(factors->size()));
    }
  }
  if (options.max_positions > 0) result.max_positions = options.max_positions;
  return result;
}

/// Window sizes per layer: layer_types, or `slides`, selects the layers that have this window.
template <class F>
std::vector<index_t> windows_of_size(const ConfigFile& config, index_t layers, index_t window,
                                     F slides) {
  std::vector<index_t> windows;
  std::vector<std::string> types;
  if (config.has("layer_types")) {
    types = config.texts("layer_types");
    if (std::ssize(types) != layers) {
      config.fail("layer_types", concat("be one per layer, ", layers),
                  std::to_string(types.size()));
    }
  }
  for (index_t n = 0; n < layers; ++n) {
    bool is_sliding = slides(n);
    if (!types.empty()) {
      const std::string& type = types[static_cast<std::size_t>(n)];
      is_sliding = type == "sliding_attention";
      if (!is_sliding && type != "full_attention") {
        config.fail("layer_types", "contain only full_attention and sliding_attention",
                    quote(type));
      }
      if (is_sliding && window < 0) {
        config.fail("layer_types", "contain only full_attention without sliding_window",
                    quote(type));
      }
    }
    windows.push_back(is_sliding ? window : -1);
  }
  return windows;
}

/// windows_of_size() for the key sliding_window: with n, a token sees itself and n - 1 tokens
/// before it. null means none, and a missing key 4096, transformers' default.
template <class F>
std::vector<index_t> windows_of(const ConfigFile& config, index_t layers, bool has_window,
                                F slides) {
  const index_t window = !has_window                      ? -1
                         : config.has("sliding_window")   ? config.count("sliding_window") - 1
                         : config.lacks("sliding_window") ? 4095
                                                          : -1;
  return windows_of_size(config, layers, window, slides);
}

}  // namespace detail

ATTN_NAMESPACE_END
