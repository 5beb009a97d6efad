// The options of a case of the golden suite `sdpa`.
#pragma once

#include <string>
#include <vector>

#include "golden/case.hpp"

namespace attn_test {

/// A mask of rank up to 4, with axes of extent 1 added in front.
inline Array<double> to_rank4(Array<double> mask) {
  if (mask.shape.size() > 4)
    throw Unsupported("a mask of rank " + std::to_string(mask.shape.size()));
  while (mask.shape.size() < 4) mask.shape.insert(mask.shape.begin(), 1);
  return mask;
}

/// Throws Unsupported for options that the library lacks.
inline ReferenceOptions sdpa_options(const Case& c) {
  using Kind = ReferenceOptions::Mask::Kind;
  using Offset = ReferenceOptions::Offset;
  ReferenceOptions options;
  options.softcap = c.attribute<double>("softcap").value_or(0);
  options.scale = c.attribute<double>("scale");
  if (const auto causal = c.attribute<nlohmann::ordered_json>("causal");
      causal && *causal != false) {
    options.causal = true;
    if (*causal == "top_left") {
      options.offset = Offset::top_left;
    } else if (*causal != "bottom_right" && *causal != true) {
      throw Unsupported("causal = " + causal->dump());
    }
  }
  if (const auto window = c.attribute<std::vector<Index>>("window")) {
    options.left = window->at(0);
    options.right = window->at(1);
  }
  if (c.has("mask")) {
    options.masks.push_back(
        {c.is_bool("mask") ? Kind::keep : Kind::add, to_rank4(c.load<double>("mask"))});
  }
  if (c.has("kv_len")) options.key_lengths = c.load<std::int64_t>("kv_len").data;
  options.alibi_slopes = c.load_if<double>("alibi_slopes").data;
  options.sinks = c.load_if<double>("sinks").data;
  return options;
}

}  // namespace attn_test
