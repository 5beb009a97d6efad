// Products with quantised weights: the bits of gemm() if exact, 8 bits against plain loops.
#include "attn/kernels/quantized/quantized.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/random.hpp"
#include "support/references/quantized_reference.hpp"
#include "support/thread_executor.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::extended_isas;
using attn_test::Index;
using attn_test::int8_reference;
using attn_test::quantized_formats;
using attn_test::Random;
using attn_test::random_weights;
using attn_test::shared_activations;
using attn_test::ThreadExecutor;

Tensor2<float> random_rows(Random& random, Index m, Index k) {
  Tensor2<float> x({m, k});
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(random.normal());
  return x;
}

bool same_bits(const Tensor2<float>& a, const Tensor2<float>& b) {
  return a.size() == 0 ||
         std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(float)) == 0;
}

/// A random product: m rows of k activations by weights (n, k) of some format.
struct Draw {
  Random random;
  const QuantizedFormat& format;
  Index k, m, n;
  QuantizedWeights weights;
  Tensor2<float> dense;  ///< the weights, dequantised

  explicit Draw(std::uint64_t seed)
      : random(seed),
        format(random.pick(quantized_formats())),
        k(format.block == 0 ? random.pick<Index>({1, 3, 64, 130, 1027, 2100})
                            : 32 * random.pick<Index>({1, 2, 5, 33, 65})),
        m(random.pick<Index>({1, 2, 3, 4, 5, 7, 8, 9, 10, 13, 16, 17, 70, 200})),
        n(random.pick<Index>({1, 15, 16, 17, 33, 64, 100, 130})),
        weights(random_weights(random, n, k, format)),
        dense({n, k}) {
    weights.dequantize(dense.view());
  }

  std::string text(Isa isa) const {
    return random.trace() + ", " + std::string(name(isa)) + ", bits " +
           std::to_string(format.bits) + ", " + std::to_string(m) + " x " + std::to_string(n) +
           " x " + std::to_string(k);
  }
};

TEST(Quantized, ExactProductsAreThoseOfTheDequantisedWeights) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Draw drawn(draw);
    auto& [random, format, k, m, n, weights, dense] = drawn;
    const Tensor2<float> x = random_rows(random, m, k), residual = random_rows(random, m, n);
    Tensor1<float> bias({n});
    bias.fill(0.5f);
    const Epilogue<float> epilogue{
        .bias = bias, .activation = Activation::silu, .beta = 1, .residual = residual};
    const ThreadExecutor threads(3);
    for (Isa isa : extended_isas()) {
      SCOPED_TRACE(drawn.text(isa));
      Tensor2<float> expected({m, n}), found({m, n});
      gemm(x, dense.view().transpose(0, 1), expected, epilogue, {.isa = isa});
      gemm(x, weights, ActivationFormat::exact, found, epilogue,
           {.executor = draw % 2 == 0 ? &threads : nullptr, .isa = isa});
      ASSERT_TRUE(same_bits(found, expected));
    }
  }
}

TEST(Quantized, ProductsInEightBitsAreThoseOfTheRoundedActivations) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Draw drawn(1000 + draw);
    auto& [random, format, k, m, n, weights, dense] = drawn;
    const Tensor2<float> x = random_rows(random, m, k);
    Tensor2<double> magnitude({m, n});
    const Tensor2<double> expected =
        int8_reference(x, dense, shared_activations(k, format), magnitude);
    // Integer sums are exact. Scaling a block rounds four times; adding it rounds once, and so does
    // adding a weight's offset.
    const Index blocks = format.block == 0 ? 2 + k / 1024 : k / format.block;
    const double bound = 1.2e-7 * static_cast<double>(6 + blocks);
    for (Isa isa : extended_isas()) {
      SCOPED_TRACE(drawn.text(isa));
      Tensor2<float> found({m, n});
      gemm(x, weights, ActivationFormat::int8, found, {}, {.isa = isa});
      // With an offset, a block's two terms may be large although their sum is small.
      const double slack = format.has_offset ? 16 : 1;
      for (Index i = 0; i < m; ++i) {
        for (Index j = 0; j < n; ++j) {
          ASSERT_NEAR(found(i, j), expected(i, j), slack * bound * magnitude(i, j) + 1e-30)
              << i << ", " << j;
        }
      }
    }
  }
}

TEST(Quantized, ProductsInSixteenBitsAreOffByATwoHundredFiftyFourthOfThoseInEight) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(30); ++draw) {
    Draw drawn(7000 + draw);
    auto& [random, format, k, m, n, weights, dense] = drawn;
    // Strided, with a value that is far larger than its neighbours.
    Tensor2<float> columns = random_rows(random, k, m);
    columns(random.integer(0, k - 1), random.integer(0, m - 1)) = 1000;
    const TensorView2<const float> x = columns.view().transpose(0, 1);
    const Tensor2<float> residual = random_rows(random, m, n);
    const Epilogue<float> epilogue{.alpha = 0.5f, .beta = 2, .residual = residual};
    const Index block = shared_activations(k, format);
    for (Isa isa : extended_isas()) {
      SCOPED_TRACE(drawn.text(isa));
      Tensor2<float> found({m, n});
      gemm(x, weights, ActivationFormat::int16, found, epilogue, {.isa = isa});
      for (Index i = 0; i < m; ++i) {
        for (Index j = 0; j < n; ++j) {
          // Half a step of the residual's quantised values, and the rounding of products in 8 bits
          // (see above), where offsets are less than 0.5.
          double expected = 0, step = 0, magnitude = 0;
          for (Index begin = 0; begin < k; begin += block) {
            double largest = 0, of_weights = 0;
            for (Index p = begin; p < std::min(begin + block, k); ++p) {
              const double a = x(i, p), w = dense(j, p);
              expected += a * w;
              magnitude += std::abs(a) * (std::abs(w) + 0.5);
              largest = std::max(largest, std::abs(a));
              of_weights += std::abs(w);
            }
            step += largest * of_weights / (254 * 127);
          }
          const double rounding = 2.4e-7 * static_cast<double>(6 + (k + block - 1) / block);
          const double with_residual = 0.5 * expected + 2 * double{residual(i, j)};
          ASSERT_NEAR(found(i, j), with_residual,
                      0.5 * (0.505 * step + rounding * magnitude) + 2e-6)
              << i << ", " << j;
        }
      }
    }
  }
}

TEST(Quantized, RowsHaveTheSameBitsAloneAndOnAnyThreads) {
  for (const QuantizedFormat& format : quantized_formats()) {
    Random random(2000);
    const Index m = 23, n = 100, k = 1088;
    const QuantizedWeights weights = random_weights(random, n, k, format);
    const Tensor2<float> x = random_rows(random, m, k);
    const ThreadExecutor threads(3);
    for (const auto activations :
         {ActivationFormat::exact, ActivationFormat::int8, ActivationFormat::int16}) {
      for (Isa isa : extended_isas()) {
        SCOPED_TRACE(std::string(name(isa)) + ", bits " + std::to_string(format.bits));
        Tensor2<float> all({m, n}), shared({m, n}), one({1, n});
        gemm(x, weights, activations, all, {}, {.isa = isa});
        gemm(x, weights, activations, shared, {}, {.executor = &threads, .isa = isa});
        EXPECT_TRUE(same_bits(all, shared));
        for (Index i = 0; i < m; ++i) {
          gemm(x.view().slice(0, i, i + 1), weights, activations, one, {}, {.isa = isa});
          ASSERT_EQ(std::memcmp(&all(i, 0), one.data(), sizeof(float) * n), 0) << i;
        }
      }
    }
  }
}

/// Integer sums are exact, and all instruction sets with AVX-512 scale them in the same way: with
/// tiles or vectors, for any number of rows.
TEST(Quantized, TilesGiveTheBitsOfVectors) {
  if (!is_available(Isa::amx)) GTEST_SKIP() << "needs AMX";
  const ThreadExecutor threads(3);
  for (std::uint64_t draw = 0; draw < attn_test::draws(100); ++draw) {
    Draw drawn(5000 + draw);
    auto& [random, format, k, m, n, weights, dense] = drawn;
    const Tensor2<float> x = random_rows(random, m, k), residual = random_rows(random, m, n);
    const Epilogue<float> epilogue{
        .alpha = 0.5f, .activation = Activation::gelu, .beta = 2, .residual = residual};
    SCOPED_TRACE(drawn.text(Isa::amx));
    Tensor2<float> expected({m, n}), found({m, n});
    gemm(x, weights, ActivationFormat::int8, expected, epilogue, {.isa = Isa::avx512vnni});
    gemm(x, weights, ActivationFormat::int8, found, epilogue,
         {.executor = draw % 2 == 0 ? &threads : nullptr, .isa = Isa::amx});
    ASSERT_TRUE(same_bits(found, expected));
  }
}

TEST(Quantized, MatricesOneBelowTheOtherGiveTheBitsOfEachAlone) {
  for (std::uint64_t draw = 0; draw < 12; ++draw) {
    Random random(6000 + draw);
    const Index m = random.pick<Index>({0, 1, 3, 4, 6, 8, 9, 40}), k = 32 * random.integer(1, 40);
    std::vector<QuantizedWeights> weights;
    std::vector<detail::QuantizedMatrix> parts;
    const QuantizedFormat first = random.pick(quantized_formats());
    Index n = 0;
    for (std::int64_t left = random.integer(1, 4); left > 0; --left) {
      const QuantizedFormat format = random.chance(0.6) ? first : random.pick(quantized_formats());
      weights.push_back(random_weights(random, random.integer(1, 150), k, format));
      parts.push_back(weights.back().matrix());
      n += weights.back().n();
    }
    const Tensor2<float> x = random_rows(random, m, k), residual = random_rows(random, m, n);
    Tensor1<float> bias({n});
    for (Index j = 0; j < n; ++j) bias(j) = static_cast<float>(random.normal());
    const ThreadExecutor threads(3);
    for (const auto activations :
         {ActivationFormat::exact, ActivationFormat::int8, ActivationFormat::int16}) {
      for (Isa isa : extended_isas()) {
        SCOPED_TRACE(random.trace() + ", " + std::string(name(isa)) + ", " + std::to_string(m) +
                     " x " + std::to_string(n) + " x " + std::to_string(k));
        Tensor2<float> expected({m, n}), found({m, n});
        Epilogue<float> epilogue{
            .bias = bias, .activation = Activation::silu, .beta = 1, .residual = residual};
        detail::gemm(x, parts, activations, found, epilogue,
                     {.executor = draw % 2 == 0 ? &threads : nullptr, .isa = isa});
        Index begin = 0;
        for (const QuantizedWeights& part : weights) {
          const Index end = begin + part.n();
          epilogue.bias = bias.view().slice(0, begin, end);
          epilogue.residual = residual.view().slice(1, begin, end);
          gemm(x, part, activations, expected.view().slice(1, begin, end), epilogue, {.isa = isa});
          begin = end;
        }
        ASSERT_TRUE(same_bits(found, expected));
      }
    }
  }
}

TEST(Quantized, AnActivationThatIsNotFiniteSpoilsItsRowAlone) {
  for (const QuantizedFormat& format : quantized_formats()) {
    Random random(3000);
    const QuantizedWeights weights = random_weights(random, 40, 96, format);
    const Tensor2<float> plain = random_rows(random, 9, 96);
    for (Isa isa : extended_isas()) {
      Tensor2<float> x = plain, expected({9, 40}), found({9, 40});
      const auto activations =
          random.pick<ActivationFormat>({ActivationFormat::int8, ActivationFormat::int16});
      gemm(x, weights, activations, expected, {}, {.isa = isa});
      x(2, 50) = std::numeric_limits<float>::infinity();
      x(5, 0) = std::numeric_limits<float>::quiet_NaN();
      for (Index p = 0; p < 96; ++p) x(7, p) = 1e-42f;  // subnormal: counts as 0
      gemm(x, weights, activations, found, {}, {.isa = isa});
      for (Index i = 0; i < 9; ++i) {
        for (Index j = 0; j < 40; ++j) {
          if (i == 2 || i == 5) {
            EXPECT_TRUE(std::isnan(found(i, j)));
          } else if (i == 7) {
            EXPECT_EQ(found(i, j), 0);
          } else {
            EXPECT_EQ(found(i, j), expected(i, j));
          }
        }
      }
    }
  }
}

/// 70,000 products of extreme quantised values, whose sums of pairs would overflow 16 bits and
/// whose total would overflow 32 bits. Every lane of every panel gets only one extreme, only the
/// other, both alternately, and -128 beside +-127 at another place. One row, few, and as many as
/// tiles take.
TEST(Quantized, ExtremeCodesDoNotOverflow) {
  constexpr Index n = 35, m = 18;
  const std::vector<QuantizedFormat> formats = {
      {.block = 0, .float_scales = true},                                // -128 .. 127
      {.block = 32, .float_scales = true},                               //
      {.block = 0, .zero = 0, .has_wide = false, .float_scales = true},  // 0 .. 127
      {.zero = 16, .has_wide = false},                                   // -16 .. 111
      {.bits = 4, .zero = 8, .has_wide = false}};                        // -8 .. 7
  for (const QuantizedFormat& format : formats) {
    const Index k = format.block == 0 ? 70016 : 4096;  // blocks are summed separately
    QuantizedWeights weights(n, k, format);
    const int top = format.bits == 4 ? 15 : format.has_wide ? 255 : 127;
    const auto code_of = [&](Index row, Index i) {
      switch (row % 4) {
        case 0:
          return 0;
        case 1:
          return top;
        case 2:
          return i % 2 == 0 ? 0 : top;
        default:  // the smallest, the second smallest, the largest
          return (i + row / 4) % 3 == 0 ? 0 : (i + row / 4) % 3 == 1 ? 1 : top;
      }
    };
    const Index block = format.block == 0 ? k : format.block;
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(block));
    for (Index row = 0; row < n; ++row) {
      for (Index b = 0; b < k / block; ++b) {
        for (Index i = 0; i < block; ++i) {
          codes[static_cast<std::size_t>(i)] =
              static_cast<std::uint8_t>(code_of(row, b * block + i));
        }
        weights.set_block(row, b, codes.data(), 1);
      }
    }
    Tensor2<float> x({m, k});
    for (Index i = 0; i < m; ++i) {
      for (Index p = 0; p < k; ++p) x(i, p) = i % 2 == 1 && p % 2 == 0 ? -127.0f : 127.0f;
    }
    double expected[2][n];  // by even and odd rows of x
    for (Index j = 0; j < n; ++j) {
      std::int64_t even = 0, odd = 0;
      for (Index p = 0; p < k; ++p) {
        const std::int64_t code = code_of(j, p) - format.zero;
        even += 127 * code;
        odd += p % 2 == 0 ? -127 * code : 127 * code;
      }
      expected[0][j] = static_cast<double>(even), expected[1][j] = static_cast<double>(odd);
    }
    // One rounding of the sum per block.
    const auto blocks = static_cast<double>(format.block == 0 ? 70 : k / 32);
    const double bound =
        6e-8 * blocks * 127 * std::max(top - format.zero, format.zero) * static_cast<double>(k);
    for (Isa isa : extended_isas()) {
      for (const Index rows : {Index{1}, Index{7}, m}) {
        Tensor2<float> y({rows, n});
        gemm(x.view().slice(0, 0, rows), weights, ActivationFormat::int8, y, {}, {.isa = isa});
        for (Index i = 0; i < rows; ++i) {
          for (Index j = 0; j < n; ++j) {
            ASSERT_NEAR(y(i, j), expected[i % 2][j], bound)
                << name(isa) << ", bits " << format.bits << ", block " << format.block << ", "
                << rows << " rows: " << i << ", " << j;
          }
        }
      }
    }
  }
}

/// Extreme block scales in files: infinite, NaN, 0, the smallest and largest of float16. A scale
/// that is not finite affects its column only, and blocks of zeros, in weights or activations, give
/// 0.
TEST(Quantized, ScalesOfBlocksThatAreNotFiniteSpoilTheirColumnAlone) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  const Index n = 50, k = 192;
  for (const QuantizedFormat& format : quantized_formats()) {
    Random random(7000 + static_cast<std::uint64_t>(format.zero));
    const Index block = format.block == 0 ? k : format.block;
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(block));
    const QuantizedWeights plain = random_weights(random, n, k, format);
    QuantizedWeights hostile = plain;
    const auto set_scale = [&](Index row, Index b, float scale) {
      float old_scale, offset;
      hostile.get_block(row, b, codes.data(), old_scale, offset);
      hostile.set_block(row, b, codes.data(), scale, scale == 0 ? 0 : offset);
    };
    const Index last = k / block - 1;
    set_scale(3, 0, inf);
    set_scale(16, last, -inf);
    set_scale(31, last / 2, std::nanf(""));
    set_scale(33, last, 65504);
    set_scale(34, 0, 0x1p-24f);
    for (Index b = 0; b <= last; ++b) set_scale(49, b, 0);
    const auto is_spoiled = [](Index j) { return j == 3 || j == 16 || j == 31; };
    Tensor2<float> dense({n, k});
    hostile.dequantize(dense.view());
    for (const Index m : {1, 3, 6, 40}) {
      Tensor2<float> x = random_rows(random, m, k);
      for (Index p = 0; p < k; ++p) x(m - 1, p) = 0;
      for (Isa isa : extended_isas()) {
        SCOPED_TRACE(std::string(name(isa)) + ", bits " + std::to_string(format.bits) + ", block " +
                     std::to_string(format.block) + ", rows " + std::to_string(m));
        Tensor2<float> expected({m, n}), found({m, n});
        gemm(x, dense.view().transpose(0, 1), expected, {}, {.isa = isa});
        gemm(x, hostile, ActivationFormat::exact, found, {}, {.isa = isa});
        for (Index i = 0; i < m; ++i) {
          for (Index j = 0; j < n; ++j) {
            ASSERT_TRUE(found(i, j) == expected(i, j) ||
                        (std::isnan(found(i, j)) && std::isnan(expected(i, j))))
                << "exact " << i << ", " << j;
          }
        }
        gemm(x, plain, ActivationFormat::int8, expected, {}, {.isa = isa});
        gemm(x, hostile, ActivationFormat::int8, found, {}, {.isa = isa});
        for (Index i = 0; i < m; ++i) {
          for (Index j = 0; j < n; ++j) {
            if (is_spoiled(j)) {
              ASSERT_FALSE(std::isfinite(found(i, j))) << "int8 " << i << ", " << j;
            } else if (j == 49 || i == m - 1) {
              ASSERT_EQ(found(i, j), 0) << "int8 " << i << ", " << j;
            } else if (j == 33 || j == 34) {
              ASSERT_TRUE(std::isfinite(found(i, j))) << "int8 " << i << ", " << j;
            } else {
              ASSERT_EQ(found(i, j), expected(i, j)) << "int8 " << i << ", " << j;
            }
          }
        }
      }
    }
  }
}

TEST(Quantized, RowsOfEightBits) {
  Random random(4000);
  Tensor2<float> w = random_rows(random, 5, 37);
  for (Index i = 0; i < 37; ++i) w(3, i) = 0;
  w(4, 7) = std::numeric_limits<float>::infinity();
  const QuantizedWeights weights = quantize_rows(w);
  Tensor2<float> back({5, 37});
  weights.dequantize(back.view());
  for (Index row = 0; row < 4; ++row) {
    float largest = 0;
    for (Index i = 0; i < 37; ++i) largest = std::max(largest, std::abs(w(row, i)));
    for (Index i = 0; i < 37; ++i) {
      EXPECT_LE(std::abs(back(row, i) - w(row, i)), largest / 254 * 1.00001f);
    }
  }
  EXPECT_TRUE(std::isnan(back(4, 0)));
  EXPECT_LT(weights.bytes(), 16 * (40 + 8) + 64);
}

TEST(QuantizedErrors, FormatsAndShapes) {
  EXPECT_TRUE(contains(error_of<ValueError>([] { QuantizedWeights(4, 64, {.bits = 3}); }),
                       "[QuantizedWeights] bits must be 8, or 4 with blocks of 32"));
  EXPECT_TRUE(contains(error_of<ShapeError>([] { QuantizedWeights(4, 40, {}); }),
                       "[QuantizedWeights] k must be a multiple of the block, 32; found 40"));
  EXPECT_THROW(QuantizedWeights(4, 32, {.block = 8}), ValueError);
  EXPECT_THROW(QuantizedWeights(4, 32, {.zero = 256}), ValueError);
  const QuantizedWeights weights(4, 64, {});
  const Tensor2<float> x({2, 63});
  Tensor2<float> y({2, 4});
  EXPECT_THROW(gemm(x, weights, ActivationFormat::int8, y), ShapeError);
  EXPECT_THROW(gemm(x, weights, ActivationFormat::exact, y), ShapeError);
}

}  // namespace
}  // namespace attn
