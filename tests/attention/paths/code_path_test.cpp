// AttentionPrecision::int8 against double on the quantised values; same bits; NaN in masked keys.
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "attn/attention/cached_attention.hpp"
#include "attn/attention/explain.hpp"

#include "support/draws/attention_draw.hpp"
#include "support/draws/coded_call.hpp"
#include "support/draws/format_draw.hpp"
#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::AttentionDraw;
using attn_test::CodedCall;
using attn_test::error_of;
using attn_test::extended_isas;
using attn_test::Index;
using attn_test::LibraryOptions;
using attn_test::Random;
using attn_test::ReferenceOptions;
using attn_test::ReferenceResult;
using attn_test::same_bits;
using attn_test::ThreadExecutor;
using attn_test::to_array;

/// With products of bfloat16 pairs, weights and values are rounded by at most 2^-8 each.
double of_pairs(Isa isa, const Array<float>& v) {
  return multiplies_pairs(isa) ? 0x1p-7 * max_abs(v) : 0;
}

ReferenceResult<float> run_coded(const AttentionDraw<float>& call, const Execution& execution) {
  const auto [batch, heads, q_len, kv_len] = call.scores();
  ReferenceResult<float> result{.y = Array<float>({batch, heads, q_len, call.v.extent(3)}),
                                .weights = Array<float>({batch, heads, q_len, kv_len}),
                                .lse = Array<float>({batch, heads, q_len}),
                                .average = Array<float>({batch, q_len, kv_len}),
                                .column_sums = Array<float>({batch, heads, kv_len}),
                                .max_logits = Array<float>({batch, heads})};
  const LibraryOptions<float> library(call.options);
  AttentionOptions<float> options = library.get();
  options.precision = AttentionPrecision::int8;
  options.weights = result.weights.view<4>();
  options.lse = result.lse.view<3>();
  options.average_weights = result.average.view<3>();
  options.column_sums = result.column_sums.view<3>();
  options.max_logits = result.max_logits.view<2>();
  options.execution = execution;
  scaled_dot_product_attention(call.q.view<4>(), call.k.view<4>(), call.v.view<4>(),
                               result.y.view<4>(), options);
  return result;
}

bool is_coded(const AttentionDraw<float>& call) {
  const LibraryOptions<float> library(call.options);
  AttentionOptions<float> options = library.get();
  options.precision = AttentionPrecision::int8;
  return explain(call.q.view<4>(), call.k.view<4>(), call.v.view<4>(), options).precision ==
         AttentionPrecision::int8;
}

TEST(CodePath, AnyOptionsWithinFloatsErrorOnItsCodes) {
  int calls = 0;
  for (std::uint64_t draw = 0; draw < attn_test::draws(300); ++draw) {
    Random random(draw);
    const AttentionDraw<float> call(random, 300000);
    if (!is_coded(call)) continue;
    ++calls;
    SCOPED_TRACE(random.trace() + ": " + call.text());
    const CodedCall coded(call.q, call.k, call.v, call.options);
    const auto exact =
        attn_test::reference_attention(coded.q, coded.k, call.v.as<double>(), coded.options);
    const auto naive = attn_test::reference_attention(coded.q.as<float>(), coded.k.as<float>(),
                                                      call.v, coded.options);
    // A mean has a few roundings, so a value near a tie may be rounded to the other side.
    const double of_scores = coded.flip, of_weights = std::expm1(2 * of_scores);
    const double of_values = of_weights * max_abs(call.v) / (1 - call.options.dropout);
    const auto check = [&](const Array<float>& got, const Array<double>& want,
                           const Array<float>& of_float, double flip, Isa isa, const char* what) {
      const double bound = 4 * worst(of_float, want).distance +
                           16 * attn_test::epsilon<float> * max_abs(want) + flip;
      ASSERT_EQ(difference(got, want, bound, isa, what), "");
    };
    for (Isa isa : extended_isas()) {
      const auto got = run_coded(call, {.isa = isa});
      check(got.y, exact.y, naive.y, of_values + of_pairs(isa, call.v) / (1 - call.options.dropout),
            isa, "y");
      check(got.weights, exact.weights, naive.weights, of_weights, isa, "weights");
      check(got.average, exact.average, naive.average, of_weights, isa, "average_weights");
      check(got.lse, exact.lse, naive.lse, of_scores, isa, "lse");
      check(got.max_logits, exact.max_logits, naive.max_logits, of_scores, isa, "max_logits");
      check(got.column_sums, exact.column_sums, naive.column_sums,
            of_weights * max_abs(exact.column_sums), isa, "column_sums");
    }
  }
  EXPECT_GT(calls, static_cast<int>(attn_test::draws(100)));
}

TEST(CodePath, KeysWithALargeMeanLoseLittle) {
  Random random(3);
  auto q = random.array<float>({1, 2, 40, 64}), v = random.array<float>({1, 2, 600, 64}),
       k = random.array<float>({1, 2, 600, 64});
  for (Index row = 0; row < 2 * 600; ++row) {
    for (Index x = 0; x < 64; ++x)
      k.data[static_cast<std::size_t>(row * 64 + x)] += static_cast<float>(x % 5 * 20);
  }
  const auto exact =
      attn_test::reference_attention(q.as<double>(), k.as<double>(), v.as<double>(), {}).y;
  for (Isa isa : extended_isas()) {
    const auto got = scaled_dot_product_attention(
        q.view<4>(), k.view<4>(), v.view<4>(),
        {.precision = AttentionPrecision::int8, .execution = {.isa = isa}});
    // Errors of scores are some hundredths; quantising k itself, in steps of 0.6, would give
    // several.
    EXPECT_EQ(difference(to_array(got), exact, 0.05 * max_abs(exact), isa), "");
  }
}

TEST(CodePath, SameBitsForThreadsBatchAndPlace) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(500 + draw);
    const AttentionDraw<float> call(random, 300000);
    SCOPED_TRACE(random.trace() + ": " + call.text());
    const SerialExecutor serial;
    const Index batch = call.q.extent(0);
    for (Isa isa : extended_isas()) {
      const auto expected = run_coded(call, {.executor = &serial, .isa = isa});
      for (int threads : {2, 5}) {
        const ThreadExecutor executor(threads);
        ASSERT_TRUE(same_bits(run_coded(call, {.executor = &executor, .isa = isa}), expected));
      }
      if (call.options.dropout > 0) continue;  // depends on the index of the batch row
      const auto alone = run_coded(call.with_batch({batch - 1}), {.executor = &serial, .isa = isa});
      ASSERT_TRUE(same_bits(alone.y, AttentionDraw<float>::pick_rows(expected.y, {batch - 1})));
    }
  }
}

TEST(CodePath, TasksOfFewRowsHaveTheBitsOfMany) {
  // Long enough to be split among threads; first keys lie next to the blocks of means.
  Random random(9);
  AttentionDraw<float> call(random, 100);
  call.options = {};
  call.options.causal = true;
  call.options.left = 300;
  call.options.first_key = 37;
  call.q = random.array<float>({1, 2, 900, 40});
  call.k = random.array<float>({1, 1, 1300, 40});
  call.v = random.array<float>({1, 1, 1300, 24});
  const SerialExecutor serial;
  const ThreadExecutor threads(4);
  const auto expected = run_coded(call, {.executor = &serial});
  EXPECT_TRUE(same_bits(run_coded(call, {.executor = &threads}), expected));
}

/// Means depend on absolute positions: keys that are not given count as masked.
TEST(CodePath, PositionsCountFromFirstKey) {
  Random random(4);
  const auto q = random.array<float>({1, 2, 30, 32}), k = random.array<float>({1, 2, 700, 32}),
             v = random.array<float>({1, 2, 700, 32});
  for (const index_t first : {1, 37, 64, 100, 640}) {
    const Tensor1<index_t> padding({1}, {first});
    for (Isa isa : extended_isas()) {
      const auto masked = scaled_dot_product_attention(q.view<4>(), k.view<4>(), v.view<4>(),
                                                       {.mask = left_padding(padding),
                                                        .precision = AttentionPrecision::int8,
                                                        .execution = {.isa = isa}});
      const auto part = [&](const Array<float>& x) { return x.view<4>().slice(2, first, 700); };
      const auto missing = scaled_dot_product_attention(
          q.view<4>(), part(k), part(v),
          {.first_key = first, .precision = AttentionPrecision::int8, .execution = {.isa = isa}});
      EXPECT_EQ(difference(to_array(missing), to_array(masked),
                           attn_test::near(masked) + of_pairs(isa, v), isa),
                "")
          << first;
    }
  }
}

TEST(CodePath, SmallElementsHaveTheBitsOfFloat) {
  Random random(5);
  const auto q = random.array<float>({2, 4, 20, 33}).as<bfloat16>(),
             k = random.array<float>({2, 2, 150, 33}).as<bfloat16>(),
             v = random.array<float>({2, 2, 150, 20}).as<bfloat16>();
  const auto q_float = q.as<float>(), k_float = k.as<float>(), v_float = v.as<float>();
  KvCache<float> cache({.batch = 2,
                        .num_kv_heads = 2,
                        .capacity = 150,
                        .head_dim = 33,
                        .head_dim_v = 20,
                        .element = DType::I8});
  cache.append(k_float.view<4>(), v_float.view<4>());
  const auto [held_k, held_v] = attn_test::held(cache);
  for (Isa isa : extended_isas()) {
    const AttentionOptions<float> options{
        .mask = causal(), .precision = AttentionPrecision::int8, .execution = {.isa = isa}};
    const auto expected = scaled_dot_product_attention(q_float.view<4>(), k_float.view<4>(),
                                                       v_float.view<4>(), options);
    const auto mixed =
        scaled_dot_product_attention(q_float.view<4>(), k.view<4>(), v.view<4>(), options);
    EXPECT_TRUE(same_bits(to_array(mixed), to_array(expected)));
    const auto small = scaled_dot_product_attention(q.view<4>(), k.view<4>(), v.view<4>(), options);
    EXPECT_TRUE(same_bits(to_array(small), to_array(expected).as<bfloat16>()));
    const auto of_cache = scaled_dot_product_attention(q_float.view<4>(), cache, options);
    const auto of_held = scaled_dot_product_attention(q_float.view<4>(), held_k.view<4>(),
                                                      held_v.view<4>(), options);
    EXPECT_TRUE(same_bits(to_array(of_cache), to_array(of_held)));
  }
}

TEST(CodePath, PagesAndPackedSequencesHaveTheBitsOfThoseAlone) {
  Random random(6);
  const auto q = random.array<float>({1, 4, 60, 33}), pages = random.array<float>({7, 2, 16, 33}),
             packed = random.array<float>({1, 2, 96, 33});
  // Entries after the lengths name no page.
  const Tensor2<index_t> table({2, 3}, {4, 0, 6, 1, 5, 1000000});
  const Tensor1<index_t> starts({3}, {0, 25, 60}), kv_starts({3}, {0, 46, 96}),
      lengths({2}, {46, 30});
  Array<float> first({1, 2, 48, 33});
  for (Index h = 0; h < 2; ++h) {
    for (Index j = 0; j < 48; ++j) {
      for (Index x = 0; x < 33; ++x) first(0, h, j, x) = pages(table(0, j / 16), h, j % 16, x);
    }
  }
  for (Isa isa : extended_isas()) {
    AttentionOptions<float> options{.mask = key_lengths(lengths) & causal(),
                                    .precision = AttentionPrecision::int8,
                                    .execution = {.isa = isa}};
    options.cu_seqlens_q = starts;
    options.block_table = table;
    const auto paged =
        scaled_dot_product_attention(q.view<4>(), pages.view<4>(), pages.view<4>(), options);
    const auto rows = first.view<4>().slice(2, 0, 46);
    const auto alone = scaled_dot_product_attention(
        q.view<4>().slice(2, 0, 25), rows, rows,
        {.mask = causal(), .precision = AttentionPrecision::int8, .execution = {.isa = isa}});
    EXPECT_TRUE(same_bits(to_array(paged.view().slice(2, 0, 25)), to_array(alone)));

    options.block_table = {};
    options.cu_seqlens_k = kv_starts;
    options.mask = causal();
    const auto together =
        scaled_dot_product_attention(q.view<4>(), packed.view<4>(), packed.view<4>(), options);
    const auto second = packed.view<4>().slice(2, 46, 96);
    const auto apart = scaled_dot_product_attention(
        q.view<4>().slice(2, 25, 60), second, second,
        {.mask = causal(), .precision = AttentionPrecision::int8, .execution = {.isa = isa}});
    EXPECT_TRUE(same_bits(to_array(together.view().slice(2, 25, 60)), to_array(apart)));
  }
}

TEST(CodePath, FunctorsTakeTheScoresOfCodes) {
  Random random(8);
  AttentionDraw<float> call(random, 100);
  call.options = {};
  call.q = random.array<float>({1, 2, 30, 16});
  call.k = call.v = random.array<float>({1, 2, 200, 16});
  call.options.score_mod = [](double s, int, int, int i, int j) {
    return s * 0.5 + 0.01 * (i - j);
  };
  call.options.prob_mod = [](double p, int, int, int i, int j) {
    return (i + j) % 3 == 0 ? -p : p;
  };
  call.options.mask_mod = [](int, int, int i, int j) { return (i * 7 + j) % 5 != 0; };
  const CodedCall coded(call.q, call.k, call.v, call.options);
  const auto exact =
      attn_test::reference_attention(coded.q, coded.k, call.v.as<double>(), coded.options).y;
  for (Isa isa : extended_isas()) {
    const auto got = scaled_dot_product_attention(
        call.q.view<4>(), call.k.view<4>(), call.v.view<4>(),
        {.precision = AttentionPrecision::int8, .execution = {.isa = isa}},
        score_mod([](float s, int, int, int i, int j) {
          return s * 0.5f + 0.01f * static_cast<float>(i - j);
        }),
        prob_mod([](float p, int, int, int i, int j) { return (i + j) % 3 == 0 ? -p : p; }),
        mask_mod([](int, int, int i, int j) { return (i * 7 + j) % 5 != 0; }));
    EXPECT_EQ(difference(
                  to_array(got), exact,
                  std::expm1(2 * coded.flip) * max_abs(call.v) + 1e-5 + of_pairs(isa, call.v), isa),
              "");
  }
}

TEST(CodePath, PoisonReachesTheQueriesThatSeeItAlone) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const bool in_keys : {false, true}) {
    Random random(11);
    AttentionDraw<float> call(random, 100);
    call.options = {};
    call.q = random.array<float>({2, 2, 40, 24});
    call.k = random.array<float>({2, 1, 700, 24});
    call.v = random.array<float>({2, 1, 700, 24});
    call.options.causal = true;
    auto mask = random.bits({1, 1, 40, 700}, 0.9);
    for (Index i = 0; i < 40; ++i) mask(0, 0, i, 300) = 0;
    mask(0, 0, 39, 699) = 1;
    call.options.masks.push_back({ReferenceOptions::Mask::Kind::keep, mask});
    std::map<Isa, Array<float>> results;  // of batch row 0
    for (const float poison : {std::nanf(""), inf, -inf}) {
      AttentionDraw<float> poisoned = call;
      Array<float>& x = in_keys ? poisoned.k : poisoned.v;
      x(0, 0, 300, 5) = poison;  // masked out
      x(1, 0, 699, 7) = poison;  // kept for the last query
      // A masked value has no effect, also on means: 0 instead of NaN.
      const CodedCall coded(poisoned.q, poisoned.k, poisoned.v, poisoned.options);
      Array<double> k = coded.k, v = poisoned.v.as<double>();
      for (Index n = 0; n < k.extent(3); ++n) k(0, 0, 300, n) = 0;
      for (Index n = 0; n < 24; ++n) v(0, 0, 300, n) = 0;
      const auto want = attn_test::reference_attention(coded.q, k, v, coded.options).y;
      for (Isa isa : extended_isas()) {
        Array<float> got = run_coded(poisoned, {.isa = isa}).y;
        for (Index row = 0; row < 4 * 40; ++row) {
          const bool sees = row >= 2 * 40 && row % 40 == 39;
          for (Index n = 0; n < 24; ++n) {
            const auto at = static_cast<std::size_t>(row * 24 + n);
            if (!sees) {
              ASSERT_NEAR(got.data[at], want.data[at], 0.05) << name(isa) << " row " << row;
            } else if (in_keys || n == 7) {
              ASSERT_FALSE(std::isfinite(got.data[at])) << name(isa);
            }
          }
        }
        got.data.resize(2 * 40 * 24);
        const auto first = results.emplace(isa, got).first;
        EXPECT_EQ(first->second.data, got.data) << name(isa);
      }
    }
  }
}

TEST(CodePath, WhatIsBeyondLengthsAndWindowsChangesNoBit) {
  Random random(12);
  AttentionDraw<float> call(random, 100);
  call.options = {};
  call.options.key_lengths = {650};
  call.options.causal = true;
  call.options.left = 100;
  call.q = random.array<float>({1, 2, 300, 24});
  call.k = random.array<float>({1, 1, 700, 24});
  call.v = random.array<float>({1, 1, 700, 24});
  AttentionDraw<float> poisoned = call;
  for (Index j = 0; j < 700; ++j) {
    if (j >= 250 && j < 650) continue;
    poisoned.k(0, 0, j, j % 24) = poisoned.v(0, 0, j, j % 24) = std::nanf("");
  }
  for (Isa isa : extended_isas()) {
    EXPECT_TRUE(same_bits(run_coded(poisoned, {.isa = isa}), run_coded(call, {.isa = isa})));
  }
}

TEST(CodePath, QueriesThatAreNotFiniteAreNaNAlone) {
  Random random(13);
  AttentionDraw<float> call(random, 100);
  call.options = {};
  call.q = random.array<float>({1, 2, 40, 24});
  call.k = call.v = random.array<float>({1, 2, 100, 24});
  for (Isa isa : extended_isas()) {
    const auto expected = run_coded(call, {.isa = isa}).y;
    AttentionDraw<float> poisoned = call;
    poisoned.q(0, 1, 17, 3) = std::numeric_limits<float>::infinity();
    std::fill_n(&poisoned.q(0, 0, 5, 0), 24, 0.0f);
    const auto got = run_coded(poisoned, {.isa = isa}).y;
    for (Index row = 0; row < 80; ++row) {
      for (Index n = 0; n < 24; ++n) {
        const float x = got.data[static_cast<std::size_t>(row * 24 + n)];
        if (row == 57) {
          EXPECT_TRUE(std::isnan(x));
        } else if (row != 5) {
          ASSERT_EQ(x, expected.data[static_cast<std::size_t>(row * 24 + n)]);
        }
      }
    }
    // The mean of the values, since all scores are 0.
    double mean = 0;
    for (Index j = 0; j < 100; ++j) mean += static_cast<double>(call.v(0, 0, j, 0)) / 100;
    EXPECT_NEAR(got(0, 0, 5, 0), mean, 1e-5 + of_pairs(isa, call.v));
  }
}

TEST(CodePath, ExplainSaysWhatRuns) {
  const Tensor4<float> q({1, 8, 64, 64}), few({1, 8, 1, 64});
  const AttentionOptions<float> options{.precision = AttentionPrecision::int8,
                                        .execution = {.isa = attn_test::available_isas().front()}};
  EXPECT_EQ(explain(q, q, q, options).precision, AttentionPrecision::int8);
  EXPECT_NE(explain(q, q, q, options).text().find("q and k quantised to 8 bits"),
            std::string::npos);
  EXPECT_EQ(explain(few, q, q, options).precision, AttentionPrecision::exact);
}

TEST(CodePath, DoubleIsExact) {
  const Tensor4<double> q({1, 2, 20, 8});
  EXPECT_EQ(
      error_of<ValueError>([&] {
        (void)scaled_dot_product_attention(q, q, q, {.precision = AttentionPrecision::int8});
      }),
      "[scaled_dot_product_attention] precision must be exact where q is of double; found int8.");
}

}  // namespace
}  // namespace attn
