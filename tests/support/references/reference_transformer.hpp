// ReferenceTransformer: the layers and stacks of a Transformer over parameters by PyTorch's names.
#pragma once

#include <string>

#include "attn/layers/encoder_layer.hpp"

#include "support/models/parameters.hpp"
#include "support/references/reference_layers.hpp"
#include "support/tolerance.hpp"

namespace attn_test {

/// Rows [begin, end) of the first axis.
template <class T>
Array<T> reference_rows(const Array<T>& x, Index begin, Index end) {
  if (!x) return {};
  auto shape = x.shape;
  const Index width = x.size() / shape[0];
  shape[0] = end - begin;
  return {shape, {x.data.begin() + begin * width, x.data.begin() + end * width}};
}

/// Nested loops in T with a given order of sums. Prefixes end in a dot; a missing parameter is
/// omitted from the computation.
template <class T>
struct ReferenceTransformer {
  ReferenceParameters<T> parameters;
  attn::TransformerLayerOptions options;
  Order order = Order::forward;
  /// Positions of queries and keys, (batch, seq), for the rotary embedding.
  attn::Tensor2<attn::index_t> positions = {};
  /// Rounds each activation that a module stores; a linear map stores the result of what is fused
  /// with it.
  T (*store)(T) = nullptr;

  bool has(const std::string& name) const { return parameters.contains(name); }
  Array<T> get(const std::string& name) const {
    const auto at = parameters.find(name);
    return at == parameters.end() ? Array<T>() : at->second;
  }

  Array<T> linear(const std::string& prefix, const Array<T>& x) const {
    return reference_linear(x, get(prefix + "weight"), get(prefix + "bias"), order);
  }

  Array<T> norm(const std::string& prefix, const Array<T>& x) const {
    return norm_of(options.norm, options.layer_norm_eps, prefix, x);
  }

  Array<T> attention(const std::string& prefix, const Array<T>& x, const Array<T>& memory,
                     const ReferenceOptions& masks) const {
    return reference_multi_head_attention(heads(prefix), x, memory, memory, masks, order).y;
  }

  Array<T> feed_forward(const std::string& prefix, const Array<T>& x) const {
    const auto activated = [&](const Array<T>& y) {
      return stored(
          reference_map(y, [&](T v) { return reference_activation(options.activation, v); }));
    };
    if (!has(prefix + "gate_proj.weight")) {
      return linear(prefix + "linear2.", activated(linear(prefix + "linear1.", x)));
    }
    Array<T> gate = stored(linear(prefix + "gate_proj.", x));
    const Array<T> up = stored(linear(prefix + "up_proj.", x));
    for (std::size_t i = 0; i < gate.data.size(); ++i) {
      gate.data[i] = reference_activation(options.activation, gate.data[i]) * up.data.at(i);
    }
    return linear(prefix + "down_proj.", stored(gate));
  }

  Array<T> encoder_layer(const std::string& prefix, const Array<T>& x,
                         const ReferenceOptions& masks) const {
    const auto y = sublayer(prefix + "norm1.", x, [&](const Array<T>& in) {
      return attention(prefix + "self_attn.", in, in, masks);
    });
    return sublayer(prefix + "norm2.", y,
                    [&](const Array<T>& in) { return feed_forward(prefix, in); });
  }

  Array<T> decoder_layer(const std::string& prefix, const Array<T>& x, const Array<T>& memory,
                         const ReferenceOptions& masks,
                         const ReferenceOptions& memory_masks) const {
    auto y = sublayer(prefix + "norm1.", x, [&](const Array<T>& in) {
      return attention(prefix + "self_attn.", in, in, masks);
    });
    y = sublayer(prefix + "norm2.", y, [&](const Array<T>& in) {
      return attention(prefix + "multihead_attn.", in, memory, memory_masks);
    });
    return sublayer(prefix + "norm3.", y,
                    [&](const Array<T>& in) { return feed_forward(prefix, in); });
  }

  Array<T> encoder(const std::string& prefix, const Array<T>& x,
                   const ReferenceOptions& masks) const {
    return stack(prefix, x, [&](const std::string& layer, const Array<T>& in) {
      return encoder_layer(layer, in, masks);
    });
  }

  Array<T> decoder(const std::string& prefix, const Array<T>& x, const Array<T>& memory,
                   const ReferenceOptions& masks, const ReferenceOptions& memory_masks) const {
    return stack(prefix, x, [&](const std::string& layer, const Array<T>& in) {
      return decoder_layer(layer, in, memory, masks, memory_masks);
    });
  }

  /// Parameters of MultiHeadAttention, with in_proj_weight split in three.
  ReferenceHeads<T> heads(const std::string& prefix) const {
    const auto& o = options.attention;
    ReferenceHeads<T> h;
    h.num_heads = options.nhead;
    h.num_kv_heads = o.num_kv_heads > 0 ? o.num_kv_heads : options.nhead;
    const Index dim = o.head_dim > 0 ? o.head_dim : options.d_model / options.nhead;
    const Index q = h.num_heads * dim, k = q + h.num_kv_heads * dim;
    const auto part = [&](const std::string& packed, const std::string& one, Index begin,
                          Index end) {
      const Array<T> all = get(prefix + packed);
      return all ? reference_rows(all, begin, end > 0 ? end : all.extent(0)) : get(prefix + one);
    };
    h.wq = part("in_proj_weight", "q_proj_weight", 0, q);
    h.wk = part("in_proj_weight", "k_proj_weight", q, k);
    h.wv = part("in_proj_weight", "v_proj_weight", k, 0);
    h.bq = part("in_proj_bias", "q_proj_bias", 0, q);
    h.bk = part("in_proj_bias", "k_proj_bias", q, k);
    h.bv = part("in_proj_bias", "v_proj_bias", k, 0);
    h.bias_k = get(prefix + "bias_k");
    h.bias_v = get(prefix + "bias_v");
    h.wo = get(prefix + "out_proj.weight");
    h.bo = get(prefix + "out_proj.bias");
    h.store = store;
    const bool turns = o.rotary && !prefix.ends_with("multihead_attn.");
    if (o.query_key_norm || turns) {
      h.turn = [this, prefix, turns](const Array<T>& x, bool is_key) {
        const auto& attention = options.attention;
        Array<T> y = x;
        if (attention.query_key_norm) {
          y = norm_of(*attention.query_key_norm, attention.query_key_norm_eps,
                      prefix + (is_key ? "k_norm." : "q_norm."), y);
        }
        if (!turns) return y;
        attn::RotaryOptions rotary = *attention.rotary;
        if (rotary.dim == 0) rotary.dim = x.extent(3);
        const attn::RotaryTable<double> table(rotary);
        return stored(reference_rotary(y, to_array(table.cos).template as<T>(),
                                       to_array(table.sin).template as<T>(), positions,
                                       rotary.pairs));
      };
    }
    return h;
  }

 private:
  Array<T> stored(const Array<T>& x) const { return reference_stored(x, store); }

  Array<T> norm_of(attn::NormKind kind, double eps, const std::string& prefix,
                   const Array<T>& x) const {
    const auto weight = get(prefix + "weight");
    return stored(kind == attn::NormKind::rms
                      ? reference_rms_norm(x, weight, eps, order)
                      : reference_layer_norm(x, weight, get(prefix + "bias"), eps, order));
  }

  template <class F>
  Array<T> sublayer(const std::string& norm_prefix, const Array<T>& x, F f) const {
    if (options.norm_first) return stored(reference_add(f(norm(norm_prefix, x)), x));
    return norm(norm_prefix, stored(reference_add(f(x), x)));
  }

  /// Calls layer(prefix, x) for layers.0, layers.1, .., then the final norm, if there is one.
  template <class Layer>
  Array<T> stack(const std::string& prefix, Array<T> x, Layer layer) const {
    for (int n = 0;; ++n) {
      const std::string name = prefix + "layers." + std::to_string(n) + ".";
      if (!has(name + "norm1.weight")) break;
      x = layer(name, x);
    }
    return has(prefix + "norm.weight") ? norm(prefix + "norm.", x) : x;
  }
};

}  // namespace attn_test
