// MultiHeadAttention: projections, attention, output projection: PyTorch's nn.MultiheadAttention.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "attn/attention/cached_attention.hpp"
#include "attn/attention/extend_mask.hpp"
#include "attn/attention/paths/part_products.hpp"
#include "attn/attention/relative_bias.hpp"
#include "attn/layers/attention/attend_tree.hpp"
#include "attn/layers/attention/head_projections.hpp"
#include "attn/layers/attention/head_steps.hpp"
#include "attn/layers/attention/heads.hpp"
#include "attn/layers/attention/multi_head_attention_checks.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
struct MultiHeadAttentionTraining;

}  // namespace detail

/// PyTorch's nn.MultiheadAttention. Calls take AttentionOptions and, after MultiHeadAttentionCall,
/// functors, as scaled_dot_product_attention does; scores are (batch, num_heads, q_len, kv_len +
/// appended_keys()). With a cache, kv_len is its size() and first_key its first_position(), so that
/// masks, lengths, cu_seqlens_k and functors use the same key positions whatever a window forgot.
template <class T>
class MultiHeadAttention {
 public:
  MultiHeadAttention() = default;

  /// Parameters are zero until loaded. Throws ValueError for options that contradict each other.
  explicit MultiHeadAttention(const MultiHeadAttentionOptions& options)
      : options_(detail::resolved_attention(options)), projections_(options_) {
    const MultiHeadAttentionOptions& o = options_;
    if (o.add_bias_kv) {
      bias_k_ = Tensor3<T>({1, 1, projections_.width(1)});
      bias_v_ = Tensor3<T>({1, 1, projections_.width(2)});
    }
    if (o.sinks) sinks_ = Tensor1<T>({o.num_heads});
    if (o.alibi) alibi_slopes_ = alibi_slopes<Accumulator<T>>(o.num_heads);
    if (o.query_key_norm) {
      const auto norm_of = [&](index_t heads) {
        return Norm<T>(*o.query_key_norm,
                       o.query_key_norm_of_all_heads ? heads * o.head_dim : o.head_dim,
                       o.query_key_norm_eps);
      };
      q_norm_ = norm_of(o.num_heads);
      k_norm_ = norm_of(o.num_kv_heads);
    }
    if (o.rotary) {
      rotary_ = std::make_shared<const RotaryTable<Accumulator<T>>>(*o.rotary);
    }
    if (o.output_projection) {
      out_proj_ = Linear<T>(context_width(), o.embed_dim, o.out_proj_bias.value_or(o.bias));
    }
  }

  /// The options with every default filled in.
  const MultiHeadAttentionOptions& options() const { return options_; }

  /// Changes options().window. Throws ValueError below -1.
  void set_window(index_t window) {
    static_cast<void>(sliding_window(window, -1));
    options_.window = window;
  }

  /// Shares the rotary table of `other`. Throws ValueError if head sizes differ.
  void share_rotary(const MultiHeadAttention& other) {
    if (other.options_.head_dim != options_.head_dim) {
      throw ValueError(message("MultiHeadAttention::share_rotary", "other",
                               "have heads of " + std::to_string(options_.head_dim),
                               std::to_string(other.options_.head_dim)));
    }
    if (&other == this) return;
    options_.rotary = other.options_.rotary;
    rotary_ = other.rotary_;
  }

  /// The module of key/value heads [begin, end) and their query heads, with their biases, sinks and
  /// slopes and the same norms. Its weights are zero until loaded or compressed; that of out_proj()
  /// takes these heads' features only. Calls with functors, dropout or requested outputs are
  /// errors. Throws ValueError for heads outside 0 .. num_kv_heads, none, and
  /// query_key_norm_of_all_heads.
  MultiHeadAttention of_heads(index_t begin, index_t end) const {
    if (begin < 0 || end <= begin || end > options_.num_kv_heads) {
      throw ValueError(message("MultiHeadAttention::of_heads", "begin and end",
                               "lie in order in 0 .. " + std::to_string(options_.num_kv_heads),
                               std::to_string(begin) + " and " + std::to_string(end)));
    }
    if (options_.query_key_norm_of_all_heads) {
      throw ValueError(message("MultiHeadAttention::of_heads", "query_key_norm_of_all_heads",
                               "be false", "true"));
    }
    const index_t group = options_.num_heads / options_.num_kv_heads;
    MultiHeadAttention part;
    part.options_ = options_;
    part.options_.num_kv_heads = end - begin;
    part.options_.num_heads = group * (end - begin);
    part.has_all_heads_ = false;
    part.projections_ = projections_.of_heads(part.options_, begin, end);
    part.q_norm_ = q_norm_;
    part.k_norm_ = k_norm_;
    part.rotary_ = rotary_;
    const auto of_queries = [&]<class E>(const Tensor1<E>& x) {
      return x ? Tensor1<E>(x.view().slice(0, group * begin, group * end)) : Tensor1<E>();
    };
    const auto of_keys = [&](const Tensor3<T>& x, index_t width) {
      return x ? Tensor3<T>(x.view().slice(2, begin * width, end * width)) : Tensor3<T>();
    };
    part.sinks_ = of_queries(sinks_);
    part.alibi_slopes_ = of_queries(alibi_slopes_);
    part.bias_k_ = of_keys(bias_k_, options_.head_dim);
    part.bias_v_ = of_keys(bias_v_, options_.head_dim_v);
    if (options_.output_projection) {
      part.out_proj_ = Linear<T>(part.context_width(), options_.embed_dim, false);
      part.out_proj_.bias = out_proj_.bias;
    }
    return part;
  }

  /// Features of the result: embed_dim, or num_heads * head_dim_v without an output projection.
  index_t out_dim() const {
    return options_.output_projection ? options_.embed_dim : context_width();
  }

  /// Number of keys that add_bias_kv and add_zero_attn append.
  index_t appended_keys() const { return detail::appended_keys(options_); }

  /// Returns a cache for this module's keys and values. `window` and `element`: see KvCacheOptions.
  KvCache<T> make_cache(index_t batch, index_t capacity, index_t window = 0,
                        std::optional<DType> element = {}) const {
    return KvCache<T>({.batch = batch,
                       .num_kv_heads = options_.num_kv_heads,
                       .capacity = capacity,
                       .head_dim = options_.head_dim,
                       .head_dim_v = options_.head_dim_v,
                       .window = window,
                       .element = element});
  }

  /// Self-attention: x (batch, seq, embed_dim) to (batch, seq, out_dim()).
  template <TensorLike X, class... Functors>
  Tensor3<T> operator()(const X& x, const AttentionOptions<Accumulator<T>>& options = {},
                        const MultiHeadAttentionCall<T>& call = {},
                        const Functors&... functors) const {
    ATTN_ASSERT_INPUT(X, T, 3, "MultiHeadAttention: x", "(batch, seq, embed_dim)", "the layer");
    const auto from = detail::view_as<const T, 3>(x);
    return (*this)(from, from, from, options, call, functors...);
  }

  /// query (batch, q_len, embed_dim), key (batch, kv_len, kdim), value (batch, kv_len, vdim).
  template <TensorLike Q, TensorLike K, TensorLike V, class... Functors>
  Tensor3<T> operator()(const Q& query, const K& key, const V& value,
                        const AttentionOptions<Accumulator<T>>& options = {},
                        const MultiHeadAttentionCall<T>& call = {},
                        const Functors&... functors) const {
    ATTN_ASSERT_INPUT(Q, T, 3, "MultiHeadAttention: query", "(batch, q_len, embed_dim)",
                      "the layer");
    ATTN_ASSERT_INPUT(K, T, 3, "MultiHeadAttention: key", "(batch, kv_len, kdim)", "the layer");
    ATTN_ASSERT_INPUT(V, T, 3, "MultiHeadAttention: value", "(batch, kv_len, vdim)", "the layer");
    const auto q = detail::view_as<const T, 3>(query);
    auto out = Tensor3<T>::uninitialized({q.extent(0), q.extent(1), out_dim()});
    forward(q, detail::view_as<const T, 3>(key), detail::view_as<const T, 3>(value), out, options,
            call, functors...);
    return out;
  }

  /// Writes to `out` (batch, q_len, out_dim()), which must not overlap any input but may be the
  /// residual. Throws ShapeError, DTypeError or ValueError (rotary with more queries than keys
  /// needs position_ids), and then leaves the cache unchanged, except for keys that its window
  /// forgot.
  template <TensorLike Q, TensorLike K, TensorLike V, TensorLike Out, class... Functors>
  void forward(const Q& query, const K& key, const V& value, Out&& out,
               const AttentionOptions<Accumulator<T>>& options = {},
               const MultiHeadAttentionCall<T>& call = {}, const Functors&... functors) const {
    ATTN_ASSERT_INPUT(Q, T, 3, "MultiHeadAttention: query", "(batch, q_len, embed_dim)",
                      "the layer");
    ATTN_ASSERT_INPUT(K, T, 3, "MultiHeadAttention: key", "(batch, kv_len, kdim)", "the layer");
    ATTN_ASSERT_INPUT(V, T, 3, "MultiHeadAttention: value", "(batch, kv_len, vdim)", "the layer");
    ATTN_ASSERT_OUTPUT(Out, T, 3, "MultiHeadAttention: out", "(batch, q_len, out_dim())",
                       "the layer");
    const TensorView3<const T> none, k = detail::view_as<const T, 3>(key),
                                     v = detail::view_as<const T, 3>(value);
    run(detail::view_as<const T, 3>(query), call.append ? k : none, call.append ? v : none,
        detail::view_as<T, 3>(out), options, call, functors...);
  }

  /// Visits the parameters under PyTorch's names: those of HeadProjections, bias_k, bias_v and
  /// out_proj; q_norm, k_norm and sinks.
  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  /// Packs the projections for the kernels: see Linear::pack(). Packs the input projections for
  /// self-attention, or for attention to another sequence.
  void pack(MatmulPrecision precision = MatmulPrecision::highest, bool self_attention = true) {
    projections_.pack(precision, self_attention);
    if (options_.output_projection) out_proj_.pack(precision);
  }

  // The three input projections (out, in) and their biases, however they are stored.
  TensorView2<T> q_weight() { return projections_.weight(0); }
  TensorView2<T> k_weight() { return projections_.weight(1); }
  TensorView2<T> v_weight() { return projections_.weight(2); }
  TensorView1<T> q_bias() { return projections_.bias(0); }
  TensorView1<T> k_bias() { return projections_.bias(1); }
  TensorView1<T> v_bias() { return projections_.bias(2); }
  Linear<T>& out_proj() { return out_proj_; }
  Norm<T>& q_norm() { return q_norm_; }
  Norm<T>& k_norm() { return k_norm_; }

 private:
  template <class>
  friend struct detail::MultiHeadAttentionTraining;

  index_t context_width() const { return options_.num_heads * options_.head_dim_v; }

  /// The options of a call together with those of the module. `sinks`: memory for sinks_.size()
  /// numbers, which the result refers to.
  AttentionOptions<Accumulator<T>> with_own(AttentionOptions<Accumulator<T>> options,
                                            Accumulator<T>* sinks) const {
    if (!options.scale) options.scale = options_.scale;
    if (options.softcap == 0) options.softcap = options_.softcap;
    if (options_.window >= 0) {
      options.mask =
          options.mask &
          sliding_window(options_.window, options_.symmetric_window ? options_.window : -1);
    }
    if (alibi_slopes_ && !options.alibi_slopes && !options.batch_alibi_slopes) {
      options.alibi_slopes = alibi_slopes_.view();
    }
    if (sinks_ && !options.sinks) {
      const TensorView1<Accumulator<T>> widened(sinks, sinks_.shape());
      convert(sinks_.view(), widened, options.execution);
      options.sinks = TensorView1<const Accumulator<T>>(widened);
    }
    return options;
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    self.projections_.visit_parameters(f);
    f.visit("bias_k", self.bias_k_);
    f.visit("bias_v", self.bias_v_);
    if (self.options_.output_projection) self.out_proj_.visit_parameters(f.under("out_proj."));
    if (self.options_.query_key_norm) {
      self.q_norm_.visit_parameters(f.under("q_norm."));
      self.k_norm_.visit_parameters(f.under("k_norm."));
    }
    f.visit("sinks", self.sinks_);
  }

  template <class... Functors>
  void run(const TensorView3<const T>& query, const TensorView3<const T>& key,
           const TensorView3<const T>& value, const TensorView3<T>& out,
           const AttentionOptions<Accumulator<T>>& given, const MultiHeadAttentionCall<T>& call,
           const Functors&... functors) const {
    detail::check_attention_call(options_, out_dim(), query, key, value, out.shape(), given, call);
    if (!has_all_heads_) {
      detail::check_call_of_some_heads("MultiHeadAttention", given, functors...);
    }
    Workspace& workspace = given.execution.scratch();
    Scratch<Accumulator<T>> sinks(workspace, sinks_.size());
    AttentionOptions<Accumulator<T>> options = with_own(given, sinks.data());
    const MultiHeadAttentionOptions& o = options_;
    const Execution& execution = options.execution;
    const index_t batch = query.extent(0), q_len = query.extent(1), kv_len = key.extent(1);

    Scratch<T> projected(workspace, projections_.elements(batch, q_len, kv_len + appended_keys()));
    const auto made =
        projections_.project(query, key, value, appended_keys(), projected.data(), execution);
    if (o.query_key_norm) {
      const index_t gated = o.query_features() - o.head_dim;
      detail::norm_heads(q_norm_, made.q, gated, execution);
      if (call.append) detail::norm_heads(k_norm_, made.k.slice(1, 0, kv_len), 0, execution);
    }
    if (o.clip_qkv > 0) {
      detail::clip_heads(o.clip_qkv, made.q, execution);
      if (call.append) {
        detail::clip_heads(o.clip_qkv, made.k.slice(1, 0, kv_len), execution);
        detail::clip_heads(o.clip_qkv, made.v.slice(1, 0, kv_len), execution);
      }
    }
    detail::append_learned(made.k, kv_len, bias_k_.view());
    detail::append_learned(made.v, kv_len, bias_v_.view());
    const TensorView4<T> q = detail::queries_of(o, made.q), gates = detail::gates_of(o, made.q);
    TensorView4<T> k, v;
    if (call.append) {
      k = split_heads(made.k, o.num_kv_heads);
      v = split_heads(made.v, o.num_kv_heads);
    }
    // Rotary does not rotate appended keys.
    const TensorView4<T> new_k = call.append ? k.slice(2, 0, kv_len) : k;

    const Shape<4> extended_shape{batch, o.num_heads, q_len, kv_len + appended_keys()};
    Scratch<Accumulator<T>> extended_memory(workspace,
                                            appended_keys() > 0 ? size_of(extended_shape) : 0);
    Scratch<index_t> offsets(workspace, appended_keys() > 0 ? batch : 0);
    if (appended_keys() > 0) {
      const TensorView4<Accumulator<T>> extended(extended_memory.data(), extended_shape);
      extend_mask(options.mask, options.offset, appended_keys(), extended);
      // Appended keys do not change the positions of queries, and neither does dropping the
      // lengths.
      for (index_t b = 0; b < offsets.size(); ++b) {
        offsets.data()[b] = detail::position(options.mask, options.offset,
                                             {.b = b, .q_len = q_len, .kv_len = kv_len}, 0);
      }
      options.offset = query_offsets(TensorView1<const index_t>(offsets.data(), {batch}));
      options.mask = additive_mask(extended);
    }
    // Attention may write to `out` only if nothing is read after it: `out` may be the residual.
    const bool direct = !o.output_projection && !call.residual;
    const Shape<3> context_shape{batch, q_len, context_width()};
    Scratch<T> context_memory(workspace, direct ? 0 : size_of(context_shape));
    const TensorView3<T> context =
        direct ? out : TensorView3<T>(context_memory.data(), context_shape);
    const TensorView4<T> context_heads = split_heads(context, o.num_heads);
    // For batch rows [begin, end), each with its cache.
    const auto attend_cached = [&](index_t begin, index_t end, KvCache<T>& cache,
                                   const AttentionOptions<Accumulator<T>>& of_rows) {
      const auto rows = [&](const auto& x) { return x ? x.slice(0, begin, end) : x; };
      rotate(rows(q), rows(k), cache.length(), of_rows, {.position_ids = rows(call.position_ids)});
      if (call.parents) {
        const auto attend = [&](index_t first, index_t last) {
          scaled_dot_product_attention(q.slice(2, first, last), cache,
                                       context_heads.slice(2, first, last), of_rows);
        };
        detail::attend_tree(cache, call.parents, k, v, of_rows.execution, attend, functors...);
        return;
      }
      if (call.append) cache.append(rows(k), rows(v), of_rows.execution);
      scaled_dot_product_attention(rows(q), cache, rows(context_heads), of_rows, functors...);
    };
    detail::CallGuard guard(call);
    if (!call.row_caches.empty()) {
      const auto row_work = [&](index_t b) {
        const index_t keys = call.row_caches[static_cast<std::size_t>(b)]->size() + kv_len;
        return o.num_heads * q_len * keys * (o.head_dim + o.head_dim_v);
      };
      detail::for_conversations(
          batch, row_work, options, [&](index_t b, const AttentionOptions<Accumulator<T>>& one) {
            attend_cached(b, b + 1, *call.row_caches[static_cast<std::size_t>(b)], one);
          });
    } else if (call.cache != nullptr) {
      attend_cached(0, batch, *call.cache, options);
    } else {
      rotate(q, new_k, options.first_key, options, call);
      scaled_dot_product_attention(q, k, v, context_heads, options, functors...);
    }
    if (gates) detail::gate_heads<T>(gates, context_heads, context_heads, execution);
    if (o.output_projection) {
      out_proj_.forward(context, out, Activation::none, call.residual, execution);
    } else if (call.residual) {
      detail::add_residual(call.residual, context, out);
    }
    guard.commit();
  }

  /// Applies rotary to q, and to k, which may be empty, in place. `before`: number of keys before
  /// k.
  void rotate(const TensorView4<T>& q, const TensorView4<T>& k, index_t before,
              const AttentionOptions<Accumulator<T>>& options,
              const MultiHeadAttentionCall<T>& call) const {
    if (rotary_) detail::rotate_heads(*options_.rotary, *rotary_, q, k, before, options, call);
  }

  MultiHeadAttentionOptions options_;
  HeadProjections<T> projections_;
  Norm<T> q_norm_, k_norm_;
  std::shared_ptr<const RotaryTable<Accumulator<T>>>
      rotary_;  ///< shared by copies and by the layers of a stack
  Tensor3<T> bias_k_, bias_v_;
  Tensor1<T> sinks_;
  Tensor1<Accumulator<T>> alibi_slopes_;
  Linear<T> out_proj_;
  bool has_all_heads_ = true;  ///< false: made by of_heads()
};

ATTN_NAMESPACE_END
