// gemm: odd sizes, strides and epilogues in guarded memory, against nested loops.
#include "attn/kernels/gemm/gemm.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "support/isas.hpp"
#include "support/placed.hpp"
#include "support/references/reference.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::available_isas;
using attn_test::difference;
using attn_test::Index;
using attn_test::Layout;
using attn_test::max_abs;
using attn_test::Placed;
using attn_test::Random;
using attn_test::to_array;
using attn_test::Wider;

template <class T>
class GemmTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(GemmTest, Types);

const std::vector<Index> kSizes = {0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 97, 1025};

/// One product with its epilogue, and its expected result.
template <class T>
struct Product {
  Index m, n, k;
  Array<T> a, b, c, bias, residual;  // an empty residual means c
  T alpha = 1, beta = 0;
  Activation activation = Activation::none;

  explicit Product(Random& random) {
    do {
      m = random.pick(kSizes), n = random.pick(kSizes), k = random.pick(kSizes);
    } while (m * n * k > 2000000);
    a = random.array<T>({m, k});
    b = random.array<T>({k, n});
    c = random.array<T>({m, n});
    if (random.chance(0.5)) bias = random.array<T>({n});
    if (random.chance(0.3)) alpha = static_cast<T>(random.normal());
    if (random.chance(0.5)) beta = random.chance(0.5) ? T{1} : static_cast<T>(random.normal());
    if (random.chance(0.5)) residual = random.array<T>({m, n});
    activation =
        random.pick<Activation>({Activation::none, Activation::none, Activation::relu,
                                 Activation::gelu, Activation::gelu_tanh, Activation::silu});
  }

  std::string text() const {
    return "m, n, k = " + std::to_string(m) + ", " + std::to_string(n) + ", " + std::to_string(k) +
           ", alpha " + std::to_string(alpha) + ", beta " + std::to_string(beta) + ", activation " +
           std::to_string(static_cast<int>(activation)) + (bias ? ", bias" : "") +
           (residual ? ", residual" : ", in place");
  }

  Array<Wider<T>> exact() const { return in<Wider<T>>(); }

  /// The naive formula in W.
  template <class W>
  Array<W> in(attn_test::Order order = attn_test::Order::forward) const {
    Array<W> result = attn_test::reference_matmul(a.template as<W>(), b.template as<W>(), order);
    for (Index i = 0; i < m; ++i) {
      for (Index j = 0; j < n; ++j) {
        W x = static_cast<W>(alpha) * result(i, j) + (bias ? static_cast<W>(bias(j)) : W{0});
        switch (activation) {
          case Activation::none:
            break;
          case Activation::relu:
            x = attn_test::reference_relu(x);
            break;
          case Activation::relu_squared:
            x = attn_test::reference_relu(x) * attn_test::reference_relu(x);
            break;
          case Activation::gelu:
            x = attn_test::reference_gelu(x);
            break;
          case Activation::gelu_tanh:
            x = attn_test::reference_gelu_tanh(x);
            break;
          case Activation::silu:
            x = attn_test::reference_silu(x);
            break;
          case Activation::quick_gelu:
            x = attn_test::reference_quick_gelu(x);
            break;
        }
        const W kept = static_cast<W>(residual ? residual(i, j) : c(i, j));
        result(i, j) = beta == 0 ? x : x + static_cast<W>(beta) * kept;
      }
    }
    return result;
  }

  double bound(const Array<Wider<T>>& exact) const {
    return attn_test::twice_naive([&](attn_test::Order order) { return in<T>(order); }, exact);
  }

  Epilogue<T> epilogue() const {
    return {.alpha = alpha,
            .bias = bias ? bias.template view<1>() : TensorView1<const T>(),
            .activation = activation,
            .beta = beta};
  }
};

TYPED_TEST(GemmTest, RandomProductsInGuardedMemory) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(250); ++draw) {
    Random random(draw);
    const Product<T> p(random);
    SCOPED_TRACE(random.trace() + ": " + p.text());
    const auto exact = p.exact();
    const double bound = p.bound(exact);
    const Placed<T, 2> a(p.a, Layout<2>::any(random, false)), b(p.b, Layout<2>::any(random, false));
    const auto c_layout = Layout<2>::any(random, random.chance(0.8));
    const attn_test::PageGuarded<T> bias(p.bias);
    for (Isa isa : available_isas()) {
      Placed<T, 2> c(p.c, c_layout);
      Epilogue<T> epilogue = p.epilogue();
      if (p.bias) epilogue.bias = {bias.data(), {p.n}};
      std::optional<Placed<T, 2>> residual;
      if (p.residual) {
        residual.emplace(p.residual, Layout<2>::any(random, random.chance(0.8)));
        epilogue.residual = residual->read();
      } else if (random.chance(0.5)) {
        epilogue.residual = c.read();  // in place, explicitly
      }
      gemm(a.read(), b.read(), c.view(), epilogue, {.isa = isa});
      ASSERT_EQ(difference(c.values(), exact, bound, isa, "c"), "");
      ASSERT_TRUE(c.gaps_untouched());
    }
  }
}

TYPED_TEST(GemmTest, PackedWeightsGiveTheSameBits) {
  using T = TypeParam;
  for (std::uint64_t draw = 1000; draw < 1000 + attn_test::draws(100); ++draw) {
    Random random(draw);
    const Product<T> p(random);
    SCOPED_TRACE(random.trace() + ": " + p.text());
    const auto exact = p.exact();
    const double bound = p.bound(exact);
    const Placed<T, 2> b(p.b, Layout<2>::any(random, false));
    for (Isa isa : available_isas()) {
      const PackedWeights<T> packed(b.read(), isa);
      EXPECT_EQ(packed.k(), p.k);
      EXPECT_EQ(packed.n(), p.n);
      EXPECT_EQ(packed.isa(), isa);
      Placed<T, 2> c(p.c, Layout<2>::contiguous()), plain(p.c, Layout<2>::contiguous());
      Epilogue<T> epilogue = p.epilogue();
      if (p.residual) epilogue.residual = p.residual.template view<2>();
      gemm(p.a.template view<2>(), packed, c.view(), epilogue);
      ASSERT_EQ(difference(c.values(), exact, bound, isa, "c"), "");
      gemm(p.a.template view<2>(), b.read(), plain.view(), epilogue, {.isa = isa});
      ASSERT_TRUE(same_bits(c.values(), plain.values())) << name(isa);
    }
  }
}

TYPED_TEST(GemmTest, WithoutBetaWhatCHeldDoesNotMatter) {
  using T = TypeParam;
  for (Index k : {0, 1, 40}) {
    Random random(9);
    const auto a = random.array<T>({5, k}), b = random.array<T>({k, 7});
    for (Isa isa : available_isas()) {
      Placed<T, 2> c(Shape<2>{5, 7}, Layout<2>::contiguous());  // NaN
      gemm(a.template view<2>(), b.template view<2>(), c.view(), {}, {.isa = isa});
      EXPECT_EQ(difference(c.values(),
                           attn_test::reference_matmul(a.template as<Wider<T>>(),
                                                       b.template as<Wider<T>>()),
                           attn_test::gemm_bound(a, b), isa),
                "");
    }
  }
}

TYPED_TEST(GemmTest, BatchesBroadcast) {
  using T = TypeParam;
  Random random(4);
  for (const auto& [batch_a, batch_b] : {std::pair{3, 3}, {1, 3}, {3, 1}, {1, 1}}) {
    const auto a = random.array<T>({batch_a, 9, 17}), b = random.array<T>({batch_b, 17, 33});
    for (Isa isa : available_isas()) {
      Tensor3<T> c({3, 9, 33});
      batched_gemm(a.template view<3>(), b.template view<3>(), c, {.alpha = T{2}}, {.isa = isa});
      for (Index i = 0; i < 3; ++i) {
        const auto ai = to_array(a.template view<3>().select(0, batch_a == 1 ? 0 : i));
        const auto bi = to_array(b.template view<3>().select(0, batch_b == 1 ? 0 : i));
        auto exact =
            attn_test::reference_matmul(ai.template as<double>(), bi.template as<double>());
        for (double& x : exact.data) x *= 2;
        EXPECT_EQ(difference(to_array(c.view().select(0, i)), exact,
                             2 * attn_test::gemm_bound(ai, bi), isa),
                  "");
      }
    }
  }
}

// Each product of a batch has the bits of gemm(), for any division among threads.
TYPED_TEST(GemmTest, RandomBatchesAreTheirProducts) {
  using T = TypeParam;
  for (std::uint64_t draw = 2000; draw < 2000 + attn_test::draws(120); ++draw) {
    Random random(draw);
    const Product<T> p(random);
    const Index batch = random.pick<Index>({0, 1, 2, 3, 5, 8, 40});
    if (batch * p.m * p.n * p.k > 4000000) continue;
    const auto shape = [&](Index rows, Index columns) {
      return std::vector<Index>{random.chance(0.2) ? 1 : batch, rows, columns};
    };
    const auto any = [&](bool keep_last) { return Layout<3>::any(random, keep_last); };
    const Placed<T, 3> a(random.array<T>(shape(p.m, p.k)), any(false));
    const Placed<T, 3> b(random.array<T>(shape(p.k, p.n)), any(false));
    const auto before = random.array<T>({batch, p.m, p.n});
    const auto layout = any(random.chance(0.8));
    std::optional<Placed<T, 3>> residual;
    if (p.residual) residual.emplace(random.array<T>(shape(p.m, p.n)), any(random.chance(0.8)));
    const attn_test::ThreadExecutor executor(random.pick<int>({1, 2, 4}));
    SCOPED_TRACE(random.trace() + ": " + p.text() + ", batch " + std::to_string(batch));
    for (Isa isa : available_isas()) {
      Placed<T, 3> c(before, layout), products(before, layout);
      Epilogue<T, 3> epilogue{
          .alpha = p.alpha, .bias = p.epilogue().bias, .activation = p.activation, .beta = p.beta};
      if (residual) epilogue.residual = residual->read();
      batched_gemm(a.read(), b.read(), c.view(), epilogue, {.executor = &executor, .isa = isa});
      for (Index i = 0; i < batch; ++i) {
        const auto of = [i](const auto& x) {
          return x.read().select(0, x.read().extent(0) == 1 ? 0 : i);
        };
        Epilogue<T> one = p.epilogue();
        if (residual) one.residual = of(*residual);
        gemm(of(a), of(b), products.view().select(0, i), one, {.isa = isa});
      }
      ASSERT_TRUE(same_bits(c.values(), products.values())) << name(isa);
      ASSERT_TRUE(c.gaps_untouched());
    }
  }
}

// Products large enough for threads: many, one thread each; and few, which threads share.
TYPED_TEST(GemmTest, BatchesOfLargeProducts) {
  using T = TypeParam;
  const attn_test::ThreadExecutor executor(4);
  Random random(14);
  for (Index batch : {3, 33}) {
    const Array<T> a = random.array<T>({batch, 101, 103}), b = random.array<T>({1, 103, 102});
    for (Isa isa : available_isas()) {
      Tensor3<T> c({batch, 101, 102}), products({batch, 101, 102});
      batched_gemm(a.template view<3>(), b.template view<3>(), c, {},
                   {.executor = &executor, .isa = isa});
      for (Index i = 0; i < batch; ++i) {
        gemm(a.template view<3>().select(0, i), b.template view<3>().select(0, 0),
             products.view().select(0, i), {}, {.isa = isa});
      }
      EXPECT_TRUE(same_bits(to_array(c), to_array(products))) << batch << name(isa);
    }
  }
}

// Tensors without elements have no memory.
TYPED_TEST(GemmTest, BatchesWithoutElements) {
  using T = TypeParam;
  for (Isa isa : available_isas()) {
    for (Activation activation :
         {Activation::none, Activation::relu}) {  // the second through scratch memory
      const Tensor3<T> a({3, 2, 0}), b({3, 0, 4});
      Tensor3<T> c({3, 2, 4}), none({3, 0, 4});
      c.fill(T{5});
      batched_gemm(a, b, c, {.activation = activation, .beta = 2}, {.isa = isa});
      for (T x : c.elements()) EXPECT_EQ(x, T{10});
      batched_gemm(Tensor3<T>({3, 0, 4}), Tensor3<T>({3, 4, 4}), none,
                   {.activation = activation, .beta = 2}, {.isa = isa});
    }
  }
}

TYPED_TEST(GemmTest, SameBitsOnAnyNumberOfThreadsAndForAnyPartOfTheRows) {
  using T = TypeParam;
  Random random(12);
  const auto a = random.array<T>({211, 301}), b = random.array<T>({301, 173});
  for (Isa isa : available_isas()) {
    const auto run = [&](const Executor& executor, Index begin, Index end) {
      Tensor2<T> c({end - begin, 173});
      gemm(a.template view<2>().slice(0, begin, end), b.template view<2>(), c,
           {.activation = Activation::gelu_tanh}, {.executor = &executor, .isa = isa});
      return to_array(c);
    };
    const auto serial = run(SerialExecutor(), 0, 211);
    for (int threads : {2, 3, 8}) {
      const attn_test::ThreadExecutor executor(threads);
      EXPECT_TRUE(same_bits(run(executor, 0, 211), serial)) << name(isa) << threads;
    }
    for (Index begin : {0, 1, 5, 100, 210}) {
      const auto rows = to_array(serial.template view<2>().slice(0, begin, 211));
      EXPECT_TRUE(same_bits(run(SerialExecutor(), begin, 211), rows)) << begin;
    }
  }
}

// Rows are cut into tiles of 6 and 4 and blocks of 32 tiles: tests every remainder, alone and at
// the end of a block.
TYPED_TEST(GemmTest, EveryNumberOfRows) {
  using T = TypeParam;
  constexpr Index kMax = 200, kDim = 37, kColumns = 70;
  Random random(13);
  const auto a = random.array<T>({kMax, kDim}), b = random.array<T>({kDim, kColumns});
  const auto exact = attn_test::reference_matmul(a.template as<double>(), b.template as<double>());
  const double bound = attn_test::gemm_bound(a, b);
  for (Isa isa : available_isas()) {
    const PackedWeights<T> packed(b.template view<2>(), isa);
    for (Index m = 1; m <= kMax; m += m == 26 ? 160 : 1) {
      const auto rows = to_array(exact.template view<2>().slice(0, 0, m));
      Placed<T, 2> c(Shape<2>{m, kColumns}, Layout<2>::contiguous());
      gemm(a.template view<2>().slice(0, 0, m), packed, c.view());
      ASSERT_EQ(difference(c.values(), rows, bound, isa, "packed"), "") << m;
      Placed<T, 2> plain(Shape<2>{m, kColumns}, Layout<2>::contiguous());
      gemm(a.template view<2>().slice(0, 0, m), b.template view<2>(), plain.view(), {},
           {.isa = isa});
      ASSERT_TRUE(same_bits(c.values(), plain.values())) << m << " rows, " << name(isa);
    }
  }
}

// Few rows by an unpacked weight (out, in): the bits of packed weights, for any sizes and threads.
TYPED_TEST(GemmTest, FewRowsByAWeightAsItLies) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(150); ++draw) {
    Random random(draw);
    const Index m = random.integer(1, 25), n = random.pick(kSizes), k = random.pick(kSizes);
    SCOPED_TRACE(random.trace() + ": " + std::to_string(m) + ", " + std::to_string(n) + ", " +
                 std::to_string(k));
    const auto a = random.array<T>({m, k}), bias = random.array<T>({n}),
               residual = random.array<T>({m, n});
    const Placed<T, 2> weight(random.array<T>({n, k}), Layout<2>::any(random, true));
    const auto b = weight.read().transpose(0, 1);
    const Epilogue<T> epilogue{.bias = bias.template view<1>(),
                               .activation = Activation::relu,
                               .beta = T(0.5),
                               .residual = residual.template view<2>()};
    const attn_test::ThreadExecutor three(3);
    for (Isa isa : available_isas()) {
      const Shape<2> shape{m, n};
      Placed<T, 2> c(shape, Layout<2>::contiguous()), plain(shape, Layout<2>::contiguous()),
          shared(shape, Layout<2>::contiguous());
      gemm(a.template view<2>(), PackedWeights<T>(b, isa), c.view(), epilogue);
      gemm(a.template view<2>(), b, plain.view(), epilogue, {.isa = isa});
      ASSERT_TRUE(same_bits(c.values(), plain.values())) << name(isa);
      gemm(a.template view<2>(), b, shared.view(), epilogue, {.executor = &three, .isa = isa});
      ASSERT_TRUE(same_bits(c.values(), shared.values())) << name(isa);
    }
  }
}

// One row by packed weights, of several blocks of k: the bits of the same row among others, for any
// threads.
TYPED_TEST(GemmTest, OneRowByPackedWeights) {
  using T = TypeParam;
  const attn_test::ThreadExecutor three(3);
  for (const Index n : {1, 17, 64, 65, 130}) {
    for (const Index k : {1, 1030}) {
      Random random(static_cast<std::uint64_t>(n * k));
      SCOPED_TRACE(random.trace());
      const auto a = random.array<T>({2, k}), b = random.array<T>({k, n}),
                 bias = random.array<T>({n}), residual = random.array<T>({2, n});
      const auto rows = [](const Array<T>& x, Index m) {
        return x.template view<2>().slice(0, 0, m);
      };
      for (Isa isa : available_isas()) {
        const PackedWeights<T> packed(b.template view<2>(), isa);
        Tensor2<T> two({2, n}), one({1, n}), shared({1, n});
        const auto run = [&](Index m, Tensor2<T>& c, const Execution& execution) {
          const Epilogue<T> epilogue{.alpha = T(0.5),
                                     .bias = bias.template view<1>(),
                                     .beta = T(2),
                                     .residual = rows(residual, m)};
          gemm(rows(a, m), packed, c, epilogue, execution);
        };
        run(2, two, {.isa = isa});
        run(1, one, {.isa = isa});
        run(1, shared, {.executor = &three, .isa = isa});
        const auto first = to_array(two.view().slice(0, 0, 1));
        ASSERT_TRUE(same_bits(to_array(one), first)) << n << ", " << k << ", " << name(isa);
        ASSERT_TRUE(same_bits(to_array(shared), first)) << n << ", " << k << ", " << name(isa);
      }
    }
  }
}

TYPED_TEST(GemmTest, InfinitiesAndNaNGoThrough) {
  using T = TypeParam;
  constexpr T inf = std::numeric_limits<T>::infinity();
  Tensor2<T> a({2, 3}, {1, inf, 2, 1, 2, 3}), b({3, 1}, {1, 1, 1}), c({2, 1});
  for (Isa isa : available_isas()) {
    gemm(a, b, c, {}, {.isa = isa});
    EXPECT_EQ(c(0, 0), inf);
    EXPECT_EQ(c(1, 0), T{6});
    Tensor2<T> zero({3, 1});
    gemm(a, zero, c, {}, {.isa = isa});
    EXPECT_TRUE(std::isnan(c(0, 0)));
    EXPECT_EQ(c(1, 0), T{0});
  }
}

}  // namespace
}  // namespace attn
