// BlockMask: bit-identical to its functor, fewer calls of it, and printed blocks.
#include "attn/attention/block_mask.hpp"

#include <atomic>
#include <sstream>

#include <gtest/gtest.h>

#include "attn/attention/cached_attention.hpp"
#include "attn/attention/explain.hpp"
#include "attn/attention/sdpa_backward.hpp"

#include "support/draws/attention_draw.hpp"
#include "support/draws/functor_draw.hpp"
#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/references/reference_backward.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::attention_difference;
using attn_test::AttentionDraw;
using attn_test::available_isas;
using attn_test::contains;
using attn_test::error_of;
using attn_test::Index;
using attn_test::LibraryOptions;
using attn_test::Random;
using attn_test::ReferenceResult;
using attn_test::same_bits;
using attn_test::ThreadExecutor;
using attn_test::to_array;

/// Keeps one in `period` of the squares of `size` queries and keys.
struct Squares {
  int size, period, of_batch, of_head;

  explicit Squares(Random& random)
      : size(static_cast<int>(random.pick<Index>({1, 3, 32, 64, 64, 100, 128}))),
        period(static_cast<int>(random.pick<Index>({1, 2, 3, 7, 50}))),
        of_batch(random.chance(0.5)),
        of_head(random.chance(0.5)) {}

  bool operator()(int b, int h, int i, int j) const {
    return (7 * (i / size) + 5 * (j / size) + of_head * h + of_batch * b) % period == 0;
  }
  std::string text() const {
    return ", squares of " + std::to_string(size) + " with period " + std::to_string(period);
  }
};

/// Squares that also classifies blocks within one square.
struct ClassifiedSquares : Squares {
  Visibility classify(index_t b, index_t h, IndexRange queries, IndexRange keys) const {
    if (queries.begin / size != (queries.end - 1) / size ||
        keys.begin / size != (keys.end - 1) / size) {
      return Visibility::partial;
    }
    const bool is_visible = (*this)(static_cast<int>(b), static_cast<int>(h),
                                    static_cast<int>(queries.begin), static_cast<int>(keys.begin));
    return is_visible ? Visibility::full : Visibility::empty;
  }
};

/// A table for `functor`; it may be longer than the call, and broadcast.
template <class F>
BlockMask<F> mask_of(Random& random, const F& functor, const Squares& squares, Shape<4> shape,
                     const Execution& on) {
  if (squares.of_batch == 0 && random.chance(0.5)) shape[0] = 1;
  if (squares.of_head == 0 && random.chance(0.5)) shape[1] = 1;
  if (random.chance(0.3)) shape[2] += random.integer(1, 100);
  if (random.chance(0.3)) shape[3] += random.integer(1, 100);
  return BlockMask(mask_mod(functor), shape,
                   {.q_block = random.pick<Index>({1, 8, 64, 64, 128, 512}),
                    .kv_block = random.pick<Index>({1, 16, 64, 64, 128, 1024}),
                    .execution = on});
}

template <class T>
struct Outputs {
  ReferenceResult<T> result;
  Array<T> scores;
};

template <class T, class... Functors>
Outputs<T> run(const AttentionDraw<T>& draw, const Execution& execution,
               const Functors&... functors) {
  const auto [batch, heads, q_len, kv_len] = draw.scores();
  Outputs<T> got{.result = {.y = Array<T>({batch, heads, q_len, draw.v.extent(3)}),
                            .weights = Array<T>({batch, heads, q_len, kv_len}),
                            .lse = Array<T>({batch, heads, q_len}),
                            .average = Array<T>({batch, q_len, kv_len}),
                            .column_sums = Array<T>({batch, heads, kv_len}),
                            .max_logits = Array<T>({batch, heads})},
                 .scores = Array<T>({batch, heads, q_len, kv_len})};
  const LibraryOptions<T> library(draw.options);
  AttentionOptions<T> options = library.get();
  options.weights = got.result.weights.template view<4>();
  options.lse = got.result.lse.template view<3>();
  options.average_weights = got.result.average.template view<3>();
  options.column_sums = got.result.column_sums.template view<3>();
  options.max_logits = got.result.max_logits.template view<2>();
  options.scores = got.scores.template view<4>();
  options.execution = execution;
  scaled_dot_product_attention(draw.q.template view<4>(), draw.k.template view<4>(),
                               draw.v.template view<4>(), got.result.y.template view<4>(), options,
                               functors...);
  return got;
}

template <class T>
class BlockMaskTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(BlockMaskTest, Types);

/// Calls f(functors...) with none, one or both of the drawn functors.
template <class F>
void with_others(Random& random, attn_test::ReferenceOptions& options, F f) {
  const auto score = score_mod(attn_test::ScaleByPlace{});
  const auto prob = prob_mod(attn_test::WeighByPlace{});
  const bool has_score = random.chance(0.3), has_prob = random.chance(0.2);
  if (has_score) options.score_mod = attn_test::ScaleByPlace{};
  if (has_prob) options.prob_mod = attn_test::WeighByPlace{};
  if (has_score && has_prob) return f(score, prob);
  if (has_score) return f(score);
  if (has_prob) return f(prob);
  f();
}

TYPED_TEST(BlockMaskTest, HasTheBitsOfItsFunctor) {
  using T = TypeParam;
  for (std::uint64_t n = 0; n < attn_test::draws(200); ++n) {
    Random random(n);
    AttentionDraw<T> call(random, 200000);
    if (random.chance(0.3)) call.options = {};
    const Squares squares(random);
    call.options.mask_mod = squares;
    SCOPED_TRACE(random.trace() + ": " + call.text() + squares.text());
    Shape<4> shape = call.scores();
    shape[3] += call.options.first_key;
    with_others(random, call.options, [&](const auto&... others) {
      const auto compare = [&](const auto& functor) {
        for (Isa isa : available_isas()) {
          const auto alone = run(call, {.isa = isa}, mask_mod(functor), others...);
          const auto mask = mask_of(random, functor, squares, shape, {.isa = isa});
          const auto masked = run(call, {.isa = isa}, mask, others...);
          EXPECT_TRUE(same_bits(masked.result, alone.result)) << name(isa);
          EXPECT_TRUE(same_bits(masked.scores, alone.scores)) << name(isa);
          if (isa != available_isas()[n % available_isas().size()] || call.q.size() > 2000)
            continue;
          EXPECT_EQ(attention_difference(masked.result, call.q, call.k, call.v, call.options, isa),
                    "");
        }
      };
      random.chance(0.7) ? compare(squares) : compare(ClassifiedSquares{squares});
    });
    if (this->HasFailure()) break;
  }
}

/// Long calls: many empty blocks in a row between others, and split keys.
TYPED_TEST(BlockMaskTest, HasTheBitsOfItsFunctorInLongCalls) {
  using T = TypeParam;
  for (std::uint64_t n = 0; n < 10; ++n) {
    Random random(n + 1000);
    AttentionDraw<T> call(random, 100);
    const Index q_len = random.pick<Index>({1, 3, 130, 400}), group = random.pick<Index>({1, 2});
    call.options = {};
    call.options.causal = random.chance(0.3);
    if (random.chance(0.3)) call.options.left = random.integer(0, 1500);
    if (random.chance(0.3)) call.options.key_lengths = {2500, 900};
    call.q = random.array<T>({2, 2 * group, q_len, 16});
    call.k = random.array<T>({2, 2, 2600, 16});
    call.v = random.array<T>({2, 2, 2600, 16});
    Squares squares(random);
    squares.size = static_cast<int>(random.pick<Index>({64, 100, 512, 1000}));
    SCOPED_TRACE(random.trace() + ": " + call.text() + squares.text());
    const ThreadExecutor three(3);
    const SerialExecutor one;
    for (Isa isa : available_isas()) {
      const auto alone = run(call, {.executor = &one, .isa = isa}, mask_mod(squares));
      const auto mask = mask_of(random, squares, squares, call.scores(), {.isa = isa});
      const auto masked = run(call, {.executor = &three, .isa = isa}, mask);
      EXPECT_TRUE(same_bits(masked.result, alone.result)) << name(isa);
      EXPECT_TRUE(same_bits(masked.scores, alone.scores)) << name(isa);
    }
  }
}

TYPED_TEST(BlockMaskTest, HasTheSameBitsInAnyBatch) {
  using T = TypeParam;
  for (std::uint64_t n = 0; n < attn_test::draws(30); ++n) {
    Random random(n + 2000);
    AttentionDraw<T> call(random, 200000);
    call.options.dropout = 0;  // which drops other keys in another batch row
    Squares squares(random);
    squares.of_batch = 0;
    SCOPED_TRACE(random.trace() + ": " + call.text() + squares.text());
    Shape<4> shape = call.scores();
    shape[0] = 1, shape[3] += call.options.first_key;
    const BlockMask mask(mask_mod(squares), shape);
    const auto all = run(call, {}, mask);
    for (Index b = 0; b < call.q.extent(0); ++b) {
      const auto alone = run(call.with_batch({b}), {}, mask);
      EXPECT_TRUE(same_bits(alone.result.y, AttentionDraw<T>::pick_rows(all.result.y, {b}))) << b;
      EXPECT_TRUE(same_bits(alone.result.lse, AttentionDraw<T>::pick_rows(all.result.lse, {b})));
    }
  }
}

template <class T>
struct Gradients {
  Array<T> d_q, d_k, d_v, d_sinks = {}, d_slopes = {}, d_relative = {}, d_qv = {};
  std::vector<Array<T>> d_bias = {};
};

template <class T, class... Functors>
Gradients<T> run_backward(const AttentionDraw<T>& draw, const Array<T>& d_y,
                          const Execution& execution, const Functors&... functors) {
  const auto [batch, heads, q_len, kv_len] = draw.scores();
  Array<T> y(d_y.shape), lse({batch, heads, q_len});
  Gradients<T> g{
      .d_q = Array<T>(draw.q.shape), .d_k = Array<T>(draw.k.shape), .d_v = Array<T>(draw.v.shape)};
  const LibraryOptions<T> library(draw.options);
  AttentionOptions<T> options = library.get();
  options.lse = lse.template view<3>();
  options.execution = execution;
  const auto q = draw.q.template view<4>(), k = draw.k.template view<4>(),
             v = draw.v.template view<4>();
  scaled_dot_product_attention(q, k, v, y.template view<4>(), options, functors...);
  AttentionBackwardCall<T> call;
  for (const auto& mask : draw.options.masks) {
    if (mask.kind == attn_test::ReferenceOptions::Mask::Kind::add) {
      g.d_bias.emplace_back(mask.values.shape);
    }
  }
  std::size_t part = 0;
  for (Array<T>& d_bias : g.d_bias) call.d_bias[part++] = d_bias.template view<4>();
  const auto add = [&](bool given, Array<T>& to, std::vector<Index> shape, auto& view) {
    if (!given) return;
    to = Array<T>(std::move(shape));
    view = to.template view<std::remove_reference_t<decltype(view)>::rank>();
  };
  add(!draw.options.sinks.empty(), g.d_sinks, {heads}, call.d_sinks);
  add(!draw.options.alibi_slopes.empty(), g.d_slopes, {heads}, call.d_alibi_slopes);
  add(static_cast<bool>(draw.options.relative_bias), g.d_relative, draw.options.relative_bias.shape,
      call.d_relative_bias);
  add(static_cast<bool>(draw.options.qv), g.d_qv, draw.options.qv.shape, call.d_qv);
  scaled_dot_product_attention_backward(d_y.template view<4>(), q, k, v, y.template view<4>(),
                                        lse.template view<3>(), g.d_q.template view<4>(),
                                        g.d_k.template view<4>(), g.d_v.template view<4>(), options,
                                        call, functors...);
  return g;
}

template <class T>
bool same_gradients(const Gradients<T>& a, const Gradients<T>& b) {
  bool same = same_bits(a.d_q, b.d_q) && same_bits(a.d_k, b.d_k) && same_bits(a.d_v, b.d_v) &&
              same_bits(a.d_sinks, b.d_sinks) && same_bits(a.d_slopes, b.d_slopes) &&
              same_bits(a.d_relative, b.d_relative) && same_bits(a.d_qv, b.d_qv);
  for (std::size_t n = 0; n < a.d_bias.size(); ++n) {
    same = same && same_bits(a.d_bias[n], b.d_bias[n]);
  }
  return same;
}

TYPED_TEST(BlockMaskTest, HasTheGradientsOfItsFunctor) {
  using T = TypeParam;
  for (std::uint64_t n = 0; n < attn_test::draws(120); ++n) {
    Random random(n + 3000);
    AttentionDraw<T> call(random, 600000);
    if (random.chance(0.4)) call.options = {};
    const Squares squares(random);
    SCOPED_TRACE(random.trace() + ": " + call.text() + squares.text());
    Shape<4> shape = call.scores();
    shape[3] += call.options.first_key;
    const auto d_y = random.array<T>({shape[0], shape[1], shape[2], call.v.extent(3)});
    const ThreadExecutor three(3);
    with_others(random, call.options, [&](const auto&... others) {
      const auto compare = [&](const auto& functor) {
        for (Isa isa : available_isas()) {
          const auto alone = run_backward(call, d_y, {.isa = isa}, mask_mod(functor), others...);
          const auto mask = mask_of(random, functor, squares, shape, {.isa = isa});
          const auto masked =
              run_backward(call, d_y, {.executor = &three, .isa = isa}, mask, others...);
          EXPECT_TRUE(same_gradients(masked, alone)) << name(isa);
        }
      };
      random.chance(0.7) ? compare(squares) : compare(ClassifiedSquares{squares});
    });
    if (this->HasFailure()) break;
  }
}

TYPED_TEST(BlockMaskTest, HasTheGradientsOfItsFunctorInLongCalls) {
  using T = TypeParam;
  for (std::uint64_t n = 0; n < 12; ++n) {
    Random random(n + 4000);
    AttentionDraw<T> call(random, 100);
    call.options = {};
    call.options.causal = random.chance(0.3);
    if (random.chance(0.3)) call.options.left = random.integer(0, 700);
    call.q = random.array<T>({1, 2, random.pick<Index>({90, 260}), 16});
    call.k = random.array<T>({1, 1, 1300, 16});
    call.v = random.array<T>({1, 1, 1300, 8});
    Squares squares(random);
    squares.size = static_cast<int>(random.pick<Index>({64, 100, 512}));
    SCOPED_TRACE(random.trace() + ": " + call.text() + squares.text());
    const auto d_y = random.array<T>({1, 2, call.q.extent(2), 8});
    for (Isa isa : available_isas()) {
      const auto alone = run_backward(call, d_y, {.isa = isa}, mask_mod(squares));
      const auto mask = mask_of(random, squares, squares, call.scores(), {.isa = isa});
      EXPECT_TRUE(same_gradients(run_backward(call, d_y, {.isa = isa}, mask), alone)) << name(isa);
    }
  }
}

/// Gradients against nested loops in double.
TEST(BlockMask, HasTheGradientsOfTheReference) {
  for (std::uint64_t n = 0; n < attn_test::draws(20); ++n) {
    Random random(n + 5000);
    AttentionDraw<double> call(random, 60000);
    const Squares squares(random);
    call.options.mask_mod = squares;
    SCOPED_TRACE(random.trace() + ": " + call.text() + squares.text());
    Shape<4> shape = call.scores();
    shape[3] += call.options.first_key;
    const auto d_y = random.array<double>({shape[0], shape[1], shape[2], call.v.extent(3)});
    auto expected = attn_test::reference_backward(call.q, call.k, call.v, call.options, d_y, {});
    const BlockMask mask(mask_mod(squares), shape, {.q_block = 16, .kv_block = 32});
    const auto got = run_backward(call, d_y, {}, mask);
    const auto check = [&](const Array<double>& x, const std::string& of) {
      const Array<double>& y = expected.at(of);
      EXPECT_EQ(attn_test::difference(x, y, 1e-11 * (1 + attn_test::max_abs(y)), active_isa(), of),
                "");
    };
    check(got.d_q, "d_q"), check(got.d_k, "d_k"), check(got.d_v, "d_v");
  }
}

/// 16-bit elements, int8 products, caches, packed sequences and pages.
TEST(BlockMask, HasTheBitsOfItsFunctorInStorageOfAnyKind) {
  for (std::uint64_t n = 0; n < 15; ++n) {
    Random random(n + 6000);
    const Squares squares(random);
    const index_t q_len = random.pick<Index>({1, 2, 17, 70}), kv_len = random.integer(100, 900);
    SCOPED_TRACE(random.trace() + ": " + std::to_string(q_len) + " queries, " +
                 std::to_string(kv_len) + " keys" + squares.text());
    const auto q = random.tensor<float, 4>({2, 4, q_len, 24}),
               k = random.tensor<float, 4>({2, 2, kv_len, 24}),
               v = random.tensor<float, 4>({2, 2, kv_len, 16});
    for (Isa isa : attn_test::extended_isas()) {
      const Execution on{.isa = isa};
      const auto mask = mask_of(random, squares, squares, {2, 4, q_len, kv_len}, on);
      const auto check = [&](auto attend, std::string_view what) {
        EXPECT_TRUE(same_bits(to_array(attend(mask)), to_array(attend(mask_mod(squares)))))
            << name(isa) << ' ' << what;
      };
      check(
          [&](const auto& functor) {
            AttentionOptions<float> options{.precision = AttentionPrecision::int8, .execution = on};
            return scaled_dot_product_attention(q, k, v, options, functor);
          },
          "int8 products");
      const auto narrow = [](const Tensor4<float>& x) {
        Tensor4<bfloat16> y(x.shape());
        convert(x, y);
        return y;
      };
      const auto q16 = narrow(q), k16 = narrow(k), v16 = narrow(v);
      check(
          [&](const auto& functor) {
            const auto y = scaled_dot_product_attention(q16, k16, v16, {.execution = on}, functor);
            Tensor4<float> wide(y.shape());
            convert(y, wide);
            return wide;
          },
          "bfloat16");
      for (const DType element : {DType::F32, DType::F16, DType::I8}) {
        KvCache<float> cache({.batch = 2,
                              .num_kv_heads = 2,
                              .capacity = kv_len,
                              .head_dim = 24,
                              .head_dim_v = 16,
                              .element = element});
        cache.append(k, v);
        check(
            [&](const auto& functor) {
              return scaled_dot_product_attention(q, cache, {.mask = causal(), .execution = on},
                                                  functor);
            },
            "a cache");
      }
      // Pages of 32 keys, in reverse.
      const index_t pages = (kv_len + 31) / 32;
      Tensor4<float> k_pages({2 * pages, 2, 32, 24}), v_pages({2 * pages, 2, 32, 16});
      Tensor2<index_t> table({2, pages});
      for (index_t b = 0; b < 2; ++b) {
        for (index_t p = 0; p < pages; ++p) table(b, p) = 2 * pages - 1 - (b * pages + p);
        for (index_t j = 0; j < kv_len; ++j) {
          for (index_t h = 0; h < 2; ++h) {
            for (index_t x = 0; x < 24; ++x) {
              k_pages(table(b, j / 32), h, j % 32, x) = k(b, h, j, x);
              if (x < 16) v_pages(table(b, j / 32), h, j % 32, x) = v(b, h, j, x);
            }
          }
        }
      }
      const Tensor1<index_t> lengths({2}, {kv_len, kv_len / 2});
      const auto longer = mask_of(random, squares, squares, {2, 4, q_len, 32 * pages}, on);
      const auto paged = [&](const auto& functor) {
        AttentionOptions<float> options{.mask = key_lengths(lengths), .execution = on};
        options.block_table = table.view();
        return to_array(scaled_dot_product_attention(q, k_pages, v_pages, options, functor));
      };
      EXPECT_TRUE(same_bits(paged(longer), paged(mask_mod(squares)))) << name(isa);
      // Two sequences in one row of queries and of keys.
      const index_t q_cut = q_len / 3, kv_cut = kv_len / 4;
      const Tensor1<index_t> q_starts({3}, {0, q_cut, q_len}), kv_starts({3}, {0, kv_cut, kv_len});
      const auto packed = [&](const auto& functor) {
        AttentionOptions<float> options{.execution = on};
        options.cu_seqlens_q = q_starts, options.cu_seqlens_k = kv_starts;
        return to_array(scaled_dot_product_attention(q.view().slice(0, 0, 1),
                                                     k.view().slice(0, 0, 1),
                                                     v.view().slice(0, 0, 1), options, functor));
      };
      EXPECT_TRUE(same_bits(packed(mask), packed(mask_mod(squares)))) << name(isa);
    }
  }
}

/// The table agrees with the functor for each pair.
TEST(BlockMask, ClassifiesEveryBlock) {
  for (std::uint64_t n = 0; n < attn_test::draws(50); ++n) {
    Random random(n + 7000);
    const Squares squares(random);
    const Shape<4> shape{random.integer(1, 2), random.integer(1, 3), random.integer(1, 300),
                         random.integer(1, 300)};
    const index_t q_block = random.pick<Index>({1, 32, 128}),
                  kv_block = random.pick<Index>({2, 64, 256});
    const ThreadExecutor three(3);
    const BlockMask mask(
        mask_mod(squares), shape,
        {.q_block = q_block, .kv_block = kv_block, .execution = {.executor = &three}});
    SCOPED_TRACE(random.trace() + squares.text());
    const auto [batch, heads, q_blocks, kv_blocks] = mask.grid();
    ASSERT_EQ(q_blocks, (shape[2] + q_block - 1) / q_block);
    ASSERT_EQ(kv_blocks, (shape[3] + kv_block - 1) / kv_block);
    index_t counts[3] = {};
    for (index_t b = 0; b < batch; ++b) {
      for (index_t h = 0; h < heads; ++h) {
        for (index_t q = 0; q < q_blocks; ++q) {
          for (index_t kv = 0; kv < kv_blocks; ++kv) {
            index_t visible = 0, pairs = 0;
            for (index_t i = q * q_block; i < std::min((q + 1) * q_block, shape[2]); ++i) {
              for (index_t j = kv * kv_block; j < std::min((kv + 1) * kv_block, shape[3]); ++j) {
                visible += squares(static_cast<int>(b), static_cast<int>(h), static_cast<int>(i),
                                   static_cast<int>(j));
                ++pairs;
              }
            }
            const Visibility expected = visible == 0       ? Visibility::empty
                                        : visible == pairs ? Visibility::full
                                                           : Visibility::partial;
            ASSERT_EQ(mask.blocks()(b, h, q, kv), expected);
            ++counts[static_cast<int>(expected)];
          }
        }
      }
    }
    EXPECT_EQ(counts[0], mask.count(Visibility::empty));
    EXPECT_EQ(counts[1], mask.count(Visibility::partial));
    EXPECT_EQ(counts[2], mask.count(Visibility::full));
  }
}

/// Counts the pairs for which it is called.
struct Counted {
  std::atomic<index_t>* calls;
  bool operator()(int, int, int i, int j) const {
    calls->fetch_add(1, std::memory_order_relaxed);
    return i / 100 == j / 100 || j / 64 == 1;
  }
};

/// The functor is called for keys of partial blocks only, and empty blocks are not read.
TEST(BlockMask, CallsTheFunctorInPartialBlocksAlone) {
  Random random(8000);
  const index_t n = 512;
  auto k = random.tensor<float, 4>({1, 1, n, 16}), v = random.tensor<float, 4>({1, 1, n, 16});
  const auto q = random.tensor<float, 4>({1, 1, n, 16});
  std::atomic<index_t> calls = 0;
  const BlockMask mask(mask_mod(Counted{&calls}), {1, 1, n, n});
  const index_t partial = mask.count(Visibility::partial);
  ASSERT_GT(partial, 0);
  ASSERT_GT(mask.count(Visibility::empty), 0);
  ASSERT_GT(mask.count(Visibility::full), 0);
  for (Isa isa : available_isas()) {
    calls = 0;
    scaled_dot_product_attention(q, k, v, {.execution = {.isa = isa}}, mask);
    // A tile of a few queries may lie in two blocks of queries.
    EXPECT_LE(calls, partial * 64 * (64 + 16)) << name(isa);
    EXPECT_GE(calls, partial * 64 * 64 / 2) << name(isa);
  }
  // With NaN in keys that only block (7, 7) keeps, other blocks of queries keep their bits.
  const auto clean = scaled_dot_product_attention(q, k, v, {}, mask);
  for (index_t j = 500; j < n; ++j) k(0, 0, j, 0) = v(0, 0, j, 0) = std::nanf("");
  const auto dirty = scaled_dot_product_attention(q, k, v, {}, mask);
  for (index_t i = 0; i < 400; ++i) {
    for (index_t x = 0; x < 16; ++x) ASSERT_EQ(dirty(0, 0, i, x), clean(0, 0, i, x)) << i;
  }
}

TEST(BlockMask, IsExplained) {
  const Tensor4<float> x({1, 1, 1024, 16});
  const auto diagonal =
      mask_mod([](int, int, int i, int j) { return i / 512 == j / 512 && i / 64 == j / 64; });
  const BlockMask mask(diagonal, {1, 1, 1024, 1024});
  const AttentionExplanation alone = explain(x, x, x, {}, diagonal),
                             masked = explain(x, x, x, {}, mask);
  EXPECT_EQ(alone.empty, 0);
  EXPECT_GT(masked.empty, 0);
  EXPECT_LT(masked.flops, alone.flops / 8);
}

TEST(BlockMask, PrintsACharacterForEachBlock) {
  const auto near = mask_mod([](int, int h, int i, int j) { return j <= i && i - j < 200 << h; });
  const BlockMask one(near, {1, 1, 256, 300});
  EXPECT_EQ(to_string(one),
            "+....\n"
            "#+...\n"
            "##+..\n"
            "+##+.");
  std::ostringstream stream;
  stream << BlockMask(near, {1, 2, 2, 4}, {.q_block = 1, .kv_block = 2});
  EXPECT_EQ(stream.str(),
            "batch 0, head 0:\n+.\n#.\n"
            "batch 0, head 1:\n+.\n#.");
  EXPECT_EQ(to_string(BlockMask(near, {1, 1, 0, 0})), "");
}

TEST(BlockMask, RefusesWhatDoesNotFit) {
  const auto all = mask_mod([](int, int, int, int) { return true; });
  EXPECT_EQ(error_of<ShapeError>([&] {
              BlockMask(all, {1, 1, -1, 4});
            }),
            "[BlockMask] shape must have extents of 0 .. 2^31 - 1; found (1, 1, -1, 4).");
  EXPECT_EQ(error_of<ValueError>([&] {
              BlockMask(all, {1, 1, 4, 4}, {.q_block = 48});
            }),
            "[BlockMask] q_block must be a power of two; found 48.");
  EXPECT_EQ(error_of<ValueError>([&] {
              BlockMask(all, {1, 1, 4, 4}, {.kv_block = 0});
            }),
            "[BlockMask] kv_block must be a power of two; found 0.");
  const Tensor4<float> q({2, 4, 5, 8}), k({2, 2, 7, 8});
  const auto attend = [&](const Shape<4>& shape, const AttentionOptions<float>& options = {}) {
    return error_of<ShapeError>(
        [&] { scaled_dot_product_attention(q, k, k, options, BlockMask(all, shape)); });
  };
  EXPECT_EQ(attend({3, 1, 5, 7}),
            "[scaled_dot_product_attention] the BlockMask must have shape (batch or 1, num_heads "
            "or 1, at least q_len, at least first_key + kv_len) = (2, 4, 5, 7); found (3, 1, 5, "
            "7).");
  EXPECT_TRUE(contains(attend({1, 2, 5, 7}), "found (1, 2, 5, 7)"));
  EXPECT_TRUE(contains(attend({1, 1, 4, 7}), "found (1, 1, 4, 7)"));
  EXPECT_TRUE(contains(attend({2, 4, 5, 6}), "found (2, 4, 5, 6)"));
  EXPECT_TRUE(contains(attend({1, 1, 5, 9}, {.first_key = 3}), "= (2, 4, 5, 10)"));
  EXPECT_NO_THROW(
      scaled_dot_product_attention(q, k, k, {.first_key = 3}, BlockMask(all, {1, 4, 9, 10})));
}

}  // namespace
}  // namespace attn
