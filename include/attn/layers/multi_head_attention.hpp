// MultiHeadAttention: projections, attention over heads and the output projection, by PyTorch's names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <list>
#include <memory>

#include "attn/attention/cached_attention.hpp"
#include "attn/attention/extend_mask.hpp"
#include "attn/layers/head_projections.hpp"
#include "attn/layers/heads.hpp"
#include "attn/layers/positions.hpp"

ATTN_NAMESPACE_BEGIN

/// What a call of the module can be told beside AttentionOptions.
template <class T>
struct MultiHeadAttentionCall {
  TensorView3<const T> residual = {};  ///< added to the result, which has its shape
  /// Rotary: where the tokens of query, and of key, stand, (batch, seq). If not given, keys stand
  /// from first_key on, or behind those of the cache, and the last query at the last key, whatever
  /// lengths and offset say; both are counted from the beginning of their packed sequence.
  TensorView2<const index_t> position_ids = {};
  KvCache<T>* cache =
      nullptr;  ///< attention runs over all that it holds, and this call's keys become the last of it
  bool append =
      true;  ///< false: key and value are not read; attention runs over what the cache holds
  /// Instead of `cache`: of each batch row its own, of one row and of any length. Row b is computed
  /// as in a call of its own, batch row 0, but for the projections, which read their weights once
  /// for all rows. Options then hold nothing that has an extent of rows, queries or keys.
  std::span<KvCache<T>* const> row_caches = {};
};

namespace detail {

template <class T>
struct MultiHeadAttentionTraining;

/// CacheGuard of every cache of a call.
template <class T>
class CallGuard {
 public:
  explicit CallGuard(const MultiHeadAttentionCall<T>& call) : of_cache_(call.cache) {
    for (KvCache<T>* cache : call.row_caches) of_rows_.emplace_back(cache);
  }
  /// Of conversations, each of one cache per layer.
  explicit CallGuard(std::span<const std::span<KvCache<T>>> conversations)
      : of_cache_(static_cast<KvCache<T>*>(nullptr)) {
    for (const std::span<KvCache<T>> caches : conversations) of_rows_.emplace_back(caches);
  }
  void commit() {
    of_cache_.commit();
    for (CacheGuard<KvCache<T>>& guard : of_rows_) guard.commit();
  }

 private:
  CacheGuard<KvCache<T>> of_cache_;
  std::list<CacheGuard<KvCache<T>>> of_rows_;  ///< which allocates nothing where there are none
};

}  // namespace detail

/// Attention takes AttentionOptions and, behind the call, functors as scaled_dot_product_attention
/// does, over (batch, num_heads, q_len, kv_len + appended_keys()); with a cache, kv_len is all that
/// it holds, and its first_position() is the first_key: masks, lengths, cu_seqlens_k and functors
/// mean the same keys whatever a window made it forget.
template <class T>
class MultiHeadAttention {
 public:
  MultiHeadAttention() = default;

  /// Parameters are zero until loaded. Throws ValueError for options that contradict each other.
  explicit MultiHeadAttention(const MultiHeadAttentionOptions& options)
      : options_(resolved(options)), projections_(options_) {
    const MultiHeadAttentionOptions& o = options_;
    if (o.add_bias_kv) {
      bias_k_ = Tensor3<T>({1, 1, projections_.width(1)});
      bias_v_ = Tensor3<T>({1, 1, projections_.width(2)});
    }
    if (o.query_key_norm) {
      q_norm_ = Norm<T>(*o.query_key_norm, o.head_dim, o.query_key_norm_eps);
      k_norm_ = q_norm_;
    }
    if (o.rotary) {
      rotary_ = std::make_shared<const RotaryTable<Accumulator<T>>>(*o.rotary);
    }
    if (o.output_projection) {
      out_proj_ = Linear<T>(context_width(), o.embed_dim, o.out_proj_bias.value_or(o.bias));
    }
  }

  /// With every default filled in.
  const MultiHeadAttentionOptions& options() const { return options_; }

  /// Changes options().window. Throws ValueError below -1.
  void set_window(index_t window) {
    static_cast<void>(sliding_window(window, -1));
    options_.window = window;
  }

  /// Turns queries and keys as `other` does, by its table of angles. Throws ValueError where their
  /// heads differ in size.
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

  /// Features of the result: embed_dim, or all heads' values where there is no output projection.
  index_t out_dim() const {
    return options_.output_projection ? options_.embed_dim : context_width();
  }

  /// Keys that add_bias_kv and add_zero_attn append.
  index_t appended_keys() const {
    return index_t{options_.add_bias_kv} + index_t{options_.add_zero_attn};
  }

  /// A cache for this module's keys and values. `window` and `element`: see KvCacheOptions.
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

  /// Into `out` (batch, q_len, out_dim()), which must overlap none of the inputs but may be the
  /// residual. Throws ShapeError, DTypeError or ValueError (rotary with more queries than keys
  /// needs position_ids); the cache then is as it was, but for keys that its window left outside.
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

  /// Parameters by PyTorch's names: those of HeadProjections, bias_k, bias_v and out_proj; q_norm
  /// and k_norm.
  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  /// Lays out the projections for the kernels: see Linear::pack(). The input projections for
  /// self-attention, or for attention to something else.
  void pack(bool self_attention = true) {
    projections_.pack(self_attention);
    if (options_.output_projection) out_proj_.pack();
  }

  // The three input projections (out, in) and their biases, whichever way they are stored.
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

  static MultiHeadAttentionOptions resolved(MultiHeadAttentionOptions o) {
    const auto check = [](bool good, std::string_view argument, const std::string& expected,
                          index_t found) {
      if (!good)
        throw ValueError(message("MultiHeadAttention", argument, expected, std::to_string(found)));
    };
    check(o.embed_dim > 0, "embed_dim", "be positive", o.embed_dim);
    check(o.num_heads > 0, "num_heads", "be positive", o.num_heads);
    check(o.kdim >= 0 && o.vdim >= 0 && o.head_dim >= 0 && o.head_dim_v >= 0,
          "kdim, vdim and head sizes", "not be negative",
          (std::min)({o.kdim, o.vdim, o.head_dim, o.head_dim_v}));
    check(o.head_dim > 0 || o.embed_dim % o.num_heads == 0, "num_heads",
          "divide embed_dim = " + std::to_string(o.embed_dim), o.num_heads);
    if (o.num_kv_heads == 0) o.num_kv_heads = o.num_heads;
    check(o.num_kv_heads > 0 && o.num_heads % o.num_kv_heads == 0, "num_kv_heads",
          "divide num_heads = " + std::to_string(o.num_heads), o.num_kv_heads);
    if (o.head_dim == 0) o.head_dim = o.embed_dim / o.num_heads;
    if (o.head_dim_v == 0) o.head_dim_v = o.head_dim;
    constexpr index_t kMaxWidth = index_t{1} << 40;  // sums of widths do not overflow
    const index_t widest = (std::max)(o.head_dim, o.head_dim_v);
    check(widest <= kMaxWidth / o.num_heads, "head_dim and head_dim_v",
          "be at most 2^40 / num_heads", widest);
    if (o.kdim == 0) o.kdim = o.embed_dim;
    if (o.vdim == 0) o.vdim = o.embed_dim;
    check(o.window >= -1, "window", "be at least -1", o.window);
    if (o.rotary) o.rotary = detail::resolved_rotary(*std::move(o.rotary), o.head_dim);
    return o;
  }

  index_t context_width() const { return options_.num_heads * options_.head_dim_v; }

  /// A call's options with what the module adds to them.
  AttentionOptions<Accumulator<T>> with_own(AttentionOptions<Accumulator<T>> options) const {
    if (!options.scale) options.scale = options_.scale;
    if (options.softcap == 0) options.softcap = options_.softcap;
    if (options_.window >= 0) options.mask = options.mask & sliding_window(options_.window, -1);
    return options;
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    self.projections_.visit_parameters(f);
    if (self.bias_k_) f("bias_k", self.bias_k_.view());
    if (self.bias_v_) f("bias_v", self.bias_v_.view());
    if (self.options_.output_projection) self.out_proj_.visit_parameters(f.under("out_proj."));
    if (self.options_.query_key_norm) {
      self.q_norm_.visit_parameters(f.under("q_norm."));
      self.k_norm_.visit_parameters(f.under("k_norm."));
    }
  }

  static void check(std::string_view argument, const Shape<3>& expected, const Shape<3>& found) {
    check_shape("MultiHeadAttention", argument, expected, found);
  }

  void check_call(const TensorView3<const T>& query, const TensorView3<const T>& key,
                  const TensorView3<const T>& value, const Shape<3>& out,
                  const AttentionOptions<Accumulator<T>>& options,
                  const MultiHeadAttentionCall<T>& call) const {
    const auto check_value = [](bool good, std::string_view argument, std::string_view expected,
                                std::string_view found) {
      if (!good) throw ValueError(message("MultiHeadAttention", argument, expected, found));
    };
    const MultiHeadAttentionOptions& o = options_;
    const index_t batch = query.extent(0), q_len = query.extent(1), kv_len = key.extent(1);
    check("query", {batch, q_len, o.embed_dim}, query.shape());
    if (call.append) {
      check("key", {batch, kv_len, o.kdim}, key.shape());
      check("value", {batch, kv_len, o.vdim}, value.shape());
    }
    check("out", {batch, q_len, out_dim()}, out);
    if (call.residual) check("residual", out, call.residual.shape());
    check_value(call.cache != nullptr || call.append, "append", "be true without a cache", "false");
    check_value(call.cache == nullptr || appended_keys() == 0, "cache",
                "be none with add_bias_kv or add_zero_attn", "one");
    check_value(!options.cu_seqlens_q || appended_keys() == 0, "cu_seqlens_q and cu_seqlens_k",
                "be none with add_bias_kv or add_zero_attn", "some");
    check_value(options.first_key == 0 || appended_keys() == 0, "first_key",
                "be 0 with add_bias_kv or add_zero_attn", std::to_string(options.first_key));
    if (o.rotary && !call.position_ids && call.row_caches.empty()) {
      check_positions(q_len, kv_len, options, call);
    }
    check_value(!o.rotary || o.rotary->scaling.kind != RotaryScalingKind::dynamic ||
                    (!options.cu_seqlens_q && !options.cu_seqlens_k),
                "cu_seqlens_q and cu_seqlens_k",
                "be none with dynamic rotary scaling, by which a sequence's length counts", "some");
    if (call.position_ids && call.append) {
      check_shape("MultiHeadAttention", "position_ids", "(batch, q_len) = (batch, kv_len)",
                  Shape<2>{batch, kv_len}, call.position_ids.shape());
    }
    const auto check_cache = [&](const KvCache<T>& cache, index_t rows) {
      const KvCacheOptions& c = cache.options();
      check_shape("MultiHeadAttention", "cache", "(batch, num_kv_heads, head_dim, head_dim_v)",
                  Shape<4>{rows, o.num_kv_heads, o.head_dim, o.head_dim_v},
                  Shape<4>{c.batch, c.num_kv_heads, c.head_dim, c.head_dim_v});
      check_value(c.window == 0 || options.masked_row == MaskedRow::zero, "cache",
                  "have no window with MaskedRow::mean, which takes hidden values, too", "one");
    };
    if (call.cache != nullptr) check_cache(*call.cache, batch);
    if (call.row_caches.empty()) return;
    check_value(call.cache == nullptr && call.append && appended_keys() == 0, "row_caches",
                "be none with a cache, without append, with add_bias_kv or add_zero_attn", "some");
    check_value(std::ssize(call.row_caches) == batch, "row_caches",
                "number one per batch row, " + std::to_string(batch),
                std::to_string(call.row_caches.size()));
    check_value(!has_extents(options), "options with row_caches",
                "hold nothing that has an extent of rows, queries or keys", "some");
    for (auto cache = call.row_caches.begin(); cache != call.row_caches.end(); ++cache) {
      check_value(*cache != nullptr && std::find(call.row_caches.begin(), cache, *cache) == cache,
                  "row_caches", "be a cache of its own for each batch row", "one twice or none");
      check_cache(**cache, 1);
      if (o.rotary && !call.position_ids)
        check_positions(q_len, kv_len, options, {.cache = *cache});
    }
  }

  /// Whether options mean a certain batch, queries or keys.
  static bool has_extents(const AttentionOptions<Accumulator<T>>& o) {
    const Mask& m = o.mask;
    const bool in_mask = m.num_dense > 0 || m.key_lengths || m.query_lengths || m.left_padding ||
                         m.prefix_lengths || m.documents;
    const bool in_inputs = o.offset.kind == QueryOffset::Kind::per_row || o.batch_alibi_slopes ||
                           o.qv || o.cu_seqlens_q || o.cu_seqlens_k || o.block_table;
    const bool in_outputs =
        o.scores || o.weights || o.average_weights || o.column_sums || o.max_logits || o.lse;
    return in_mask || in_inputs || in_outputs;
  }

  /// Keys before those of this call.
  static index_t held(const AttentionOptions<Accumulator<T>>& options,
                      const MultiHeadAttentionCall<T>& call) {
    return call.cache != nullptr ? call.cache->length() : options.first_key;
  }

  /// That each query has a key to stand at.
  static void check_positions(index_t q_len, index_t kv_len,
                              const AttentionOptions<Accumulator<T>>& options,
                              const MultiHeadAttentionCall<T>& call) {
    detail::check_first_key(options);
    const auto check = [](index_t queries, index_t keys) {
      if (queries <= keys) return;
      throw ValueError(message("MultiHeadAttention", "q_len",
                               "be at most the number of keys, " + std::to_string(keys) +
                                   ", with rotary and no position_ids",
                               std::to_string(queries)));
    };
    const auto &q_starts = options.cu_seqlens_q, &k_starts = options.cu_seqlens_k;
    const index_t keys = held(options, call) + kv_len;
    if (!q_starts || !k_starts) return check(q_len, keys);
    detail::check_starts("cu_seqlens_q", q_starts, q_len);
    detail::check_starts("cu_seqlens_k", k_starts, keys);
    check_shape("MultiHeadAttention", "cu_seqlens_k", "(batch + 1)", q_starts.shape(),
                k_starts.shape());
    for (index_t b = 0; b + 1 < q_starts.extent(0); ++b) {
      check(q_starts(b + 1) - q_starts(b), k_starts(b + 1) - k_starts(b));
    }
  }

  template <class... Functors>
  void run(const TensorView3<const T>& query, const TensorView3<const T>& key,
           const TensorView3<const T>& value, const TensorView3<T>& out,
           const AttentionOptions<Accumulator<T>>& given, const MultiHeadAttentionCall<T>& call,
           const Functors&... functors) const {
    check_call(query, key, value, out.shape(), given, call);
    AttentionOptions<Accumulator<T>> options = with_own(given);
    const MultiHeadAttentionOptions& o = options_;
    const Execution& execution = options.execution;
    const index_t batch = query.extent(0), q_len = query.extent(1), kv_len = key.extent(1);

    Workspace& workspace = execution.scratch();
    Scratch<T> projected(workspace, projections_.elements(batch, q_len, kv_len + appended_keys()));
    const auto made =
        projections_.project(query, key, value, appended_keys(), projected.data(), execution);
    append_learned(made.k, kv_len, bias_k_.view());
    append_learned(made.v, kv_len, bias_v_.view());
    const TensorView4<T> q = split_heads(made.q, o.num_heads);
    TensorView4<T> k, v;
    if (call.append) {
      k = split_heads(made.k, o.num_kv_heads);
      v = split_heads(made.v, o.num_kv_heads);
    }
    // Learned keys, behind the others, are taken as they are.
    const TensorView4<T> new_k = call.append ? k.slice(2, 0, kv_len) : k;
    if (o.query_key_norm) {
      norm_heads(q_norm_, q, execution);
      norm_heads(k_norm_, new_k, execution);
    }

    const Shape<4> extended_shape{batch, o.num_heads, q_len, kv_len + appended_keys()};
    Scratch<Accumulator<T>> extended_memory(workspace,
                                            appended_keys() > 0 ? size_of(extended_shape) : 0);
    Scratch<index_t> offsets(workspace, appended_keys() > 0 ? batch : 0);
    if (appended_keys() > 0) {
      const TensorView4<Accumulator<T>> extended(extended_memory.data(), extended_shape);
      extend_mask(options.mask, options.offset, appended_keys(), extended);
      // The appended keys move no query, nor does losing the lengths.
      for (index_t b = 0; b < offsets.size(); ++b) {
        offsets.data()[b] = detail::position(options.mask, options.offset, {b, q_len, kv_len}, 0);
      }
      options.offset = query_offsets(TensorView1<const index_t>(offsets.data(), {batch}));
      options.mask = additive_mask(extended);
    }
    // Attention may write to `out` only where nothing is read after it: `out` may be the residual.
    const bool direct = !o.output_projection && !call.residual;
    const Shape<3> context_shape{batch, q_len, context_width()};
    Scratch<T> context_memory(workspace, direct ? 0 : size_of(context_shape));
    const TensorView3<T> context =
        direct ? out : TensorView3<T>(context_memory.data(), context_shape);
    const TensorView4<T> context_heads = split_heads(context, o.num_heads);
    // Of batch rows [begin, end), over their cache.
    const auto attend_cached = [&](index_t begin, index_t end, KvCache<T>& cache,
                                   const AttentionOptions<Accumulator<T>>& of_rows) {
      const auto rows = [&](const auto& x) { return x ? x.slice(0, begin, end) : x; };
      rotate(rows(q), rows(k), cache.length(), of_rows, {.position_ids = rows(call.position_ids)});
      if (call.append) cache.append(rows(k), rows(v), of_rows.execution);
      scaled_dot_product_attention(rows(q), cache, rows(context_heads), of_rows, functors...);
    };
    detail::CallGuard guard(call);
    if (!call.row_caches.empty()) {
      const auto row_work = [&](index_t b) {
        const index_t keys = call.row_caches[static_cast<std::size_t>(b)]->size() + kv_len;
        return o.num_heads * q_len * keys * (o.head_dim + o.head_dim_v);
      };
      for_conversations(
          batch, row_work, options, [&](index_t b, const AttentionOptions<Accumulator<T>>& one) {
            attend_cached(b, b + 1, *call.row_caches[static_cast<std::size_t>(b)], one);
          });
    } else if (call.cache != nullptr) {
      attend_cached(0, batch, *call.cache, options);
    } else {
      rotate(q, new_k, options.first_key, options, call);
      scaled_dot_product_attention(q, k, v, context_heads, options, functors...);
    }
    if (o.output_projection) {
      out_proj_.forward(context, out, Activation::none, call.residual, execution);
    } else if (call.residual) {
      add(call.residual, context, out);
    }
    guard.commit();
  }

  /// f(b, options) for every batch row: each row on a thread of its own where there are enough of
  /// them and of work, else one after the other on all threads. Results do not depend on threads.
  template <class Work, class F>
  static void for_conversations(index_t batch, const Work& row_work,
                                const AttentionOptions<Accumulator<T>>& options, const F& f) {
    constexpr index_t kCallWork = index_t{1} << 16;  // what a call costs beside its products
    index_t work = 0;
    for (index_t b = 0; b < batch; ++b) work += row_work(b) + kCallWork;
    const Executor& threads = detail::threads_for(options.execution.threads(), work);
    if (batch < detail::worker_count(threads)) {
      for (index_t b = 0; b < batch; ++b) f(b, options);
      return;
    }
    static const SerialExecutor serial;
    AttentionOptions<Accumulator<T>> of_one = options;
    of_one.execution.executor = &serial;
    of_one.execution.workspace = nullptr;  // that of the thread
    threads.run(batch, [&](index_t b, int) { f(b, of_one); });
  }

  /// Turns q, and k, which may be empty, in place. `before`: keys that stand before k.
  void rotate(const TensorView4<T>& q, const TensorView4<T>& k, index_t before,
              const AttentionOptions<Accumulator<T>>& options,
              const MultiHeadAttentionCall<T>& call) const {
    if (!rotary_) return;
    const index_t batch = q.extent(0), q_len = q.extent(2), kv_len = k.extent(2);
    Scratch<index_t> memory(options.execution.scratch(), call.position_ids ? 0 : q_len + kv_len);
    TensorView2<const index_t> of_q = call.position_ids, of_k = call.position_ids;
    if (!call.position_ids) {
      index_t *q_ids = memory.data(), *k_ids = q_ids + q_len;
      if (options.cu_seqlens_q && options.cu_seqlens_k) {
        detail::count_query_positions(options.cu_seqlens_q, options.cu_seqlens_k, q_ids);
      } else {
        detail::count_positions(before + kv_len - q_len, q_len, {}, q_ids);
      }
      detail::count_positions(before, kv_len, options.cu_seqlens_k, k_ids);
      of_q = {q_ids, {batch, q_len}, {0, 1}};
      of_k = {k_ids, {batch, kv_len}, {0, 1}};
    }
    const RotaryPairs pairs = options_.rotary->pairs;
    const auto turn = [&](index_t begin, index_t end, const RotaryTable<Accumulator<T>>& table,
                          const auto& q_ids, const auto& k_ids) {
      const TensorView4<T> queries = q.slice(0, begin, end);
      rotary_embedding(queries, table.cos, table.sin, q_ids, queries, pairs, options.execution);
      if (k) {
        const TensorView4<T> keys = k.slice(0, begin, end);
        rotary_embedding(keys, table.cos, table.sin, k_ids, keys, pairs, options.execution);
      }
    };
    detail::for_rotary_rows(*options_.rotary, *rotary_, of_q, k ? of_k : of_q, turn);
  }

  /// x (batch, heads, seq, head_dim) in place, head by head: what (batch, seq) rows of one head
  /// have between them is one stride.
  static void norm_heads(const Norm<T>& norm, const TensorView4<T>& x, const Execution& execution) {
    for (index_t h = 0; h < x.extent(1); ++h) {
      const TensorView3<T> head = x.select(1, h);
      norm.forward(head, head, execution);
    }
  }

  /// The learned key or value, then zeros, behind the first kv_len.
  static void append_learned(const TensorView3<T>& to, index_t kv_len,
                             const TensorView3<const T>& learned) {
    for (index_t b = 0; b < to.extent(0); ++b) {
      for (index_t j = kv_len; j < to.extent(1); ++j) {
        const bool is_learned = learned && j == kv_len;
        for (index_t x = 0; x < to.extent(2); ++x)
          to(b, j, x) = is_learned ? learned(0, 0, x) : T{0};
      }
    }
  }

  static void add(const TensorView3<const T>& x, const TensorView3<const T>& y,
                  const TensorView3<T>& out) {
    for (index_t b = 0; b < out.extent(0); ++b) {
      for (index_t i = 0; i < out.extent(1); ++i) {
        for (index_t j = 0; j < out.extent(2); ++j)
          out(b, i, j) = static_cast<T>(x(b, i, j) + y(b, i, j));
      }
    }
  }

  MultiHeadAttentionOptions options_;
  HeadProjections<T> projections_;
  Norm<T> q_norm_, k_norm_;
  std::shared_ptr<const RotaryTable<Accumulator<T>>>
      rotary_;  ///< shared by copies and by the layers of a stack
  Tensor3<T> bias_k_, bias_v_;
  Linear<T> out_proj_;
};

ATTN_NAMESPACE_END
