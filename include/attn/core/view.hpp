// TensorView: a non-owning strided view, the argument type of every function.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <span>
#include <type_traits>
#include <utility>

#include "attn/core/element.hpp"
#include "attn/core/strides.hpp"

ATTN_NAMESPACE_BEGIN

/// An Eigen matrix, map or block with direct access. Recognised by its members, so that this header
/// needs no Eigen.
template <class M>
concept MatrixLike = requires(M& m) {
  { m.data() } -> std::convertible_to<const void*>;
  { m.rowStride() } -> std::convertible_to<index_t>;
  { m.colStride() } -> std::convertible_to<index_t>;
  { m.rows() } -> std::convertible_to<index_t>;
  { m.cols() } -> std::convertible_to<index_t>;
};

/// A std::vector of elements, which is a tensor of one axis. Recognised by its members, which
/// strings have, too. A vector of tensors is not one: concatenate() takes it as a list.
template <class V>
concept VectorLike = requires(V& v) {
  { v.data() } -> std::convertible_to<const void*>;
  { v.size() } -> std::convertible_to<std::size_t>;
  v.capacity();
  v.get_allocator();
} && TensorElement<typename std::remove_cvref_t<V>::value_type> && !requires(V& v) { v.c_str(); };

/// Owns its elements, like Tensor, std::vector and Eigen's matrices (the PlainObject of an Eigen
/// map is another type).
template <class X>
concept OwnsElements = VectorLike<X> || requires(X& x) {
  x.view();
} || std::same_as<std::remove_cvref_t<X>, typename std::remove_cvref_t<X>::PlainObject>;

/// The type that X&& deduces from an owner that is destroyed at the end of the statement.
template <class X>
concept TemporaryOwner = !std::is_lvalue_reference_v<X> && OwnsElements<X>;

namespace detail {

[[noreturn]] ATTN_COLD inline void throw_index(index_t extent, index_t found) {
  throw ShapeError(message("TensorView::select", "the index",
                           join({"lie within extent ", to_string(extent)}), to_string(found)));
}

}  // namespace detail

/// A view of `Rank` axes over elements of T (const T: read-only) owned elsewhere. Strides are in
/// elements; 0 repeats an axis. Attention reads axes as (batch, heads, seq, dim). Members that take
/// an axis count negative ones from the last, -1, and throw ValueError for an axis out of range.
template <class T, int Rank>
class TensorView {
  static_assert(Rank >= 1);

 public:
  using element_type = T;
  using value_type = std::remove_const_t<T>;
  static constexpr int rank = Rank;

  /// No data; means "not given" where an argument is optional.
  constexpr TensorView() = default;

  /// Contiguous, last axis fastest.
  constexpr TensorView(T* data, const Shape<Rank>& shape)
      : data_(data), shape_(shape), strides_(contiguous_strides(shape)) {}

  constexpr TensorView(T* data, const Shape<Rank>& shape, const Shape<Rank>& strides)
      : data_(data), shape_(shape), strides_(strides) {}

  /// Contiguous, over a span. Throws ShapeError unless the sizes agree.
  TensorView(std::span<T> elements, const Shape<Rank>& shape) : TensorView(elements.data(), shape) {
    if (size_of(shape) != static_cast<index_t>(elements.size())) {
      throw ShapeError(message(
          "TensorView", "the span",
          "have " + std::to_string(size_of(shape)) + " elements for shape " + to_string(shape),
          std::to_string(elements.size())));
    }
  }

  /// Over an Eigen matrix or map (rows, cols), of either storage order, without a copy.
  template <MatrixLike M>
    requires(Rank == 2 && std::convertible_to<decltype(std::declval<M&>().data()), T*> &&
             !TemporaryOwner<M>)
  TensorView(M&& m)  // NOLINT(bugprone-forwarding-reference-overload): MatrixLike excludes views
      : data_(m.data()), shape_{m.rows(), m.cols()}, strides_{m.rowStride(), m.colStride()} {}

  /// Over an Eigen vector, row or column, without a copy: a bias, slopes, lengths.
  template <MatrixLike M>
    requires(Rank == 1 && bool{std::remove_cvref_t<M>::IsVectorAtCompileTime} &&
             std::convertible_to<decltype(std::declval<M&>().data()), T*> && !TemporaryOwner<M>)
  TensorView(M&& m)  // NOLINT(bugprone-forwarding-reference-overload): MatrixLike excludes views
      : data_(m.data()), shape_{m.size()}, strides_{m.innerStride()} {}

  // Over a temporary one, for the duration of a call: clang warns if a view outlives it.
  template <MatrixLike M>
    requires(TemporaryOwner<M> && std::constructible_from<TensorView, M&>)
  TensorView(M&& m  // NOLINT(bugprone-forwarding-reference-overload): MatrixLike excludes views
                 ATTN_LIFETIMEBOUND)
      : TensorView(m) {}

  /// Over a std::vector, without a copy.
  template <VectorLike V>
    requires(Rank == 1 && std::convertible_to<decltype(std::declval<V&>().data()), T*>)
  TensorView(V&& v  // NOLINT(bugprone-forwarding-reference-overload): VectorLike excludes views
                 ATTN_LIFETIMEBOUND)
      : TensorView(v.data(), {static_cast<index_t>(v.size())}) {}

  /// A writable view converts to a read-only one.
  constexpr operator TensorView<const T, Rank>() const
    requires(!std::is_const_v<T>)
  {
    return {data_, shape_, strides_};
  }

  constexpr T* data() const { return data_; }
  constexpr explicit operator bool() const { return data_ != nullptr; }
  constexpr const Shape<Rank>& shape() const { return shape_; }
  constexpr const Shape<Rank>& strides() const { return strides_; }
  constexpr index_t extent(int axis) const { return shape_[at("TensorView::extent", axis)]; }
  constexpr index_t stride(int axis) const { return strides_[at("TensorView::stride", axis)]; }
  index_t size() const { return size_of(shape_); }

  /// The element at an index. Throws ShapeError for an index out of bounds if ATTN_CHECK_INDEX is
  /// on, which is the default without optimization; otherwise no bounds check.
  template <class... I>
  constexpr T& operator()(I... i) const {
    static_assert(sizeof...(I) == Rank, "x(i, j, ..): as many indices as x has axes");
    static_assert((std::convertible_to<I, index_t> && ...), "x(i, j, ..): indices are integers");
    Shape<Rank> index{};
    if constexpr (sizeof...(I) == Rank) index = {static_cast<index_t>(i)...};
#if ATTN_CHECK_INDEX
    for (std::size_t a = 0; a < index.size(); ++a) {
      if (index[a] < 0 || index[a] >= shape_[a]) detail::throw_position(shape_, index);
    }
#endif
    return *at_index(index);
  }

  /// Address of the element at `index`; no bounds check.
  constexpr T* at_index(const Shape<Rank>& index) const {
    // Not a loop, which compilers would keep, through memory, for every row of a call.
    return [&]<std::size_t... a>(std::index_sequence<a...>) {
      return data_ + (index_t{0} + ... + (index[a] * strides_[a]));
    }(std::make_index_sequence<std::size_t{Rank}>());
  }

  /// True if the elements are contiguous, last axis fastest.
  constexpr bool is_contiguous() const {
    index_t expected = 1;
    for (std::size_t a = shape_.size(); a-- > 0;) {
      if (shape_[a] > 1 && strides_[a] != expected) return false;
      expected *= shape_[a];
    }
    return true;
  }

  /// Exchanges two axes.
  constexpr TensorView transpose(int a, int b) const {
    TensorView result = *this;
    const std::size_t i = at("TensorView::transpose", a), j = at("TensorView::transpose", b);
    std::swap(result.shape_[i], result.shape_[j]);
    std::swap(result.strides_[i], result.strides_[j]);
    return result;
  }

  /// Keeps [begin, end) of an axis. Throws ShapeError outside the extent.
  TensorView slice(int axis, index_t begin, index_t end) const {
    const std::size_t along = at("TensorView::slice", axis);
    if (begin < 0 || end < begin || end > shape_[along]) {
      throw ShapeError(message("TensorView::slice", "the range",
                               "lie within extent " + std::to_string(shape_[along]),
                               "[" + std::to_string(begin) + ", " + std::to_string(end) + ")"));
    }
    TensorView result = *this;
    if (begin < end) result.data_ = moved(begin * strides_[along]);
    result.shape_[along] = end - begin;
    return result;
  }

  /// Fixes one axis: rank falls by one. Throws ShapeError outside the extent.
  TensorView<T, Rank - 1> select(int axis, index_t i) const
    requires(Rank > 1)
  {
    const std::size_t along = at("TensorView::select", axis);
    if (i < 0 || i >= shape_[along]) detail::throw_index(shape_[along], i);
    Shape<Rank - 1> shape{}, strides{};
    for (std::size_t a = 0, to = 0; a < std::size_t{Rank}; ++a) {
      if (a == along) continue;
      shape[to] = shape_[a];
      strides[to++] = strides_[a];
    }
    return {moved(i * strides_[along]), shape, strides};
  }

  /// Inserts an axis of extent 1, which broadcasts: `axis` is its index in the result.
  constexpr TensorView<T, Rank + 1> unsqueeze(int axis) const {
    const int inserted = detail::axis_of("TensorView::unsqueeze", Rank + 1, axis);
    Shape<Rank + 1> shape{}, strides{};
    shape[static_cast<std::size_t>(inserted)] = 1;
    for (int a = 0; a < Rank; ++a) {
      const auto from = static_cast<std::size_t>(a), to = from + (a >= inserted);
      shape[to] = shape_[from];
      strides[to] = strides_[from];
    }
    return {data_, shape, strides};
  }

  /// Splits one axis in two: (.., n, ..) to (.., outer, n / outer, ..). Throws ShapeError unless
  /// `outer` divides the extent.
  TensorView<T, Rank + 1> split(int axis, index_t outer) const {
    const std::size_t along = at("TensorView::split", axis);
    if (outer <= 0 || shape_[along] % outer != 0) {
      throw ShapeError(message("TensorView::split", "the extent " + std::to_string(shape_[along]),
                               "be divisible by the parts", std::to_string(outer)));
    }
    const index_t inner = shape_[along] / outer;
    TensorView<T, Rank + 1> whole = unsqueeze(static_cast<int>(along));
    Shape<Rank + 1> shape = whole.shape(), strides = whole.strides();
    shape[along] = outer;
    strides[along] = strides_[along] * inner;
    shape[along + 1] = inner;
    return {data_, shape, strides};
  }

  /// Joins an axis with the next one, the inverse of split(): (.., a, b, ..) to (.., a * b, ..).
  /// Throws ShapeError if their strides do not allow it without a copy.
  TensorView<T, Rank - 1> merge(int axis) const
    requires(Rank > 1)
  {
    const std::size_t along = at("TensorView::merge", axis);
    if (along + 1 == std::size_t{Rank})
      detail::throw_axis("TensorView::merge", -Rank, Rank - 2, axis);
    const index_t outer = shape_[along], inner = shape_[along + 1];
    if (outer > 1 && inner > 1 && strides_[along] != strides_[along + 1] * inner) {
      detail::throw_axes("TensorView::merge", "lie one stride apart to be joined", shape_,
                         strides_);
    }
    Shape<Rank - 1> shape{}, strides{};
    for (std::size_t a = 0; a + 1 < std::size_t{Rank}; ++a) {
      shape[a] = shape_[a < along ? a : a + 1];
      strides[a] = strides_[a < along ? a : a + 1];
    }
    shape[along] = outer * inner;
    if (inner == 1) strides[along] = strides_[along];
    return {data_, shape, strides};
  }

  /// Views the same elements in the same order by other axes; one extent may be -1 and is computed
  /// from the others. Throws ShapeError for another number of elements, and if it would need a
  /// copy; it never makes one.
  template <std::size_t N>
  TensorView<T, int{N}> reshape(std::array<index_t, N> shape) const {
    detail::complete_shape("TensorView::reshape", shape_, shape);
    std::array<index_t, N> strides{};
    detail::reshape_strides(shape_, strides_, shape, strides);
    return {data_, shape, strides};
  }
  /// `reshape({2, -1, 64})`
  template <std::size_t N>
  TensorView<T, int{N}> reshape(const index_t (&shape)[N]) const {
    return reshape(std::to_array(shape));
  }

  /// Axis i of the result is axis axes[i]: `permute({0, 2, 1, 3})`. Throws ShapeError unless each
  /// occurs once.
  template <std::size_t N>
  TensorView permute(const int (&axes)[N]) const {
    static_assert(N == Rank, "permute: as many axes as the tensor has");
    Shape<Rank> from{};
    for (std::size_t a = 0; a < N; ++a) {
      const int axis = axes[a];
      from[a] = axis < 0 && axis >= -Rank ? axis + Rank : axis;  // out of range: refused below
    }
    detail::check_permutation(from);
    TensorView result = *this;
    for (std::size_t a = 0; a < N; ++a) {
      result.shape_[a] = shape_[static_cast<std::size_t>(from[a])];
      result.strides_[a] = strides_[static_cast<std::size_t>(from[a])];
    }
    return result;
  }

  /// Broadcasts axes of extent 1, and the whole along new leading axes, by strides of 0; -1 keeps
  /// an axis: `expand({8, -1, -1})`. Throws ShapeError for a shape that it does not broadcast to.
  template <std::size_t N>
  TensorView<T, int{N}> expand(std::array<index_t, N> shape) const {
    static_assert(N >= std::size_t{Rank}, "expand: no fewer axes than the tensor has");
    for (std::size_t a = 0; a < shape_.size(); ++a) {
      index_t& extent = shape[N - std::size_t{Rank} + a];
      if (extent == -1) extent = shape_[a];
    }
    std::array<index_t, N> strides{};
    detail::expand_strides("TensorView::expand", "the tensor", shape_, strides_, shape, strides);
    return {data_, shape, strides};
  }
  template <std::size_t N>
  TensorView<T, int{N}> expand(const index_t (&shape)[N]) const {
    return expand(std::to_array(shape));
  }

  /// Whether the leading axes lie one stride apart, which rows() requires.
  constexpr bool has_rows() const {
    bool first = true, joined = true, empty = false;
    index_t next = 0;
    for (std::size_t a = shape_.size() - 1; a-- > 0;) {
      empty = empty || shape_[a] == 0;
      if (shape_[a] == 1) continue;
      joined = joined && (first || strides_[a] == next);
      next = strides_[a] * shape_[a];
      first = false;
    }
    return joined || empty;
  }

  /// Joins all leading axes into one: (.., dim) to (rows, dim). Throws ShapeError if their strides
  /// do not allow it without a copy.
  TensorView<T, 2> rows() const {
    if (!has_rows()) {
      throw ShapeError(message("TensorView::rows", "the leading axes",
                               "lie one stride apart to be joined",
                               "strides " + to_string(strides_) + " of " + to_string(shape_)));
    }
    index_t count = 1, step = 0;
    for (std::size_t a = 0; a + 1 < shape_.size(); ++a) {
      if (shape_[a] != 1) step = strides_[a];
      count *= shape_[a];
    }
    return {data_, {count, extent(Rank - 1)}, {step, stride(Rank - 1)}};
  }

  /// The (seq, dim) matrix of one batch entry and head, as a row-major Eigen::Map with an outer
  /// stride. Needs attn/core/eigen.hpp and a unit innermost stride.
  auto matrix(index_t b, index_t h) const
    requires(Rank == 4)
  {
    return eigen_map(select(0, b).select(0, h));
  }

 private:
  static constexpr std::size_t at(std::string_view function, int axis) {
    return static_cast<std::size_t>(detail::axis_of(function, Rank, axis));
  }
  /// Views without elements may have no memory.
  constexpr T* moved(index_t offset) const { return data_ == nullptr ? nullptr : data_ + offset; }

  T* data_ = nullptr;
  Shape<Rank> shape_{};
  Shape<Rank> strides_{};
};

template <class T>
using TensorView1 = TensorView<T, 1>;
template <class T>
using TensorView2 = TensorView<T, 2>;
template <class T>
using TensorView3 = TensorView<T, 3>;
/// (batch, heads, seq, dim)
template <class T>
using TensorView4 = TensorView<T, 4>;

/// Anything with elements that a view can be made of: a tensor, an Eigen matrix or a std::vector.
template <class X>
concept Viewable = MatrixLike<X> || VectorLike<X> || requires(X& x) { x.view(); };

/// An Eigen expression, whose elements are computed when it is evaluated.
template <class X>
concept EigenExpression = !MatrixLike<X> && requires(X& x) {
  typename std::remove_cvref_t<X>::Scalar;
  x.rows();
  x.cols();
  x.eval();
};

// The arguments that functions accept: a view, an owning tensor, an Eigen matrix or a std::vector;
// view_of() is the only conversion.
template <class T, int Rank>
constexpr TensorView<T, Rank> view_of(const TensorView<T, Rank>& v) {
  return v;
}

template <Viewable X>
constexpr auto view_of(X&& x) {
  if constexpr (MatrixLike<X> || VectorLike<X>) {
    constexpr int kRank = MatrixLike<X> ? 2 : 1;
    return TensorView<std::remove_pointer_t<decltype(x.data())>, kRank>(x);
  } else {
    return x.view();
  }
}
template <Viewable X>
  requires TemporaryOwner<X>
void view_of(X&&) = delete;  // it would view a temporary

/// Deleted: an expression satisfies TensorLike, so that every function refuses it with this
/// message.
template <EigenExpression X>
TensorView<const typename std::remove_cvref_t<X>::Scalar, 2> view_of(X&&) {
  static_assert(!std::same_as<X, X>,
                "an Eigen expression has no elements to view: give its .eval() a name");
  return {};
}

/// Any named argument that view_of() accepts.
template <class X>
concept TensorLike = requires(X& x) { view_of(x); };

template <TensorLike X>
using view_t = decltype(view_of(std::declval<X&>()));

/// Element type without const: float or double for most functions.
template <TensorLike X>
using scalar_t = typename view_t<X>::value_type;

template <TensorLike X>
inline constexpr int rank_v = view_t<X>::rank;

/// A TemporaryOwner of a tensor. Functions that keep a view of their argument delete their overload
/// for it.
template <class X>
concept TemporaryTensor = TensorLike<X> && TemporaryOwner<X>;

/// A read-only view of any named tensor-like argument.
template <TensorLike X>
constexpr TensorView<const scalar_t<X>, rank_v<X>> const_view(const X& x) {
  return view_of(x);
}
template <TemporaryTensor X>
void const_view(const X&&) = delete;  // it would view a temporary tensor

namespace detail {

/// Calls f(views), or f for every entry of their first axis if the rows of one view cannot be
/// joined, for example slices of longer sequences: f may call rows() on each.
template <class F, class View, class... Views>
void each_joined(const F& f, const View& first, const Views&... others) {
  if constexpr (View::rank > 2) {
    if (!(first.has_rows() && ... && others.has_rows())) {
      for (index_t i = 0; i < first.extent(0); ++i) {
        each_joined(f, first.select(0, i), others.select(0, i)...);
      }
      return;
    }
  }
  f(first, others...);
}

}  // namespace detail

ATTN_NAMESPACE_END
