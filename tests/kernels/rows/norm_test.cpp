// layer_norm and rms_norm: random rows, in place, far from 0, and without variance.
#include "attn/kernels/rows/norm.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/placed.hpp"
#include "support/references/reference.hpp"
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
using attn_test::Order;
using attn_test::Placed;
using attn_test::Random;
using attn_test::reference_layer_norm;
using attn_test::reference_rms_norm;
using attn_test::same_bits;
using attn_test::to_array;
using attn_test::twice_naive;
using attn_test::Wider;

template <class T>
class LayerNormKernelTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(LayerNormKernelTest, Types);

/// (batch, seq, dim), with or without gaps between rows: leading axes that can be merged.
template <class T>
Layout<3> joined(Random& random) {
  auto layout = Layout<3>::contiguous();
  if (random.chance(0.5)) layout.gap = random.integer(1, 7);
  return layout;
}

// Results larger than the caches are stored past them: same bits as in parts.
TYPED_TEST(LayerNormKernelTest, MoreThanTheCachesHold) {
  using T = TypeParam;
  constexpr index_t kDim = 2048;
  const index_t rows = last_level_cache() / (2 * kDim * index_t{sizeof(T)}) + 3;
  Tensor2<T> x({rows, kDim});
  for (index_t i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>(i % 1999 - 999) / T{100};
  for (Isa isa : available_isas()) {
    const auto layer = layer_norm(x, {}, {}, 1e-5, {.isa = isa});
    const auto rms = rms_norm(x, {}, 1e-5, {.isa = isa});
    for (index_t i = 0; i < rows; i += 7) {
      const auto row = x.view().slice(0, i, i + 1);
      const auto layer_row = layer_norm(row, {}, {}, 1e-5, {.isa = isa});
      const auto rms_row = rms_norm(row, {}, 1e-5, {.isa = isa});
      ASSERT_TRUE(std::equal(layer_row.data(), layer_row.data() + kDim, &layer(i, 0))) << i;
      ASSERT_TRUE(std::equal(rms_row.data(), rms_row.data() + kDim, &rms(i, 0))) << i;
    }
  }
}

TYPED_TEST(LayerNormKernelTest, RandomRowsInGuardedMemory) {
  using T = TypeParam;
  using W = Wider<T>;
  const std::vector<Index> sizes = {1, 7, 8, 9, 15, 16, 17, 31, 33, 97, 1025};
  for (std::uint64_t draw = 0; draw < attn_test::draws(150); ++draw) {
    Random random(draw);
    const Index dim = random.pick(sizes);
    auto x = random.array<T>({random.integer(0, 3), random.integer(1, 5), dim});
    const T shift = random.pick<T>({T{0}, T{3}, T{100}});
    for (T& value : x.data) value += shift;
    const Array<T> weight = random.chance(0.7) ? random.array<T>({dim}) : Array<T>();
    const Array<T> bias = random.chance(0.7) ? random.array<T>({dim}) : Array<T>();
    const double eps = random.pick<double>({1e-5, 1e-6, 1e-12, 0.1});
    SCOPED_TRACE(random.trace() + ": " + attn_test::shape_text(x.shape));

    const auto exact = reference_layer_norm(x.template as<W>(), weight.template as<W>(),
                                            bias.template as<W>(), eps);
    const double bound = twice_naive(
        [&](Order order) { return reference_layer_norm(x, weight, bias, eps, order); }, exact);
    const Placed<T, 3> from(x, joined<T>(random));
    const auto layout = joined<T>(random);
    const attn_test::PageGuarded<T> w(weight), b(bias);
    const TensorView1<const T> weight_view =
        weight ? TensorView1<const T>(w.data(), {dim}) : TensorView1<const T>();
    const TensorView1<const T> bias_view =
        bias ? TensorView1<const T>(b.data(), {dim}) : TensorView1<const T>();
    for (Isa isa : available_isas()) {
      Placed<T, 3> to(from.view().shape(), layout), in_place(x, layout);
      layer_norm(from.read(), weight_view, bias_view, eps, to.view(), {.isa = isa});
      ASSERT_EQ(difference(to.values(), exact, bound, isa, "y"), "");
      ASSERT_TRUE(to.gaps_untouched());
      layer_norm(in_place.read(), weight_view, bias_view, eps, in_place.view(), {.isa = isa});
      ASSERT_TRUE(same_bits(in_place.values(), to.values())) << name(isa);
    }
  }
}

/// Slices of longer sequences, whose rows are not adjacent, give the bits of a copy.
TYPED_TEST(LayerNormKernelTest, LeadingAxesOfAnyStrides) {
  using T = TypeParam;
  Random random(1);
  auto x = random.tensor<T, 3>({2, 5, 9});
  const TensorView3<T> part = x.view().slice(1, 1, 4);
  const auto layer = layer_norm(Tensor3<T>(part)), rms = rms_norm(Tensor3<T>(part));
  EXPECT_EQ(to_array(rms_norm(part)).data, to_array(rms).data);
  const auto outside = to_array(x.view().slice(1, 4, 5));
  layer_norm(part, {}, {}, 1e-5, part);
  EXPECT_EQ(to_array(part).data, to_array(layer).data);
  EXPECT_EQ(to_array(x.view().slice(1, 4, 5)).data, outside.data);
}

TYPED_TEST(LayerNormKernelTest, RowsWithoutVarianceGiveTheBias) {
  using T = TypeParam;
  Tensor2<T> x({2, 20});
  x.fill(5);
  Tensor1<T> bias({20});
  bias.fill(T(0.25));
  for (Isa isa : available_isas()) {
    const auto y = layer_norm(x, {}, bias, 1e-5, {.isa = isa});
    for (T value : y.elements()) EXPECT_EQ(value, T(0.25)) << name(isa);
  }
}

// Sums of squares overflow, but every element and result is finite.
TYPED_TEST(LayerNormKernelTest, LargeFiniteRows) {
  using T = TypeParam;
  const int max_exponent = std::numeric_limits<T>::max_exponent - 4;
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const index_t n = random.pick<index_t>({2, 7, 16, 33, 512, 1025});
    const double eps = random.pick<double>({0, 1e-5});
    Tensor2<T> x({3, n});
    for (index_t i = 0; i < 3; ++i) {
      const int exponent = static_cast<int>(random.integer(0, max_exponent));
      for (index_t k = 0; k < n; ++k)
        x(i, k) = std::ldexp(static_cast<T>(random.normal()), exponent);
    }
    const auto wide = [&](index_t i, bool centers) {
      long double mean = 0, square = 0;
      for (index_t k = 0; k < n && centers; ++k) mean += x(i, k) / static_cast<long double>(n);
      for (index_t k = 0; k < n; ++k) square += (x(i, k) - mean) * (x(i, k) - mean);
      const long double length = std::sqrt(square / static_cast<long double>(n) +
                                           static_cast<long double>(static_cast<T>(eps)));
      return std::pair(mean, length);
    };
    for (const Isa isa : available_isas()) {
      const Tensor2<T> layer = layer_norm(x, {}, {}, eps, {.isa = isa});
      const Tensor2<T> rms = rms_norm(x, {}, eps, {.isa = isa});
      for (index_t i = 0; i < 3; ++i) {
        const auto [mean, deviation] = wide(i, true);
        const long double length = wide(i, false).second;
        for (index_t k = 0; k < n; ++k) {
          const long double bound =
              64 * static_cast<long double>(std::numeric_limits<T>::epsilon()) *
              (1 + (std::abs(mean) + std::abs(static_cast<long double>(x(i, k)))) / deviation);
          EXPECT_NEAR(static_cast<double>(layer(i, k) - (x(i, k) - mean) / deviation), 0,
                      static_cast<double>(bound))
              << name(isa);
          EXPECT_NEAR(static_cast<double>(rms(i, k) - x(i, k) / length), 0,
                      static_cast<double>(bound))
              << name(isa);
        }
      }
    }
  }
}

TEST(LayerNormLarge, KnownRows) {
  for (const Isa isa : available_isas()) {
    Tensor2<float> same({1, 512}), two({1, 512});
    same.fill(1e18F);
    for (index_t k = 0; k < 512; ++k) two(0, k) = k % 2 == 0 ? 1e19F : 2e19F;
    const Tensor2<float> ones = rms_norm(same, {}, 1e-5, {.isa = isa}),
                         signs = layer_norm(two, {}, {}, 1e-5, {.isa = isa});
    for (index_t k = 0; k < 512; ++k) {
      EXPECT_NEAR(ones(0, k), 1, 1e-6);
      EXPECT_NEAR(signs(0, k), k % 2 == 0 ? -1 : 1, 1e-5);
    }
    Tensor2<bfloat16> small({1, 512});
    small.fill(bfloat16(1e20F));
    EXPECT_EQ(float{rms_norm(small, {}, 1e-5, {.isa = isa})(0, 5)}, 1);
    // A rounded mean would turn these into +-1, a sum that overflows into NaN.
    for (const float value : {1000.1F, 1e10F, 1e18F, 1e20F, 3e22F, 1e26F, 1e30F, 3e38F}) {
      for (const index_t n : {7, 500, 512}) {
        Tensor2<float> equal({1, n});
        equal.fill(value);
        const Tensor2<float> zeros = layer_norm(equal, {}, {}, 1e-5, {.isa = isa});
        for (index_t k = 0; k < n; ++k) EXPECT_EQ(zeros(0, k), 0) << value << ", " << n;
      }
    }
    for (const double value : {1e150, 1e155, 1e200}) {
      Tensor2<double> equal({1, 500});
      equal.fill(value);
      const Tensor2<double> zeros = layer_norm(equal, {}, {}, 1e-5, {.isa = isa});
      for (index_t k = 0; k < 500; ++k) EXPECT_EQ(zeros(0, k), 0) << value;
    }
    // NaN and infinity remain.
    same(0, 3) = std::numeric_limits<float>::infinity();
    const Tensor2<float> infinite = rms_norm(same, {}, 1e-5, {.isa = isa});
    EXPECT_EQ(infinite(0, 0), 0);
    EXPECT_TRUE(std::isnan(infinite(0, 3)));
  }
}

TYPED_TEST(LayerNormKernelTest, ReturningFormDefaults) {
  using T = TypeParam;
  const Tensor2<T> x({1, 4}, {1, 2, 3, 4});
  const auto y = layer_norm(x);
  const T unit = T{1} / std::sqrt(T(1.25) + T(1e-5));
  EXPECT_NEAR(y(0, 0), -1.5 * unit, 1e-6);
  EXPECT_NEAR(y(0, 3), 1.5 * unit, 1e-6);
}

TEST(LayerNormErrors, ShapesAndStrides) {
  const Tensor2<float> x({2, 3});
  const Tensor1<float> three({3}), four({4});
  Tensor2<float> y({2, 3}), wrong({2, 4}), turned({3, 2});
  y.fill(7);
  EXPECT_EQ(error_of<ShapeError>([&] { layer_norm(x, three, three, 1e-5, wrong); }),
            "[layer_norm] out must have shape (2, 3); found (2, 4).");
  EXPECT_EQ(error_of<ShapeError>([&] { layer_norm(x, four, three, 1e-5, y); }),
            "[layer_norm] weight must be contiguous with shape (3); found (4).");
  EXPECT_EQ(error_of<ShapeError>([&] { layer_norm(x, three, four, 1e-5, y); }),
            "[layer_norm] bias must be contiguous with shape (3); found (4).");
  EXPECT_EQ(error_of<ShapeError>(
                [&] { layer_norm(turned.view().transpose(0, 1), three, three, 1e-5, y); }),
            "[layer_norm] the innermost strides must be 1; found (1, 2) and (3, 1).");
  EXPECT_TRUE(all_are(y, 7));
}

template <class T>
class RmsNormTest : public ::testing::Test {};
TYPED_TEST_SUITE(RmsNormTest, Types);

TYPED_TEST(RmsNormTest, RandomRowsInGuardedMemory) {
  using T = TypeParam;
  using W = Wider<T>;
  const std::vector<Index> sizes = {1, 7, 8, 9, 15, 16, 17, 31, 33, 97, 1025};
  for (std::uint64_t draw = 0; draw < attn_test::draws(150); ++draw) {
    Random random(draw);
    const Index dim = random.pick(sizes);
    const auto x = random.array<T>({random.integer(0, 3), random.integer(1, 5), dim},
                                   random.pick<double>({1, 100}));
    const Array<T> weight = random.chance(0.7) ? random.array<T>({dim}) : Array<T>();
    const double eps = random.pick<double>({1e-5, 1e-6, 0.1});
    SCOPED_TRACE(random.trace() + ": " + attn_test::shape_text(x.shape));

    const auto exact = reference_rms_norm(x.template as<W>(), weight.template as<W>(), eps);
    const double bound =
        twice_naive([&](Order order) { return reference_rms_norm(x, weight, eps, order); }, exact);
    const Placed<T, 3> from(x, joined<T>(random));
    const auto layout = joined<T>(random);
    const attn_test::PageGuarded<T> w(weight);
    const TensorView1<const T> weight_view =
        weight ? TensorView1<const T>(w.data(), {dim}) : TensorView1<const T>();
    for (Isa isa : available_isas()) {
      Placed<T, 3> to(from.view().shape(), layout), in_place(x, layout);
      rms_norm(from.read(), weight_view, eps, to.view(), {.isa = isa});
      ASSERT_EQ(difference(to.values(), exact, bound, isa, "y"), "");
      ASSERT_TRUE(to.gaps_untouched());
      rms_norm(in_place.read(), weight_view, eps, in_place.view(), {.isa = isa});
      ASSERT_TRUE(same_bits(in_place.values(), to.values())) << name(isa);
    }
  }
}

TYPED_TEST(RmsNormTest, ReturningFormDefaults) {
  using T = TypeParam;
  const Tensor2<T> x({2, 4}, {1, 2, 3, 4, 0, 0, 0, 0});
  const auto y = rms_norm(x);
  EXPECT_NEAR(y(0, 3), T{4} / std::sqrt(T(7.5) + T(1e-5)), 1e-6);
  EXPECT_EQ(y(1, 0), T{0});
}

TEST(RmsNormErrors, ShapesAndStrides) {
  const Tensor2<float> x({2, 3});
  const Tensor1<float> three({3}), four({4});
  Tensor2<float> y({2, 3}), wrong({2, 4}), turned({3, 2});
  y.fill(7);
  EXPECT_EQ(error_of<ShapeError>([&] { rms_norm(x, three, 1e-5, wrong); }),
            "[rms_norm] out must have shape (2, 3); found (2, 4).");
  EXPECT_EQ(error_of<ShapeError>([&] { rms_norm(x, four, 1e-5, y); }),
            "[rms_norm] weight must be contiguous with shape (3); found (4).");
  EXPECT_EQ(error_of<ShapeError>([&] { rms_norm(turned.view().transpose(0, 1), three, 1e-5, y); }),
            "[rms_norm] the innermost strides must be 1; found (1, 2) and (3, 1).");
  EXPECT_TRUE(all_are(y, 7));
}

}  // namespace
}  // namespace attn
