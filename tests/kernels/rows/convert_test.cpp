// convert(): every 16-bit value, all magnitudes, any strides, against scalar conversions.
#include "attn/kernels/rows/convert.hpp"

#include <bit>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/placed.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::error_of;
using attn_test::Index;
using attn_test::Layout;
using attn_test::Placed;
using attn_test::Random;

template <class T>
using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;

/// The bits of x; of a NaN those of a quiet NaN, since processors convert signalling NaNs to quiet
/// ones.
template <class T>
Bits<T> quiet_bits(T x) {
  const auto bits = std::bit_cast<Bits<T>>(x);
  const auto value = static_cast<double>(x);
  constexpr int kMantissa = std::numeric_limits<T>::digits - 1;
  return value != value ? static_cast<Bits<T>>(bits | Bits<T>{1} << (kMantissa - 1)) : bits;
}

/// Random bits: numbers of all magnitudes, subnormals, infinities, NaN; half of them near a
/// rounding boundary of `To`.
template <class From, class To>
From hostile(Random& random) {
  using Integer = Bits<From>;
  const auto word = static_cast<std::uint64_t>(random.integer(0, (Index{1} << 62) - 1)) * 5;
  auto bits = static_cast<Integer>(word >> (64 - 8 * sizeof(From)));
  constexpr int kDropped = std::numeric_limits<From>::digits - std::numeric_limits<To>::digits;
  if constexpr (kDropped > 1) {
    if (random.chance(0.5)) {
      // The middle between two numbers of To, or one bit to a side.
      const auto x = static_cast<To>(random.normal() * std::exp2(random.integer(-30, 20)));
      bits = std::bit_cast<Integer>(static_cast<From>(x)) | Integer{1} << (kDropped - 1);
      bits = static_cast<Integer>(bits + static_cast<Integer>(random.integer(-1, 1)));
    }
  }
  return std::bit_cast<From>(bits);
}

template <class Pair>
class ConvertTest : public ::testing::Test {};
template <class A, class B>
struct Pair {
  using From = A;
  using To = B;
};
using Pairs =
    ::testing::Types<Pair<float, bfloat16>, Pair<float, float16>, Pair<bfloat16, float>,
                     Pair<float16, float>, Pair<double, float>, Pair<float, double>,
                     Pair<double, bfloat16>, Pair<double, float16>, Pair<bfloat16, double>,
                     Pair<float16, double>, Pair<bfloat16, float16>, Pair<float16, bfloat16>,
                     Pair<float, float>, Pair<bfloat16, bfloat16>>;
TYPED_TEST_SUITE(ConvertTest, Pairs);

TYPED_TEST(ConvertTest, GivesTheBitsOfTheScalarConversionOverAnyStrides) {
  using From = typename TypeParam::From;
  using To = typename TypeParam::To;
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const std::vector<Index> shape = {random.integer(0, 3), random.integer(1, 4),
                                      random.integer(1, 7),
                                      random.pick<Index>({1, 3, 8, 15, 16, 17, 40, 300})};
    attn_test::Array<From> values(shape);
    for (From& x : values.data) x = hostile<From, To>(random);
    const bool keep_last = random.chance(0.5);
    const auto from_layout = Layout<4>::any(random, keep_last);
    const auto to_layout = random.chance(0.5) ? from_layout : Layout<4>::any(random, keep_last);
    const Placed<From, 4> from(values, from_layout);
    for (Isa isa : available_isas()) {
      const Placed<To, 4> to(values.template library_shape<4>(), to_layout);
      convert(from.read(), to.view(), {.isa = isa});
      EXPECT_TRUE(to.gaps_untouched());
      const auto got = to.values();
      for (std::size_t i = 0; i < values.data.size(); ++i) {
        ASSERT_EQ(quiet_bits(got.data[i]), quiet_bits(static_cast<To>(values.data[i])))
            << name(isa) << ", " << static_cast<double>(values.data[i]) << " at " << i;
      }
    }
  }
}

template <class From, class To>
void check_every_value() {
  auto from = Tensor1<From>::uninitialized({65536});
  for (index_t i = 0; i < 65536; ++i) from(i) = From::from_bits(static_cast<std::uint16_t>(i));
  for (Isa isa : available_isas()) {
    const Tensor1<To> to = convert<To>(from, {.isa = isa});
    for (index_t i = 0; i < 65536; ++i) {
      ASSERT_EQ(quiet_bits(to(i)), quiet_bits(static_cast<To>(from(i)))) << name(isa) << " " << i;
    }
  }
}

TEST(Convert, EveryValueOf16Bits) {
  check_every_value<float16, float>();
  check_every_value<bfloat16, float>();
  check_every_value<float16, bfloat16>();
  check_every_value<bfloat16, float16>();
  check_every_value<float16, double>();
}

TEST(Convert, RefusesAnotherShape) {
  const Tensor2<float> from({2, 3});
  Tensor2<bfloat16> to({3, 2});
  EXPECT_EQ(error_of<ShapeError>([&] { convert(from, to); }),
            "[convert] to must have shape (2, 3); found (3, 2).");
}

}  // namespace
}  // namespace attn
