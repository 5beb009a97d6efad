// PyTorch's conventions: names of nn.MultiheadAttention, masks in which true masks out.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "attn/io/state_dict.hpp"

#include "golden/backend.hpp"

namespace attn_test {

/// Loads a module of the library from the tensors under `prefix`; all of them must exist.
template <class Module>
void load_module(Module& module, const Case& c, const std::string& prefix,
                 std::function<std::string(std::string_view)> rename = {}) {
  const attn::LoadReport report = attn::load_state_dict(
      module, c.file(),
      {.prefix = c.prefix() + prefix, .strict = false, .rename = std::move(rename)});
  if (!report.missing.empty()) throw std::runtime_error("no tensor " + report.missing.front());
  for (const std::string& name : report.loaded) c.mark_read(name.substr(c.prefix().size()));
}

/// The parameters of nn.MultiheadAttention under `prefix`, in_proj_weight in its three parts.
template <class T>
ReferenceHeads<T> load_heads(const Case& c, const std::string& prefix, Index num_heads) {
  // Part 0, 1 or 2 of three equal parts of the first axis.
  const auto part = [](const Array<T>& packed, Index which) {
    if (!packed) return Array<T>();
    const Index size = packed.size() / 3;
    auto shape = packed.shape;
    shape[0] /= 3;
    return Array<T>(shape,
                    {packed.data.begin() + which * size, packed.data.begin() + (which + 1) * size});
  };
  ReferenceHeads<T> heads;
  heads.num_heads = num_heads;
  if (c.has(prefix + "in_proj_weight")) {
    const auto packed = c.load<T>(prefix + "in_proj_weight");
    heads.wq = part(packed, 0);
    heads.wk = part(packed, 1);
    heads.wv = part(packed, 2);
  } else {
    heads.wq = c.load<T>(prefix + "q_proj_weight");
    heads.wk = c.load<T>(prefix + "k_proj_weight");
    heads.wv = c.load<T>(prefix + "v_proj_weight");
  }
  const auto bias = c.load_if<T>(prefix + "in_proj_bias");
  heads.bq = part(bias, 0);
  heads.bk = part(bias, 1);
  heads.bv = part(bias, 2);
  heads.bias_k = c.load_if<T>(prefix + "bias_k");
  heads.bias_v = c.load_if<T>(prefix + "bias_v");
  heads.wo = c.load<T>(prefix + "out_proj.weight");
  heads.bo = c.load_if<T>(prefix + "out_proj.bias");
  return heads;
}

/// Adds the masks that the case has: `mask` (q_len, kv_len) or (batch * num_heads, q_len, kv_len),
/// `padding` (batch, kv_len) or, without a batch, (kv_len).
inline void add_masks(ReferenceOptions& options, const Case& c, const std::string& mask,
                      const std::string& padding, Index num_heads) {
  using Kind = ReferenceOptions::Mask::Kind;
  const auto kind = [&](const std::string& name) {
    return c.is_bool(name) ? Kind::drop : Kind::add;
  };
  if (c.has(mask)) {
    Array<double> values = c.load<double>(mask);
    if (values.shape.size() == 2) {
      values.shape = {1, 1, values.extent(0), values.extent(1)};
    } else {
      values.shape = {values.extent(0) / num_heads, num_heads, values.extent(1), values.extent(2)};
    }
    options.masks.push_back({kind(mask), values});
  }
  if (c.has(padding)) {
    Array<double> values = c.load<double>(padding);
    const Index kv_len = values.shape.back();
    values.shape = {values.size() / kv_len, 1, 1, kv_len};
    options.masks.push_back({kind(padding), values});
  }
}

}  // namespace attn_test
