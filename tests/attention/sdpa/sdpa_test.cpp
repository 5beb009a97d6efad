// scaled_dot_product_attention: random options, shapes and strides against nested loops.
#include "attn/attention/sdpa.hpp"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "support/draws/attention_draw.hpp"
#include "support/draws/functor_draw.hpp"
#include "support/isas.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::attention_difference;
using attn_test::AttentionDraw;
using attn_test::available_isas;
using attn_test::FunctorDraw;
using attn_test::Index;
using attn_test::Layout;
using attn_test::LibraryOptions;
using attn_test::max_abs;
using attn_test::Placed;
using attn_test::Random;
using attn_test::ReferenceOptions;
using attn_test::ReferenceResult;
using attn_test::to_array;
using Kind = ReferenceOptions::Mask::Kind;

template <class T>
class SdpaTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(SdpaTest, Types);

// With those of the other type: 2,000 combinations of options, functors, outputs, shapes and
// strides.
TYPED_TEST(SdpaTest, RandomCallsInGuardedMemory) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(1000); ++draw) {
    Random random(draw);
    AttentionDraw<T> call(random, 150000);
    const FunctorDraw functors = random.chance(0.4) ? FunctorDraw(random) : FunctorDraw();
    functors.tell(call.options);
    SCOPED_TRACE(random.trace() + ": " + call.text() + functors.text());
    const Placed<T, 4> q(call.q, Layout<4>::any(random)), k(call.k, Layout<4>::any(random)),
        v(call.v, Layout<4>::any(random));
    const auto [batch, heads, q_len, kv_len] = call.scores();
    const Shape<4> out_shape{batch, heads, q_len, call.v.extent(3)};
    const auto out_layout = Layout<4>::any(random), weights_layout = Layout<4>::any(random);
    const auto lse_layout = Layout<3>::any(random, false);
    const bool wants_weights = random.chance(0.4), wants_lse = random.chance(0.5),
               wants_average = random.chance(0.2), wants_columns = random.chance(0.2),
               wants_most = random.chance(0.2);
    const LibraryOptions<T> library(call.options);
    const Array<T> of_values =
        call.options.qv ? call.options.qv.template as<T>() : Array<T>({batch, heads, q_len, 1});
    const Placed<T, 4> qv(of_values, Layout<4>::any(random));

    std::vector<ReferenceResult<T>> results;
    for (Isa isa : available_isas()) {
      Placed<T, 4> out(out_shape, out_layout), weights(call.scores(), weights_layout);
      Placed<T, 3> lse({batch, heads, q_len}, lse_layout);
      Placed<T, 3> average({batch, q_len, kv_len}, lse_layout),
          columns({batch, heads, kv_len}, lse_layout);
      Array<T> most({batch, heads});
      AttentionOptions<T> options = library.get();
      options.execution.isa = isa;
      if (call.options.qv) options.qv = qv.read();
      if (wants_weights) options.weights = weights.view();
      if (wants_lse) options.lse = lse.view();
      if (wants_average) options.average_weights = average.view();
      if (wants_columns) options.column_sums = columns.view();
      if (wants_most) options.max_logits = most.template view<2>();
      functors.apply([&](const auto&... f) {
        scaled_dot_product_attention(q.read(), k.read(), v.read(), out.view(), options, f...);
      });
      const ReferenceResult<T> got{.y = out.values(),
                                   .weights = wants_weights ? weights.values() : Array<T>(),
                                   .lse = wants_lse ? lse.values() : Array<T>(),
                                   .average = wants_average ? average.values() : Array<T>(),
                                   .column_sums = wants_columns ? columns.values() : Array<T>(),
                                   .max_logits = wants_most ? most : Array<T>()};
      ASSERT_EQ(attention_difference(got, call.q, call.k, call.v, call.options, isa), "");
      ASSERT_TRUE(out.gaps_untouched());
      ASSERT_TRUE(wants_weights ? weights.gaps_untouched() : weights.untouched());
      ASSERT_TRUE(wants_lse ? lse.gaps_untouched() : lse.untouched());
    }
  }
}

TYPED_TEST(SdpaTest, ReturningFormAndDefaults) {
  using T = TypeParam;
  Random random(1);
  const auto q = random.tensor<T, 4>({2, 3, 5, 8}), k = random.tensor<T, 4>({2, 3, 7, 8}),
             v = random.tensor<T, 4>({2, 3, 7, 4});
  const Tensor4<T> y = scaled_dot_product_attention(q, k, v);
  EXPECT_EQ(y.shape(), (Shape<4>{2, 3, 5, 4}));
  EXPECT_EQ(attention_difference<T>({to_array(y), {}, {}}, to_array(q), to_array(k), to_array(v),
                                    {}, active_isa()),
            "");
}

TYPED_TEST(SdpaTest, InputsMayAliasOneAnother) {
  using T = TypeParam;
  Random random(2);
  const auto x = random.array<T>({2, 2, 33, 16});
  for (Isa isa : available_isas()) {
    const auto view = x.template view<4>();
    const auto y = scaled_dot_product_attention(view, view, view,
                                                {.mask = causal(), .execution = {.isa = isa}});
    ReferenceOptions options;
    options.causal = true;
    EXPECT_EQ(attention_difference<T>({to_array(y), {}, {}}, x, x, x, options, isa), "");
  }
}

TYPED_TEST(SdpaTest, StridesOfZeroRepeatHeadsAndBatches) {
  using T = TypeParam;
  Random random(3);
  const auto q = random.tensor<T, 4>({2, 4, 19, 16}), k = random.tensor<T, 4>({1, 1, 70, 16}),
             v = random.tensor<T, 4>({1, 1, 70, 8});
  const auto repeat = [](const Tensor4<T>& x) {
    const Shape<4> strides{0, 0, x.extent(3), 1};
    return TensorView4<const T>(x.data(), {2, 4, x.extent(2), x.extent(3)}, strides);
  };
  for (Isa isa : available_isas()) {
    const Execution on{.isa = isa};
    const auto repeated = scaled_dot_product_attention(q, repeat(k), repeat(v), {.execution = on});
    const auto copied = scaled_dot_product_attention(q, Tensor4<T>(repeat(k)),
                                                     Tensor4<T>(repeat(v)), {.execution = on});
    EXPECT_TRUE(attn_test::same_bits(to_array(repeated), to_array(copied))) << name(isa);
    // One key/value head for all heads: equal to repeated heads.
    const auto grouped = scaled_dot_product_attention(q, repeat(k).slice(1, 0, 1),
                                                      repeat(v).slice(1, 0, 1), {.execution = on});
    EXPECT_EQ(attention_difference<T>({to_array(grouped), {}, {}}, to_array(q), to_array(repeat(k)),
                                      to_array(repeat(v)), {}, isa),
              "");
  }
}

TYPED_TEST(SdpaTest, SequencesMayRunBackwards) {
  using T = TypeParam;
  Random random(8);
  const auto x = random.tensor<T, 4>({1, 2, 300, 24});
  const auto backwards = [](const Tensor4<T>& t) {
    auto strides = t.view().strides();
    strides[2] = -strides[2];
    return TensorView4<const T>(&t(0, 0, t.extent(2) - 1, 0), t.shape(), strides);
  };
  const Array<T> turned = to_array(backwards(x));
  ReferenceOptions options;
  options.causal = true;
  for (Isa isa : available_isas()) {
    for (Index q_len : {3, 90}) {
      const auto q = backwards(x).slice(2, 0, q_len);
      const auto y = scaled_dot_product_attention(q, backwards(x), backwards(x),
                                                  {.mask = causal(), .execution = {.isa = isa}});
      EXPECT_EQ(
          attention_difference<T>({to_array(y), {}, {}}, to_array(q), turned, turned, options, isa),
          "");
    }
  }
}

TYPED_TEST(SdpaTest, MasksOfAnyStridesAndRanks) {
  using T = TypeParam;
  Random random(4);
  const auto q = random.array<T>({2, 3, 9, 8}), k = random.array<T>({2, 3, 21, 8}),
             v = random.array<T>({2, 3, 21, 8});
  // (batch, kv_len, q_len) in memory, with twice as many keys as used.
  Tensor3<bool> turned({2, 42, 9});
  for (bool& bit : turned.elements()) bit = random.chance(0.7);
  const auto keep = turned.view().slice(1, 0, 21).transpose(1, 2);
  const auto bias = random.tensor<T, 2>({42, 9});
  const TensorView2<const T> every_other(bias.data(), {9, 21}, {1, 18});

  ReferenceOptions options;
  Array<double> kept({2, 1, 9, 21}), added({1, 1, 9, 21});
  for (Index i = 0; i < 9; ++i) {
    for (Index j = 0; j < 21; ++j) {
      added(0, 0, i, j) = static_cast<double>(every_other(i, j));
      for (Index b = 0; b < 2; ++b) kept(b, 0, i, j) = keep(b, i, j) ? 1 : 0;
    }
  }
  options.masks = {{Kind::keep, kept}, {Kind::add, added}};
  for (Isa isa : available_isas()) {
    const auto y = scaled_dot_product_attention(
        q.template view<4>(), k.template view<4>(), v.template view<4>(),
        {.mask = keep_mask(keep.unsqueeze(1)) & additive_mask(every_other),
         .execution = {.isa = isa}});
    EXPECT_EQ(attention_difference<T>({to_array(y), {}, {}}, q, k, v, options, isa), "");
  }
}

TYPED_TEST(SdpaTest, QueriesThatSeeNothing) {
  using T = TypeParam;
  constexpr T inf = std::numeric_limits<T>::infinity();
  Random random(5);
  const auto q = random.tensor<T, 4>({1, 2, 3, 8}), k = random.tensor<T, 4>({1, 2, 9, 8}),
             v = random.tensor<T, 4>({1, 2, 9, 8});
  const Tensor2<bool> nothing({1, 1});
  const Tensor1<T> sinks({2}, {T(0.5), T{-2}});
  for (Isa isa : available_isas()) {
    for (const bool has_sinks : {false, true}) {
      for (const MaskedRow masked_row : {MaskedRow::zero, MaskedRow::mean}) {
        Tensor4<T> y({1, 2, 3, 8}), weights({1, 2, 3, 9});
        Tensor3<T> lse({1, 2, 3});
        y.fill(7), weights.fill(7), lse.fill(7);
        scaled_dot_product_attention(q, k, v, y,
                                     {.mask = keep_mask(nothing),
                                      .sinks = has_sinks ? sinks.view() : TensorView1<const T>(),
                                      .masked_row = masked_row,
                                      .weights = weights,
                                      .lse = lse,
                                      .execution = {.isa = isa}});
        const bool mean = masked_row == MaskedRow::mean && !has_sinks;
        for (Index h = 0; h < 2; ++h) {
          EXPECT_EQ(lse(0, h, 1), has_sinks ? sinks(h) : -inf) << name(isa);
          for (Index x = 0; x < 8; ++x) {
            T total = 0;
            for (Index j = 0; j < 9; ++j) total += v(0, h, j, x);
            EXPECT_NEAR(y(0, h, 1, x), mean ? total / 9 : 0, 1e-6);
          }
          for (Index j = 0; j < 9; ++j) EXPECT_NEAR(weights(0, h, 1, j), mean ? 1.0 / 9 : 0, 1e-7);
        }
      }
    }
  }
}

TYPED_TEST(SdpaTest, SinkThatIsNaNReachesTheOutput) {
  using T = TypeParam;
  const Tensor1<T> sinks({2}, {std::numeric_limits<T>::quiet_NaN(), T{0}});
  for (Isa isa : available_isas()) {
    for (const Index q_len : {1, 20}) {
      const Tensor4<T> q({1, 2, q_len, 8}), k({1, 2, 9, 8});
      const auto y =
          scaled_dot_product_attention(q, k, k, {.sinks = sinks, .execution = {.isa = isa}});
      EXPECT_TRUE(std::isnan(y(0, 0, 0, 0))) << name(isa);
      EXPECT_EQ(y(0, 1, 0, 0), 0) << name(isa);
    }
  }
}

/// Many models fill masks with the lowest finite number: a row of it is a mean, not fully masked.
TYPED_TEST(SdpaTest, LowestFiniteBiasMasksNothing) {
  using T = TypeParam;
  Random random(6);
  const auto q = random.array<T>({1, 1, 2, 8}), k = random.array<T>({1, 1, 20, 8}),
             v = random.array<T>({1, 1, 20, 8});
  Tensor2<T> bias({2, 20});
  bias.fill(std::numeric_limits<T>::lowest());
  bias(1, 3) = 0;
  Array<double> values({1, 1, 2, 20});
  std::copy(bias.elements().begin(), bias.elements().end(), values.data.begin());
  ReferenceOptions options;
  options.masks = {{Kind::add, values}};
  for (Isa isa : available_isas()) {
    const auto y = scaled_dot_product_attention(
        q.template view<4>(), k.template view<4>(), v.template view<4>(),
        {.mask = additive_mask(bias), .execution = {.isa = isa}});
    for (Index x = 0; x < 8; ++x) EXPECT_EQ(y(0, 0, 1, x), v(0, 0, 3, x)) << name(isa);
    EXPECT_EQ(attention_difference<T>({to_array(y), {}, {}}, q, k, v, options, isa), "");
  }
}

TYPED_TEST(SdpaTest, LogitsOfAnySizeStayFinite) {
  using T = TypeParam;
  Random random(7);
  for (const double size : {1e-30, 1e3, 1e15}) {
    const auto q = random.array<T>({1, 2, 9, 16}, size), k = random.array<T>({1, 2, 40, 16}),
               v = random.array<T>({1, 2, 40, 16});
    for (Isa isa : available_isas()) {
      const auto y =
          scaled_dot_product_attention(q.template view<4>(), k.template view<4>(),
                                       v.template view<4>(), {.execution = {.isa = isa}});
      for (T value : y.elements()) {
        EXPECT_TRUE(std::isfinite(value)) << size << name(isa);
        EXPECT_LE(std::abs(value), max_abs(v) * 1.00001);
      }
    }
  }
}

// Products of -inf do not mask out keys: only masks and biases do, and functors by their result for
// a finite score.
TYPED_TEST(SdpaTest, RowsOfInfiniteProductsAreNotEmpty) {
  using T = TypeParam;
  constexpr T inf = std::numeric_limits<T>::infinity();
  const T large = std::sqrt(std::numeric_limits<T>::max()) * 2;
  for (Isa isa : available_isas()) {
    for (const auto& [q_len, kv_len] : {std::pair{1, 3}, {1, 5000}, {40, 30}, {40, 600}}) {
      Tensor4<T> q({1, 2, q_len, 2}), k({1, 2, kv_len, 2}), v({1, 2, kv_len, 2}),
          weights({1, 2, q_len, kv_len});
      Tensor3<T> sums({1, 2, kv_len}), lse({1, 2, q_len});
      q.fill(large);
      k.fill(-large);
      v.fill(5);
      const Tensor1<T> sinks({2}, {-inf, 1});
      Tensor1<bool> none({kv_len});
      const auto run = [&](const AttentionOptions<T>& options, const auto&... functors) {
        AttentionOptions<T> told = options;
        told.weights = weights;
        told.column_sums = sums;
        told.lse = lse;
        told.execution.isa = isa;
        return scaled_dot_product_attention(q, k, v, told, functors...);
      };
      SCOPED_TRACE(std::string(name(isa)) + ", " + std::to_string(q_len) + " x " +
                   std::to_string(kv_len));
      for (const MaskedRow masked_row : {MaskedRow::zero, MaskedRow::mean}) {
        const auto y = run({.sinks = sinks, .masked_row = masked_row});
        EXPECT_TRUE(std::isnan(y(0, 0, q_len - 1, 1)));
        EXPECT_TRUE(std::isnan(weights(0, 0, 0, kv_len - 1)));
        EXPECT_TRUE(std::isnan(sums(0, 0, kv_len / 2)));
        EXPECT_EQ(y(0, 1, q_len - 1, 1), 0);  // the sink takes all weight
        EXPECT_EQ(weights(0, 1, 0, kv_len - 1), 0);
        EXPECT_EQ(sums(0, 1, kv_len / 2), 0);
        EXPECT_EQ(lse(0, 1, 0), 1);

        const T empty = masked_row == MaskedRow::zero ? 0 : 5;
        const T near = empty * static_cast<T>(kv_len) * std::numeric_limits<T>::epsilon();
        const auto of_mask = run({.mask = keep_mask(none), .masked_row = masked_row});
        EXPECT_NEAR(of_mask(0, 0, q_len - 1, 1), empty, near);
        EXPECT_EQ(lse(0, 0, 0), -inf);
        const auto minus_infinity = score_mod([](T, int, int, int, int) { return -inf; });
        const auto of_functor = run({.masked_row = masked_row}, minus_infinity);
        EXPECT_NEAR(of_functor(0, 0, q_len - 1, 1), empty, near);
        EXPECT_EQ(lse(0, 0, 0), -inf);
      }
    }
  }
}

TYPED_TEST(SdpaTest, FewRowsOnManyKeys) {
  using T = TypeParam;
  Random random(8);
  // Rows of a key/value head near the limit of the decode path; keys of one block, of two, and of
  // several splits. Without optimization every third pair.
  constexpr std::array<Index, 3> kLengths = {512, 530, 2100};
  constexpr std::array<Index, 11> kRows = {1, 2, 3, 4, 5, 8, 9, 12, 15, 16, 17};
  constexpr std::size_t kPairs = kLengths.size() * kRows.size();
  const std::size_t step = std::max(kPairs / attn_test::draws(kPairs), std::size_t{1});
  for (std::size_t n = 0; n < kPairs; n += step) {
    const Index kv_len = kLengths[n / kRows.size()], rows = kRows[n % kRows.size()];
    const Index group = rows % 3 == 0 ? 3 : 1, dim = random.pick<Index>({16, 40, 72});
    const auto q = random.array<T>({1, 2 * group, rows / group, dim});
    const auto k = random.array<T>({1, 2, kv_len, dim}), v = random.array<T>({1, 2, kv_len, 33});
    ReferenceOptions options;
    options.causal = random.chance(0.5);
    const Mask mask = options.causal ? causal() : Mask{};
    attn_test::AttentionReference<T> reference(q, k, v, options);
    for (Isa isa : available_isas()) {
      SCOPED_TRACE(std::string(name(isa)) + ": " + std::to_string(rows) + " rows, " +
                   std::to_string(kv_len) + " keys, head_dim " + std::to_string(dim));
      const auto y = scaled_dot_product_attention(q.template view<4>(), k.template view<4>(),
                                                  v.template view<4>(),
                                                  {.mask = mask, .execution = {.isa = isa}});
      EXPECT_EQ(reference.difference_of({to_array(y), {}, {}}, isa), "");
    }
  }
}

TYPED_TEST(SdpaTest, WeightsOfChosenHeads) {
  using T = TypeParam;
  Random random(9);
  const auto q = random.tensor<T, 4>({2, 6, 40, 16}), kv = random.tensor<T, 4>({2, 2, 90, 16});
  const Tensor1<index_t> chosen({3}, {5, 0, 2});
  Tensor4<T> all({2, 6, 40, 90}), some({2, 3, 40, 90}), again({2, 3, 40, 90});
  Tensor3<T> average({2, 40, 90}), average_of_all({2, 40, 90});
  const auto run = [&](AttentionOptions<T> options) {
    options.mask = causal();
    scaled_dot_product_attention(q, kv, kv, options);
  };
  run({.weights = all, .average_weights = average_of_all});
  run({.weights = some, .weight_heads = chosen});
  run({.weights = again, .weight_heads = chosen, .average_weights = average});
  for (index_t n = 0; n < 3; ++n) {
    const auto expected = to_array(all.view().slice(1, chosen(n), chosen(n) + 1));
    EXPECT_TRUE(same_bits(to_array(some.view().slice(1, n, n + 1)), expected));
    EXPECT_TRUE(same_bits(to_array(again.view().slice(1, n, n + 1)), expected));
  }
  EXPECT_TRUE(same_bits(to_array(average), to_array(average_of_all)));
}

}  // namespace
}  // namespace attn
