// softmax, log_softmax, log_sum_exp: rows with masked entries, in place, against loops.
#include "attn/kernels/rows/softmax.hpp"

#include <cmath>
#include <cstring>
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
using attn_test::reference_log_softmax;
using attn_test::reference_softmax;
using attn_test::same_bits;
using attn_test::to_array;
using attn_test::twice_naive;
using attn_test::Wider;

template <class T>
class SoftmaxTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(SoftmaxTest, Types);

template <class T>
constexpr T kInf = std::numeric_limits<T>::infinity();

template <class T>
std::string softmax_difference(const Array<T>& got, const Array<T>& x, Isa isa) {
  const auto exact = reference_softmax(x.template as<Wider<T>>());
  const double bound = twice_naive([&](Order order) { return reference_softmax(x, order); }, exact);
  return difference(got, exact, bound, isa, "y");
}

TYPED_TEST(SoftmaxTest, RandomRowsInGuardedMemory) {
  using T = TypeParam;
  const std::vector<Index> sizes = {0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 97, 1025};
  for (std::uint64_t draw = 0; draw < attn_test::draws(150); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    auto x = random.array<T>({random.integer(1, 3), random.integer(1, 4), random.pick(sizes)},
                             random.pick<double>({1, 10, 100}));
    const double masked = random.pick<double>({0, 0.3, 0.95});
    for (T& value : x.data) {
      if (random.chance(masked)) value = -kInf<T>;
    }
    const Placed<T, 3> from(x, Layout<3>::any(random));
    const auto layout = Layout<3>::any(random);
    for (Isa isa : available_isas()) {
      Placed<T, 3> to(from.view().shape(), layout), in_place(x, layout);
      softmax(from.read(), to.view(), {.isa = isa});
      ASSERT_EQ(softmax_difference(to.values(), x, isa), "");
      ASSERT_TRUE(to.gaps_untouched());
      softmax(in_place.read(), in_place.view(), {.isa = isa});
      ASSERT_TRUE(same_bits(in_place.values(), to.values())) << name(isa);
    }
  }
}

/// Whether the bits are equal; all NaN count as equal.
template <class T>
bool same_row(const T* a, const std::vector<T>& b) {
  for (std::size_t j = 0; j < b.size(); ++j) {
    const bool both_nan = std::isnan(a[j]) && std::isnan(b[j]);
    if (!both_nan && std::memcmp(a + j, &b[j], sizeof(T)) != 0) return false;
  }
  return true;
}

TYPED_TEST(SoftmaxTest, RowsTogetherAreAsRowsAlone) {
  using T = TypeParam;
  std::vector<Shape<2>> shapes = {{1, 40}, {2, 1}, {2, 16}, {3, 8}, {40, 7}, {45, 1025}};
  // Larger than the near caches: one row after another.
  shapes.push_back({4 * second_level_cache() / index_t{1000 * sizeof(T)} + 1, 1000});
  for (const Shape<2>& shape : shapes) {
    Random random(static_cast<std::uint64_t>(shape[0] * shape[1]));
    SCOPED_TRACE(random.trace());
    auto x = random.array<T>({shape[0], shape[1]}, 10);
    const auto fill_row = [&](Index row, T value) {
      for (Index j = 0; j < shape[1]; ++j) x(row, j) = value;
    };
    if (shape[0] > 30) {
      fill_row(0, -kInf<T>);
      fill_row(3, std::numeric_limits<T>::quiet_NaN());
      fill_row(16, -kInf<T>);
      fill_row(shape[0] - 1, -kInf<T>);
      x(7, shape[1] - 1) = kInf<T>;
      x(9, 0) = std::numeric_limits<T>::quiet_NaN();
    }
    const auto from = x.template view<2>();
    for (Isa isa : available_isas()) {
      Tensor2<T> together(shape), in_place(shape);
      std::vector<T> alone(static_cast<std::size_t>(shape[1]));
      softmax(from, together, {.isa = isa});
      copy(from, in_place);
      softmax(in_place, in_place, {.isa = isa});
      for (Index i = 0; i < shape[0]; ++i) {
        softmax(from.select(0, i), TensorView1<T>(alone.data(), {shape[1]}), {.isa = isa});
        ASSERT_TRUE(same_row(&together(i, 0), alone)) << name(isa) << " row " << i;
        ASSERT_TRUE(same_row(&in_place(i, 0), alone)) << name(isa) << " row " << i;
      }
    }
  }
}

TYPED_TEST(SoftmaxTest, EveryRank) {
  using T = TypeParam;
  Random random(1);
  const auto x = random.array<T>({2, 3, 2, 5});
  for (Isa isa : available_isas()) {
    const Execution on{.isa = isa};
    const auto y = to_array(softmax(x.template view<4>(), on));
    EXPECT_EQ(softmax_difference(y, x, isa), "");
    const auto row = to_array(softmax(TensorView1<const T>(x.data.data(), {5}), on));
    for (Index j = 0; j < 5; ++j) EXPECT_EQ(row(j), y(0, 0, 0, j));
  }
}

TYPED_TEST(SoftmaxTest, RowsWhereNothingIsVisibleAreZero) {
  using T = TypeParam;
  for (Isa isa : available_isas()) {
    for (Index n : {1, 8, 37}) {
      Tensor2<T> x({2, n});
      x.fill(-kInf<T>);
      x(1, n - 1) = 3;
      const auto y = softmax(x, {.isa = isa});
      for (Index j = 0; j < n; ++j) {
        EXPECT_EQ(y(0, j), T{0});
        EXPECT_EQ(y(1, j), j == n - 1 ? T{1} : T{0});
      }
    }
  }
}

TYPED_TEST(SoftmaxTest, RowsWithNaNAreNaNAndOthersAreNot) {
  using T = TypeParam;
  for (Isa isa : available_isas()) {
    for (Index n : {3, 16, 33}) {
      for (Index at = 0; at < n; ++at) {
        Tensor2<T> x({2, n});
        x(0, at) = std::numeric_limits<T>::quiet_NaN();
        const auto y = softmax(x, {.isa = isa});
        for (Index j = 0; j < n; ++j) {
          EXPECT_TRUE(std::isnan(y(0, j))) << name(isa) << " n " << n << " NaN at " << at;
          EXPECT_FALSE(std::isnan(y(1, j)));
        }
      }
    }
  }
}

TYPED_TEST(SoftmaxTest, ShiftingARowChangesLittleHoweverLarge) {
  using T = TypeParam;
  const T large = std::numeric_limits<T>::max() / 4;
  for (Isa isa : available_isas()) {
    Tensor2<T> x({1, 40});
    x.fill(-large);
    x(0, 3) = x(0, 30) = large;
    const auto y = softmax(x, {.isa = isa});
    EXPECT_EQ(y(0, 3), T(0.5));
    EXPECT_EQ(y(0, 30), T(0.5));
    EXPECT_EQ(y(0, 0), T{0});
  }
}

TYPED_TEST(SoftmaxTest, LogSumExpOfRandomRows) {
  using T = TypeParam;
  const std::vector<Index> sizes = {0, 1, 7, 8, 9, 16, 17, 33, 97, 1025};
  for (std::uint64_t draw = 0; draw < attn_test::draws(100); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    auto x = random.array<T>({random.integer(1, 3), random.integer(1, 4), random.pick(sizes)},
                             random.pick<double>({1, 10, 100}));
    for (T& value : x.data) {
      if (random.chance(0.2)) value = -kInf<T>;
    }
    const Placed<T, 3> from(x, Layout<3>::any(random));
    for (Isa isa : available_isas()) {
      const auto y = log_sum_exp(from.read(), {.isa = isa});
      for (Index a = 0; a < x.shape[0]; ++a) {
        for (Index b = 0; b < x.shape[1]; ++b) {
          Wider<T> most = -kInf<Wider<T>>, total = 0;
          for (Index j = 0; j < x.shape[2]; ++j) most = std::max<Wider<T>>(most, x(a, b, j));
          for (Index j = 0; j < x.shape[2]; ++j) total += std::exp(Wider<T>(x(a, b, j)) - most);
          const Wider<T> exact = total > 0 ? most + std::log(total) : -kInf<Wider<T>>;
          if (!(total > 0)) {
            ASSERT_EQ(y(a, b), -kInf<T>);
            continue;
          }
          // Errors: 5 ULP for each exponential, one for each addition and for the logarithm.
          const double eps = std::numeric_limits<T>::epsilon();
          const double bound =
              eps * (8 + static_cast<double>(x.shape[2]) + 2 * std::abs(double(exact)));
          ASSERT_NEAR(double(y(a, b)), double(exact), bound) << name(isa);
        }
      }
    }
  }
  const Tensor3<float> z({2, 3, 4});
  Tensor2<float> out({3, 2});
  EXPECT_EQ(error_of<ShapeError>([&] { log_sum_exp(z, out); }),
            "[log_sum_exp] out must have shape (2, 3); found (3, 2).");
}

TYPED_TEST(SoftmaxTest, LogSoftmaxOfRandomRows) {
  using T = TypeParam;
  const std::vector<Index> sizes = {0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 97, 1025};
  for (std::uint64_t draw = 0; draw < attn_test::draws(100); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    auto x = random.array<T>({random.integer(1, 3), random.integer(1, 4), random.pick(sizes)},
                             random.pick<double>({1, 10, 100}));
    const double masked = random.pick<double>({0, 0.3, 0.95});
    const T shift = random.pick<T>({T{0}, T{10000}});
    for (T& value : x.data) value = random.chance(masked) ? -kInf<T> : value + shift;
    const auto exact = reference_log_softmax(x.template as<Wider<T>>());
    const double bound =
        twice_naive([&](Order order) { return reference_log_softmax(x, order); }, exact);
    const Placed<T, 3> from(x, Layout<3>::any(random));
    const auto layout = Layout<3>::any(random);
    for (Isa isa : available_isas()) {
      Placed<T, 3> to(from.view().shape(), layout), in_place(x, layout);
      log_softmax(from.read(), to.view(), {.isa = isa});
      ASSERT_EQ(difference(to.values(), exact, bound, isa, "y"), "");
      ASSERT_TRUE(to.gaps_untouched());
      log_softmax(in_place.read(), in_place.view(), {.isa = isa});
      ASSERT_TRUE(same_bits(in_place.values(), to.values())) << name(isa);
    }
  }
}

TYPED_TEST(SoftmaxTest, LogSoftmaxOfNaN) {
  using T = TypeParam;
  for (Isa isa : available_isas()) {
    for (T culprit : {std::numeric_limits<T>::quiet_NaN(), kInf<T>}) {
      for (Index at : {0, 8, 18}) {
        for (T others : {T{0}, -kInf<T>}) {
          Tensor2<T> x({1, 19});
          x.fill(others);
          x(0, at) = culprit;
          const auto y = log_softmax(x, {.isa = isa});
          EXPECT_TRUE(std::isnan(y(0, at))) << name(isa) << " at " << at;
          if (std::isnan(culprit)) {
            for (T value : y.elements()) EXPECT_TRUE(std::isnan(value)) << name(isa) << at;
          }
        }
      }
    }
  }
}

TEST(SoftmaxErrors, ShapesAndStrides) {
  const Tensor2<float> x({2, 3});
  Tensor2<float> y({2, 4}), z({3, 2});
  y.fill(7);
  EXPECT_EQ(error_of<ShapeError>([&] { softmax(x, y); }),
            "[softmax] out must have shape (2, 3); found (2, 4).");
  EXPECT_EQ(error_of<ShapeError>([&] { softmax(x, z.view().transpose(0, 1)); }),
            "[softmax] the innermost strides must be 1; found (3, 1) and (1, 2).");
  EXPECT_EQ(error_of<ShapeError>([&] { log_softmax(x, y); }),
            "[log_softmax] out must have shape (2, 3); found (2, 4).");
  EXPECT_EQ(error_of<ShapeError>([&] { log_softmax(x, z.view().transpose(0, 1)); }),
            "[log_softmax] the innermost strides must be 1; found (3, 1) and (1, 2).");
  EXPECT_TRUE(all_are(y, 7));
}

}  // namespace
}  // namespace attn
