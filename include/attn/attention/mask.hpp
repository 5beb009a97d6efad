// Masks with their meaning in the type: dense ones (keep, drop, additive), and an interval of keys for each query.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/tensor.hpp"

ATTN_NAMESPACE_BEGIN

/// Which keys a query sees. Made by the functions below and combined with `&`: a key is visible where
/// every part shows it. Dense parts are views, never copies; what they view must outlive the call.
class Mask {
 public:
  /// How many dense parts one mask can combine.
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

  /// AND of two masks; additive parts add up. Throws ValueError past kMaxDense dense parts, or where both
  /// give what a mask has once: key or query lengths, left padding, prefix lengths, chunks, documents.
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

  /// A distance that no sequence reaches: the window is open on that side.
  static constexpr index_t kUnbounded = index_t{1} << 61;

  // Read by the kernels, filled in by the functions below.
  std::array<Dense, kMaxDense> dense{};
  int num_dense = 0;
  bool causal = false;
  index_t left = kUnbounded, right = kUnbounded;
  TensorView1<const index_t> key_lengths{}, query_lengths{}, left_padding{}, prefix_lengths{};
  index_t chunk = 0;  ///< positions of one chunk; 0: none
  TensorView2<const index_t> documents{};

  void add(const Dense& part) { dense[static_cast<std::size_t>(num_dense++)] = part; }

  /// Whether anything but dense parts hides keys.
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

namespace detail {

template <TensorLike X>
Mask dense_mask(Mask::Dense::Kind kind, const X& x) {
  using T = scalar_t<X>;
  using Element = Mask::Dense::Element;
  constexpr int kRank = rank_v<X>;
  static_assert(kRank <= 4, "a mask has at most the axes (batch, heads, q_len, kv_len)");
  const auto view = const_view(x);
  Mask::Dense part{kind,
                   std::is_same_v<T, bool>     ? Element::boolean
                   : std::is_same_v<T, double> ? Element::f64
                                               : Element::f32,
                   view.data(),
                   {1, 1, 1, 1},
                   {0, 0, 0, 0}};
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

/// True = visible: the polarity of PyTorch's scaled_dot_product_attention. Shape (batch, heads, q_len,
/// kv_len) or fewer axes from the right; an extent of 1 broadcasts. A mask (batch, q_len, kv_len) is
/// given as mask.view().unsqueeze(1).
template <TensorLike X>
  requires std::same_as<scalar_t<X>, bool>
Mask keep_mask(const X& visible) {
  return detail::dense_mask(Mask::Dense::Kind::keep, visible);
}
template <TemporaryTensor X>
Mask keep_mask(X&&) = delete;  // the mask would view a tensor that is gone

/// True = hidden: the polarity of PyTorch's modules (key_padding_mask, attn_mask). Shapes as keep_mask.
template <TensorLike X>
  requires std::same_as<scalar_t<X>, bool>
Mask drop_mask(const X& hidden) {
  return detail::dense_mask(Mask::Dense::Kind::drop, hidden);
}
template <TemporaryTensor X>
Mask drop_mask(X&&) = delete;  // the mask would view a tensor that is gone

/// Added to the scaled scores; -inf hides. Of the element type of q. Shapes as keep_mask.
template <TensorLike X>
  requires(std::same_as<scalar_t<X>, float> || std::same_as<scalar_t<X>, double>)
Mask additive_mask(const X& bias) {
  return detail::dense_mask(Mask::Dense::Kind::add, bias);
}
template <TemporaryTensor X>
Mask additive_mask(X&&) = delete;  // the mask would view a tensor that is gone

namespace detail {

/// A column vector of Eigen has two axes by type alone.
template <class X>
concept HasAxesBatchAndKvLen =
    TensorLike<X> && rank_v<X> == 2 && !requires { requires X::ColsAtCompileTime == 1; };

}  // namespace detail

/// PyTorch's key_padding_mask: shape (batch, kv_len), bool (true = hidden) or float (added). One axis could only be that of
/// the keys of one batch row, (1, kv_len), and is given as view.unsqueeze(0).
template <detail::HasAxesBatchAndKvLen X>
Mask key_padding_mask(const X& padding) {
  const auto view = const_view(padding).unsqueeze(1).unsqueeze(1);
  if constexpr (std::same_as<scalar_t<X>, bool>) {
    return drop_mask(view);
  } else {
    return additive_mask(view);
  }
}
template <TemporaryTensor X>
Mask key_padding_mask(X&&) = delete;  // the mask would view a tensor that is gone

/// Query i sees keys up to its own position i + offset; AttentionOptions::offset says where queries stand.
inline Mask causal() {
  Mask mask;
  mask.causal = true;
  return mask;
}

/// The query at position p sees keys p - left .. p + right; -1 leaves a side open. Throws ValueError below -1.
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

namespace detail {

template <class X>
concept Indices = TensorLike<X> && std::same_as<scalar_t<X>, index_t>;

/// Also of an Eigen vector, which view_of() takes for a matrix.
template <class X, int Rank>
inline constexpr bool has_rank =
    std::convertible_to<const X&, TensorView<const index_t, Rank>> || rank_v<X> == Rank;

/// Empty where has_rank does not hold: whoever asks has said so.
template <int Rank, class X>
TensorView<const index_t, Rank> index_view(const X& x) {
  if constexpr (std::convertible_to<const X&, TensorView<const index_t, Rank>>) {
    return x;
  } else if constexpr (rank_v<X> == Rank) {
    return const_view(x);
  } else {
    return {};
  }
}

}  // namespace detail

// In what follows kv_len is first_key + the keys given (AttentionOptions::first_key).

/// Batch row b has lengths(b) keys, 0 .. kv_len; what lies beyond is never read. Shape (batch).
template <detail::Indices X>
Mask key_lengths(const X& lengths) {
  static_assert(detail::has_rank<X, 1>, "key_lengths takes lengths, (batch)");
  Mask mask;
  mask.key_lengths = detail::index_view<1>(lengths);
  return mask;
}
template <TemporaryTensor X>
Mask key_lengths(X&&) = delete;  // the mask would view a tensor that is gone

/// Batch row b has lengths(b) queries, 0 .. q_len; those beyond see no key. Shape (batch).
template <detail::Indices X>
Mask query_lengths(const X& lengths) {
  static_assert(detail::has_rank<X, 1>, "query_lengths takes lengths, (batch)");
  Mask mask;
  mask.query_lengths = detail::index_view<1>(lengths);
  return mask;
}
template <TemporaryTensor X>
Mask query_lengths(X&&) = delete;  // the mask would view a tensor that is gone

/// The first padding(b) keys of batch row b are padding, which no query sees and which is never read; 0 .. kv_len.
/// Shape (batch).
template <detail::Indices X>
Mask left_padding(const X& padding) {
  static_assert(detail::has_rank<X, 1>, "left_padding takes numbers of keys, (batch)");
  Mask mask;
  mask.left_padding = detail::index_view<1>(padding);
  return mask;
}
template <TemporaryTensor X>
Mask left_padding(X&&) = delete;  // the mask would view a tensor that is gone

/// Prefix LM: every query sees the first lengths(b) keys, and those up to its own position. Shape (batch).
template <detail::Indices X>
Mask prefix_lm(const X& lengths) {
  static_assert(detail::has_rank<X, 1>, "prefix_lm takes lengths, (batch)");
  Mask mask;
  mask.prefix_lengths = detail::index_view<1>(lengths);
  return mask;
}
template <TemporaryTensor X>
Mask prefix_lm(X&&) = delete;  // the mask would view a tensor that is gone

/// Position p sees the keys of its own chunk, [p / size * size, p / size * size + size); often `& causal()`.
/// Throws ValueError below 1.
inline Mask chunked(index_t size) {
  if (size < 1) {
    throw ValueError(message("chunked", "size", "be at least 1", std::to_string(size)));
  }
  Mask mask;
  mask.chunk = (std::min)(size, Mask::kUnbounded);
  return mask;
}

/// Sequences packed into one: position p sees the keys j with ids(b, j) = ids(b, p). Shape (batch, kv_len) or
/// (1, kv_len), never falling along a row; ids in any order are for a mask_mod.
template <detail::Indices X>
Mask documents(const X& ids) {
  static_assert(detail::has_rank<X, 2>, "documents takes ids, (batch, kv_len)");
  Mask mask;
  mask.documents = detail::index_view<2>(ids);
  return mask;
}
template <TemporaryTensor X>
Mask documents(X&&) = delete;  // the mask would view a tensor that is gone

/// Ids for documents() of sequences packed one behind the other in every batch row: lengths 2 and 3 give
/// 0 0 1 1 1, (1, sum of the lengths), which broadcasts. Throws ValueError for a negative length.
inline Tensor2<index_t> documents_of(std::span<const index_t> lengths) {
  index_t total = 0;
  for (index_t length : lengths) {
    if (length < 0 || __builtin_add_overflow(total, length, &total)) {
      throw ValueError(message("documents_of", "every length",
                               "be at least 0, their sum below 2^63", std::to_string(length)));
    }
  }
  Tensor2<index_t> ids({1, total});
  index_t at = 0, id = 0;
  for (index_t length : lengths) {
    for (index_t i = 0; i < length; ++i) ids(0, at++) = id;
    ++id;
  }
  return ids;
}
inline Tensor2<index_t> documents_of(std::initializer_list<index_t> lengths) {
  return documents_of(std::span(lengths.begin(), lengths.size()));
}
/// The same of lengths (n).
template <detail::Indices X>
Tensor2<index_t> documents_of(const X& lengths) {
  static_assert(detail::has_rank<X, 1>, "documents_of takes lengths, (documents)");
  const Tensor1<index_t> dense(detail::index_view<1>(lengths));
  return documents_of(dense.elements());
}

ATTN_NAMESPACE_END
