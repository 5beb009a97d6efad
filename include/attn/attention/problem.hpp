// AttentionProblem: one call, checked, as the kernels take it.
#pragma once

#include <cmath>

#include "attn/attention/options.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// What a mask functor says of a block of queries and keys.
enum class Visibility { empty, partial, full };

/// A user's functor, applied to keys [first_key, first_key + n) of one query: by pointers, since kernels may lie
/// in a library that was compiled before it. Made by functors.hpp.
template <class T>
struct RowFunctor {
  const void* object = nullptr;
  void (*apply)(const void* object, index_t n, T* row, index_t b, index_t h, index_t i,
                index_t first_key) = nullptr;

  explicit operator bool() const { return apply != nullptr; }
};

template <class T>
struct RowFunctors {
  RowFunctor<T> score = {}, mask = {}, prob = {};
  /// Of the mask, and optional.
  Visibility (*classify)(const void* object, index_t b, index_t h, KeyRange queries,
                         KeyRange keys) = nullptr;
};

template <class T>
struct AttentionProblem {
  TensorView4<const T> q, k, v;
  TensorView4<T> out;
  AttentionOptions<T> options;
  T scale;
  RowFunctors<T> functors = {};

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

// The messages of make_problem(), which keeps the conditions.
[[noreturn]] ATTN_COLD inline void throw_argument(std::string_view argument,
                                                  std::string_view expected,
                                                  std::span<const index_t> found) {
  throw_shape("scaled_dot_product_attention", argument, expected, found);
}
[[noreturn]] ATTN_COLD inline void throw_value(std::string_view argument, std::string_view expected,
                                               double found) {
  throw ValueError(
      message("scaled_dot_product_attention", argument, expected, std::to_string(found)));
}
[[noreturn]] ATTN_COLD inline void throw_mask_element() {
  throw DTypeError(message("scaled_dot_product_attention", "an additive mask",
                           "have the element type of q", "another"));
}
[[noreturn]] ATTN_COLD inline void throw_key_length(index_t b, index_t most, index_t found) {
  throw ValueError(message("scaled_dot_product_attention", "key_lengths(" + std::to_string(b) + ")",
                           "lie in 0 .. " + std::to_string(most), std::to_string(found)));
}

/// Checks a mask against scores of shape (batch, num_heads, q_len, kv_len).
template <class T>
void check_mask(const Mask& mask, const Shape<4>& scores) {
  for (int i = 0; i < mask.num_dense; ++i) {
    const Mask::Dense& part = mask.dense[static_cast<std::size_t>(i)];
    constexpr auto kElement =
        sizeof(T) == 4 ? Mask::Dense::Element::f32 : Mask::Dense::Element::f64;
    if (part.kind == Mask::Dense::Kind::add && part.element != kElement) throw_mask_element();
    for (std::size_t axis = 0; axis < 4; ++axis) {
      if (part.shape[axis] == 1 || part.shape[axis] == scores[axis]) continue;
      throw_argument("mask",
                     "broadcast to (batch, num_heads, q_len, kv_len) = " + to_string(scores),
                     part.shape);
    }
  }
  if (const auto& lengths = mask.key_lengths) {
    check_shape("scaled_dot_product_attention", "key_lengths", "(batch)", Shape<1>{scores[0]},
                lengths.shape());
    for (index_t b = 0; b < scores[0]; ++b) {
      if (lengths(b) < 0 || lengths(b) > scores[3]) throw_key_length(b, scores[3], lengths(b));
    }
  }
}

/// Checks every argument. Throws ShapeError, DTypeError or ValueError.
template <class T>
AttentionProblem<T> make_problem(TensorView4<const T> q, TensorView4<const T> k,
                                 TensorView4<const T> v, TensorView4<T> out,
                                 const AttentionOptions<T>& options) {
  const index_t batch = q.extent(0), heads = q.extent(1), q_len = q.extent(2),
                head_dim = q.extent(3);
  const index_t kv_heads = k.extent(1), kv_len = k.extent(2), head_dim_v = v.extent(3);
  const auto check_view = [](std::string_view argument, const TensorView4<const T>& view) {
    if (view.size() == 0) throw_argument(argument, "have no empty axis", view.shape());
    if (view.extent(3) > 1 && view.stride(3) != 1) {
      throw_argument(argument, "have innermost stride 1 (these are the strides)", view.strides());
    }
  };
  const auto check = [](std::string_view argument, std::string_view axes,
                        std::span<const index_t> expected, std::span<const index_t> found) {
    check_shape("scaled_dot_product_attention", argument, axes, expected, found);
  };
  check_view("q", q);
  check_view("k", k);
  check_view("v", v);
  check_view("out", out);
  check("k", "(batch, num_kv_heads, kv_len, head_dim)", Shape<4>{batch, kv_heads, kv_len, head_dim},
        k.shape());
  check("v", "(batch, num_kv_heads, kv_len, head_dim_v)",
        Shape<4>{batch, kv_heads, kv_len, head_dim_v}, v.shape());
  check("out", "(batch, num_heads, q_len, head_dim_v)", Shape<4>{batch, heads, q_len, head_dim_v},
        out.shape());
  if (heads % kv_heads != 0) {
    throw_argument("num_heads and num_kv_heads", "divide without remainder",
                   Shape<2>{heads, kv_heads});
  }
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
  if (!std::isfinite(static_cast<T>(scale))) throw_value("scale", "be finite", scale);
  const double cap = options.softcap, p = options.dropout.p;
  if (!(cap >= 0) || !std::isfinite(static_cast<T>(cap))) {
    throw_value("softcap", "be finite and at least 0", cap);
  }
  if (!(p >= 0 && p < 1)) throw_value("dropout.p", "lie in [0, 1)", p);
  const Shape<4> scores{batch, heads, q_len, kv_len};
  check_mask<T>(options.mask, scores);
  if (options.alibi_slopes) {
    check("alibi_slopes", "(num_heads)", Shape<1>{heads}, options.alibi_slopes.shape());
  }
  if (options.sinks) {
    check("sinks", "(num_heads)", Shape<1>{heads}, options.sinks.shape());
  }
  if (options.weights) {
    check("weights", "(batch, num_heads, q_len, kv_len)", scores, options.weights.shape());
    check_view("weights", options.weights);
  }
  if (options.lse) {
    check("lse", "(batch, num_heads, q_len)", Shape<3>{batch, heads, q_len}, options.lse.shape());
  }
  return {q, k, v, out, options, static_cast<T>(scale)};
}

}  // namespace detail

ATTN_NAMESPACE_END
