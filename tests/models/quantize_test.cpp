// quantize and GGUF blocks: quantised models against models of the dequantised weights.
#include "attn/models/quantize.hpp"

#include <cstring>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "attn/models/gpt.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/isas.hpp"
#include "support/random.hpp"
#include "support/thread_executor.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;
using attn_test::TempFolder;
using attn_test::ThreadExecutor;

template <class T, int Rank>
bool quantize_same_bits(const Tensor<T, Rank>& a, const Tensor<T, Rank>& b) {
  return a.shape() == b.shape() &&
         std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(T)) == 0;
}

/// Of the float16 numbers of a block; for MXFP4 the scale, whose largest values overflow.
std::vector<std::size_t> exponent_bytes(GgufType type) {
  switch (type) {
    case GgufType::Q6_K:
      return {209};
    case GgufType::Q3_K:
      return {109};
    case GgufType::Q2_K:
      return {81, 83};
    case GgufType::MXFP4:
      return {0};
    case GgufType::Q8_0:
    case GgufType::IQ4_NL:
    case GgufType::IQ4_XS:
      return {1};
    default:
      return {1, 3};
  }
}

TEST(Quantize, BlocksOfFilesMeanWhatTheyDequantiseTo) {
  for (const GgufType type :
       {GgufType::Q8_0, GgufType::Q4_0, GgufType::Q4_1, GgufType::Q5_0, GgufType::Q5_1,
        GgufType::Q4_K, GgufType::Q5_K, GgufType::Q6_K, GgufType::Q2_K, GgufType::Q3_K,
        GgufType::IQ4_NL, GgufType::IQ4_XS, GgufType::MXFP4}) {
    SCOPED_TRACE(name(type));
    Random random(static_cast<std::uint64_t>(type));
    const index_t n = 21, k = 512;
    const auto size = static_cast<index_t>(block_elements(type));
    std::vector<std::byte> blocks(static_cast<std::size_t>(n * k / size) * block_bytes(type));
    for (std::byte& b : blocks) b = static_cast<std::byte>(random.integer(0, 255));
    // Finite scales: a block's scale is float16, whose exponent lies in the upper byte.
    for (std::size_t at = 0; at < blocks.size(); at += block_bytes(type)) {
      const auto tame = [&](std::size_t byte) { blocks[at + byte] &= std::byte{0xbf}; };
      for (const std::size_t byte : exponent_bytes(type)) tame(byte);
    }
    const QuantizedWeights weights = detail::quantized_weights(type, n, k, blocks);
    Tensor2<float> expected({n, k}), found({n, k});
    dequantize_gguf(type, blocks, {expected.data(), static_cast<std::size_t>(expected.size())});
    weights.dequantize(found.view());
    EXPECT_TRUE(quantize_same_bits(found, expected));
  }
}

Gpt<float> small_gpt(Random& random, bool tied, bool gated) {
  Gpt<float> gpt(
      {.vocab_size = 50,
       .num_layers = 2,
       .layer =
           {.d_model = 64, .nhead = 4, .dim_feedforward = 96, .norm_first = true, .gated = gated},
       .max_positions = 40,
       .tied = tied});
  gpt.visit_parameters([&]<int Rank>(std::string_view, TensorView<float, Rank> p) {
    for (index_t i = 0; i < p.size(); ++i) {
      p.data()[i] = static_cast<float>(0.2 * random.normal());
    }
  });
  return gpt;
}

TEST(Quantize, ExactModelsAreThoseOfTheDequantisedWeights) {
  for (const WeightFormat format :
       {WeightFormat::int8, WeightFormat::q8_0, WeightFormat::q5_1, WeightFormat::q5_0,
        WeightFormat::q4_1, WeightFormat::q4_0, WeightFormat::bf16, WeightFormat::f16}) {
    for (const bool tied : {true, false}) {
      Random random(10 * static_cast<std::uint64_t>(format) + (tied ? 1 : 0));
      SCOPED_TRACE(random.trace());
      Gpt<float> gpt = small_gpt(random, tied, tied);
      const Gpt<float> plain = gpt;
      quantize(gpt, {.weights = format});
      // A copy of the model with the dequantised weights.
      Gpt<float> expanded = plain;
      std::vector<Tensor2<float>> meant;
      visit_weights<float>(expanded, [&](std::string_view, WeightSlot<float>& slot) {
        auto& tensor = meant.emplace_back(slot.shape);
        if (format == WeightFormat::bf16) {
          convert(convert<bfloat16>(slot.dense), tensor);
        } else if (format == WeightFormat::f16) {
          convert(convert<float16>(slot.dense), tensor);
        } else {
          detail::quantized_weights(slot.dense, format).dequantize(tensor.view());
        }
      });
      std::size_t at = 0;
      visit_weights<float>(expanded, [&](std::string_view, WeightSlot<float>& slot) {
        copy(meant[at++], slot.dense);
      });
      Tensor2<index_t> ids({2, 9});
      for (index_t i = 0; i < ids.size(); ++i) ids.data()[i] = random.integer(0, 49);
      EXPECT_TRUE(quantize_same_bits(gpt(ids), expanded(ids)));
      // With a cache, one token at a time, as in decoding.
      auto caches = gpt.make_caches(2, 9), plain_caches = expanded.make_caches(2, 9);
      for (index_t i = 0; i < 9; ++i) {
        const auto token = ids.view().slice(1, i, i + 1);
        ASSERT_TRUE(quantize_same_bits(gpt(token, {}, caches), expanded(token, {}, plain_caches)));
      }
    }
  }
}

TEST(Quantize, PartsOfOneFormOrOfSeveralGiveTheBitsOfEachAlone) {
  Random random(32);
  const index_t k = 96;
  const auto form =
      [&](index_t n, WeightFormat format,
          ActivationFormat activations) -> std::shared_ptr<const CompressedWeight<float>> {
    if (format == WeightFormat::bf16) {
      return std::make_shared<const Float16Weight<bfloat16>>(random.tensor<bfloat16, 2>({n, k}));
    }
    return detail::compressed_weight<float>(random.tensor<float, 2>({n, k}),
                                            {.weights = format, .activations = activations});
  };
  using Parts = std::vector<std::shared_ptr<const CompressedWeight<float>>>;
  constexpr auto kInt8 = ActivationFormat::int8, kExact = ActivationFormat::exact;
  for (const Parts& parts :
       {Parts{form(40, WeightFormat::q4_1, kInt8), form(20, WeightFormat::q4_1, kInt8)},
        Parts{form(40, WeightFormat::q4_1, kInt8), form(20, WeightFormat::q8_0, kInt8)},
        Parts{form(40, WeightFormat::q4_1, kInt8), form(20, WeightFormat::q4_1, kExact)},
        Parts{form(40, WeightFormat::q4_1, kExact), form(20, WeightFormat::bf16, kExact)}}) {
    for (const index_t m : {1, 5, 20}) {
      const auto x = random.tensor<float, 2>({m, k}), residual = random.tensor<float, 2>({m, 60});
      const auto bias = random.tensor<float, 1>({60});
      Tensor2<float> found({m, 60}), expected({m, 60});
      detail::linear_parts<float, 2>(x.view(), parts, bias.view(), found.view(), Activation::gelu,
                                     residual.view(), {});
      for (const auto& [part, begin, end] : {std::tuple{0, 0, 40}, std::tuple{1, 40, 60}}) {
        parts[static_cast<std::size_t>(part)]->multiply(
            x.view(), expected.view().slice(1, begin, end),
            {.bias = bias.view().slice(0, begin, end),
             .activation = Activation::gelu,
             .beta = 1,
             .residual = residual.view().slice(1, begin, end)},
            {});
      }
      EXPECT_TRUE(quantize_same_bits(found, expected)) << m;
    }
  }
}

template <class E>
void expect_widened_bits() {
  // Wide enough for several ranges of widened rows, with an odd height.
  const index_t n = 1000, k = 1531;
  Random random(31);
  Linear<float> linear(k, n), widened(k, n);
  linear.weight = random.tensor<float, 2>({n, k});
  linear.bias = random.tensor<float, 1>({n});
  widened.weight = convert<float>(convert<E>(linear.weight));
  widened.bias = linear.bias;
  store_weights(linear, dtype_of<E>());
  EXPECT_EQ(weight_bytes(linear), 2 * n * k);
  for (const index_t m : {1, 5, 70}) {
    const auto x = random.tensor<float, 2>({m, k}), residual = random.tensor<float, 2>({m, n});
    Tensor2<float> found({m, n}), expected({m, n});
    linear.forward(x, found, Activation::gelu, residual);
    widened.forward(x, expected, Activation::gelu, residual);
    EXPECT_TRUE(quantize_same_bits(found, expected)) << m;
  }
}

TEST(Quantize, WeightsOf16BitsHaveTheBitsOfTheWidenedOnes) {
  expect_widened_bits<bfloat16>();
  expect_widened_bits<float16>();
  Linear<float> other(8, 8);
  store_weights(other, DType::F32);
  EXPECT_TRUE(contains(error_of<ValueError>([&] { store_weights(other, DType::I8); }),
                       "[store_weights] element must be F32, BF16 or F16; found I8"));
  EXPECT_TRUE(contains(
      error_of<ValueError>([&] {
        quantize(other, {.weights = WeightFormat::bf16, .activations = ActivationFormat::int8});
      }),
      "[quantize] activations must be exact or bf16 with weights of 16 bits; found int8"));
  EXPECT_TRUE(other.weight);
}

/// Activations rounded to bfloat16 by the test, in every weight format except bfloat16.
TEST(Quantize, Bfloat16ActivationsHaveTheBitsOfRoundedOnes) {
  for (const WeightFormat format :
       {WeightFormat::int8, WeightFormat::q8_0, WeightFormat::q5_1, WeightFormat::q5_0,
        WeightFormat::q4_1, WeightFormat::q4_0, WeightFormat::f16}) {
    Random random(41 + static_cast<std::uint64_t>(format));
    SCOPED_TRACE(random.trace());
    const index_t n = random.integer(1, 200), k = 32 * random.integer(1, 20);
    Linear<float> linear(k, n);
    linear.weight = random.tensor<float, 2>({n, k});
    linear.bias = random.tensor<float, 1>({n});
    Linear<float> exact = linear;
    quantize(linear, {.weights = format, .activations = ActivationFormat::bf16});
    quantize(exact, {.weights = format});
    for (const index_t m : {1, 3, 40}) {
      const auto x = random.tensor<float, 2>({m, k});
      const auto rounded = convert<float>(convert<bfloat16>(x));
      Tensor2<float> found({m, n}), expected({m, n});
      linear.forward(x, found, Activation::gelu);
      exact.forward(rounded, expected, Activation::gelu);
      EXPECT_TRUE(quantize_same_bits(found, expected)) << m;
      // Each activation has a relative error of at most 2^-8; float sums round as elsewhere.
      linear.forward(x, found);
      exact.forward(x, expected);
      Tensor1<float> weight({k});  // of the first column
      visit_weights<float>(
          exact, [&](std::string_view, WeightSlot<float>& slot) { slot.form->row(0, weight); });
      for (index_t i = 0; i < m; ++i) {
        double magnitude = 0;
        for (index_t p = 0; p < k; ++p)
          magnitude += std::abs(static_cast<double>(x(i, p)) * static_cast<double>(weight(p)));
        EXPECT_NEAR(found(i, 0), expected(i, 0),
                    1e-7 + magnitude * (1.0 / 256 + 1.2e-7 * static_cast<double>(k)));
      }
    }
  }
}

/// Each row of `x` times `weight` alone has the bits of all rows together.
void expect_rows_alone(const CompressedWeight<float>& weight, const Tensor2<float>& x,
                       const Epilogue<float>& epilogue, const Tensor2<float>& all,
                       const Execution& execution) {
  const index_t n = all.extent(1);
  for (index_t i = 0; i < x.extent(0); ++i) {
    Tensor2<float> one({1, n});
    Epilogue<float> own = epilogue;
    own.residual = epilogue.residual.slice(0, i, i + 1);
    weight.multiply(x.view().slice(0, i, i + 1), one, own, execution);
    ASSERT_EQ(std::memcmp(one.data(), &all(i, 0), static_cast<std::size_t>(n) * sizeof(float)), 0)
        << "row " << i;
  }
}

TEST(Quantize, Bfloat16ByBfloat16IsTheProductOfTheRoundedOnesInFloats) {
  const ThreadExecutor threads(3);
  for (std::uint64_t draw = 0; draw < 12; ++draw) {
    Random random(700 + draw);
    const index_t m = random.pick<index_t>({1, 3, 5, 20, 40}), n = random.integer(1, 300);
    const index_t k = random.integer(1, 700);
    const auto x = random.tensor<float, 2>({m, k}), residual = random.tensor<float, 2>({m, n});
    const auto w = random.tensor<bfloat16, 2>({n, k});
    const auto bias = random.tensor<float, 1>({n});
    const Epilogue<float> epilogue{
        .bias = bias, .activation = Activation::relu, .beta = 1, .residual = residual};
    for (const Isa isa : attn_test::extended_isas()) {
      SCOPED_TRACE(random.trace() + ", " + std::string(name(isa)) + ", " + std::to_string(m) +
                   " x " + std::to_string(n) + " x " + std::to_string(k));
      const Float16Weight<bfloat16> weight(w, true, isa);
      Tensor2<float> found({m, n}), shared({m, n}), in_place = residual;
      weight.multiply(x, found, epilogue, {.isa = isa});
      for (index_t i = 0; i < m; ++i) {
        for (index_t j = 0; j < n; ++j) {
          double sum = 0, magnitude = 0;
          for (index_t p = 0; p < k; ++p) {
            const double product =
                static_cast<double>(bfloat16(x(i, p))) * static_cast<double>(w(j, p));
            sum += product;
            magnitude += std::abs(product);
          }
          const double expected = std::max(sum + bias(j), 0.0) + residual(i, j);
          // One rounding per sum and product, and three in the epilogue.
          const double bound = 0x1p-23 * (static_cast<double>(k) * magnitude +
                                          3 * (magnitude + 2 + std::abs(expected)));
          ASSERT_NEAR(found(i, j), expected, bound) << i << ", " << j;
        }
      }
      weight.multiply(x, shared, epilogue, {.executor = &threads, .isa = isa});
      EXPECT_TRUE(quantize_same_bits(found, shared));
      expect_rows_alone(weight, x, epilogue, found, {.isa = isa});
      Epilogue<float> onto = epilogue;
      onto.residual = in_place;
      weight.multiply(x, in_place, onto, {.isa = isa});
      EXPECT_TRUE(quantize_same_bits(found, in_place));
      // The same weight in any layout.
      Tensor2<bfloat16> unpacked;
      const Tensor2<bfloat16> back(weight.weight(unpacked));
      EXPECT_TRUE(quantize_same_bits(back, w));
      Tensor1<float> row({k});
      weight.row(n - 1, row);
      for (index_t p = 0; p < k; ++p) ASSERT_EQ(row(p), static_cast<float>(w(n - 1, p)));
      // Another instruction set than the packed one: the widened product of rounded activations.
      const Isa other = attn_test::available_isas().front();
      if (isa == other) continue;
      const auto rounded = convert<float>(convert<bfloat16>(x));
      const auto widened = convert<float>(w);
      weight.multiply(x, found, epilogue, {.isa = other});
      gemm(rounded, widened.view().transpose(0, 1), shared, epilogue, {.isa = other});
      EXPECT_TRUE(quantize_same_bits(found, shared));
    }
  }
}

/// A 16-bit module equals the float module on widened parameters and inputs, rounded once.
template <class E>
void expect_rounded_once(const QuantizeOptions& options, Random& random) {
  const index_t n = 70, k = 96;
  Linear<E> linear(k, n);
  linear.weight = random.tensor<E, 2>({n, k});
  linear.bias = random.tensor<E, 1>({n});
  Linear<float> widened(k, n);
  widened.weight = convert<float>(linear.weight);
  widened.bias = convert<float>(linear.bias);
  quantize(linear, options);
  quantize(widened, options);
  EXPECT_FALSE(linear.weight);
  EXPECT_EQ(weight_bytes(linear), weight_bytes(widened));
  for (const index_t m : {1, 4, 20}) {
    const auto x = random.tensor<E, 2>({m, k}), residual = random.tensor<E, 2>({m, n});
    Tensor2<E> found({m, n});
    Tensor2<float> sums({m, n}), expected({m, n});
    linear.forward(x, found, Activation::gelu, residual);
    widened.forward(convert<float>(x), expected, Activation::gelu, convert<float>(residual).view());
    EXPECT_TRUE(quantize_same_bits(found, convert<E>(expected)));
    linear.forward(x, sums);
    widened.forward(convert<float>(x), expected);
    EXPECT_TRUE(quantize_same_bits(sums, expected));
  }
}

TEST(Quantize, ModulesOf16BitsWidenForTheirProducts) {
  Random random(91);
  for (const auto& [weights, activations] : {std::pair{WeightFormat::int8, ActivationFormat::int8},
                                             {WeightFormat::q4_1, ActivationFormat::exact},
                                             {WeightFormat::q8_0, ActivationFormat::bf16},
                                             {WeightFormat::bf16, ActivationFormat::bf16},
                                             {WeightFormat::f16, ActivationFormat::exact}}) {
    expect_rounded_once<bfloat16>({weights, activations}, random);
    expect_rounded_once<float16>({weights, activations}, random);
  }
  // Zero rows are valid, as in float.
  Linear<bfloat16> linear(64, 32);
  quantize(linear);
  Tensor3<bfloat16> nothing({0, 5, 32}), no_sequence({2, 0, 32});
  linear.forward(Tensor3<bfloat16>({0, 5, 64}), nothing);
  linear.forward(Tensor3<bfloat16>({2, 0, 64}), no_sequence, Activation::none, no_sequence);
  // A whole tied model, with a cache and in one call.
  Gpt<bfloat16> gpt({.vocab_size = 50,
                     .num_layers = 2,
                     .layer = {.d_model = 64, .nhead = 4, .dim_feedforward = 96, .gated = true},
                     .max_positions = 40});
  gpt.visit_parameters([&]<int Rank>(std::string_view, TensorView<bfloat16, Rank> p) {
    for (index_t i = 0; i < p.size(); ++i) {
      p.data()[i] = bfloat16(static_cast<float>(0.2 * random.normal()));
    }
  });
  const Tensor2<index_t> ids({1, 6}, {3, 1, 4, 1, 5, 9});
  const Tensor3<float> expected = gpt(ids);
  quantize(gpt, {.weights = WeightFormat::q8_0});
  const Tensor3<float> found = gpt(ids);
  EXPECT_EQ(gpt(Tensor2<index_t>({0, 6})).shape(), (Shape<3>{0, 6, 50}));
  double error = 0, size = 0;
  for (index_t i = 0; i < found.size(); ++i) {
    error += std::pow(found.data()[i] - expected.data()[i], 2);
    size += std::pow(expected.data()[i], 2);
  }
  EXPECT_LT(std::sqrt(error / size), 0.03);
  auto caches = gpt.make_caches(1, 6);
  for (index_t i = 0; i < 6; ++i) {
    const Tensor3<float> next = gpt(ids.view().slice(1, i, i + 1), {}, caches);
    for (index_t x = 0; x < 50; ++x) ASSERT_NEAR(next(0, 0, x), found(0, i, x), 0.05) << i;
  }
}

TEST(Quantize, EightBitsStayNearFloat) {
  Random random(77);
  const Gpt<float> plain = small_gpt(random, true, true);
  Tensor2<index_t> ids({1, 30});
  for (index_t i = 0; i < ids.size(); ++i) ids.data()[i] = random.integer(0, 49);
  const auto expected = plain(ids);
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::q8_0}) {
    Gpt<float> gpt = plain;
    quantize(gpt, {.weights = format, .activations = ActivationFormat::int8});
    const auto found = gpt(ids);
    double error = 0, size = 0;
    for (index_t i = 0; i < found.size(); ++i) {
      const double e = expected.data()[i];
      error += (found.data()[i] - e) * (found.data()[i] - e);
      size += e * e;
    }
    EXPECT_GT(error, 0);
    EXPECT_LT(std::sqrt(error / size), 0.02);
  }
}

TEST(Quantize, MakesModelsSmallAndKeepsThemShared) {
  Random random(5);
  Gpt<float> gpt = small_gpt(random, true, true);
  const index_t before = weight_bytes(gpt);
  quantize(gpt, {.weights = WeightFormat::q4_0});
  EXPECT_LT(weight_bytes(gpt), before / 5);
  Gpt<float> copy = gpt;
  EXPECT_EQ(weight_bytes(copy), weight_bytes(gpt));
  copy.pack();  // no weight to pack, no error
  const Tensor2<index_t> ids({1, 3}, {1, 2, 3});
  EXPECT_TRUE(quantize_same_bits(copy(ids), gpt(ids)));
}

TEST(QuantizeErrors, WeightsThatOverflow16Bits) {
  Linear<float> linear(4, 3);
  linear.weight.fill(1);
  linear.weight(2, 1) = 70000;
  const std::string expected =
      "[store_weights] weight must hold numbers that fit F16, at most 65504; found 70000 at "
      "element 9.";
  EXPECT_EQ(error_of<ValueError>([&] { quantize(linear, {.weights = WeightFormat::f16}); }),
            expected);
  EXPECT_EQ(error_of<ValueError>([&] { store_weights(linear, DType::F16); }), expected);
  EXPECT_EQ(linear.weight(2, 1), 70000);
  const TempFolder folder;
  save_state_dict(folder / "linear.safetensors", linear);
  const SafetensorsFile file(folder / "linear.safetensors");
  Linear<float> loaded(4, 3);
  EXPECT_EQ(error_of<ValueError>([&] { load_state_dict(loaded, file, {}, DType::F16); }), expected);
  Linear<float16> small(4, 3);
  EXPECT_TRUE(contains(error_of<ValueError>([&] { load_state_dict(small, file); }),
                       "fit F16, at most 65504; found 70000 at element 9"));
  EXPECT_EQ(float{small.weight(0, 0)}, 0);
  Tensor2<double> wide({3, 4});
  wide(2, 1) = 1e39;  // infinity in float, too
  const Tensor1<float> bias({3});
  save_safetensors(folder / "wide.safetensors", {{"weight", wide}, {"bias", bias}});
  EXPECT_TRUE(contains(error_of<ValueError>([&] {
                         load_state_dict(small, SafetensorsFile(folder / "wide.safetensors"));
                       }),
                       "found 1e+39 at element 9"));
  const SafetensorsFile wide_file(folder / "wide.safetensors");
  Linear<bfloat16> brain(4, 3);
  for (const auto& load :
       {std::function<void()>([&] { load_state_dict(loaded, wide_file); }),
        std::function<void()>([&] { load_state_dict(loaded, wide_file, {}, DType::F16); }),
        std::function<void()>([&] { load_state_dict(brain, wide_file); })}) {
    EXPECT_TRUE(contains(error_of<ValueError>(load), "found 1e+39 at element 9"));
  }
  wide(2, 1) = static_cast<double>(std::numeric_limits<float>::max());
  save_safetensors(folder / "float.safetensors",
                   {{"weight", convert<float>(wide)}, {"bias", bias}});
  EXPECT_TRUE(contains(error_of<ValueError>([&] {
                         load_state_dict(brain, SafetensorsFile(folder / "float.safetensors"));
                       }),
                       "fit BF16"));
  for (const GgufType type : {GgufType::F16, GgufType::BF16}) {
    const float large = type == GgufType::F16 ? 65520 : std::numeric_limits<float>::max();
    EXPECT_TRUE(contains(error_of<ValueError>([&] { quantize_gguf(type, std::span(&large, 1)); }),
                         "[quantize_gguf] values must hold numbers that fit"));
  }
  linear.weight(2, 1) = std::numeric_limits<float>::max();
  EXPECT_TRUE(
      contains(error_of<ValueError>([&] { quantize(linear, {.weights = WeightFormat::bf16}); }),
               "fit BF16"));
  linear.weight(2, 1) = -65519;  // rounds to -65504
  quantize(linear, {.weights = WeightFormat::f16});
}

TEST(QuantizeErrors, SayWhatIsWrong) {
  Random random(6);
  Linear<float> linear(40, 8);
  EXPECT_TRUE(contains(error_of<ValueError>([&] { quantize(linear, {WeightFormat::q4_0}); }),
                       "[quantize] weight must have a multiple of 32 columns; found 40"));
  EXPECT_EQ(linear.weight.shape(), (Shape<2>{8, 40}));  // unchanged
  Linear<float> large(64, 8);
  large.weight(2, 5) = 1e9f;
  for (const WeightFormat format : {WeightFormat::q8_0, WeightFormat::q5_1, WeightFormat::q5_0,
                                    WeightFormat::q4_1, WeightFormat::q4_0}) {
    EXPECT_TRUE(contains(error_of<ValueError>([&] { quantize(large, {format}); }),
                         "of at most 65504 (float16)"));
    EXPECT_TRUE(large.weight);
  }
  quantize(linear);
  EXPECT_FALSE(linear.weight);
  EXPECT_EQ(linear.in_features(), 40);
  EXPECT_EQ(linear.out_features(), 8);
  const auto show = [&] { linear.visit_parameters([](std::string_view, const auto&) {}); };
  EXPECT_TRUE(contains(error_of<ValueError>(show),
                       "[Linear] the weight must be a tensor, to be shown, trained, loaded or "
                       "saved (save_quantized() writes a quantised module); found quantised "
                       "blocks"));
  EXPECT_THROW(linear(Tensor2<float>({1, 39})), ShapeError);
  Gpt<float> gpt = small_gpt(random, true, false);
  quantize(gpt);
  EXPECT_THROW(gpt.visit_parameters([](std::string_view, const auto&) {}), ValueError);
}

}  // namespace
}  // namespace attn
