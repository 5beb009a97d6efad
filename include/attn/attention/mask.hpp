// Mask, and typed masks: keep, drop, additive, causal, windows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/argument_types.hpp"
#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// Defines the keys that each query sees. Masks are made by the functions below and combined with
/// `&`: a key is visible where every part keeps it. Dense parts are views, never copies; the viewed
/// tensors must outlive the call.
class Mask {
 public:
  /// The maximal number of dense parts in one mask.
  static constexpr int kMaxDense = 4;

  struct Dense {
    enum class Kind { keep, drop, add };
    enum class Element { boolean, f32, f64 };
    Kind kind;
    Element element;
    const void* data;
    Shape<4> shape;    ///< (batch, heads, q_len, kv_len), 1 where it broadcasts
    Shape<4> strides;  ///< in elements, 0 where it broadcasts
  };

  Mask() = default;

  /// AND of two masks; additive parts add up. Throws ValueError for more than kMaxDense dense
  /// parts, or if both masks set what a mask holds once: key or query lengths, left padding, prefix
  /// lengths, chunks, documents.
  friend Mask operator&(const Mask& a, const Mask& b) {
    Mask result = a;
    if (a.num_dense + b.num_dense > kMaxDense) {
      throw ValueError(message("Mask", "the number of dense parts",
                               "be at most " + std::to_string(kMaxDense),
                               std::to_string(a.num_dense + b.num_dense)));
    }
    for (int i = 0; i < b.num_dense; ++i) result.add(b.dense[static_cast<std::size_t>(i)]);
    result.causal = a.causal || b.causal;
    result.left = (std::min)(a.left, b.left);
    result.right = (std::min)(a.right, b.right);
    take_once("key lengths", result.key_lengths, b.key_lengths);
    take_once("query lengths", result.query_lengths, b.query_lengths);
    take_once("left padding", result.left_padding, b.left_padding);
    take_once("prefix lengths", result.prefix_lengths, b.prefix_lengths);
    take_once("chunks", result.chunk, b.chunk);
    take_once("documents", result.documents, b.documents);
    return result;
  }

  /// A distance longer than any sequence: the window is open on this side.
  static constexpr index_t kUnbounded = index_t{1} << 61;

  // The functions below write these fields; the kernels read them.
  std::array<Dense, kMaxDense> dense{};
  int num_dense = 0;
  bool causal = false;
  index_t left = kUnbounded, right = kUnbounded;
  TensorView1<const index_t> key_lengths{}, query_lengths{}, left_padding{}, prefix_lengths{};
  index_t chunk = 0;  ///< positions of one chunk; 0: none
  TensorView2<const index_t> documents{};

  void add(const Dense& part) { dense[static_cast<std::size_t>(num_dense++)] = part; }

  /// Whether the mask has parts other than dense ones.
  bool has_intervals() const {
    return causal || left < kUnbounded || right < kUnbounded || key_lengths || query_lengths ||
           left_padding || prefix_lengths || chunk > 0 || documents;
  }

 private:
  template <class X>
  static void take_once(std::string_view what, X& ours, const X& theirs) {
    if (ours && theirs) throw ValueError(message("Mask", what, "be given once", "two of them"));
    if (theirs) ours = theirs;
  }
};

/// A Mask whose additive parts have elements of type T. additive_mask() returns it and `&` keeps
/// the type, so that a call of another type does not compile; a plain Mask is checked at run time.
template <class T>
class AdditiveMask : public Mask {
 public:
  explicit AdditiveMask(const Mask& mask) : Mask(mask) {}

  friend AdditiveMask operator&(const AdditiveMask& a, const Mask& b) {
    return AdditiveMask(static_cast<const Mask&>(a) & b);
  }
  friend AdditiveMask operator&(const Mask& a, const AdditiveMask& b) {
    return AdditiveMask(a & static_cast<const Mask&>(b));
  }
  template <class U>
  friend AdditiveMask operator&(const AdditiveMask& a, const AdditiveMask<U>& b) {
    static_assert(std::same_as<T, U>, "additive_mask: the parts of a mask have one element type");
    return a & static_cast<const Mask&>(b);
  }
};

/// The mask argument of a call with scores of type T, float or double: any mask except one whose
/// additive parts have another element type.
template <class T>
class MaskOf : public Mask {
 public:
  MaskOf() = default;
  MaskOf(const Mask& mask) : Mask(mask) {}
  template <class U>
  MaskOf(const AdditiveMask<U>& mask) : Mask(mask) {
    static_assert(
        std::same_as<T, U>,
        "additive_mask: bias must have the element type of q (float where q has 16 bits)");
  }
  /// Deleted, because a bare tensor has no polarity; exists for its error message.
  template <TensorLike X>
  MaskOf(const X&) {
    static_assert(!std::same_as<X, X>,
                  "a mask says what its elements mean: keep_mask(m) where true keeps a key, "
                  "drop_mask(m) where true masks it out, additive_mask(m)");
  }
};

namespace detail {

template <TensorLike X>
Mask dense_mask(Mask::Dense::Kind kind, const X& x) {
  using T = scalar_t<X>;
  using Element = Mask::Dense::Element;
  constexpr int kRank = rank_v<X>;
  static_assert(kRank <= 4, "a mask has at most the axes (batch, heads, q_len, kv_len)");
  const auto view = const_view(x);
  Mask::Dense part{.kind = kind,
                   .element = std::is_same_v<T, bool>     ? Element::boolean
                              : std::is_same_v<T, double> ? Element::f64
                                                          : Element::f32,
                   .data = view.data(),
                   .shape = {1, 1, 1, 1},
                   .strides = {0, 0, 0, 0}};
  for (std::size_t from = 0; from < std::size_t{kRank}; ++from) {
    const std::size_t to = from + 4 - std::size_t{kRank};
    part.shape[to] = view.shape()[from];
    part.strides[to] = view.shape()[from] == 1 ? 0 : view.strides()[from];
  }
  Mask mask;
  mask.add(part);
  return mask;
}

}  // namespace detail

/// True keeps the key: the polarity of PyTorch's scaled_dot_product_attention. Shape (batch, heads,
/// q_len, kv_len) or fewer axes from the right; extents of 1 broadcast. Pass a mask (batch, q_len,
/// kv_len) as mask.view().unsqueeze(1).
template <TensorLike X>
Mask keep_mask(const X& visible) {
  static_assert(detail::has_elements<X, bool>,
                "keep_mask: visible must have elements of bool, true = visible; additive_mask() "
                "takes what is added to scores");
  return detail::dense_mask(Mask::Dense::Kind::keep, visible);
}
template <TemporaryTensor X>
Mask keep_mask(X&&) = delete;  // the mask would view a temporary tensor

/// True masks the key out: the polarity of PyTorch's modules (key_padding_mask, attn_mask). Shapes:
/// see keep_mask.
template <TensorLike X>
Mask drop_mask(const X& masked) {
  static_assert(detail::has_elements<X, bool>,
                "drop_mask: masked must have elements of bool, true = masked out; additive_mask() "
                "takes what is added to scores");
  return detail::dense_mask(Mask::Dense::Kind::drop, masked);
}
template <TemporaryTensor X>
Mask drop_mask(X&&) = delete;  // the mask would view a temporary tensor

/// Added to the scaled scores; -inf masks the key out. Has the element type of the scores. Shapes:
/// see keep_mask.
template <TensorLike X>
AdditiveMask<scalar_t<X>> additive_mask(const X& bias) {
  static_assert(
      !detail::has_elements<X, bool>,
      "additive_mask: bias is added to scores; of bool, keep_mask() takes true = visible, "
      "drop_mask() true = masked out");
  static_assert(detail::has_real_elements<X> || detail::has_elements<X, bool>,
                "additive_mask: bias must have elements of float or double, those of q (float "
                "where q has 16 bits)");
  return AdditiveMask<scalar_t<X>>(detail::dense_mask(Mask::Dense::Kind::add, bias));
}
template <TemporaryTensor X>
AdditiveMask<scalar_t<X>> additive_mask(X&&) = delete;  // the mask would view a temporary tensor

/// PyTorch's key_padding_mask: shape (batch, kv_len), bool (true masks the key out) or float
/// (added). A mask with one axis must hold the keys of one batch row: pass view.unsqueeze(0), (1,
/// kv_len).
template <TensorLike X>
auto key_padding_mask(const X& padding) {
  // The type of an Eigen column vector has two axes.
  constexpr bool has_axes = rank_v<X> == 2 && !requires { requires X::ColsAtCompileTime == 1; };
  static_assert(has_axes, "key_padding_mask: padding must have 2 axes (batch, kv_len)");
  constexpr bool is_bool = detail::has_elements<X, bool>;
  static_assert(is_bool || detail::has_real_elements<X>,
                "key_padding_mask: padding must have elements of bool, true = masked out, or what "
                "is added to scores, float or double");
  if constexpr (has_axes && is_bool) {
    return drop_mask(const_view(padding).unsqueeze(1).unsqueeze(1));
  } else if constexpr (has_axes && detail::has_real_elements<X>) {
    return additive_mask(const_view(padding).unsqueeze(1).unsqueeze(1));
  } else {
    return Mask{};
  }
}
template <TemporaryTensor X>
Mask key_padding_mask(X&&) = delete;  // the mask would view a temporary tensor

/// Query i sees keys up to its own position i + offset; see AttentionOptions::offset.
inline Mask causal() {
  Mask mask;
  mask.causal = true;
  return mask;
}

/// The query at position p sees keys p - left .. p + right; -1 opens a side. Throws ValueError
/// below -1.
inline Mask sliding_window(index_t left, index_t right) {
  if (left < -1 || right < -1) {
    throw ValueError(message("sliding_window", "left and right", "be at least -1",
                             std::to_string(left) + " and " + std::to_string(right)));
  }
  Mask mask;
  mask.left = left < 0 ? Mask::kUnbounded : (std::min)(left, Mask::kUnbounded);
  mask.right = right < 0 ? Mask::kUnbounded : (std::min)(right, Mask::kUnbounded);
  return mask;
}

ATTN_NAMESPACE_END
