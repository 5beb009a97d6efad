// gemm on bfloat16 and float16 against double on the rounded inputs.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "attn/kernels/gemm/gemm.hpp"
#include "attn/kernels/rows/convert.hpp"

#include "support/isas.hpp"
#include "support/placed.hpp"
#include "support/references/reference.hpp"
#include "support/references/rounded.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::extended_isas;
using attn_test::Index;
using attn_test::Layout;
using attn_test::max_abs;
using attn_test::Placed;
using attn_test::Random;
using attn_test::rounding_difference;
using attn_test::same_bits;
using attn_test::ThreadExecutor;

template <class E>
class GemmElementsTest : public ::testing::Test {};
using SmallTypes = ::testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(GemmElementsTest, SmallTypes);

/// One product with its epilogue, and its expected result.
template <class E>
struct SmallProduct {
  Index m, n, k;
  Array<E> a, b, c, bias, residual;  // an empty residual means c
  float alpha = 1, beta = 0;
  Activation activation = Activation::none;

  explicit SmallProduct(Random& random) {
    const std::vector<Index> sizes = {0,  1,  2,  3,   4,   5,   7,    16,
                                      17, 31, 65, 130, 385, 400, 1025, 2100};
    do {
      m = random.pick(sizes), n = random.pick(sizes), k = random.pick(sizes);
    } while (m * n * k > 1000000);
    const auto draw = [&](const std::vector<Index>& shape) {
      return random.array<float>(shape).template as<E>();
    };
    a = draw({m, k});
    b = draw({k, n});
    c = draw({m, n});
    if (random.chance(0.5)) bias = draw({n});
    if (random.chance(0.3)) alpha = static_cast<float>(random.normal());
    if (random.chance(0.5)) beta = random.chance(0.5) ? 1 : static_cast<float>(random.normal());
    if (random.chance(0.5)) residual = draw({m, n});
    if (random.chance(0.3)) activation = Activation::relu;
  }

  std::string text() const {
    return "m, n, k = " + std::to_string(m) + ", " + std::to_string(n) + ", " + std::to_string(k) +
           ", alpha " + std::to_string(alpha) + ", beta " + std::to_string(beta) +
           (activation == Activation::relu ? ", relu" : "") + (bias ? ", bias" : "") +
           (residual ? ", residual" : ", in place");
  }

  Array<double> exact() const { return in<double>(); }

  /// The naive formula in T.
  template <class T>
  Array<T> in(attn_test::Order order = attn_test::Order::forward) const {
    Array<T> result = attn_test::reference_matmul(a.template as<T>(), b.template as<T>(), order);
    for (Index i = 0; i < m; ++i) {
      for (Index j = 0; j < n; ++j) {
        T x = T{alpha} * result(i, j) + (bias ? T{float{bias(j)}} : 0);
        if (activation == Activation::relu) x = std::max(x, T{0});
        result(i, j) = x + T{beta} * T{float{residual ? residual(i, j) : c(i, j)}};
      }
    }
    return result;
  }

  /// The error bound of float arithmetic. Pairs flush terms below 2^-126, which do not matter here.
  double bound(const Array<double>& exact) const {
    return attn_test::twice_naive([&](attn_test::Order order) { return in<float>(order); }, exact);
  }

  Epilogue<E> epilogue() const {
    return {.alpha = alpha,
            .bias = bias ? bias.template view<1>() : TensorView1<const E>(),
            .activation = activation,
            .beta = beta};
  }
};

TYPED_TEST(GemmElementsTest, RandomProductsAreThoseOfDoubleRoundedOnce) {
  using E = TypeParam;
  const ThreadExecutor threads(3);
  for (std::uint64_t draw = 0; draw < attn_test::draws(150); ++draw) {
    Random random(draw);
    const SmallProduct<E> p(random);
    SCOPED_TRACE(random.trace() + ": " + p.text());
    const auto exact = p.exact();
    const double bound = p.bound(exact);
    const Placed<E, 2> a(p.a, Layout<2>::any(random, false)), b(p.b, Layout<2>::any(random, false));
    const auto c_layout = Layout<2>::any(random, random.chance(0.8));
    for (Isa isa : extended_isas()) {
      Placed<E, 2> c(p.c, c_layout), packed_c(p.c, Layout<2>::contiguous());
      Epilogue<E> epilogue = p.epilogue(), packed_epilogue = epilogue;
      std::optional<Placed<E, 2>> residual;
      if (p.residual) {
        residual.emplace(p.residual, Layout<2>::any(random, random.chance(0.8)));
        epilogue.residual = packed_epilogue.residual = residual->read();
      }
      gemm(a.read(), b.read(), c.view(), epilogue,
           {.executor = draw % 2 == 0 ? &threads : nullptr, .isa = isa});
      ASSERT_EQ(rounding_difference(c.values(), exact, bound, isa), "");
      ASSERT_TRUE(c.gaps_untouched());
      const PackedWeights<E> packed(b.read(), isa);
      gemm(a.read(), packed, packed_c.view(), packed_epilogue);
      ASSERT_TRUE(same_bits(c.values(), packed_c.values())) << name(isa);
    }
  }
}

TYPED_TEST(GemmElementsTest, WhereNothingIsMultipliedInPairsTheBitsOfFloatRounded) {
  using E = TypeParam;
  Random random(3);
  for (const auto& [m, n, k] : {std::array<Index, 3>{1, 70, 1030}, {4, 33, 17}, {400, 65, 600}}) {
    const auto a = random.array<float>({m, k}).template as<E>(),
               b = random.array<float>({k, n}).template as<E>();
    const auto wide_a = a.template as<float>(), wide_b = b.template as<float>();
    for (Isa isa : extended_isas()) {
      if (std::same_as<E, bfloat16> && multiplies_pairs(isa)) continue;
      Tensor2<E> c({m, n});
      Tensor2<float> expected({m, n});
      gemm(a.template view<2>(), b.template view<2>(), c, {.activation = Activation::gelu},
           {.isa = isa});
      gemm(wide_a.template view<2>(), wide_b.template view<2>(), expected,
           {.activation = Activation::gelu}, {.isa = isa});
      EXPECT_TRUE(same_bits(attn_test::to_array(c), attn_test::to_array(convert<E>(expected))))
          << name(isa);
    }
  }
}

TYPED_TEST(GemmElementsTest, ARowHasTheSameBitsAlone) {
  using E = TypeParam;
  Random random(4);
  const auto a = random.array<float>({401, 1100}).template as<E>(),
             b = random.array<float>({1100, 70}).template as<E>();
  for (Isa isa : extended_isas()) {
    const PackedWeights<E> packed(b.template view<2>(), isa);
    Tensor2<E> all({401, 70});
    gemm(a.template view<2>(), packed, all);
    for (Index count : {1, 3, 16, 17}) {
      Tensor2<E> some({count, 70});
      for (Index row : {0, 5, 384}) {
        gemm(a.template view<2>().slice(0, row, row + count), packed, some);
        ASSERT_TRUE(same_bits(attn_test::to_array(some),
                              attn_test::to_array(all.slice(0, row, row + count))))
            << name(isa) << ", " << count << " rows from " << row << " on";
      }
    }
  }
}

TYPED_TEST(GemmElementsTest, PackedWeightsAreWhatTheyWere) {
  using E = TypeParam;
  Random random(6);
  for (const auto& [n, k] : {std::array<Index, 2>{1, 1}, {17, 33}, {70, 1100}, {130, 31}, {5, 0}}) {
    const auto weight = random.array<float>({n, k}).template as<E>();
    const TensorView2<const E> w = weight.template view<2>();
    for (Isa isa : extended_isas()) {
      const PackedWeights<E> packed(w.transpose(0, 1), isa);
      Tensor2<E> all({n, k}), last({1, k});
      packed.unpack(0, all);
      packed.unpack(n - 1, last);
      EXPECT_TRUE(same_bits(attn_test::to_array(all), weight)) << name(isa);
      EXPECT_TRUE(same_bits(attn_test::to_array(last), attn_test::to_array(w.slice(0, n - 1, n))));
      EXPECT_THROW(packed.unpack(n, last), ShapeError);
      EXPECT_THROW(packed.unpack(-1, last), ShapeError);
      EXPECT_THROW(packed.unpack(0, Tensor2<E>({1, k + 1})), ShapeError);
    }
  }
}

TYPED_TEST(GemmElementsTest, BatchesBroadcast) {
  using E = TypeParam;
  Random random(5);
  for (const auto& [batch_a, batch_b] : {std::pair<Index, Index>{3, 3}, {1, 3}, {3, 1}}) {
    const auto a = random.array<float>({batch_a, 9, 17}).template as<E>(),
               b = random.array<float>({batch_b, 17, 33}).template as<E>();
    for (Isa isa : extended_isas()) {
      Tensor3<E> c({3, 9, 33});
      Tensor2<E> one({9, 33});
      batched_gemm(a.template view<3>(), b.template view<3>(), c, {.alpha = 2}, {.isa = isa});
      for (Index i = 0; i < 3; ++i) {
        gemm(a.template view<3>().select(0, batch_a == 1 ? 0 : i),
             b.template view<3>().select(0, batch_b == 1 ? 0 : i), one, {.alpha = 2}, {.isa = isa});
        EXPECT_TRUE(
            same_bits(attn_test::to_array(c.view().select(0, i)), attn_test::to_array(one)));
      }
    }
  }
}

TYPED_TEST(GemmElementsTest, NanAndInfinityStayInTheirRowAndColumn) {
  using E = TypeParam;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Tensor2<E> a({3, 5}), b({5, 4}), c({3, 4});
  a.fill(E(1));
  b.fill(E(1));
  a(1, 4) = E(kInf);
  b(2, 3) = E(std::nanf(""));
  for (Isa isa : extended_isas()) {
    gemm(a, b, c, {}, {.isa = isa});
    for (Index i = 0; i < 3; ++i) {
      for (Index j = 0; j < 4; ++j) {
        if (j == 3) {
          EXPECT_TRUE(std::isnan(float{c(i, j)})) << name(isa);
        } else {
          EXPECT_EQ(float{c(i, j)}, i == 1 ? kInf : 5.0f) << name(isa);
        }
      }
    }
  }
}

/// Products of pairs flush denormals to 0; everything else widens them exactly.
TEST(GemmElements, DenormalsOfBfloat16) {
  Tensor2<bfloat16> a({1, 2}), b({2, 1}), c({1, 1});
  a(0, 0) = a(0, 1) = std::numeric_limits<bfloat16>::denorm_min();
  b(0, 0) = b(1, 0) = bfloat16(0x1p100f);
  for (Isa isa : extended_isas()) {
    gemm(a, b, c, {}, {.isa = isa});
    EXPECT_EQ(float{c(0, 0)}, multiplies_pairs(isa) ? 0.0f : 0x1p-32f) << name(isa);
  }
}

}  // namespace
}  // namespace attn
