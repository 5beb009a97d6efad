// rotary_embedding: both pairings against nested loops, in place, and bad input.
#include "attn/layers/attention/rotary.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/placed.hpp"
#include "support/references/reference_layers.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::Array;
using attn_test::available_isas;
using attn_test::difference;
using attn_test::error_of;
using attn_test::Index;
using attn_test::Layout;
using attn_test::max_abs;
using attn_test::Placed;
using attn_test::Random;
using attn_test::reference_rotary;
using attn_test::same_bits;
using attn_test::Wider;

template <class T>
class RotaryTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(RotaryTest, Types);

TYPED_TEST(RotaryTest, RandomShapesInGuardedMemory) {
  using T = TypeParam;
  using W = Wider<T>;
  const std::vector<Index> halves = {0, 1, 3, 4, 7, 8, 9, 16, 17, 32, 33, 64};
  for (std::uint64_t draw = 0; draw < attn_test::draws(150); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const Index half = random.pick(halves), positions = random.integer(1, 9);
    const Index rest = random.chance(0.5) ? 0 : random.integer(1, 9);
    const Index batch = random.integer(1, 3), seq = random.integer(0, 5);
    const auto x = random.array<T>({batch, random.integer(1, 4), seq, 2 * half + rest});
    const auto cos = random.array<T>({positions, half}), sin = random.array<T>({positions, half});
    Tensor2<index_t> ids({batch, seq});
    for (index_t& id : ids.elements()) id = random.integer(0, positions - 1);
    const RotaryPairs pairs = random.chance(0.5) ? RotaryPairs::halves : RotaryPairs::interleaved;

    const auto exact = reference_rotary(x.template as<W>(), cos.template as<W>(),
                                        sin.template as<W>(), ids, pairs);
    const double bound =
        4 * attn_test::epsilon<T> * max_abs(x) * std::max(1.0, max_abs(cos) + max_abs(sin));
    const Placed<T, 4> from(x, Layout<4>::any(random));
    const Placed<T, 2> from_cos(cos, Layout<2>::any(random)), from_sin(sin, Layout<2>::any(random));
    const auto layout = Layout<4>::any(random);
    for (Isa isa : available_isas()) {
      Placed<T, 4> to(from.view().shape(), layout), in_place(x, layout);
      rotary_embedding(from.read(), from_cos.read(), from_sin.read(), ids, to.view(), pairs,
                       {.isa = isa});
      ASSERT_EQ(difference(to.values(), exact, bound, isa, "y"), "");
      ASSERT_TRUE(to.gaps_untouched());
      rotary_embedding(in_place.read(), from_cos.read(), from_sin.read(), ids, in_place.view(),
                       pairs, {.isa = isa});
      ASSERT_TRUE(same_bits(in_place.values(), to.values())) << name(isa);
      ASSERT_TRUE(in_place.gaps_untouched());
    }
  }
}

// The purpose of the rotation.
TYPED_TEST(RotaryTest, ProductsDependOnDistancesOnly) {
  using T = TypeParam;
  constexpr index_t kPositions = 20, kHalf = 8;
  const RotaryTable<T> table({.dim = 2 * kHalf, .max_positions = kPositions});
  EXPECT_EQ(table.cos(3, 2), static_cast<T>(std::cos(3 * std::pow(10000.0, -0.25))));
  Random random(3);
  const auto q = random.tensor<T, 4>({1, 1, 1, 2 * kHalf}), k = random.tensor<T, 4>(q.shape());
  for (RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved}) {
    const auto product = [&](index_t query, index_t key) {
      const auto a =
          rotary_embedding(q, table.cos, table.sin, Tensor2<index_t>({1, 1}, {query}), pairs);
      const auto b =
          rotary_embedding(k, table.cos, table.sin, Tensor2<index_t>({1, 1}, {key}), pairs);
      T sum = 0;
      for (index_t x = 0; x < 2 * kHalf; ++x) sum += a(0, 0, 0, x) * b(0, 0, 0, x);
      return sum;
    };
    EXPECT_NEAR(product(5, 2), product(19, 16), 1e-4);
    EXPECT_GT(std::abs(product(5, 2) - product(5, 4)), 1e-2);
  }
}

TEST(RotaryErrors, ShapesStridesAndPositions) {
  const Tensor4<float> x({2, 3, 5, 8});
  const Tensor2<float> cos({10, 4}), wide({10, 5}), turned({4, 10});
  const Tensor2<index_t> ids({2, 5}), other({2, 4});
  Tensor2<index_t> outside({2, 5});
  Tensor4<float> y({2, 3, 5, 8}), wrong({2, 3, 5, 7});
  y.fill(7);
  EXPECT_EQ(error_of<ShapeError>([&] { rotary_embedding(x, cos, cos, ids, wrong); }),
            "[rotary_embedding] out must have shape (2, 3, 5, 8); found (2, 3, 5, 7).");
  EXPECT_EQ(error_of<ShapeError>([&] { rotary_embedding(x, cos, wide, ids, y); }),
            "[rotary_embedding] sin must have shape (max_position, rotary_dim / 2) = (10, 4); "
            "found (10, 5).");
  EXPECT_EQ(error_of<ShapeError>([&] { rotary_embedding(x, wide, wide, ids, y); }),
            "[rotary_embedding] cos must have shape (max_position, rotary_dim / 2) with rotary_dim "
            "at most head_dim = 8; found (10, 5).");
  EXPECT_EQ(error_of<ShapeError>([&] { rotary_embedding(x, cos, cos, other, y); }),
            "[rotary_embedding] position_ids must have shape (batch, seq) = (2, 5); found (2, 4).");
  const auto columns = turned.view().transpose(0, 1);
  EXPECT_EQ(error_of<ShapeError>([&] { rotary_embedding(x, columns, cos, ids, y); }),
            "[rotary_embedding] cos must have innermost stride 1 (these are the strides); found "
            "(1, 10).");
  outside(1, 2) = 10;
  EXPECT_EQ(error_of<ValueError>([&] { rotary_embedding(x, cos, cos, outside, y); }),
            "[rotary_embedding] position_ids(1, 2) must lie in 0 .. 9; found 10.");
  outside(1, 2) = -1;
  EXPECT_THROW(rotary_embedding(x, cos, cos, outside, y), ValueError);
  EXPECT_TRUE(all_are(y, 7));
}

}  // namespace
}  // namespace attn
