// Backward of LatentAttention, and the forward that saves.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/attention/sdpa_backward.hpp"
#include "attn/layers/attention/latent_attention.hpp"
#include "attn/layers/attention/rotary_backward.hpp"
#include "attn/layers/linear_backward.hpp"
#include "attn/layers/norm_backward.hpp"

ATTN_NAMESPACE_BEGIN

template <class T>
struct LatentAttentionSaved {
  Saved<T, 3> x;
  NormSaved<T> q_a_norm;         ///< with q_lora_rank
  LinearSaved<T> q_b_proj;       ///< with q_lora_rank; otherwise it takes x
  Saved<T, 3> q;                 ///< after rotary, (batch, seq, num_heads * features of a head)
  Saved<T, 3> kv_a;              ///< latents before their norm, and the shared features
  LinearSaved<T> kv_b_proj;      ///< latents after their norm
  Saved<T, 3> kv;                ///< keys without the shared features, and values, by head
  Saved<T, 4> k;                 ///< whole keys (batch, num_heads, seq, head_dim + rotary_dim)
  LinearSaved<T> out_proj;       ///< the heads' outputs
  Saved<Accumulator<T>, 3> lse;  ///< (batch, num_heads, seq)

  index_t bytes() const {
    return x.bytes() + q_a_norm.bytes() + q_b_proj.bytes() + q.bytes() + kv_a.bytes() +
           kv_b_proj.bytes() + kv.bytes() + k.bytes() + out_proj.bytes() + lse.bytes();
  }
};

namespace detail {

/// The options of a call with the scale of the layer.
template <class T>
AttentionOptions<Accumulator<T>> with_latent_scale(const LatentAttention<T>& layer,
                                                   AttentionOptions<Accumulator<T>> options) {
  if (!options.scale) options.scale = layer.options().scale;
  return options;
}

/// Backward of LatentAttention::rotate(), in place, for the rotary features of q and the shared
/// keys.
template <class T>
void rotate_back(const LatentAttention<T>& layer, const TensorView4<T>& d_q,
                 const TensorView4<T>& d_k, const AttentionOptions<Accumulator<T>>& options,
                 TensorView2<const index_t> position_ids) {
  if (layer.rotary_table() == nullptr) return;
  const index_t batch = d_q.extent(0), seq = d_q.extent(2);
  Scratch<index_t> ids(options.execution.scratch(), position_ids ? 0 : 2 * seq);
  TensorView2<const index_t> of_q = position_ids, of_k = position_ids;
  if (!position_ids) {
    count_rotary_positions(options, options.first_key, seq, seq, ids.data(), ids.data() + seq);
    of_q = {ids.data(), {batch, seq}, {0, 1}};
    of_k = {ids.data() + seq, {batch, seq}, {0, 1}};
  }
  const RotaryOptions& rotary = *layer.options().rotary;
  const auto turn_back = [&](const TensorView4<T>& d, const RotaryTable<Accumulator<T>>& table,
                             const auto& at) {
    rotary_embedding_backward(d, table.cos, table.sin, at, d, rotary.pairs, options.execution);
  };
  for_rotary_rows(rotary, *layer.rotary_table(), of_q, of_k,
                  [&](index_t begin, index_t end, const RotaryTable<Accumulator<T>>& table,
                      const auto& q_ids, const auto& k_ids) {
                    turn_back(d_q.slice(0, begin, end), table, q_ids);
                    turn_back(d_k.slice(0, begin, end), table, k_ids);
                  });
}

/// Backward of join_keys(): d_kv gets the first features of each head, and d_shared the sum over
/// heads of the rotary features.
template <class T>
void split_key_gradients(const TensorView4<const T>& d_k, const TensorView4<T>& d_kv,
                         const TensorView3<T>& d_shared, const Execution& execution) {
  const index_t heads = d_k.extent(1), seq = d_k.extent(2), rotary_dim = d_shared.extent(2);
  const index_t head_dim = d_k.extent(3) - rotary_dim;
  for_rows(execution.threads(), d_k.extent(0) * seq, heads * d_k.extent(3), [&](index_t row) {
    const index_t b = row / seq, j = row % seq;
    for (index_t h = 0; h < heads; ++h) {
      std::copy_n(d_k.at_index({b, h, j, 0}), head_dim, d_kv.at_index({b, h, j, 0}));
    }
    for (index_t i = 0; i < rotary_dim; ++i) {
      Accumulator<T> sum = 0;
      for (index_t h = 0; h < heads; ++h) sum += d_k(b, h, j, head_dim + i);
      d_shared(b, j, i) = static_cast<T>(sum);
    }
  });
}

}  // namespace detail

/// LatentAttention::forward() that saves activations: x and out (batch, seq, embed_dim). Keys and
/// values are expanded for any number of queries. Refuses caches, and weights and scores as
/// outputs, which have no gradient. Throws ShapeError, DTypeError or ValueError.
template <class T, class... Functors>
void forward(const LatentAttention<T>& layer, Input3<T> x, Output3<T> out,
             LatentAttentionSaved<T>& saved, const AttentionOptions<Accumulator<T>>& given = {},
             const MultiHeadAttentionCall<T>& call = {}, const Functors&... functors) {
  const LatentAttentionOptions& o = layer.options();
  detail::check_latent_call(o, x, out.shape(), given, call);
  if (call.cache != nullptr || !call.row_caches.empty()) {
    throw ValueError(message("LatentAttention", "caches", "be none in training", "some"));
  }
  detail::refuse_without_gradient("LatentAttention", given);
  const Execution& execution = given.execution;
  AttentionOptions<Accumulator<T>> options = detail::with_latent_scale(layer, given);
  const index_t batch = x.extent(0), seq = x.extent(1), rank = o.kv_lora_rank;
  const index_t qk_dim = o.head_dim + o.rotary_dim;
  x = saved.x.keep(x);
  const TensorView3<T> q = saved.q.make({batch, seq, o.num_heads * qk_dim});
  if (o.q_lora_rank > 0) {
    const Shape<3> shape{batch, seq, o.q_lora_rank};
    const TensorView3<T> compressed = saved.q_a_norm.x.make(shape),
                         normed = saved.q_b_proj.x.make(shape);
    linear(x, layer.q_a_proj.weight, layer.q_a_proj.bias.view(), compressed, Activation::none, {},
           execution);
    forward(layer.q_a_norm, compressed, normed, saved.q_a_norm, execution);
    forward(layer.q_b_proj, normed, q, saved.q_b_proj, {}, execution);
  } else {
    linear(x, layer.q_b_proj.weight, layer.q_b_proj.bias.view(), q, Activation::none, {},
           execution);
  }
  const TensorView3<T> kv_a = saved.kv_a.make({batch, seq, rank + o.rotary_dim});
  const TensorView3<T> latents = saved.kv_b_proj.x.make({batch, seq, rank});
  const TensorView3<T> kv = saved.kv.make({batch, seq, o.num_heads * (o.head_dim + o.head_dim_v)});
  linear(x, layer.kv_a_proj.weight, layer.kv_a_proj.bias.view(), kv_a, Activation::none, {},
         execution);
  layer.kv_a_norm.forward(kv_a.slice(2, 0, rank), latents, execution);
  forward(layer.kv_b_proj, latents, kv, saved.kv_b_proj, {}, execution);
  const TensorView3<T> shared = kv_a.slice(2, rank, rank + o.rotary_dim);
  layer.rotate(split_heads(q, o.num_heads), shared.unsqueeze(1), options.first_key, options, call);
  const TensorView4<T> k = saved.k.make({batch, o.num_heads, seq, qk_dim});
  detail::join_keys<T>(kv, shared, k, execution);
  const TensorView4<T> v =
      split_heads(kv, o.num_heads).slice(3, o.head_dim, o.head_dim + o.head_dim_v);
  const TensorView3<T> context = saved.out_proj.x.make({batch, seq, o.num_heads * o.head_dim_v});
  options.lse = saved.lse.make({batch, o.num_heads, seq});
  scaled_dot_product_attention(split_heads(q, o.num_heads), k, v, split_heads(context, o.num_heads),
                               options, functors...);
  forward(layer.out_proj, context, out, saved.out_proj, call.residual, execution);
}

/// Computes d_x (batch, seq, embed_dim) = its gradient + residual, and adds the gradients of the
/// parameters to `gradients`. d_x may be the residual. Pass the options, positions and functors of
/// the forward call.
template <class T, class... Functors>
void backward(const LatentAttention<T>& layer, Input3<T> d_out, LatentAttentionSaved<T>& saved,
              Output3<T> d_x, LatentAttention<Accumulator<T>>& gradients, Input3<T> residual = {},
              const AttentionOptions<Accumulator<T>>& given = {},
              TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  const LatentAttentionOptions& o = layer.options();
  const Execution& execution = given.execution;
  Workspace& workspace = execution.scratch();
  const AttentionOptions<Accumulator<T>> options = detail::with_latent_scale(layer, given);
  const TensorView3<const T> x = saved.x.view();
  const index_t batch = x.extent(0), seq = x.extent(1), rank = o.kv_lora_rank;
  const TensorView3<const T> context = saved.out_proj.x.view();
  Scratch<T> context_memory(workspace, context.size()), q_memory(workspace, saved.q.view().size()),
      k_memory(workspace, saved.k.view().size()), kv_memory(workspace, saved.kv.view().size()),
      kv_a_memory(workspace, saved.kv_a.view().size());
  const TensorView3<T> d_context(context_memory.data(), context.shape()),
      d_q(q_memory.data(), saved.q.view().shape()), d_kv(kv_memory.data(), saved.kv.view().shape()),
      d_kv_a(kv_a_memory.data(), saved.kv_a.view().shape());
  const TensorView4<T> d_k(k_memory.data(), saved.k.view().shape());
  backward(layer.out_proj, d_out, saved.out_proj, d_context, gradients.out_proj, {}, execution);

  const auto heads = [&](const auto& all) { return split_heads(all, o.num_heads); };
  const auto values = [&](const auto& kv) {
    return heads(kv).slice(3, o.head_dim, o.head_dim + o.head_dim_v);
  };
  const TensorView3<const T> q = saved.q.view(), kv = saved.kv.view();
  const TensorView4<T> d_queries = heads(d_q);
  scaled_dot_product_attention_backward(heads(d_context), heads(q), saved.k.view(), values(kv),
                                        heads(context), saved.lse.view(), d_queries, d_k,
                                        values(d_kv), options, {}, functors...);
  const TensorView3<T> d_latents = d_kv_a.slice(2, 0, rank),
                       d_shared = d_kv_a.slice(2, rank, rank + o.rotary_dim);
  detail::split_key_gradients<T>(d_k, heads(d_kv), d_shared, execution);
  detail::rotate_back(layer, layer.rotated(d_queries), d_shared.unsqueeze(1), options,
                      position_ids);

  Scratch<T> latents_memory(workspace, batch * seq * rank);
  const TensorView3<T> d_normed(latents_memory.data(), {batch, seq, rank});
  backward(layer.kv_b_proj, d_kv, saved.kv_b_proj, d_normed, gradients.kv_b_proj, {}, execution);
  const TensorView3<const T> kv_a = saved.kv_a.view();
  detail::backward_of_norm<T, 3>(layer.kv_a_norm, d_normed, kv_a.slice(2, 0, rank), d_latents,
                                 gradients.kv_a_norm, {}, execution);
  linear_backward(d_kv_a, x, layer.kv_a_proj.weight, d_x, gradients.kv_a_proj.weight.view(),
                  gradients.kv_a_proj.bias.view(), residual, execution);
  if (o.q_lora_rank == 0) {
    linear_backward(d_q, x, layer.q_b_proj.weight, d_x, gradients.q_b_proj.weight.view(),
                    gradients.q_b_proj.bias.view(), d_x, execution);
    return;
  }
  Scratch<T> compressed_memory(workspace, batch * seq * o.q_lora_rank);
  const TensorView3<T> d_compressed(compressed_memory.data(), {batch, seq, o.q_lora_rank});
  backward(layer.q_b_proj, d_q, saved.q_b_proj, d_compressed, gradients.q_b_proj, {}, execution);
  backward(layer.q_a_norm, d_compressed, saved.q_a_norm, d_compressed, gradients.q_a_norm, {},
           execution);
  linear_backward(d_compressed, x, layer.q_a_proj.weight, d_x, gradients.q_a_proj.weight.view(),
                  gradients.q_a_proj.bias.view(), d_x, execution);
}

ATTN_NAMESPACE_END
