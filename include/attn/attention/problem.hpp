// AttentionProblem: one call, checked, as the kernels take it.
#pragma once

#include <cmath>

#include "attn/attention/options.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
struct AttentionProblem {
  TensorView4<const T> q, k, v;
  TensorView4<T> out;
  AttentionOptions<T> options;
  T scale;

  index_t batch() const { return q.extent(0); }
  index_t num_heads() const { return q.extent(1); }
  index_t num_kv_heads() const { return k.extent(1); }
  index_t q_len() const { return q.extent(2); }
  index_t kv_len() const { return k.extent(2); }
  index_t head_dim() const { return q.extent(3); }
  index_t head_dim_v() const { return v.extent(3); }

  index_t keys_of(index_t b) const { return detail::keys_of(options.mask, b, kv_len()); }
  index_t position(index_t b, index_t i) const {
    return detail::position(options.mask, options.offset, b, i, q_len(), kv_len());
  }
  KeyRange keys_seen(index_t b, index_t i) const {
    return detail::keys_seen(options.mask, options.offset, b, i, q_len(), kv_len());
  }
};

template <int Rank>
void check_shape(std::string_view argument, std::string_view axes, const Shape<Rank>& expected,
                 const Shape<Rank>& found) {
  if (expected == found) return;
  throw ShapeError(message("scaled_dot_product_attention", argument,
                           "have shape " + std::string(axes) + " = " + to_string(expected),
                           to_string(found)));
}

/// Checks every argument. Throws ShapeError or ValueError.
template <class T>
AttentionProblem<T> make_problem(TensorView4<const T> q, TensorView4<const T> k,
                                 TensorView4<const T> v, TensorView4<T> out,
                                 const AttentionOptions<T>& options) {
  constexpr const char* kName = "scaled_dot_product_attention";
  const index_t batch = q.extent(0), heads = q.extent(1), q_len = q.extent(2),
                head_dim = q.extent(3);
  const index_t kv_heads = k.extent(1), kv_len = k.extent(2), head_dim_v = v.extent(3);
  for (auto [argument, view] :
       {std::pair{"q", q}, {"k", k}, {"v", v}, {"out", TensorView4<const T>(out)}}) {
    if (view.size() == 0) {
      throw ShapeError(message(kName, argument, "have no empty axis", to_string(view.shape())));
    }
    if (view.extent(3) > 1 && view.stride(3) != 1) {
      throw ShapeError(
          message(kName, argument, "have innermost stride 1", to_string(view.strides())));
    }
  }
  check_shape<4>("k", "(batch, num_kv_heads, kv_len, head_dim)",
                 {batch, kv_heads, kv_len, head_dim}, k.shape());
  check_shape<4>("v", "(batch, num_kv_heads, kv_len, head_dim_v)",
                 {batch, kv_heads, kv_len, head_dim_v}, v.shape());
  check_shape<4>("out", "(batch, num_heads, q_len, head_dim_v)", {batch, heads, q_len, head_dim_v},
                 out.shape());
  if (heads % kv_heads != 0) {
    throw ShapeError(message(kName, "num_heads", "be a multiple of num_kv_heads",
                             std::to_string(heads) + " and " + std::to_string(kv_heads)));
  }
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
  if (!std::isfinite(scale))
    throw ValueError(message(kName, "scale", "be finite", std::to_string(scale)));
  const Shape<4> scores{batch, heads, q_len, kv_len};
  for (int i = 0; i < options.mask.num_dense; ++i) {
    const Mask::Dense& part = options.mask.dense[static_cast<std::size_t>(i)];
    for (std::size_t axis = 0; axis < 4; ++axis) {
      if (part.shape[axis] == 1 || part.shape[axis] == scores[axis]) continue;
      throw ShapeError(message(
          kName, "mask", "broadcast to (batch, num_heads, q_len, kv_len) = " + to_string(scores),
          to_string(part.shape)));
    }
  }
  if (const auto& lengths = options.mask.key_lengths) {
    check_shape<1>("key_lengths", "(batch)", {batch}, lengths.shape());
    for (index_t b = 0; b < batch; ++b) {
      if (lengths(b) >= 0 && lengths(b) <= kv_len) continue;
      throw ValueError(message(kName, "key_lengths(" + std::to_string(b) + ")",
                               "lie in 0 .. " + std::to_string(kv_len),
                               std::to_string(lengths(b))));
    }
  }
  if (options.alibi_slopes) {
    check_shape<1>("alibi_slopes", "(num_heads)", {heads}, options.alibi_slopes.shape());
  }
  if (options.sinks) check_shape<1>("sinks", "(num_heads)", {heads}, options.sinks.shape());
  if (options.weights) {
    check_shape<4>("weights", "(batch, num_heads, q_len, kv_len)", scores, options.weights.shape());
    if (kv_len > 1 && options.weights.stride(3) != 1) {
      throw ShapeError(message(kName, "weights", "have innermost stride 1",
                               to_string(options.weights.strides())));
    }
  }
  if (options.lse) {
    check_shape<3>("lse", "(batch, num_heads, q_len)", {batch, heads, q_len}, options.lse.shape());
  }
  return {q, k, v, out, options, static_cast<T>(scale)};
}

}  // namespace detail

ATTN_NAMESPACE_END
