// Matrix multiplication over strided views: packed weights, batches, and an epilogue.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/core/argument_types.hpp"
#include "attn/kernels/gemm/gemm_parts.hpp"

ATTN_NAMESPACE_BEGIN

/// Operations on each element of A B before it is stored: c = activation(alpha * (A B) +
/// bias[column]) + beta * residual. An empty residual is c itself; with beta 0, the default, it is
/// not read.
template <class T, int Rank = 2>
struct Epilogue {
  Accumulator<T> alpha = 1;                  ///< factor of the product
  OptionView<const T, 1> bias = {};          ///< (n), contiguous, added to each row
  Activation activation = Activation::none;  ///< applied to alpha (A B) + bias
  Accumulator<T> beta = 0;                   ///< factor of the residual
  OptionView<const T, Rank> residual = {};   ///< (m, n); in batches (batch or 1, m, n)

  /// Deleted: see ATTN_REFUSE_OTHER_ELEMENTS.
  template <class U, int OtherRank>
  operator Epilogue<U, OtherRank>() const {
    static_assert(!std::same_as<U, U>,
                  "Epilogue<T, Rank>: T must be the element type of a, Rank that of batched_gemm "
                  "(3) or gemm (2)");
    return {};
  }
};

/// A (k x n) matrix packed once for the kernels of one instruction set, and of floats for one
/// MatmulPrecision, and multiplied many times.
template <class T>
class PackedWeights {
 public:
  PackedWeights() = default;

  /// Packs a copy of `b` (k, n), of any strides: pass the transpose of a Linear's (out, in) weight.
  /// Throws ValueError for an instruction set that the machine lacks.
  template <TensorLike B>
  explicit PackedWeights(const B& b, std::optional<Isa> isa = {},
                         MatmulPrecision precision = MatmulPrecision::highest)
      : PackedWeights(matrix(b), isa, precision) {}
  explicit PackedWeights(TensorView2<const T> b, std::optional<Isa> isa = {},
                         MatmulPrecision precision = MatmulPrecision::highest)
      : k_(b.extent(0)),
        n_(b.extent(1)),
        isa_(Execution{.isa = isa}.instruction_set()),
        precision_(std::same_as<T, float> ? precision_on(isa_, precision)
                                          : MatmulPrecision::highest) {
    const auto pack = [&](index_t size, const auto& kernel) {
      packed_ = Tensor1<T>::uninitialized({size});
      if (size > 0) kernel({b, packed_.data()}, {.isa = isa_});
    };
    if constexpr (std::same_as<T, float>) {
      if (precision_ != MatmulPrecision::highest) {
        const auto& backend = detail::part_products<T>(precision_, isa_);
        pack(backend.packed_size(precision_, k_, n_), backend.of(precision_).pack_weights);
        return;
      }
    }
    const auto& backend = detail::backend<family::Products, T, Accumulator<T>>(isa_);
    pack(backend.packed_size(k_, n_), backend.pack_weights);
  }

  PackedWeights(const PackedWeights&) = default;
  PackedWeights& operator=(const PackedWeights&) = default;
  /// A moved-from object is (0 x 0).
  PackedWeights(PackedWeights&& other) noexcept
      : packed_(std::move(other.packed_)),
        k_(std::exchange(other.k_, 0)),
        n_(std::exchange(other.n_, 0)),
        isa_(other.isa_),
        precision_(other.precision_) {}
  PackedWeights& operator=(PackedWeights&& other) noexcept {
    packed_ = std::move(other.packed_);
    k_ = std::exchange(other.k_, 0);
    n_ = std::exchange(other.n_, 0);
    isa_ = other.isa_;
    precision_ = other.precision_;
    return *this;
  }
  ~PackedWeights() = default;

  index_t k() const { return k_; }
  index_t n() const { return n_; }
  Isa isa() const { return isa_; }
  /// What products run as: see precision_on(). highest for elements that are not float.
  MatmulPrecision precision() const { return precision_; }
  const T* data() const { return packed_.data(); }
  index_t size() const { return packed_.size(); }  ///< number of packed elements
  explicit operator bool() const { return packed_.data() != nullptr; }
  /// True if there are weights, packed for the instruction set and precision that a call runs on.
  bool serves(const Execution& execution) const {
    return *this && execution.instruction_set() == isa_ &&
           (!std::same_as<T, float> || execution.matmul_precision_used() == precision_);
  }

  /// Unpacks rows from `first` on of the transpose (n, k) into `to` (rows, k). Throws ShapeError.
  void unpack(index_t first, const TensorView2<T>& to) const
    requires Float16Element<T>
  {
    check_shape("PackedWeights::unpack", "to", "(rows, k)", Shape<2>{to.extent(0), k_}, to.shape());
    if (first < 0 || to.extent(0) > n_ - first) {
      throw ShapeError(message("PackedWeights::unpack", "first",
                               "be at most n minus the rows of to", std::to_string(first)));
    }
    if (to.size() == 0) return;  // k = 0: there is no memory to step through
    detail::backend<family::Products, T, float>(isa_).unpack_weights(
        {.packed = packed_.data(), .k = k_, .n = n_, .first = first, .to = to}, {.isa = isa_});
  }

 private:
  template <class B>
  static TensorView2<const T> matrix(const B& b) {
    ATTN_ASSERT_INPUT(B, T, 2, "PackedWeights: b", "(k, n)", "PackedWeights<T>");
    return detail::view_as<const T, 2>(b);
  }

  Tensor1<T> packed_;
  index_t k_ = 0, n_ = 0;
  Isa isa_ = Isa::scalar;
  MatmulPrecision precision_ = MatmulPrecision::highest;
};

template <TensorLike B>
PackedWeights(const B&, std::optional<Isa> = {}, MatmulPrecision = {})
    -> PackedWeights<scalar_t<B>>;

namespace detail {

/// Elements from one product of a batch to the next; 0 if all use the same matrix, and for empty
/// views, which may have no memory.
template <class T, int Rank>
index_t batch_stride(const TensorView<T, Rank>& x) {
  return Rank == 2 || x.extent(0) == 1 || x.size() == 0 ? 0 : x.stride(0);
}

/// The epilogue's residual; c if it has none.
template <class T, int Rank>
TensorView<const T, Rank> residual_of(const TensorView<T, Rank>& c,
                                      const Epilogue<T, Rank>& epilogue) {
  if (epilogue.residual) return epilogue.residual;
  return c;
}

/// Throws ShapeError.
template <class T, int Rank>
void check_gemm(std::string_view function, const Shape<Rank>& a, index_t n,
                const TensorView<T, Rank>& c, const Epilogue<T, Rank>& epilogue) {
  constexpr int kRow = Rank - 2, kColumn = Rank - 1;
  Shape<Rank> expected = c.shape();
  expected[std::size_t{kRow}] = a[std::size_t{kRow}];
  expected[std::size_t{kColumn}] = n;
  check_shape(function, "c", expected, c.shape());
  const auto& bias = epilogue.bias;
  if (bias && (bias.extent(0) != n || !bias.is_contiguous())) {
    throw ShapeError(message(function, "bias",
                             "be contiguous with shape (" + std::to_string(n) + ")",
                             to_string(bias.shape())));
  }
  const TensorView<const T, Rank> residual = residual_of(c, epilogue);
  const bool in_place = residual.data() == c.data();
  if (epilogue.residual) {
    if (Rank > 2 && residual.extent(0) == 1) expected[0] = 1;
    check_shape(function, "residual", expected, residual.shape());
    for (int axis = 0; axis < Rank && in_place; ++axis) {
      if (c.size() == 0 || c.extent(axis) == 1) continue;
      if (residual.extent(axis) > 1 && residual.stride(axis) == c.stride(axis)) continue;
      const auto layout = [](const auto& x) {
        return "shape " + to_string(x.shape()) + " and strides " + to_string(x.strides());
      };
      throw ShapeError(message(function, "residual",
                               "have c's " + layout(c) + ", if it begins with c",
                               layout(residual)));
    }
  }
}

/// Runs one product (Rank 2) or a batch (Rank 3) by multiply(problem), where `b` (.., k, n) may be
/// empty. The product may accumulate onto beta times c if `can_accumulate`.
template <class T, int Rank, class Multiply>
void gemm(std::string_view function, const TensorView<const T, Rank>& a,
          const TensorView<const T, Rank>& b, index_t n, const TensorView<T, Rank>& c,
          const Epilogue<T, Rank>& epilogue, const Execution& execution, bool can_accumulate,
          Multiply multiply) {
  check_gemm<T, Rank>(function, a.shape(), n, c, epilogue);
  constexpr int kRow = Rank - 2, kColumn = Rank - 1;
  const index_t batch = Rank == 2 ? 1 : c.extent(0), m = a.extent(kRow), k = a.extent(kColumn);
  const auto& bias = epilogue.bias;
  const TensorView<const T, Rank> residual = residual_of(c, epilogue);
  const bool in_place = residual.data() == c.data();
  // If the kernels cannot write c directly (columns that are not contiguous, or a c that the
  // epilogue still reads), they write scratch memory, which is then copied to c.
  const bool adds_c = in_place && epilogue.beta != T{0};
  const bool accumulate =
      can_accumulate && adds_c && epilogue.alpha == T{1} && epilogue.activation == Activation::none;
  const bool through_scratch = (n > 1 && c.stride(kColumn) != 1) ||
                               (n > 1 && residual.stride(kColumn) != 1) || (adds_c && !accumulate);
  GemmProblem<T> problem{.m = m,
                         .n = n,
                         .k = k,
                         .a = a.data(),
                         .a_row = a.stride(kRow),
                         .a_k = a.stride(kColumn),
                         .b = b.data(),
                         .b_k = b.stride(kRow),
                         .b_column = b.stride(kColumn),
                         .c = c.data(),
                         .c_row = c.stride(kRow),
                         .alpha = epilogue.alpha,
                         .bias = bias.data(),
                         .activation = epilogue.activation,
                         .beta = epilogue.beta,
                         .residual = residual.data(),
                         .residual_row = residual.stride(kRow),
                         .accumulate = accumulate,
                         .batch = batch,
                         .a_batch = batch_stride(a),
                         .b_batch = batch_stride(b),
                         .c_batch = batch_stride(c),
                         .residual_batch = batch_stride(residual)};
  if (!through_scratch) return multiply(problem);
  Scratch<T> product(execution.scratch(), m * n);
  problem.c = product.data();
  problem.c_row = n;
  problem.beta = 0;
  problem.accumulate = false;
  problem.batch = 1;
  for (index_t at = 0; at < batch; ++at) {
    problem.a = a.data() + at * problem.a_batch;
    problem.b = b.data() + at * problem.b_batch;
    multiply(problem);
    for (index_t i = 0; i < m; ++i) {
      for (index_t j = 0; j < n; ++j) {
        const auto element = [&](const auto& x) {
          return x.data() + at * batch_stride(x) + i * x.stride(kRow) + j * x.stride(kColumn);
        };
        const T kept = epilogue.beta != T{0} ? epilogue.beta * *element(residual) : T{0};
        *element(c) = product.data()[i * n + j] + kept;
      }
    }
  }
}

/// x as (batch, rows, columns); one matrix is repeated by a stride of 0.
template <class T, int Rank>
TensorView3<T> in_batch(const TensorView<T, Rank>& x, index_t batch) {
  return {x.data(),
          {batch, x.extent(Rank - 2), x.extent(Rank - 1)},
          {batch_stride(x), x.stride(Rank - 2), x.stride(Rank - 1)}};
}

/// Multiplies by `b`, or by `packed_b` if it is given.
template <class T, int Rank>
void gemm(std::string_view function, const TensorView<const T, Rank>& a,
          const TensorView<const T, Rank>& b, const T* packed_b, index_t n,
          const TensorView<T, Rank>& c, const Epilogue<T, Rank>& epilogue,
          const Execution& execution) {
  const auto multiply_elements = [&](const auto& kernel) {
    check_gemm<T, Rank>(function, a.shape(), n, c, epilogue);
    const index_t batch = Rank == 2 ? 1 : c.extent(0);
    kernel({.a = in_batch(a, batch),
            .b = in_batch(b, batch),
            .packed_b = packed_b,
            .c = in_batch(c, batch),
            .alpha = epilogue.alpha,
            .bias = epilogue.bias.data(),
            .activation = epilogue.activation,
            .beta = epilogue.beta,
            .residual = in_batch(residual_of(c, epilogue), batch)},
           execution);
  };
  if constexpr (std::same_as<T, float>) {
    const MatmulPrecision precision = execution.matmul_precision_used();
    if (precision != MatmulPrecision::highest) {
      const Isa isa = execution.instruction_set();
      return multiply_elements(part_products<T>(precision, isa).of(precision).gemm);
    }
  }
  const auto& kernel = backend<family::Products, T, Accumulator<T>>(execution).gemm;
  if constexpr (Float16Element<T>) {
    multiply_elements(kernel);
  } else {
    gemm<T, Rank>(function, a, b, n, c, epilogue, execution, true, [&](GemmProblem<T>& problem) {
      problem.packed_b = packed_b;
      kernel(problem, execution);
    });
  }
}

/// 16-bit a times `b` or `packed_b`, into float sums, with a float epilogue and optionally a 16-bit
/// bias in place of its bias.
template <Float16Element E>
void gemm_sums(const TensorView2<const E>& a, const TensorView2<const E>& b, const E* packed_b,
               index_t n, const TensorView2<float>& c, const Epilogue<float>& epilogue,
               const Execution& execution, const E* bias = nullptr) {
  check_gemm<float, 2>("gemm", a.shape(), n, c, epilogue);
  backend<family::Products, E, float>(execution).gemm(
      {.a = in_batch(a, 1),
       .b = in_batch(b, 1),
       .packed_b = packed_b,
       .alpha = epilogue.alpha,
       .bias = bias,
       .activation = epilogue.activation,
       .beta = epilogue.beta,
       .sums = in_batch(c, 1),
       .sums_residual = in_batch(residual_of(c, epilogue), 1),
       .sums_bias = epilogue.bias.data()},
      execution);
}

/// gemm_sums() with a 16-bit epilogue, whose only residual is c.
template <Float16Element E>
void gemm_sums(const TensorView2<const E>& a, const TensorView2<const E>& b, const E* packed_b,
               index_t n, const TensorView2<float>& c, const Epilogue<E>& epilogue,
               const Execution& execution) {
  check_shape("gemm", "c", Shape<2>{a.extent(0), n}, c.shape());
  const auto& bias = epilogue.bias;
  if (bias && (bias.extent(0) != n || !bias.is_contiguous())) {
    throw_shape("gemm", "bias", "be contiguous with shape (" + std::to_string(n) + ")",
                bias.shape());
  }
  if (epilogue.residual) {
    throw_shape("gemm", "residual", "not be given with a float c, which beta then multiplies",
                epilogue.residual.shape());
  }
  const Epilogue<float> own{
      .alpha = epilogue.alpha, .activation = epilogue.activation, .beta = epilogue.beta};
  gemm_sums<E>(a, b, packed_b, n, c, own, execution, bias.data());
}

}  // namespace detail

/// c = a b with an epilogue: a (m, k), b (k, n), c (m, n), any strides, so that a transposed
/// operand is a transposed view. Element types: float, double, bfloat16 or float16;
/// execution.matmul_precision sets the arithmetic of float. For 16 bits sums are kept in float and
/// each element of c is rounded once; or c is float, and beta then multiplies c. c must not overlap
/// a, b, itself, or a residual other than c. Throws ShapeError.
template <TensorLike A, TensorLike B, TensorLike C>
void gemm(const A& a, const B& b, C&& c, const Epilogue<scalar_t<A>>& epilogue = {},
          const Execution& execution = {}) {
  using T = scalar_t<A>;
  ATTN_ASSERT_AXES(A, 2, "gemm: a", "(m, k)");
  ATTN_ASSERT_INPUT(B, T, 2, "gemm: b", "(k, n)", "a");
  constexpr bool gives_sums = Float16Element<T> && std::same_as<scalar_t<C>, float>;
  using Result = std::conditional_t<gives_sums, float, T>;
  ATTN_ASSERT_OUTPUT(C, Result, 2, "gemm: c", "(m, n)", "a");
  const auto av = detail::view_as<const T, 2>(a), bv = detail::view_as<const T, 2>(b);
  const auto cv = detail::view_as<Result, 2>(c);
  check_shape("gemm", "b", Shape<2>{av.extent(1), bv.extent(1)}, bv.shape());
  if constexpr (gives_sums) {
    detail::gemm_sums<T>(av, bv, nullptr, bv.extent(1), cv, epilogue, execution);
  } else {
    detail::gemm<T, 2>("gemm", av, bv, nullptr, bv.extent(1), cv, epilogue, execution);
  }
}

/// c = a b with weights packed in advance: a (m, k), c (m, n), as for gemm. Runs on the instruction
/// set and in the precision for which they were packed. Throws ShapeError.
template <class T, TensorLike A, TensorLike C>
void gemm(const A& a, const PackedWeights<T>& b, C&& c,
          const Epilogue<std::type_identity_t<T>>& epilogue = {}, const Execution& execution = {}) {
  ATTN_ASSERT_INPUT(A, T, 2, "gemm: a", "(m, k)", "the packed weights");
  constexpr bool gives_sums = Float16Element<T> && std::same_as<scalar_t<C>, float>;
  using Result = std::conditional_t<gives_sums, float, scalar_t<A>>;
  ATTN_ASSERT_OUTPUT(C, Result, 2, "gemm: c", "(m, n)", "a");
  const auto av = detail::view_as<const T, 2>(a);
  const auto cv = detail::view_as<std::conditional_t<gives_sums, float, T>, 2>(c);
  check_shape("gemm", "a", Shape<2>{av.extent(0), b.k()}, av.shape());
  Execution on = execution;
  on.isa = b.isa();
  on.matmul_precision = b.precision();
  if constexpr (gives_sums) {
    detail::gemm_sums<T>(av, {}, b.data(), b.n(), cv, epilogue, on);
  } else {
    detail::gemm<T, 2>("gemm", av, {}, b.data(), b.n(), cv, epilogue, on);
  }
}

/// A batch of products: a (batch, m, k), b (batch, k, n), c and residual (batch, m, n); an extent
/// of 1 in a, b or residual broadcasts. Many products, or small ones, run on one thread each;
/// otherwise threads share each product. c must not overlap the tensors named for gemm. Throws
/// ShapeError.
template <TensorLike A, TensorLike B, TensorLike C>
void batched_gemm(const A& a, const B& b, C&& c, const Epilogue<scalar_t<A>, 3>& epilogue = {},
                  const Execution& execution = {}) {
  using T = scalar_t<A>;
  ATTN_ASSERT_AXES(A, 3, "batched_gemm: a", "(batch, m, k)");
  ATTN_ASSERT_INPUT(B, T, 3, "batched_gemm: b", "(batch, k, n)", "a");
  ATTN_ASSERT_OUTPUT(C, T, 3, "batched_gemm: c", "(batch, m, n)", "a");
  const auto av = detail::view_as<const T, 3>(a), bv = detail::view_as<const T, 3>(b);
  const auto cv = detail::view_as<T, 3>(c);
  const index_t batch = cv.extent(0);
  for (auto [name, extent] : {std::pair{"a", av.extent(0)}, std::pair{"b", bv.extent(0)}}) {
    if (extent != batch && extent != 1) {
      throw ShapeError(message("batched_gemm", name, "have batch 1 or " + std::to_string(batch),
                               std::to_string(extent)));
    }
  }
  check_shape("batched_gemm", "b", Shape<3>{bv.extent(0), av.extent(2), bv.extent(2)}, bv.shape());
  detail::gemm<T, 3>("batched_gemm", av, bv, nullptr, bv.extent(2), cv, epilogue, execution);
}

ATTN_NAMESPACE_END
