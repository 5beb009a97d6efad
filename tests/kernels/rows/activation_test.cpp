// Activations: against their formulas in a wider type, in place and not, at any stride.
#include "attn/kernels/rows/activation.hpp"

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
using attn_test::Placed;
using attn_test::Random;
using attn_test::same_bits;
using attn_test::Wider;

template <class T>
class ActivationTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(ActivationTest, Types);

template <class W>
W exact(Activation activation, W x) {
  switch (activation) {
    case Activation::relu:
      return attn_test::reference_relu(x);
    case Activation::relu_squared:
      return attn_test::reference_relu(x) * attn_test::reference_relu(x);
    case Activation::gelu:
      return attn_test::reference_gelu(x);
    case Activation::gelu_tanh:
      return attn_test::reference_gelu_tanh(x);
    case Activation::silu:
      return attn_test::reference_silu(x);
    case Activation::quick_gelu:
      return attn_test::reference_quick_gelu(x);
    default:
      return x;
  }
}

constexpr Activation kAll[] = {Activation::none,      Activation::relu,         Activation::gelu,
                               Activation::gelu_tanh, Activation::relu_squared, Activation::silu,
                               Activation::quick_gelu};

TYPED_TEST(ActivationTest, WithinFourEpsilonOfTheFormula) {
  using T = TypeParam;
  Array<T> x({20001});
  for (Index i = 0; i < x.size(); ++i) x(i) = static_cast<T>(static_cast<double>(i - 10000) / 500);
  for (Activation activation : kAll) {
    for (Isa isa : available_isas()) {
      const auto y = activate(activation, x.template view<1>(), {.isa = isa});
      for (Index i = 0; i < x.size(); ++i) {
        const double want = static_cast<double>(exact(activation, static_cast<long double>(x(i))));
        const double bound = 4 * attn_test::epsilon<T> * std::max(1.0, std::abs(want));
        ASSERT_NEAR(y(i), want, bound)
            << static_cast<int>(activation) << " of " << x(i) << " on " << name(isa);
      }
    }
  }
}

TYPED_TEST(ActivationTest, AnyStridesInGuardedMemory) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const Activation activation = random.pick<Activation>({std::begin(kAll), std::end(kAll)});
    const auto x =
        random.array<T>({random.integer(0, 3), random.integer(1, 4), random.integer(1, 40)}, 3);
    Array<Wider<T>> want = x.template as<Wider<T>>();
    for (auto& value : want.data) value = exact(activation, value);
    const Placed<T, 3> from(x, Layout<3>::any(random, false));
    const auto layout = Layout<3>::any(random, false);
    for (Isa isa : available_isas()) {
      Placed<T, 3> to(from.view().shape(), layout), in_place(x, layout);
      activate(activation, from.read(), to.view(), {.isa = isa});
      ASSERT_EQ(difference(to.values(), want, 64 * attn_test::epsilon<T>, isa), "");
      ASSERT_TRUE(to.gaps_untouched());
      activate(activation, in_place.read(), in_place.view(), {.isa = isa});
      ASSERT_TRUE(same_bits(in_place.values(), to.values()));
      ASSERT_TRUE(in_place.gaps_untouched());
    }
  }
}

TYPED_TEST(ActivationTest, ExtremesStayWhatTheyAre) {
  using T = TypeParam;
  constexpr T inf = std::numeric_limits<T>::infinity();
  constexpr T nan = std::numeric_limits<T>::quiet_NaN();
  for (Isa isa : available_isas()) {
    for (Activation activation :
         {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
      // Enough elements for whole and for partial vectors.
      Tensor1<T> x({19});
      const T kinds[] = {nan, inf, T(1e4), T(-1e4), -inf};
      for (Index i = 0; i < 19; ++i) x(i) = kinds[i % 5];
      const auto y = activate(activation, x, {.isa = isa});
      for (Index i = 0; i < 19; ++i) {
        if (i % 5 == 0) {
          EXPECT_TRUE(std::isnan(y(i))) << static_cast<int>(activation) << name(isa) << i;
        } else {
          EXPECT_EQ(y(i), i % 5 > 2 ? T{0} : x(i)) << static_cast<int>(activation) << name(isa);
        }
      }
    }
  }
}

/// Where e^-x overflows, x e^x is still a normal number.
TYPED_TEST(ActivationTest, SiluOfWhatIsFarBelowZero) {
  using T = TypeParam;
  const T x = sizeof(T) == 4 ? T(-89) : T(-710);
  for (Isa isa : available_isas()) {
    const T y = activate(Activation::silu, Tensor1<T>({1}, {x}), {.isa = isa})(0);
    const long double want = x * std::exp(static_cast<long double>(x));
    EXPECT_NEAR(static_cast<double>(y / want), 1, 4 * attn_test::epsilon<T>) << name(isa);
  }
}

TYPED_TEST(ActivationTest, NamedForms) {
  using T = TypeParam;
  const Tensor1<T> x({3}, {-1, 0, 2});
  EXPECT_EQ(relu(x)(0), T{0});
  EXPECT_EQ(relu(x)(2), T{2});
  EXPECT_NEAR(gelu(x)(2), 1.9544997361036416, 1e-6);
  EXPECT_NEAR(gelu(x, Activation::gelu_tanh)(2), 1.954597694087775, 1e-6);
  for (Isa isa : available_isas()) {
    EXPECT_EQ(relu(x, {.isa = isa})(2), T{2});
    Tensor1<T> y({3});
    relu(x, y, {.isa = isa});
    EXPECT_EQ(y(2), T{2});
    gelu(x, y, Activation::gelu, {.isa = isa});
    EXPECT_NEAR(y(0), -0.15865525393145707, 1e-6);
  }
}

// Results larger than the caches are stored past them, from any first element.
TYPED_TEST(ActivationTest, MoreThanTheCachesHold) {
  using T = TypeParam;
  const Index n = last_level_cache() / (2 * Index{sizeof(T)}) + 4099;
  Tensor1<T> x({n}), y({n});
  for (Index i = 0; i < n; ++i) x(i) = static_cast<T>(i % 1999 - 999) / T{100};
  for (Isa isa : available_isas()) {
    const auto few = relu(x.view().slice(0, 0, 1999), {.isa = isa});
    for (const Index begin : {0, 1, 3}) {
      y.fill(-1);
      relu(x.view().slice(0, begin, n - 1), y.view().slice(0, begin, n - 1), {.isa = isa});
      Index wrong = 0;
      for (Index i = 0; i < n; ++i) {
        wrong += y(i) != (i < begin || i == n - 1 ? T{-1} : few(i % 1999));
      }
      ASSERT_EQ(wrong, 0) << begin << name(isa);
    }
  }
}

TYPED_TEST(ActivationTest, SwishAndSwigluAtAnyStridesInGuardedMemory) {
  using T = TypeParam;
  using W = Wider<T>;
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const std::vector<Index> shape = {random.integer(0, 3), random.integer(1, 4),
                                      random.integer(1, 40)};
    const auto a = random.array<T>(shape, 3), b = random.array<T>(shape, 3);
    const double alpha = random.pick<double>({1, 0.5, 1.702, 0, -1});
    Array<W> swish_exact = a.template as<W>(), swiglu_exact = swish_exact;
    for (std::size_t i = 0; i < a.data.size(); ++i) {
      swish_exact.data[i] = attn_test::reference_swish<W>(a.data[i], static_cast<T>(alpha));
      swiglu_exact.data[i] = swish_exact.data[i] * static_cast<W>(b.data[i]);
    }
    // Both factors are below 3 times 6; a quotient has 4 epsilon.
    const double bound = 4 * 18 * attn_test::epsilon<T>;
    const Placed<T, 3> from_a(a, Layout<3>::any(random, false)),
        from_b(b, Layout<3>::any(random, false));
    const auto layout = Layout<3>::any(random, false);
    for (Isa isa : available_isas()) {
      Placed<T, 3> one(from_a.view().shape(), layout), two(from_a.view().shape(), layout);
      Placed<T, 3> over_a(a, layout), over_b(b, layout);
      swish(from_a.read(), one.view(), alpha, {.isa = isa});
      ASSERT_EQ(difference(one.values(), swish_exact, bound, isa, "swish"), "");
      ASSERT_TRUE(one.gaps_untouched());
      swiglu(from_a.read(), from_b.read(), two.view(), alpha, {.isa = isa});
      ASSERT_EQ(difference(two.values(), swiglu_exact, 18 * bound, isa, "swiglu"), "");
      ASSERT_TRUE(two.gaps_untouched());
      swiglu(over_a.read(), from_b.read(), over_a.view(), alpha, {.isa = isa});
      ASSERT_TRUE(same_bits(over_a.values(), two.values()));
      swiglu(from_a.read(), over_b.read(), over_b.view(), alpha, {.isa = isa});
      ASSERT_TRUE(same_bits(over_b.values(), two.values()));
    }
  }
}

TYPED_TEST(ActivationTest, SwigluOfManyElements) {
  using T = TypeParam;
  Random random(1);
  const auto a = random.array<T>({3, 30001}), b = random.array<T>({3, 30001});
  for (Isa isa : available_isas()) {
    const auto y = swiglu(a.template view<2>(), b.template view<2>(), 1, {.isa = isa});
    const auto gate = activate(Activation::silu, a.template view<2>(), {.isa = isa});
    for (Index i = 0; i < 3; ++i) {
      for (Index j = 0; j < 30001; ++j) {
        const T want = gate(i, j) * b(i, j);
        ASSERT_NEAR(y(i, j), want, 8 * attn_test::epsilon<T> * std::abs(want)) << name(isa);
      }
    }
  }
  EXPECT_EQ(swish(Tensor1<T>({1}, {0}))(0), T{0});
}

/// Like a gated feed-forward layer: halves of one product, the result written over the first.
TYPED_TEST(ActivationTest, GluOfHalvesOfOneProduct) {
  using T = TypeParam;
  using W = Wider<T>;
  Random random(2);
  for (const Index half : {1, 7, 8, 9, 33, 4097}) {
    const auto x = random.array<T>({2, 5, 2 * half});
    for (Activation activation : kAll) {
      Array<W> want({2, 5, half});
      double most = 0;
      for (Index b = 0; b < 2; ++b) {
        for (Index i = 0; i < 5; ++i) {
          for (Index j = 0; j < half; ++j) {
            const W up = x(b, i, half + j);
            want(b, i, j) = exact<W>(activation, x(b, i, j)) * up;
            most = std::max(most, static_cast<double>(std::abs(up)));
          }
        }
      }
      for (Isa isa : available_isas()) {
        Array<T> product = x;
        const auto view = product.template view<3>();
        const auto gate = view.slice(2, 0, half), up = view.slice(2, half, 2 * half);
        const auto y = glu(activation, gate, up, {.isa = isa});
        glu(activation, gate, up, gate, {.isa = isa});
        ASSERT_EQ(attn_test::to_array(gate).data, attn_test::to_array(y).data);
        // A gate is below 6 and has 4 epsilon.
        ASSERT_EQ(difference(attn_test::to_array(gate), want,
                             32 * attn_test::epsilon<T> * std::max(1.0, most), isa),
                  "");
        ASSERT_EQ(attn_test::to_array(up).data,
                  attn_test::to_array(x.template view<3>().slice(2, half, 2 * half)).data);
      }
    }
  }
}

/// The limit bounds the gate from above and the other factor on both sides; NaN remains NaN.
TYPED_TEST(ActivationTest, GluClampsAndShifts) {
  using T = TypeParam;
  const T nan = std::numeric_limits<T>::quiet_NaN(), inf = std::numeric_limits<T>::infinity();
  const std::vector<T> gates{-9, -2, 0, 1, 7, 8, inf, -inf, nan, 1};
  const std::vector<T> ups{3, -8, 8, 7, -7, inf, 0.5, -inf, 1, nan};
  const Index n = std::ssize(gates);
  const attn::GatedUnit unit(Activation::quick_gelu, 7, 1);
  for (Isa isa : available_isas()) {
    const auto y = glu(unit, attn::TensorView1<const T>(gates.data(), {n}),
                       attn::TensorView1<const T>(ups.data(), {n}), {.isa = isa});
    for (Index i = 0; i < n; ++i) {
      const T a = gates[static_cast<std::size_t>(i)], b = ups[static_cast<std::size_t>(i)];
      if (std::isnan(a) || std::isnan(b)) {
        EXPECT_TRUE(std::isnan(y(i))) << i;
        continue;
      }
      const double gate = a == -inf ? 0 : attn_test::reference_quick_gelu(std::min<double>(a, 7));
      const double want = gate * (std::clamp<double>(b, -7, 7) + 1);
      EXPECT_NEAR(y(i), want, 16 * attn_test::epsilon<T> * (1 + std::abs(want))) << i;
    }
  }
}

TEST(ActivationErrors, GluNamesWhatDiffers) {
  const Tensor2<float> a({2, 3}), four({2, 4}), turned({3, 2});
  Tensor2<float> y({2, 3});
  y.fill(7);
  EXPECT_EQ(error_of<ShapeError>([&] { glu(Activation::gelu, a, four, y); }),
            "[glu] b must have shape (2, 3); found (2, 4).");
  EXPECT_EQ(error_of<ShapeError>([&] { glu(Activation::gelu, four, four, y); }),
            "[glu] out must have shape (2, 4); found (2, 3).");
  EXPECT_EQ(
      error_of<ShapeError>([&] { glu(Activation::gelu, turned.view().transpose(0, 1), a, y); }),
      "[glu] a must have innermost stride 1; found 2.");
  EXPECT_TRUE(all_are(y, 7));
}

TEST(ActivationErrors, SwigluNamesWhatDiffers) {
  const Tensor2<float> a({2, 3}), four({2, 4});
  Tensor2<float> y({2, 3}), wrong({2, 4});
  y.fill(7);
  EXPECT_EQ(error_of<ShapeError>([&] { swiglu(a, four, y); }),
            "[swiglu] b must have shape (2, 3); found (2, 4).");
  EXPECT_EQ(error_of<ShapeError>([&] { swiglu(a, a, wrong); }),
            "[swiglu] out must have shape (2, 3); found (2, 4).");
  EXPECT_EQ(error_of<ShapeError>([&] { swish(a, wrong); }),
            "[swish] out must have shape (2, 3); found (2, 4).");
  EXPECT_TRUE(all_are(y, 7));
}

TEST(ActivationErrors, ShapesMustAgree) {
  Tensor2<float> x({2, 3}), y({2, 4});
  y.fill(7);
  const std::string text = error_of<ShapeError>([&] { relu(x, y); });
  EXPECT_TRUE(attn_test::contains(text, "out must have shape (2, 3); found (2, 4).")) << text;
  EXPECT_TRUE(all_are(y, 7));
  // Also if out begins at the same element with the same strides.
  Tensor1<float> z({8});
  z.fill(-1);
  EXPECT_THROW(relu(z.view().slice(0, 0, 4), z), ShapeError);
  EXPECT_EQ(z(7), -1.0f);
}

}  // namespace
}  // namespace attn
