// Matrix multiplication over strided views: packed weights, batches, and an epilogue.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/exec/caches.hpp"
#include "attn/kernels/activation.hpp"
#include "attn/kernels/tile.hpp"

ATTN_NAMESPACE_BEGIN

/// What happens to each element of A B on its way out:
/// c = activation(alpha * (A B) + bias[column]) + beta * residual, where an empty residual means c itself. With beta 0,
/// which it is unless given, the residual is not read.
template <class T, int Rank = 2>
struct Epilogue {
  T alpha = 1;
  TensorView1<const T> bias = {};  ///< (n), contiguous
  Activation activation = Activation::none;
  T beta = 0;
  TensorView<const T, Rank> residual = {};  ///< (m, n); of a batch (batch or 1, m, n)
};

namespace detail {

/// B from something else than a matrix of T's: write(matrix, k, kc, column, width, panel) makes a packed panel of k rows
/// [k, k + kc) and `width` columns from `column` on.
template <class T>
struct PanelSource {
  const void* matrix = nullptr;
  void (*write)(const void* matrix, index_t k, index_t kc, index_t column, index_t width,
                T* panel) = nullptr;
};

/// Products as the kernels take them: pointers and strides, all checked, c with unit column stride.
template <class T>
struct GemmProblem {
  index_t m, n, k;
  const T* a;
  index_t a_row, a_k;
  const T* b;  ///< nullptr where packed_b or a source is given
  index_t b_k, b_column;
  const T* packed_b;
  T* c;
  index_t c_row;
  T alpha;
  const T* bias;
  Activation activation;
  T beta;
  const T* residual;
  index_t residual_row;
  bool seeds;  ///< sums begin with beta times c; otherwise the residual is added
  index_t batch, a_batch, b_batch, c_batch, residual_batch;  ///< products, and from one to the next
  PanelSource<T> source;
};

/// b (k, n) of any strides, into `packed`, k times panel_columns() elements.
template <class T>
struct PackProblem {
  TensorView2<const T> b;
  T* packed;
};

template <class In, class Acc>
struct Backend<family::Products, In, Acc> {
  index_t panel_width;  ///< columns of a panel of packed weights
  Kernel<GemmProblem<In>> gemm;
  Kernel<PackProblem<In>> pack_weights;

  /// Elements that k x n packed weights take.
  index_t packed_size(index_t k, index_t n) const { return k * round_up(n, panel_width); }

  using Gemm = GemmProblem<In>;
  static constexpr std::uint64_t kLayout = layout_hash({sizeof(Backend),
                                                        offsetof(Backend, gemm),
                                                        offsetof(Backend, pack_weights),
                                                        sizeof(PackProblem<In>),
                                                        offsetof(PackProblem<In>, packed),
                                                        sizeof(Gemm),
                                                        offsetof(Gemm, m),
                                                        offsetof(Gemm, n),
                                                        offsetof(Gemm, k),
                                                        offsetof(Gemm, a),
                                                        offsetof(Gemm, a_row),
                                                        offsetof(Gemm, a_k),
                                                        offsetof(Gemm, b),
                                                        offsetof(Gemm, b_k),
                                                        offsetof(Gemm, b_column),
                                                        offsetof(Gemm, packed_b),
                                                        offsetof(Gemm, c),
                                                        offsetof(Gemm, c_row),
                                                        offsetof(Gemm, alpha),
                                                        offsetof(Gemm, bias),
                                                        offsetof(Gemm, activation),
                                                        offsetof(Gemm, beta),
                                                        offsetof(Gemm, residual),
                                                        offsetof(Gemm, residual_row),
                                                        offsetof(Gemm, seeds),
                                                        offsetof(Gemm, batch),
                                                        offsetof(Gemm, a_batch),
                                                        offsetof(Gemm, b_batch),
                                                        offsetof(Gemm, c_batch),
                                                        offsetof(Gemm, residual_batch),
                                                        offsetof(Gemm, source)});
};

// Block sizes. Each pass over KC of k reads and writes C once more, and rows of C that are a multiple of 4 KB apart evict
// one another, which costs more than a panel of B (KC x NR floats of AVX2: 32 KB) that leaves a first-level cache of
// 32 KB no room (attn_report's gemm rows). A block of A (MC x KC) takes 3/8 of the second-level cache, where it stays while
// the panels of B pass.
inline constexpr index_t kGemmMostKC = 512;
inline constexpr index_t kGemmNC = 4096;

/// MC for elements of so many bytes: 192 floats where the cache holds 1 MB.
inline index_t gemm_mc(index_t element_size) {
  const index_t rows = second_level_cache() * 3 / 8 / (kGemmMostKC * element_size);
  return std::clamp(rows, index_t{48}, index_t{384});
}

/// KC of a product over k: equal blocks.
constexpr index_t gemm_kc(index_t k) {
  const index_t blocks = (k + kGemmMostKC - 1) / kGemmMostKC;
  return blocks <= 1 ? kGemmMostKC : (k + blocks - 1) / blocks;
}

}  // namespace detail

ATTN_NAMESPACE_END

#define ATTN_KERNEL_TEXT "attn/kernels/gemm.inc.hpp"
#include "attn/simd/foreach_isa.hpp"

ATTN_NAMESPACE_BEGIN

/// A (k x n) matrix laid out once for the kernels of one instruction set, to multiply by many times.
template <class T>
class PackedWeights {
 public:
  PackedWeights() = default;

  /// Copies `b` (k, n), of any strides: a Linear's (out, in) weight goes in transposed. Throws ValueError for an
  /// instruction set that the machine lacks.
  explicit PackedWeights(TensorView2<const T> b, std::optional<Isa> isa = {})
      : k_(b.extent(0)), n_(b.extent(1)), isa_(Execution{.isa = isa}.instruction_set()) {
    const auto& backend = detail::backend<family::Products, T>(isa_);
    packed_ = Tensor1<T>::uninitialized({backend.packed_size(k_, n_)});
    if (packed_.size() > 0) backend.pack_weights({b, packed_.data()}, {.isa = isa_});
  }

  PackedWeights(const PackedWeights&) = default;
  PackedWeights& operator=(const PackedWeights&) = default;
  /// What was moved from is (0 x 0).
  PackedWeights(PackedWeights&& other) noexcept
      : packed_(std::move(other.packed_)),
        k_(std::exchange(other.k_, 0)),
        n_(std::exchange(other.n_, 0)),
        isa_(other.isa_) {}
  PackedWeights& operator=(PackedWeights&& other) noexcept {
    packed_ = std::move(other.packed_);
    k_ = std::exchange(other.k_, 0);
    n_ = std::exchange(other.n_, 0);
    isa_ = other.isa_;
    return *this;
  }
  ~PackedWeights() = default;

  index_t k() const { return k_; }
  index_t n() const { return n_; }
  Isa isa() const { return isa_; }
  const T* data() const { return packed_.data(); }
  explicit operator bool() const { return packed_.data() != nullptr; }
  /// True if there are weights, packed for the instruction set that a call runs on.
  bool serves(const Execution& execution) const {
    return *this && execution.instruction_set() == isa_;
  }

 private:
  Tensor1<T> packed_;
  index_t k_ = 0, n_ = 0;
  Isa isa_ = Isa::scalar;
};

namespace detail {

/// From one product of a batch to the next; 0 where all take the same matrix, and where there may be no memory to step
/// through.
template <class T, int Rank>
index_t batch_stride(const TensorView<T, Rank>& x) {
  return Rank == 2 || x.extent(0) == 1 || x.size() == 0 ? 0 : x.stride(0);
}

/// One product (Rank 2) or a batch of them (Rank 3) by multiply(problem), in which `b` (.., k, n) may be empty. It may be
/// asked to begin with beta times c where `can_seed`.
template <class T, int Rank, class Multiply>
void gemm(std::string_view function, const TensorView<const T, Rank>& a,
          const TensorView<const T, Rank>& b, index_t n, const TensorView<T, Rank>& c,
          const Epilogue<T, Rank>& epilogue, const Execution& execution, bool can_seed,
          Multiply multiply) {
  constexpr int kRow = Rank - 2, kColumn = Rank - 1;
  const index_t batch = Rank == 2 ? 1 : c.extent(0), m = a.extent(kRow), k = a.extent(kColumn);
  Shape<Rank> expected = c.shape();
  expected[std::size_t{kRow}] = m;
  expected[std::size_t{kColumn}] = n;
  check_shape(function, "c", expected, c.shape());
  const auto& bias = epilogue.bias;
  if (bias && (bias.extent(0) != n || !bias.is_contiguous())) {
    throw ShapeError(message(function, "bias",
                             "be contiguous with shape (" + std::to_string(n) + ")",
                             to_string(bias.shape())));
  }
  const TensorView<const T, Rank> residual = epilogue.residual ? epilogue.residual : c;
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
  // Where the kernels cannot write c as they go (columns that are not contiguous, or a c that the
  // epilogue still has to read), they write scratch memory, and c follows.
  const bool adds_c = in_place && epilogue.beta != T{0};
  const bool seeds =
      can_seed && adds_c && epilogue.alpha == T{1} && epilogue.activation == Activation::none;
  const bool through_scratch = (n > 1 && c.stride(kColumn) != 1) ||
                               (n > 1 && residual.stride(kColumn) != 1) || (adds_c && !seeds);
  GemmProblem<T> problem{m,
                         n,
                         k,
                         a.data(),
                         a.stride(kRow),
                         a.stride(kColumn),
                         b.data(),
                         b.stride(kRow),
                         b.stride(kColumn),
                         nullptr,
                         c.data(),
                         c.stride(kRow),
                         epilogue.alpha,
                         bias.data(),
                         epilogue.activation,
                         epilogue.beta,
                         residual.data(),
                         residual.stride(kRow),
                         seeds,
                         batch,
                         batch_stride(a),
                         batch_stride(b),
                         batch_stride(c),
                         batch_stride(residual),
                         {}};
  if (!through_scratch) return multiply(problem);
  Scratch<T> product(execution.scratch(), m * n);
  problem.c = product.data();
  problem.c_row = n;
  problem.beta = 0;
  problem.seeds = false;
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

/// The same by `b`, or by `packed_b` where that is given.
template <class T, int Rank>
void gemm(std::string_view function, const TensorView<const T, Rank>& a,
          const TensorView<const T, Rank>& b, const T* packed_b, index_t n,
          const TensorView<T, Rank>& c, const Epilogue<T, Rank>& epilogue,
          const Execution& execution) {
  const auto& kernel = backend<family::Products, T>(execution).gemm;
  gemm<T, Rank>(function, a, b, n, c, epilogue, execution, true, [&](GemmProblem<T>& problem) {
    problem.packed_b = packed_b;
    kernel(problem, execution);
  });
}

}  // namespace detail

/// c = a b with an epilogue: a (m, k), b (k, n), c (m, n), any strides, so that transposing a view is all
/// that transposing takes. c must not overlap a, b, itself, or a residual other than c. Throws ShapeError.
template <TensorLike A, TensorLike B, TensorLike C>
void gemm(const A& a, const B& b, C&& c, const Epilogue<scalar_t<A>>& epilogue = {},
          const Execution& execution = {}) {
  using T = scalar_t<A>;
  const TensorView2<const T> av = const_view(a), bv = const_view(b);
  check_shape("gemm", "b", Shape<2>{av.extent(1), bv.extent(1)}, bv.shape());
  detail::gemm<T, 2>("gemm", av, bv, nullptr, bv.extent(1), view_of(c), epilogue, execution);
}

/// c = a b with weights packed beforehand: a (m, k), c (m, n), as for gemm. Runs on the instruction set that they were
/// packed for. Throws ShapeError.
template <class T, TensorLike A, TensorLike C>
void gemm(const A& a, const PackedWeights<T>& b, C&& c, const Epilogue<T>& epilogue = {},
          const Execution& execution = {}) {
  const TensorView2<const T> av = const_view(a);
  check_shape("gemm", "a", Shape<2>{av.extent(0), b.k()}, av.shape());
  Execution on = execution;
  on.isa = b.isa();
  detail::gemm<T, 2>("gemm", av, {}, b.data(), b.n(), view_of(c), epilogue, on);
}

/// A batch of products: a (batch, m, k), b (batch, k, n), c and residual (batch, m, n); an extent of 1 in a, b or
/// residual serves the whole batch. Many products, or small ones, are one thread's each; else threads share each product.
/// What c must not overlap is as for gemm. Throws ShapeError.
template <TensorLike A, TensorLike B, TensorLike C>
void batched_gemm(const A& a, const B& b, C&& c, const Epilogue<scalar_t<A>, 3>& epilogue = {},
                  const Execution& execution = {}) {
  using T = scalar_t<A>;
  const TensorView3<const T> av = const_view(a), bv = const_view(b);
  const TensorView3<T> cv = view_of(c);
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
