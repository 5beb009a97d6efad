// Checks of MultiHeadAttention's options and calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "attn/attention/call/problem_checks.hpp"
#include "attn/attention/tree_mask.hpp"
#include "attn/layers/attention/head_projections.hpp"
#include "attn/layers/attention/multi_head_attention_call.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Returns the options with every default filled in. Throws ValueError for options that contradict
/// each other.
inline MultiHeadAttentionOptions resolved_attention(MultiHeadAttentionOptions o) {
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
  check(widest <= kMaxWidth / o.num_heads, "head_dim and head_dim_v", "be at most 2^40 / num_heads",
        widest);
  if (o.kdim == 0) o.kdim = o.embed_dim;
  if (o.vdim == 0) o.vdim = o.embed_dim;
  if (!(o.clip_qkv >= 0) || !std::isfinite(o.clip_qkv)) {
    throw ValueError(message("MultiHeadAttention", "clip_qkv", "be finite and not negative",
                             attn::to_string(o.clip_qkv)));
  }
  check(!o.output_gate || (o.clip_qkv == 0 && !o.query_key_norm_of_all_heads), "output_gate",
        "be false with clip_qkv or query_key_norm_of_all_heads", 1);
  check(o.window >= -1, "window", "be at least -1", o.window);
  if (o.rotary) o.rotary = resolved_rotary(*std::move(o.rotary), o.head_dim);
  return o;
}

/// Number of keys that add_bias_kv and add_zero_attn append.
inline index_t appended_keys(const MultiHeadAttentionOptions& o) {
  return index_t{o.add_bias_kv} + index_t{o.add_zero_attn};
}

/// The name of an option that fixes the batch, the number of queries or the number of keys; empty
/// if there is none.
template <class T>
std::string_view option_with_extents(const AttentionOptions<T>& o) {
  const Mask& m = o.mask;
  const std::pair<std::string_view, bool> options[] = {
      {"a dense mask", m.num_dense > 0},
      {"key_lengths", bool{m.key_lengths}},
      {"query_lengths", bool{m.query_lengths}},
      {"left_padding", bool{m.left_padding}},
      {"prefix_lengths", bool{m.prefix_lengths}},
      {"documents", bool{m.documents}},
      {"query_offsets", o.offset.kind == QueryOffset::Kind::per_row},
      {"batch_alibi_slopes", bool{o.batch_alibi_slopes}},
      {"qv", bool{o.qv}},
      {"cu_seqlens_q", bool{o.cu_seqlens_q}},
      {"cu_seqlens_k", bool{o.cu_seqlens_k}},
      {"block_table", bool{o.block_table}},
      {"gather", bool{o.gather}},
      {"scores", bool{o.scores}},
      {"weights", bool{o.weights}},
      {"average_weights", bool{o.average_weights}},
      {"column_sums", bool{o.column_sums}},
      {"max_logits", bool{o.max_logits}},
      {"lse", bool{o.lse}}};
  const auto* found = std::ranges::find(options, true, &std::pair<std::string_view, bool>::second);
  return found == std::end(options) ? "" : found->first;
}

/// Throws ValueError for such an option. `argument`: the options' name in the message.
template <class T>
void refuse_extents(std::string_view function, std::string_view argument,
                    const AttentionOptions<T>& options) {
  const std::string_view found = option_with_extents(options);
  if (found.empty()) return;
  throw ValueError(
      message(function, argument, "hold no tensor with an axis of rows, queries or keys", found));
}

/// Number of keys before those of this call.
template <class T>
index_t keys_before(const AttentionOptions<Accumulator<T>>& options,
                    const MultiHeadAttentionCall<T>& call) {
  return call.cache != nullptr ? call.cache->length() : options.first_key;
}

/// Checks that there are at least as many keys as queries.
template <class T>
void check_key_positions(index_t q_len, index_t kv_len,
                         const AttentionOptions<Accumulator<T>>& options,
                         const MultiHeadAttentionCall<T>& call, std::string_view function) {
  check_first_key(options);
  const auto check = [function](index_t queries, index_t keys) {
    if (queries <= keys) return;
    throw ValueError(message(function, "q_len",
                             "be at most the number of keys, " + std::to_string(keys) +
                                 ", with rotary and no position_ids",
                             std::to_string(queries)));
  };
  const auto &q_starts = options.cu_seqlens_q, &k_starts = options.cu_seqlens_k;
  const index_t keys = keys_before(options, call) + kv_len;
  if (!q_starts || !k_starts) return check(q_len, keys);
  check_starts("cu_seqlens_q", q_starts, q_len);
  check_starts("cu_seqlens_k", k_starts, keys);
  check_shape(function, "cu_seqlens_k", "(batch + 1)", q_starts.shape(), k_starts.shape());
  for (index_t b = 0; b + 1 < q_starts.extent(0); ++b) {
    check(q_starts(b + 1) - q_starts(b), k_starts(b + 1) - k_starts(b));
  }
}

/// Throws ShapeError or ValueError unless a call fits the module's options `o` and the other
/// arguments. `out`: the shape of the result; its last extent is `out_dim`. `function`: the module
/// that messages name.
template <class T>
void check_attention_call(const MultiHeadAttentionOptions& o, index_t out_dim,
                          const TensorView3<const T>& query, const TensorView3<const T>& key,
                          const TensorView3<const T>& value, const Shape<3>& out,
                          const AttentionOptions<Accumulator<T>>& options,
                          const MultiHeadAttentionCall<T>& call,
                          std::string_view function = "MultiHeadAttention") {
  const auto check_value = [function](bool good, std::string_view argument,
                                      std::string_view expected, std::string_view found) {
    if (!good) throw ValueError(message(function, argument, expected, found));
  };
  const auto check = [function](std::string_view argument, const Shape<3>& expected,
                                const Shape<3>& found) {
    check_shape(function, argument, expected, found);
  };
  const index_t appended = appended_keys(o);
  const index_t batch = query.extent(0), q_len = query.extent(1), kv_len = key.extent(1);
  check("query", {batch, q_len, o.embed_dim}, query.shape());
  if (call.append) {
    check("key", {batch, kv_len, o.kdim}, key.shape());
    check("value", {batch, kv_len, o.vdim}, value.shape());
  }
  check("out", {batch, q_len, out_dim}, out);
  if (call.residual) check("residual", out, call.residual.shape());
  check_value(call.cache != nullptr || call.append, "append", "be true without a cache", "false");
  check_value(call.cache == nullptr || appended == 0, "cache",
              "be none with add_bias_kv or add_zero_attn", "one");
  check_value(!options.cu_seqlens_q || appended == 0, "cu_seqlens_q and cu_seqlens_k",
              "be none with add_bias_kv or add_zero_attn", "some");
  check_value(options.first_key == 0 || appended == 0, "first_key",
              "be 0 with add_bias_kv or add_zero_attn", std::to_string(options.first_key));
  if (o.rotary && !call.position_ids && call.row_caches.empty()) {
    check_key_positions(q_len, kv_len, options, call, function);
  }
  check_value(
      !o.rotary || !depends_on_length(o.rotary->scaling.kind) ||
          (!options.cu_seqlens_q && !options.cu_seqlens_k),
      "cu_seqlens_q and cu_seqlens_k",
      "be none with dynamic and longrope scaling, which depend on the length of each sequence",
      "some");
  if (call.position_ids && call.append) {
    check_shape(function, "position_ids", "(batch, q_len) = (batch, kv_len)",
                Shape<2>{batch, kv_len}, call.position_ids.shape());
  }
  const auto check_cache = [&](const KvCache<T>& cache, index_t rows) {
    const KvCacheOptions& c = cache.options();
    check_shape(function, "cache", "(batch, num_kv_heads, head_dim, head_dim_v)",
                Shape<4>{rows, o.num_kv_heads, o.head_dim, o.head_dim_v},
                Shape<4>{c.batch, c.num_kv_heads, c.head_dim, c.head_dim_v});
    check_value(c.window == 0 || options.masked_row == MaskedRow::zero, "cache",
                "have no window with MaskedRow::mean, which needs the masked values, too", "one");
  };
  if (call.cache != nullptr) check_cache(*call.cache, batch);
  if (call.parents) {
    check_value(call.cache != nullptr && call.append && appended == 0, "parents",
                "be none without a cache, without append, with add_bias_kv or add_zero_attn",
                "some");
    check_shape(function, "parents", "(q_len)", Shape<1>{q_len}, call.parents.shape());
    static_cast<void>(tree_depths(function, call.parents));
    check_value(call.cache->options().window == 0, "cache", "have no window with parents", "one");
    check_value(!o.rotary || call.position_ids, "position_ids",
                "be given with parents and rotary: positions by depth", "none");
    AttentionOptions<Accumulator<T>> rest = options;
    rest.batch_alibi_slopes = {};
    refuse_extents(function, "options with parents", rest);
    check_value(options.dropout.p == 0 && options.offset.kind == QueryOffset::Kind::bottom_right,
                "options with parents", "have no dropout and no offset", "one");
    check_value(options.mask.causal || options.mask.right == 0, "options with parents",
                "have a causal mask, because tokens see only their ancestors", "none");
  }
  if (call.row_caches.empty()) return;
  check_value(call.cache == nullptr && call.append && appended == 0, "row_caches",
              "be none with a cache, without append, with add_bias_kv or add_zero_attn", "some");
  check_value(std::ssize(call.row_caches) == batch, "row_caches",
              "be one per batch row, " + std::to_string(batch),
              std::to_string(call.row_caches.size()));
  refuse_extents(function, "options with row_caches", options);
  for (auto cache = call.row_caches.begin(); cache != call.row_caches.end(); ++cache) {
    check_value(*cache != nullptr && std::find(call.row_caches.begin(), cache, *cache) == cache,
                "row_caches", "be a cache of its own for each batch row", "a repeated or null one");
    check_cache(**cache, 1);
    if (o.rotary && !call.position_ids)
      check_key_positions<T>(q_len, kv_len, options, {.cache = *cache}, function);
  }
}

/// Throws ValueError for what depends on the numbers of all heads, in a module of some: functors,
/// dropout and requested outputs.
template <class A, class... Functors>
void check_call_of_some_heads(std::string_view function, const AttentionOptions<A>& options,
                              const Functors&...) {
  const auto check = [function](bool good, std::string_view argument, std::string_view expected,
                                std::string_view found) {
    if (!good) throw ValueError(message(function, argument, expected, found));
  };
  check(sizeof...(Functors) == 0, "functors",
        "be none in a module of some heads, whose numbers they would get", "functors");
  check(options.dropout.p == 0, "dropout.p", "be 0 in a module of some heads",
        to_string(options.dropout.p));
  refuse_requested_outputs(function, "be none in a module of some heads", options);
}

}  // namespace detail

ATTN_NAMESPACE_END
