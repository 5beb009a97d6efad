// make_problem(): checks every argument of an attention call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "attn/attention/call/gather_checks.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Throws ValueError ("NAME must EXPECTED") if an optional output other than lse is requested.
template <class T>
void refuse_requested_outputs(std::string_view function, std::string_view expected,
                              const AttentionOptions<T>& options) {
  const std::pair<std::string_view, bool> outputs[] = {
      {"weights", static_cast<bool>(options.weights)},
      {"average_weights", static_cast<bool>(options.average_weights)},
      {"column_sums", static_cast<bool>(options.column_sums)},
      {"scores", static_cast<bool>(options.scores)},
      {"max_logits", static_cast<bool>(options.max_logits)}};
  for (const auto& [name, given] : outputs) {
    if (given) throw ValueError(message(function, name, expected, "one"));
  }
}

/// Checks every argument except its element type. Throws ShapeError, DTypeError or ValueError.
template <class T>
ATTN_ONCE_A_CALL AttentionProblem<T> make_problem(const StoredView<const void>& q,
                                                  const StoredView<const void>& k,
                                                  const StoredView<const void>& v,
                                                  const StoredView<void>& out,
                                                  const AttentionOptions<T>& options) {
  const index_t heads = q.extent(1), head_dim = q.extent(3);
  const index_t kv_heads = k.extent(1), head_dim_v = v.extent(3);
  const auto check_strides = [](std::string_view argument, const auto& view) {
    if (view.extent(3) > 1 && view.stride(3) != 1) {
      throw_argument(argument, "have innermost stride 1 (these are the strides)", view.strides());
    }
  };
  const auto check_view = [&](std::string_view argument, const auto& view) {
    if (size_of(view.shape()) == 0 && view.extent(3) == 0) {  // throws for an axis below 0
      throw_argument(argument, "have a last axis that is not empty", view.shape());
    }
    check_strides(argument, view);
  };
  check_view("q", q);
  check_view("k", k);
  check_view("v", v);
  check_view("out", out);

  const bool packed = static_cast<bool>(options.cu_seqlens_q),
             paged = static_cast<bool>(options.block_table);
  check_first_key(options);
  // (batch, num_heads, q_len, kv_len), and the batch extents of q and k.
  Shape<4> scores{q.extent(0), heads, q.extent(2), k.extent(2)};
  index_t stored_q = q.extent(0), stored_k = q.extent(0);
  if (packed) {
    scores[0] = options.cu_seqlens_q.extent(0) - 1;
    scores[2] = check_starts("cu_seqlens_q", options.cu_seqlens_q, q.extent(2));
    stored_q = stored_k = 1;
  }
  if (paged) {
    const Shape<2> keys = check_pages(k, options);
    check_extents("block_table", "(batch, pages)",
                  Shape<2>{scores[0], options.block_table.extent(1)}, options.block_table.shape());
    scores[3] = keys[1];
    stored_k = k.extent(0);
  } else if (packed != static_cast<bool>(options.cu_seqlens_k)) {
    throw_value("cu_seqlens_q and cu_seqlens_k", "be given together", "one of them");
  } else if (packed) {
    scores[3] = check_starts("cu_seqlens_k", options.cu_seqlens_k, options.first_key + k.extent(2),
                             options.first_key);
    check_extents("cu_seqlens_k", "(batch + 1)", options.cu_seqlens_q.shape(),
                  options.cu_seqlens_k.shape());
  }
  check_extents("q", packed ? "(1, num_heads, total, head_dim)" : "",
                Shape<4>{stored_q, heads, q.extent(2), head_dim}, q.shape());
  check_extents("k",
                paged ? "(num_pages, num_kv_heads, page_size, head_dim)"
                      : "(batch, num_kv_heads, kv_len, head_dim)",
                Shape<4>{stored_k, kv_heads, k.extent(2), head_dim}, k.shape());
  check_extents("v",
                paged ? "(num_pages, num_kv_heads, page_size, head_dim_v)"
                      : "(batch, num_kv_heads, kv_len, head_dim_v)",
                Shape<4>{stored_k, kv_heads, k.extent(2), head_dim_v}, v.shape());
  check_extents("out", "(batch, num_heads, q_len, head_dim_v)",
                Shape<4>{stored_q, heads, q.extent(2), head_dim_v}, out.shape());
  if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0) {
    throw_argument("num_heads and num_kv_heads", "divide without remainder",
                   Shape<2>{heads, kv_heads});
  }

  const index_t score_dim = head_dim + (options.qv ? head_dim_v : 0);
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(score_dim)));
  if (!std::isfinite(static_cast<T>(scale))) {
    throw_value("scale", "be finite", to_string(scale));
  }
  const double cap = options.softcap, p = options.dropout.p;
  if (!(cap == 0 || (cap > 0 && std::isnormal(static_cast<T>(cap))))) {
    throw_value("softcap", "be 0 or a positive normal number", to_string(cap));
  }
  if (!(p >= 0 && p < 1)) throw_value("dropout.p", "lie in [0, 1)", to_string(p));
  if (options.precision.is_int8() && !std::same_as<T, float>) {
    throw_value("precision", "be exact where q is of double", "int8");
  }
  AttentionProblem<T> problem{.q = q,
                              .k = k,
                              .v = v,
                              .out = out,
                              .options = options,
                              .scale = static_cast<T>(scale),
                              .scores = scores,
                              .heads_per_kv_head = heads / (std::max)(kv_heads, index_t{1})};
  check_mask<T>(options.mask, scores, [&](index_t b) { return problem.lengths(b); });
  check_offset(options.offset, scores[0]);
  if (options.alibi_slopes) {
    const auto& slopes = options.alibi_slopes;
    check_extents("alibi_slopes", "(num_heads)", Shape<1>{heads}, slopes.shape());
    if (options.batch_alibi_slopes) {
      throw_value("alibi_slopes and batch_alibi_slopes", "not be given together", "both");
    }
    problem.alibi_slopes = {slopes.data(), {scores[0], heads}, {0, slopes.stride(0)}};
  }
  if (options.batch_alibi_slopes) {
    problem.alibi_slopes = options.batch_alibi_slopes;
    check_extents("batch_alibi_slopes", "(batch, num_heads)", Shape<2>{scores[0], heads},
                  problem.alibi_slopes.shape());
  }
  if (options.qv) {
    check_extents("qv", "(batch, num_heads, q_len, head_dim_v)",
                  Shape<4>{stored_q, heads, q.extent(2), head_dim_v}, options.qv.shape());
    check_strides("qv", options.qv);
  }
  if (const auto& bias = options.relative_bias) {
    check_extents("relative_bias", "(num_heads, 2 n + 1)", Shape<2>{heads, bias.extent(1) | 1},
                  bias.shape());
    if (bias.stride(1) != 1) {
      throw_argument("relative_bias", "have innermost stride 1 (these are the strides)",
                     bias.strides());
    }
  }
  if (options.sinks) {
    check_extents("sinks", "(num_heads)", Shape<1>{heads}, options.sinks.shape());
  }

  const Shape<3> rows{stored_q, heads, q.extent(2)};
  const auto check_matrix = [&](std::string_view argument, index_t num,
                                const TensorView4<T>& view) {
    if (!view) return;
    check_extents(argument, "(batch, num_heads, q_len, kv_len)",
                  Shape<4>{scores[0], num, scores[2], scores[3]}, view.shape());
    check_strides(argument, view);
  };
  check_matrix("scores", heads, options.scores);
  check_matrix("weights", check_chosen(options.weight_heads, heads), options.weights);
  if (options.average_weights) {
    check_extents("average_weights", "(batch, q_len, kv_len)",
                  Shape<3>{scores[0], scores[2], scores[3]}, options.average_weights.shape());
  }
  if (options.column_sums) {
    check_extents("column_sums", "(batch, num_heads, kv_len)",
                  Shape<3>{scores[0], heads, scores[3]}, options.column_sums.shape());
  }
  if (options.max_logits) {
    check_extents("max_logits", "(batch, num_heads)", Shape<2>{scores[0], heads},
                  options.max_logits.shape());
  }
  if (options.lse) check_extents("lse", "(batch, num_heads, q_len)", rows, options.lse.shape());
  // Tests an extent, because lists of length 0 have no data.
  if (options.gather.extent(2) > 0) {
    problem.gathered = checked_gather(options, scores, kv_heads);
    problem.scores = {scores[0] * kv_heads * options.gather.extent(2), problem.heads_per_kv_head,
                      (std::min)(options.gather_block, scores[2]), options.gather.extent(3)};
  }
  return problem;
}

}  // namespace detail

ATTN_NAMESPACE_END
