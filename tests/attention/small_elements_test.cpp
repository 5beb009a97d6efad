// Attention on bfloat16, float16 and int8 against float on the stored values; caches of them.
#include <gtest/gtest.h>

#include "attn/attention/cached_attention.hpp"
#include "attn/attention/explain.hpp"

#include "support/draws/attention_draw.hpp"
#include "support/draws/format_draw.hpp"
#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::attention_difference;
using attn_test::AttentionDraw;
using attn_test::available_isas;
using attn_test::cache_of;
using attn_test::error_of;
using attn_test::extended_isas;
using attn_test::held;
using attn_test::Index;
using attn_test::Layout;
using attn_test::LibraryOptions;
using attn_test::Placed;
using attn_test::Random;
using attn_test::ReferenceResult;
using attn_test::run_library;
using attn_test::same_bits;
using attn_test::ThreadExecutor;
using attn_test::to_array;

/// attend(options) with all optional outputs and `y`; a 16-bit y is widened.
template <class E, class Attend>
ReferenceResult<float> run_with_outputs(const AttentionDraw<float>& call,
                                        const Execution& execution, Attend attend) {
  const auto [batch, heads, q_len, kv_len] = call.scores();
  Array<E> y({batch, heads, q_len, call.v.extent(3)});
  ReferenceResult<float> result{.weights = Array<float>({batch, heads, q_len, kv_len}),
                                .lse = Array<float>({batch, heads, q_len}),
                                .average = Array<float>({batch, q_len, kv_len}),
                                .column_sums = Array<float>({batch, heads, kv_len}),
                                .max_logits = Array<float>({batch, heads})};
  const LibraryOptions<float> library(call.options);
  AttentionOptions<float> options = library.get();
  options.weights = result.weights.view<4>();
  options.lse = result.lse.view<3>();
  options.average_weights = result.average.view<3>();
  options.column_sums = result.column_sums.view<3>();
  options.max_logits = result.max_logits.view<2>();
  options.execution = execution;
  attend(options, y.template view<4>());
  result.y = y.template as<float>();
  return result;
}

/// All elements rounded to E, as E and in float.
template <class E>
Array<E> rounded_to(Array<float>& x) {
  const Array<E> result = x.as<E>();
  x = result.template as<float>();
  return result;
}

/// Elements that are NaN in a or in b become 0 in both.
void drop_nans(Array<float>& a, Array<float>& b) {
  for (std::size_t n = 0; n < a.data.size(); ++n) {
    if (std::isnan(a.data[n]) || std::isnan(b.data[n])) a.data[n] = b.data[n] = 0;
  }
}

/// Sets random places to NaN, infinity or rows of zeros.
void make_hostile(Random& random, Array<float>& x) {
  const Index n = x.extent(3);
  for (Index row = 0; row < x.size() / n; ++row) {
    float* at = &x.data[static_cast<std::size_t>(row * n)];
    if (random.chance(0.02)) std::fill_n(at, n, 0.0f);
    if (!random.chance(0.02)) continue;
    constexpr float inf = std::numeric_limits<float>::infinity();
    at[random.integer(0, n - 1)] = random.pick<float>({inf, -inf, std::nanf("")});
  }
}

/// Whether all tensors are bfloat16, which some targets multiply in pairs: weights are then
/// rounded, to 2^-8, before the product with the values.
template <class EQ, class EK>
constexpr bool may_take_pairs = std::is_same_v<EQ, bfloat16> && std::is_same_v<EK, bfloat16>;

/// The largest finite magnitude.
double most_of(const Array<float>& x) {
  double most = 0;
  for (float value : x.data) {
    if (std::isfinite(value)) most = std::max(most, std::abs(static_cast<double>(value)));
  }
  return most;
}

template <class Pair>
class SmallElementsTest : public ::testing::Test {};
template <class Q, class K>
struct Elements {
  using OfQueries = Q;
  using OfKeys = K;
};
using Mixtures = ::testing::Types<Elements<float, bfloat16>, Elements<float, float16>,
                                  Elements<bfloat16, bfloat16>, Elements<float16, float16>>;
TYPED_TEST_SUITE(SmallElementsTest, Mixtures);

TYPED_TEST(SmallElementsTest, TheBitsOfFloatAttentionOnWhatIsStoredRoundedOnce) {
  using EQ = typename TypeParam::OfQueries;
  using EK = typename TypeParam::OfKeys;
  for (std::uint64_t draw = 0; draw < attn_test::draws(120); ++draw) {
    Random random(draw);
    AttentionDraw<float> call(random, 200000);
    SCOPED_TRACE(random.trace() + ": " + call.text());
    const bool is_hostile = random.chance(0.3);
    if (is_hostile) {
      make_hostile(random, call.k);
      make_hostile(random, call.v);
    }
    const Placed<EQ, 4> q(rounded_to<EQ>(call.q), Layout<4>::any(random));
    const Placed<EK, 4> k(rounded_to<EK>(call.k), Layout<4>::any(random));
    const Placed<EK, 4> v(rounded_to<EK>(call.v), Layout<4>::any(random));
    for (Isa isa : extended_isas()) {
      ReferenceResult<float> expected = run_library(call, {.isa = isa});
      rounded_to<EQ>(expected.y);
      auto got = run_with_outputs<EQ>(call, {.isa = isa}, [&](const auto& options, auto y) {
        scaled_dot_product_attention(q.read(), k.read(), v.read(), y, options);
      });
      for (const auto& [a, b] : {std::pair{&got.y, &expected.y},
                                 {&got.lse, &expected.lse},
                                 {&got.weights, &expected.weights},
                                 {&got.average, &expected.average},
                                 {&got.column_sums, &expected.column_sums},
                                 {&got.max_logits, &expected.max_logits}}) {
        double bound = 0;
        if (may_take_pairs<EQ, EK> && multiplies_pairs(isa)) {
          // In a row of NaN, masked keys have the weight NaN, or 0 if no row of the tile attends to
          // them; tiles of the two calls differ, so hostile numbers are compared only if neither is
          // NaN.
          if (is_hostile && (a == &got.weights || a == &got.average || a == &got.column_sums)) {
            drop_nans(*a, *b);
          }
          // Weights and the result are rounded, and scores are summed in another order.
          bound = 1e-4 * (1 + most_of(*b));
          if (a == &got.y) bound += 0x1p-7 * most_of(call.v) / (1 - call.options.dropout);
        }
        // NaN may have different signs: the compiler chooses the operand that it comes from.
        ASSERT_EQ(attn_test::difference(*a, *b, bound, isa), "");
      }
    }
  }
}

TYPED_TEST(SmallElementsTest, PagesPackedSequencesAndFunctors) {
  using EQ = typename TypeParam::OfQueries;
  using EK = typename TypeParam::OfKeys;
  Random random(7);
  const auto q = random.array<float>({1, 4, 9, 33}).as<EQ>();
  const auto k = random.array<float>({5, 2, 16, 33}).as<EK>(),
             v = random.array<float>({5, 2, 16, 20}).as<EK>();
  const auto q_float = q.template as<float>(), k_float = k.template as<float>(),
             v_float = v.template as<float>();
  const Tensor2<index_t> table({3, 2}, {4, 0, 2, 2, 1, 3});
  const Tensor1<index_t> starts({4}, {0, 2, 8, 9});
  const Tensor1<index_t> lengths({3}, {20, 32, 5});
  const auto closer = score_mod(
      [](float s, int, int, int i, int j) { return s + 0.1f * static_cast<float>(i - j); });
  for (Isa isa : extended_isas()) {
    AttentionOptions<float> options{.mask = key_lengths(lengths) & causal(),
                                    .execution = {.isa = isa}};
    options.cu_seqlens_q = starts;
    options.block_table = table;
    Array<float> expected({1, 4, 9, 20});
    scaled_dot_product_attention(q_float.template view<4>(), k_float.template view<4>(),
                                 v_float.template view<4>(), expected.view<4>(), options, closer);
    const Tensor4<EQ> got = scaled_dot_product_attention(q.template view<4>(), k.template view<4>(),
                                                         v.template view<4>(), options, closer);
    if (may_take_pairs<EQ, EK> && multiplies_pairs(isa)) {
      EXPECT_EQ(attn_test::difference(to_array(got), expected, 0x1p-7 * most_of(v_float), isa), "");
    } else {
      EXPECT_TRUE(same_bits(to_array(got), expected.as<EQ>())) << name(isa);
    }
  }
}

TYPED_TEST(SmallElementsTest, ExplainNamesTheBackend) {
  const Tensor4<typename TypeParam::OfQueries> q({1, 2, 3, 8});
  const Tensor4<typename TypeParam::OfKeys> k({1, 2, 700, 8});
  const auto told = explain(q, k, k);
  EXPECT_EQ(told.element, dtype_of<typename TypeParam::OfKeys>());
  EXPECT_EQ(told.bytes, double(2 * (2 * sizeof(q(0, 0, 0, 0)) * 3 * 8 + 2 * 2 * 700 * 8)));
}

constexpr DType kSmall[] = {DType::BF16, DType::F16, DType::I8};

ReferenceResult<float> attend_to(const KvCache<float>& cache, const AttentionDraw<float>& call,
                                 const Execution& execution) {
  return run_with_outputs<float>(call, execution, [&](const auto& options, auto y) {
    scaled_dot_product_attention(call.q.view<4>(), cache, y, options);
  });
}

TEST(SmallCaches, WithinTheErrorOfFloatOnWhatIsHeld) {
  int calls = 0;
  for (std::uint64_t draw = 0; draw < attn_test::draws(150); ++draw) {
    Random random(1000 + draw);
    AttentionDraw<float> call(random, 200000);
    if (call.options.first_key > 0) continue;
    SCOPED_TRACE(random.trace() + ": " + call.text());
    for (DType element : kSmall) {
      const KvCache<float> cache = cache_of(call, element);
      AttentionDraw<float> stored = call;
      std::tie(stored.k, stored.v) = held(cache);
      for (Isa isa : available_isas()) {
        ASSERT_EQ(attention_difference(attend_to(cache, call, {.isa = isa}), stored.q, stored.k,
                                       stored.v, stored.options, isa),
                  "")
            << name(element);
      }
      ++calls;
    }
  }
  EXPECT_GT(calls, static_cast<int>(attn_test::draws(200)));
}

TEST(SmallCaches, Int8RowsByTheContract) {
  Random random(3);
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float least = std::numeric_limits<float>::min();
  for (const Index n : {1, 5, 16, 33, 300}) {
    Array<float> k = random.array<float>({2, 2, 12, n});
    const auto row = [&](Index j) { return &k(1, 1, j, 0); };
    std::fill_n(row(0), n, 0.0f);
    row(1)[n / 2] = nan;
    row(2)[n - 1] = -inf;
    for (Index x = 0; x < n; ++x) row(3)[x] *= 1e38f;
    for (Index x = 0; x < n; ++x) row(4)[x] *= least;  // its scale would be subnormal
    for (Index x = 0; x < n; ++x) row(5)[x] = 127.0f * least * (x == n - 1 ? -1.0f : 0.3f);
    for (Index x = 0; x < n; ++x) row(6)[x] = x == 0 ? 127.0f : 0.5f + static_cast<float>(x % 9);
    const Placed<float, 4> placed(k, Layout<4>::any(random, false));
    KvCache<float> cache({2, 2, 12, n, n, 0, DType::I8});
    cache.append(k.view<4>(), placed.read());
    const auto codes = cache.keys<std::int8_t>();
    const auto scales = cache.key_scales();
    for (Index b = 0; b < 2; ++b) {
      for (Index h = 0; h < 2; ++h) {
        for (Index j = 0; j < 12; ++j) {
          float most = 0;
          bool finite = true;
          for (Index x = 0; x < n; ++x) {
            most = std::max(most, std::abs(k(b, h, j, x)));
            finite = finite && std::isfinite(k(b, h, j, x));
          }
          float scale = most / 127;
          if (scale < least) scale = 0;
          if (!finite) scale = nan;
          ASSERT_TRUE(scales(b, h, j) == scale || (std::isnan(scales(b, h, j)) && !finite)) << j;
          for (Index x = 0; x < n; ++x) {
            const float code = scale > 0 ? std::nearbyint(k(b, h, j, x) / scale) : 0;
            ASSERT_EQ(static_cast<float>(codes(b, h, j, x)), code) << j << " " << x;
          }
        }
      }
    }
    // The values had other strides.
    EXPECT_TRUE(same_bits(to_array(cache.values<std::int8_t>()), to_array(codes)));
  }
}

TEST(SmallCaches, PoisonReachesItsTokenAloneAndNotWhereItIsMasked) {
  for (DType element : kSmall) {
    for (const Index q_len : {1, 3, 40}) {
      for (const bool in_keys : {false, true}) {
        Random random(11);
        AttentionDraw<float> call(random, 100);
        call.options = {};
        call.q = random.array<float>({2, 2, q_len, 24});
        call.k = random.array<float>({2, 1, 700, 24});
        call.v = random.array<float>({2, 1, 700, 24});
        call.options.causal = true;
        auto mask = random.bits({1, 1, q_len, 700}, 0.9);
        for (Index i = 0; i < q_len; ++i) mask(0, 0, i, 300) = 0;
        call.options.masks.push_back({attn_test::ReferenceOptions::Mask::Kind::keep, mask});
        AttentionDraw<float> poisoned = call;
        Array<float>& x = in_keys ? poisoned.k : poisoned.v;
        x(0, 0, 300, 5) = std::nanf("");                           // masked out
        x(1, 0, 699, 7) = std::numeric_limits<float>::infinity();  // kept for the last query
        for (Isa isa : available_isas()) {
          const KvCache<float> clean = cache_of(call, element), cache = cache_of(poisoned, element);
          const auto expected = attend_to(clean, call, {.isa = isa});
          const auto got = attend_to(cache, call, {.isa = isa});
          for (Index b = 0; b < 2; ++b) {
            for (Index h = 0; h < 2; ++h) {
              for (Index i = 0; i < q_len; ++i) {
                const bool sees = b == 1 && i == q_len - 1 && mask(0, 0, i, 699) != 0;
                bool finite = true;
                for (Index d = 0; d < 24; ++d) {
                  finite = finite && std::isfinite(got.y(b, h, i, d));
                  if (!sees) {
                    ASSERT_EQ(got.y(b, h, i, d), expected.y(b, h, i, d)) << name(element);
                  }
                }
                if (sees && (element == DType::I8 || !in_keys)) {
                  EXPECT_FALSE(finite);
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(SmallCaches, SameBitsForThreadsBatchAndChunks) {
  Random random(5);
  AttentionDraw<float> call(random, 100);
  call.options = {};
  call.options.causal = true;
  call.q = random.array<float>({3, 4, 40, 40});
  call.k = random.array<float>({3, 2, 2100, 40});
  call.v = random.array<float>({3, 2, 2100, 40});
  const SerialExecutor serial;
  for (const Index q_len : {40, 2}) {
    if (q_len == 2) call.q = to_array(call.q.view<4>().slice(2, 0, 2));
    for (DType element : kSmall) {
      const KvCache<float> cache = cache_of(call, element);
      for (Isa isa : available_isas()) {
        const auto expected = attend_to(cache, call, {.executor = &serial, .isa = isa});
        for (int threads : {2, 5}) {
          const ThreadExecutor executor(threads);
          EXPECT_TRUE(
              same_bits(attend_to(cache, call, {.executor = &executor, .isa = isa}), expected));
        }
        const AttentionDraw<float> one = call.with_batch({1});
        const auto alone = attend_to(cache_of(one, element), one, {.isa = isa});
        EXPECT_TRUE(same_bits(alone.y, AttentionDraw<float>::pick_rows(expected.y, {1})));
        if (q_len == 2) continue;
        // The last 40 positions in two calls on the tiled path.
        KvCache<float> grown = cache_of(call, element);
        grown.truncate(20);
        const auto out = Tensor4<float>({3, 4, 20, 40});
        const auto first = scaled_dot_product_attention(
            call.q.view<4>().slice(2, 0, 20), grown, {.mask = causal(), .execution = {.isa = isa}});
        EXPECT_TRUE(same_bits(to_array(first), to_array(expected.y.view<4>().slice(2, 0, 20))));
        grown.append(call.k.view<4>().slice(2, 2080, 2100), call.v.view<4>().slice(2, 2080, 2100));
        const auto second =
            scaled_dot_product_attention(call.q.view<4>().slice(2, 20, 40), grown,
                                         {.mask = causal(), .execution = {.isa = isa}});
        EXPECT_TRUE(same_bits(to_array(second), to_array(expected.y.view<4>().slice(2, 20, 40))));
      }
    }
  }
}

TEST(SmallCaches, WindowsTruncationAndReorderingKeepRowsAndScales) {
  for (DType element : kSmall) {
    for (std::uint64_t draw = 0; draw < attn_test::draws(30); ++draw) {
      Random random(200 + draw);
      SCOPED_TRACE(random.trace());
      const auto k = random.array<float>({2, 2, 90, 17}), v = random.array<float>({2, 2, 90, 9});
      const index_t window = random.integer(1, 12), room = random.integer(1, 9);
      KvCache<float> all({2, 2, 90, 17, 9, 0, element}),
          cache({2, 2, window + room, 17, 9, window, element});
      index_t length = 0;
      bool swapped = false;
      while (length < 90) {
        const index_t n = std::min(random.integer(0, room), 90 - length);
        const auto part = [&](const Array<float>& x) {
          return x.view<4>().slice(2, length, length + n);
        };
        all.append(part(k), part(v));
        cache.append(part(k), part(v));
        length += n;
        if (random.chance(0.3)) {
          const index_t rejected = random.integer(0, n);
          all.truncate(rejected);
          cache.truncate(rejected);
          length -= rejected;
        }
        if (random.chance(0.1)) {
          const Tensor1<index_t> rows({2}, {1, swapped ? 0 : 1});
          all.reorder(rows);
          cache.reorder(rows);
          swapped = !swapped;
        }
        ASSERT_EQ(cache.length(), length);
        const auto [all_k, all_v] = held(all);
        const auto [some_k, some_v] = held(cache);
        const auto last = [&](const Array<float>& x) {
          return to_array(x.view<4>().slice(2, cache.first_position(), length));
        };
        ASSERT_TRUE(same_bits(some_k, last(all_k)));
        ASSERT_TRUE(same_bits(some_v, last(all_v)));
        if (length == 0) continue;
        const auto q = random.array<float>({2, 4, 1, 17});
        const auto whole =
            scaled_dot_product_attention(q.view<4>(), all, {.mask = sliding_window(window - 1, 0)});
        const auto windowed = scaled_dot_product_attention(q.view<4>(), cache,
                                                           {.mask = sliding_window(window - 1, 0)});
        ASSERT_EQ(attn_test::unlike(windowed, whole), "");
      }
    }
  }
}

TEST(SmallCaches, TakeTheirShareOfMemory) {
  const auto bytes = [](std::optional<DType> element) {
    return KvCache<float>({2, 4, 10, 64, 32, 0, element}).bytes();
  };
  EXPECT_EQ(bytes({}), 4u * 80 * 96);
  EXPECT_EQ(bytes(DType::F32), bytes({}));
  EXPECT_EQ(bytes(DType::BF16), 2u * 80 * 96);
  EXPECT_EQ(bytes(DType::F16), 2u * 80 * 96);
  EXPECT_EQ(bytes(DType::I8), 80u * (96 + 8));
}

TEST(SmallCaches, Errors) {
  EXPECT_EQ(error_of<ValueError>([] {
              KvCache<float>({1, 1, 4, 8, 8, 0, DType::F64});
            }),
            "[KvCache] element must be F32, BF16, F16 or I8; found F64.");
  EXPECT_EQ(error_of<ValueError>([] {
              KvCache<double>({1, 1, 4, 8, 8, 0, DType::BF16});
            }),
            "[KvCache] element must be F64; found BF16.");
  KvCache<float> cache({1, 1, 4, 8, 8, 0, DType::BF16});
  EXPECT_EQ(cache.options().element, DType::BF16);
  EXPECT_EQ(error_of<DTypeError>([&] { cache.keys(); }),
            "[KvCache::keys] the element must be that of the cache, BF16; found F32.");
  EXPECT_EQ(error_of<DTypeError>([&] { cache.extend(1); }),
            "[KvCache::extend] the element must be that of the cache, BF16; found F32.");
  EXPECT_EQ(cache.length(), 0);
  const Tensor4<float> q({1, 1, 1, 7});
  EXPECT_THROW(scaled_dot_product_attention(q, cache), ShapeError);
}

}  // namespace
}  // namespace attn
