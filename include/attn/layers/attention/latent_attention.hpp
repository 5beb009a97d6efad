// LatentAttention: keys and values of all heads from one small latent per token, as in DeepSeek.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "attn/layers/attention/attend_tree.hpp"
#include "attn/layers/attention/heads.hpp"
#include "attn/layers/attention/latent_steps.hpp"

ATTN_NAMESPACE_BEGIN

/// Causal or other self-attention, x (batch, seq, embed_dim) to the same shape. Caches hold only a
/// latent c of kv_lora_rank features per token, and rotary_dim rotary features that all heads
/// share; kv_b_proj expands c to the keys and values of every head. Calls of few queries absorb
/// kv_b_proj: head h multiplies its query by its part W of the matrix, q . (W c) = (W^T q) . c, and
/// attends to the latents themselves. Calls of more than max_absorbed_queries() queries expand all
/// keys and values, which takes memory for (head_dim + rotary_dim + head_dim_v) * num_heads numbers
/// per token. Both give the same results within rounding. This choice counts the queries of all
/// packed sequences, so a sequence may have other bits packed than alone. Source: DeepSeek-AI,
/// "DeepSeek-V2" (2024), section 2.1.
template <class T>
class LatentAttention {
 public:
  LatentAttention() = default;

  /// Parameters are zero until loaded. Throws ValueError for options that contradict each other.
  explicit LatentAttention(const LatentAttentionOptions& options)
      : options_(detail::resolved_latent(options)), num_all_heads_(options.num_heads) {
    const LatentAttentionOptions& o = options_;
    const index_t q_width = o.num_heads * (o.head_dim + o.rotary_dim);
    if (o.q_lora_rank > 0) {
      q_a_proj = Linear<T>(o.embed_dim, o.q_lora_rank, o.bias);
      q_a_norm = Norm<T>(NormKind::rms, o.q_lora_rank, o.norm_eps);
    }
    q_b_proj = Linear<T>(o.q_lora_rank > 0 ? o.q_lora_rank : o.embed_dim, q_width, false);
    kv_a_proj = Linear<T>(o.embed_dim, o.kv_lora_rank + o.rotary_dim, o.bias);
    kv_a_norm = Norm<T>(NormKind::rms, o.kv_lora_rank, o.norm_eps);
    kv_b_proj = Linear<T>(o.kv_lora_rank, o.num_heads * (o.head_dim + o.head_dim_v), false);
    out_proj = Linear<T>(o.num_heads * o.head_dim_v, o.embed_dim, o.bias);
    if (o.rotary) rotary_ = std::make_shared<const RotaryTable<Accumulator<T>>>(*o.rotary);
  }

  /// The options with every default filled in.
  const LatentAttentionOptions& options() const { return options_; }
  /// Whether it has parameters.
  explicit operator bool() const { return options_.kv_lora_rank > 0; }

  /// Number of heads of the whole layer: more than options().num_heads if of_heads() made this one.
  index_t num_all_heads() const { return num_all_heads_; }

  /// The layer of heads [begin, end), with the same norms and latents. Its weights are zero until
  /// loaded or compressed, except kv_b_proj; out_proj takes these heads' features only. If it lacks
  /// heads, calls with functors, dropout or requested outputs are errors. Throws ValueError for
  /// heads outside 0 .. num_heads, and none.
  LatentAttention of_heads(index_t begin, index_t end) const {
    if (begin < 0 || end <= begin || end > options_.num_heads) {
      throw ValueError(message("LatentAttention::of_heads", "begin and end",
                               "lie in order in 0 .. " + std::to_string(options_.num_heads),
                               std::to_string(begin) + " and " + std::to_string(end)));
    }
    LatentAttentionOptions o = options_;
    o.num_heads = end - begin;
    o.rotary.reset();
    LatentAttention part(o);
    part.share_rotary(*this);
    part.num_all_heads_ = num_all_heads_;
    part.q_a_proj.bias = q_a_proj.bias;
    part.kv_a_proj.bias = kv_a_proj.bias;
    part.out_proj.bias = out_proj.bias;
    part.q_a_norm = q_a_norm;
    part.kv_a_norm = kv_a_norm;
    const index_t width = o.head_dim + o.head_dim_v;
    part.kv_b_proj.weight =
        Tensor2<T>(kv_b_proj.weight.view().slice(0, begin * width, end * width));
    return part;
  }

  /// Shares the rotary table of `other`. Throws ValueError if their rotary_dim differ.
  void share_rotary(const LatentAttention& other) {
    if (other.options_.rotary_dim != options_.rotary_dim) {
      throw ValueError(message("LatentAttention::share_rotary", "other",
                               "have rotary_dim = " + std::to_string(options_.rotary_dim),
                               std::to_string(other.options_.rotary_dim)));
    }
    options_.rotary = other.options_.rotary;
    rotary_ = other.rotary_;
  }

  /// The largest number of queries for which an absorbed call takes fewer multiplications. Scores
  /// and sums take 2 kv_lora_rank + rotary_dim of them for each query and key if absorbed,
  /// otherwise head_dim + rotary_dim + head_dim_v, and expanding takes kv_lora_rank (head_dim +
  /// head_dim_v) for each key.
  index_t max_absorbed_queries() const {
    const LatentAttentionOptions& o = options_;
    const index_t expanded = o.head_dim + o.head_dim_v, more = 2 * o.kv_lora_rank - expanded;
    if (more <= 0) return (std::numeric_limits<index_t>::max)();
    return (std::max)(o.kv_lora_rank * expanded / more, index_t{1});
  }

  /// A cache of one head, whose keys are the shared rotary features and whose values are the
  /// latents. `window` and `element`: see KvCacheOptions.
  KvCache<T> make_cache(index_t batch, index_t capacity, index_t window = 0,
                        std::optional<DType> element = {}) const {
    return KvCache<T>({.batch = batch,
                       .num_kv_heads = 1,
                       .capacity = capacity,
                       .head_dim = options_.rotary_dim,
                       .head_dim_v = options_.kv_lora_rank,
                       .window = window,
                       .element = element});
  }

  template <TensorLike X, class... Functors>
  Tensor3<T> operator()(const X& x, const AttentionOptions<Accumulator<T>>& options = {},
                        const MultiHeadAttentionCall<T>& call = {},
                        const Functors&... functors) const {
    ATTN_ASSERT_INPUT(X, T, 3, "LatentAttention: x", "(batch, seq, embed_dim)", "the layer");
    const auto from = detail::view_as<const T, 3>(x);
    auto out = Tensor3<T>::uninitialized({from.extent(0), from.extent(1), options_.embed_dim});
    forward(from, out, options, call, functors...);
    return out;
  }

  /// Writes to `out` (batch, seq, embed_dim), which must not overlap x but may be the residual.
  /// Options and functors are those of scaled_dot_product_attention, without qv, gather and pages.
  /// If it throws ShapeError, DTypeError or ValueError, the caches are unchanged, except for keys
  /// that a window has dropped.
  template <TensorLike X, TensorLike Out, class... Functors>
  void forward(const X& x, Out&& out, const AttentionOptions<Accumulator<T>>& options = {},
               const MultiHeadAttentionCall<T>& call = {}, const Functors&... functors) const {
    ATTN_ASSERT_INPUT(X, T, 3, "LatentAttention: x", "(batch, seq, embed_dim)", "the layer");
    ATTN_ASSERT_OUTPUT(Out, T, 3, "LatentAttention: out", "(batch, seq, embed_dim)", "the layer");
    run(detail::view_as<const T, 3>(x), detail::view_as<T, 3>(out), options, call, functors...);
  }

  /// See Linear::pack().
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    for (Linear<T>* layer : {&q_a_proj, &q_b_proj, &kv_a_proj, &kv_b_proj, &out_proj}) {
      layer->pack(precision);
    }
  }

  /// q_a_proj., q_a_norm. and q_b_proj., or q_proj. without q_lora_rank; kv_a_proj., kv_a_norm.,
  /// kv_b_proj., out_proj.
  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  // Without q_lora_rank, q_a_proj and its norm are empty and q_b_proj takes x.
  Linear<T> q_a_proj, q_b_proj;
  Linear<T> kv_a_proj;  ///< rows of the latent, then those of the shared rotary features
  Linear<T> kv_b_proj;  ///< for each head rows of its keys, then of its values
  Linear<T> out_proj;
  Norm<T> q_a_norm, kv_a_norm;

  /// Applies rotary to the last rotary_dim features of q (batch, num_heads, seq, head_dim +
  /// rotary_dim) and to k (batch, 1, seq, rotary_dim), in place, after `before` other keys.
  void rotate(const TensorView4<T>& q, const TensorView4<T>& k, index_t before,
              const AttentionOptions<Accumulator<T>>& options,
              const MultiHeadAttentionCall<T>& call) const {
    if (rotary_) {
      detail::rotate_heads(*options_.rotary, *rotary_, rotated(q), k, before, options, call);
    }
  }
  TensorView4<T> rotated(const TensorView4<T>& q) const {
    return q.slice(3, options_.head_dim, options_.head_dim + options_.rotary_dim);
  }
  /// The table of angles, none without rotary.
  const RotaryTable<Accumulator<T>>* rotary_table() const { return rotary_.get(); }

 private:
  /// The part of kv_b_proj that gives keys, (num_heads, head_dim, kv_lora_rank), or values.
  TensorView3<const T> key_weight() const { return head_weights().slice(1, 0, options_.head_dim); }
  TensorView3<const T> value_weight() const {
    return head_weights().slice(1, options_.head_dim, options_.head_dim + options_.head_dim_v);
  }
  TensorView3<const T> head_weights() const {
    const LatentAttentionOptions& o = options_;
    return {kv_b_proj.weight.data(), {o.num_heads, o.head_dim + o.head_dim_v, o.kv_lora_rank}};
  }
  /// The features [begin, end) of all heads of x (batch, seq, num_heads * features), contiguous, as
  /// (num_heads, batch * seq, end - begin).
  TensorView3<T> by_head(const TensorView3<T>& x, index_t begin, index_t end) const {
    const index_t heads = options_.num_heads, width = x.extent(2) / heads;
    return {x.data() + begin,
            {heads, x.extent(0) * x.extent(1), end - begin},
            {width, heads * width, 1}};
  }

  /// Attention of q to `latents` (batch, keys, kv_lora_rank) and `shared` (batch, keys,
  /// rotary_dim) with all keys and values expanded.
  template <class... Functors>
  void attend_expanded(const TensorView4<const T>& q, const TensorView3<const T>& latents,
                       const TensorView3<const T>& shared, const TensorView4<T>& out,
                       const AttentionOptions<Accumulator<T>>& options,
                       const Functors&... functors) const {
    const LatentAttentionOptions& o = options_;
    const Execution& execution = options.execution;
    const index_t batch = latents.extent(0), keys = latents.extent(1);
    const Shape<3> kv_shape{batch, keys, o.num_heads * (o.head_dim + o.head_dim_v)};
    const Shape<4> k_shape{batch, o.num_heads, keys, o.head_dim + o.rotary_dim};
    Scratch<T> kv_memory(execution.scratch(), size_of(kv_shape));
    Scratch<T> k_memory(execution.scratch(), size_of(k_shape));
    const TensorView3<T> kv(kv_memory.data(), kv_shape);
    const TensorView4<T> k(k_memory.data(), k_shape);
    kv_b_proj.forward(latents, kv, Activation::none, {}, execution);
    detail::join_keys<T>(kv, shared, k, execution);
    const TensorView4<T> v =
        split_heads(kv, o.num_heads).slice(3, o.head_dim, o.head_dim + o.head_dim_v);
    scaled_dot_product_attention(q, k, v, out, options, functors...);
  }

  template <class... Functors>
  void run(const TensorView3<const T>& x, const TensorView3<T>& out,
           const AttentionOptions<Accumulator<T>>& given, const MultiHeadAttentionCall<T>& call,
           const Functors&... functors) const {
    detail::check_latent_call(options_, x, out.shape(), given, call);
    if (options_.num_heads < num_all_heads_) {
      detail::check_call_of_some_heads("LatentAttention", given, functors...);
    }
    const LatentAttentionOptions& o = options_;
    const Execution& execution = given.execution;
    Workspace& workspace = execution.scratch();
    AttentionOptions<Accumulator<T>> options = given;
    if (!options.scale) options.scale = o.scale;
    const index_t batch = x.extent(0), seq = x.extent(1), rows = batch * seq;
    const index_t rank = o.kv_lora_rank, qk_dim = o.head_dim + o.rotary_dim;

    Scratch<T> compressed_memory(workspace, rows * o.q_lora_rank);
    Scratch<T> q_memory(workspace, rows * o.num_heads * qk_dim);
    Scratch<T> kv_memory(workspace, rows * (rank + o.rotary_dim));
    const TensorView3<T> q(q_memory.data(), {batch, seq, o.num_heads * qk_dim});
    const TensorView3<T> kv(kv_memory.data(), {batch, seq, rank + o.rotary_dim});
    TensorView3<const T> q_from = x;
    if (o.q_lora_rank > 0) {
      const TensorView3<T> compressed(compressed_memory.data(), {batch, seq, o.q_lora_rank});
      q_a_proj.forward(x, compressed, Activation::none, {}, execution);
      q_a_norm.forward(compressed, compressed, execution);
      q_from = compressed;
    }
    q_b_proj.forward(q_from, q, Activation::none, {}, execution);
    kv_a_proj.forward(x, kv, Activation::none, {}, execution);
    const TensorView3<T> latents = kv.slice(2, 0, rank), shared = kv.slice(2, rank, kv.extent(2));
    kv_a_norm.forward(latents, latents, execution);
    const TensorView4<T> queries = split_heads(q, o.num_heads), new_keys = shared.unsqueeze(1),
                         new_values = latents.unsqueeze(1);

    Scratch<T> context_memory(workspace, rows * o.num_heads * o.head_dim_v);
    const TensorView3<T> context(context_memory.data(), {batch, seq, o.num_heads * o.head_dim_v});
    const TensorView4<T> heads = split_heads(context, o.num_heads);
    // Each token of a tree takes what it would take alone.
    const bool absorbed = call.parents || seq <= max_absorbed_queries();
    // Queries and results in the space of latents, (num_heads, batch, seq, kv_lora_rank).
    const index_t in_latents = absorbed ? o.num_heads * rows * rank : 0;
    Scratch<T> projected_memory(workspace, in_latents), sums_memory(workspace, in_latents);
    const auto latent_heads = [&]<class E>(E* memory) {
      return TensorView4<E>(memory, {batch, o.num_heads, seq, rank},
                            {seq * rank, rows * rank, rank, 1});
    };
    const TensorView4<T> projected = latent_heads(projected_memory.data()),
                         sums = latent_heads(sums_memory.data());
    const Shape<3> by_heads{o.num_heads, rows, rank};
    if (absorbed) {
      batched_gemm(by_head(q, 0, o.head_dim), key_weight(),
                   TensorView3<T>(projected_memory.data(), by_heads), {}, execution);
    }
    constexpr bool kWidens = !std::same_as<T, Accumulator<T>>;  // options hold accumulators
    Scratch<Accumulator<T>> widened(workspace, kWidens ? in_latents : 0);
    TensorView4<const Accumulator<T>> qv;
    if constexpr (kWidens) {
      const TensorView4<Accumulator<T>> to = latent_heads(widened.data());
      if (absorbed) convert(projected, to, execution);
      qv = to;
    } else {
      qv = projected;
    }
    const auto attend_cached = [&](index_t begin, index_t end, KvCache<T>& cache,
                                   AttentionOptions<Accumulator<T>> of_rows) {
      const auto part = [&](const auto& all) { return all ? all.slice(0, begin, end) : all; };
      const TensorView4<T> own = part(queries);
      rotate(own, part(new_keys), cache.length(), of_rows,
             {.position_ids = part(call.position_ids)});
      if (call.parents) {
        const auto attend = [&](index_t first, index_t last) {
          of_rows.qv = qv.slice(2, first, last);
          detail::attend_some_heads<T>(num_all_heads_, rotated(queries).slice(2, first, last),
                                       cache, sums.slice(2, first, last), of_rows);
        };
        detail::attend_tree(cache, call.parents, new_keys, new_values, of_rows.execution, attend,
                            functors...);
        return;
      }
      cache.append(part(new_keys), part(new_values), of_rows.execution);
      if (absorbed) {
        of_rows.qv = part(qv);
        detail::attend_some_heads<T>(num_all_heads_, rotated(own), cache, part(sums), of_rows,
                                     functors...);
        return;
      }
      const index_t keys = (end - begin) * cache.size();
      Scratch<T> cached(of_rows.execution.scratch(), keys * (rank + o.rotary_dim));
      const TensorView3<T> held(cached.data(), {end - begin, cache.size(), rank}),
          held_keys(cached.data() + keys * rank, {end - begin, cache.size(), o.rotary_dim});
      detail::read_cached(cache, false, held, of_rows.execution);
      detail::read_cached(cache, true, held_keys, of_rows.execution);
      of_rows.first_key = cache.first_position();
      attend_expanded(own, held, held_keys, part(heads), of_rows, functors...);
    };
    detail::CallGuard guard(call);
    if (!call.row_caches.empty()) {
      const auto row_work = [&](index_t b) {
        const index_t keys = call.row_caches[static_cast<std::size_t>(b)]->size() + seq;
        return o.num_heads * seq * keys * (2 * rank + o.rotary_dim);
      };
      detail::for_conversations(
          batch, row_work, options, [&](index_t b, const AttentionOptions<Accumulator<T>>& one) {
            attend_cached(b, b + 1, *call.row_caches[static_cast<std::size_t>(b)], one);
          });
    } else if (call.cache != nullptr) {
      attend_cached(0, batch, *call.cache, options);
    } else {
      rotate(queries, new_keys, options.first_key, options, call);
      if (absorbed) {
        options.qv = qv;
        detail::attend_some_heads<T>(num_all_heads_, rotated(queries), new_keys, new_values, sums,
                                     options, functors...);
      } else {
        attend_expanded(queries, latents, shared, heads, options, functors...);
      }
    }
    if (absorbed) {
      batched_gemm(TensorView3<const T>(sums_memory.data(), by_heads),
                   value_weight().transpose(1, 2), by_head(context, 0, o.head_dim_v), {},
                   execution);
    }
    out_proj.forward(context, out, Activation::none, call.residual, execution);
    guard.commit();
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    if (!self) return;
    const bool compresses = self.options_.q_lora_rank > 0;
    if (compresses) {
      self.q_a_proj.visit_parameters(f.under("q_a_proj."));
      self.q_a_norm.visit_parameters(f.under("q_a_norm."));
    }
    self.q_b_proj.visit_parameters(f.under(compresses ? "q_b_proj." : "q_proj."));
    self.kv_a_proj.visit_parameters(f.under("kv_a_proj."));
    self.kv_a_norm.visit_parameters(f.under("kv_a_norm."));
    // Not visited as the weight of a Linear, which quantize() would compress: calls need its
    // transpose.
    if constexpr (!std::is_const_v<Self>) self.kv_b_proj.touch();
    f.under("kv_b_proj.").visit("weight", self.kv_b_proj.weight);
    self.out_proj.visit_parameters(f.under("out_proj."));
  }

  LatentAttentionOptions options_;
  index_t num_all_heads_ = 1;
  std::shared_ptr<const RotaryTable<Accumulator<T>>> rotary_;  ///< shared by layers of a stack
};

ATTN_NAMESPACE_END
