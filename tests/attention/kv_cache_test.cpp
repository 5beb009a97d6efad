// KvCache: step by step and in chunks against one call, windows, reordering, errors.
#include "attn/attention/kv_cache.hpp"

#include <limits>
#include <tuple>

#include <gtest/gtest.h>

#include "attn/attention/cache/append_first.hpp"
#include "attn/attention/sdpa.hpp"

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/placed.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::attention_difference;
using attn_test::available_isas;
using attn_test::error_of;
using attn_test::Index;
using attn_test::Layout;
using attn_test::Placed;
using attn_test::Random;
using attn_test::ReferenceOptions;
using attn_test::ReferenceResult;
using attn_test::same_bits;
using attn_test::to_array;

template <class T>
class KvCacheTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(KvCacheTest, Types);

template <class T>
struct Sequence {
  Array<T> q, k, v;

  Sequence(Random& random, Index length, Index kv_heads = 2, Index group = 2)
      : q(random.array<T>({2, kv_heads * group, length, 24})),
        k(random.array<T>({2, kv_heads, length, 24})),
        v(random.array<T>({2, kv_heads, length, 17})) {}

  Index length() const { return q.extent(2); }
  KvCacheOptions cache(index_t capacity, index_t window = 0) const {
    return {.batch = k.extent(0),
            .num_kv_heads = k.extent(1),
            .capacity = capacity,
            .head_dim = k.extent(3),
            .head_dim_v = v.extent(3),
            .window = window};
  }
  /// Attention of all queries, `chunk` positions at a time, over the keys cached by then.
  Array<T> attend(KvCache<T>& cache, Index chunk, const Mask& mask, Isa isa) const {
    Array<T> y({2, q.extent(1), length(), v.extent(3)});
    for (Index begin = 0; begin < length(); begin += chunk) {
      const Index end = std::min(begin + chunk, length());
      cache.append(k.template view<4>().slice(2, begin, end),
                   v.template view<4>().slice(2, begin, end));
      scaled_dot_product_attention(q.template view<4>().slice(2, begin, end), cache.keys(),
                                   cache.values(), y.template view<4>().slice(2, begin, end),
                                   {.mask = mask, .execution = {.isa = isa}});
    }
    return y;
  }
};

/// Expected contents of a cache after positions [first, end) of x.
template <class T>
Array<T> positions(const Array<T>& x, Index first, Index end) {
  return to_array(x.template view<4>().slice(2, first, end));
}

/// Sets all memory to NaN, including places that no position ever takes.
template <class T>
void poison(KvCache<T>& cache) {
  const auto [keys, values] = cache.extend(1);
  for (const TensorView4<T>& x : {keys, values}) {
    std::fill_n(x.data(), x.extent(0) * x.stride(0), std::numeric_limits<T>::quiet_NaN());
  }
  cache.clear();
}

TYPED_TEST(KvCacheTest, StepsAndChunksAreWholeCausalAttention) {
  using T = TypeParam;
  Random random(1);
  const Sequence<T> sequence(random, 70);
  ReferenceOptions causal_options;
  causal_options.causal = true;
  for (Isa isa : available_isas()) {
    for (Index chunk : {1, 3, 16, 69, 70}) {
      KvCache<T> cache(sequence.cache(70));
      poison(cache);
      const Array<T> y = sequence.attend(cache, chunk, causal(), isa);
      EXPECT_EQ(attention_difference<T>({y, {}, {}}, sequence.q, sequence.k, sequence.v,
                                        causal_options, isa),
                "")
          << "chunks of " << chunk;
      EXPECT_EQ(cache.size(), 70);
    }
  }
}

TYPED_TEST(KvCacheTest, ContinuedPrefillHasTheBitsOfAWholeOne) {
  using T = TypeParam;
  Random random(2);
  // The tiled path is for more than 12 rows per key/value head (queries times heads per group). 693
  // keys are two blocks.
  for (const auto& [length, group, chunks] :
       {std::tuple{693, 1, std::vector<Index>{21, 63, 333}}, {150, 4, {5, 50}}}) {
    const Sequence<T> sequence(random, length, 1, group);
    for (Isa isa : available_isas()) {
      KvCache<T> whole(sequence.cache(length));
      const Array<T> expected = sequence.attend(whole, length, causal(), isa);
      for (Index chunk : chunks) {
        KvCache<T> cache(sequence.cache(length));
        poison(cache);
        EXPECT_TRUE(same_bits(sequence.attend(cache, chunk, causal(), isa), expected))
            << name(isa) << ", chunks of " << chunk;
      }
    }
  }
}

TYPED_TEST(KvCacheTest, AWindowIsTheSlidingWindowOverEverything) {
  using T = TypeParam;
  Random random(3);
  const Sequence<T> sequence(random, 97);
  for (const index_t window : {1, 7, 16}) {
    ReferenceOptions options;
    options.left = window;
    options.right = 0;
    for (Index chunk : {1, 5, 11}) {
      for (const index_t spare : {0, 30}) {
        for (Isa isa : available_isas()) {
          KvCache<T> cache(sequence.cache(window + chunk + spare, window));
          poison(cache);
          const Array<T> y = sequence.attend(cache, chunk, sliding_window(window, 0), isa);
          EXPECT_EQ(attention_difference<T>({y, {}, {}}, sequence.q, sequence.k, sequence.v,
                                            options, isa),
                    "")
              << "window " << window << ", chunks of " << chunk << ", spare " << spare;
          const Index last_chunk = (sequence.length() - 1) % chunk + 1;
          EXPECT_EQ(cache.length(), 97);
          EXPECT_EQ(cache.size(), window + last_chunk);
          EXPECT_EQ(cache.first_position(), 97 - window - last_chunk);
        }
      }
    }
  }
}

TYPED_TEST(KvCacheTest, HoldsTheLastPositionsInOrder) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(50); ++draw) {
    Random random(100 + draw);
    SCOPED_TRACE(random.trace());
    const Sequence<T> sequence(random, 200);
    const index_t window = random.integer(0, 20), room = random.integer(1, 30);
    KvCache<T> cache(sequence.cache(window == 0 ? 200 : window + room, window));
    index_t first = 0, length = 0;
    while (length < 200) {
      const index_t n = std::min(random.integer(0, room), 200 - length);
      if (window > 0) first = std::max(first, length - window);
      const auto k = sequence.k.template view<4>().slice(2, length, length + n);
      const auto v = sequence.v.template view<4>().slice(2, length, length + n);
      if (random.chance(0.5)) {
        cache.append(k, v);
      } else {
        const auto [keys, values] = cache.extend(n);
        copy(k, keys);
        copy(v, values);
      }
      length += n;
      if (random.chance(0.3)) {
        const index_t rejected = random.integer(0, n);
        cache.truncate(rejected);
        length -= rejected;
      }
      ASSERT_EQ(cache.length(), length);
      ASSERT_EQ(cache.first_position(), first);
      ASSERT_EQ(cache.size(), length - first);
      ASSERT_TRUE(same_bits(to_array(cache.keys()), positions(sequence.k, first, length)));
      ASSERT_TRUE(same_bits(to_array(cache.values()), positions(sequence.v, first, length)));
      ASSERT_EQ(cache.keys().stride(3), 1);
    }
    cache.clear();
    EXPECT_EQ(cache.size() + cache.length() + cache.first_position(), 0);
  }
}

TYPED_TEST(KvCacheTest, AppendsViewsOfAnyStrides) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(20); ++draw) {
    Random random(200 + draw);
    SCOPED_TRACE(random.trace());
    const Sequence<T> sequence(random, 6);
    const Placed<T, 4> k(sequence.k, Layout<4>::any(random, false)),
        v(sequence.v, Layout<4>::any(random, false));
    KvCache<T> cache(sequence.cache(6));
    cache.append(k.view(), v.view());
    EXPECT_TRUE(same_bits(to_array(cache.keys()), sequence.k));
    EXPECT_TRUE(same_bits(to_array(cache.values()), sequence.v));
  }
}

TYPED_TEST(KvCacheTest, ReorderTakesEveryRowFromItsSource) {
  using T = TypeParam;
  Random random(4);
  constexpr index_t kBatch = 4;
  const auto k = random.array<T>({kBatch, 2, 9, 5}), v = random.array<T>({kBatch, 2, 9, 3});
  // All 256 maps from four rows to four.
  for (index_t map = 0; map < 256; ++map) {
    const Tensor1<index_t> rows({kBatch}, {map % 4, map / 4 % 4, map / 16 % 4, map / 64});
    KvCache<T> cache({kBatch, 2, 10, 5, 3, 4});
    cache.append(k.template view<4>().slice(2, 0, 5), v.template view<4>().slice(2, 0, 5));
    cache.append(k.template view<4>().slice(2, 5, 9), v.template view<4>().slice(2, 5, 9));
    cache.reorder(rows);
    for (index_t b = 0; b < kBatch; ++b) {
      const auto row = [&](const auto& x, index_t at) {
        return to_array(const_view(x).select(0, at));
      };
      const auto held = [&](const Array<T>& x) { return x.template view<4>().slice(2, 1, 9); };
      ASSERT_TRUE(same_bits(row(cache.keys(), b), row(held(k), rows(b)))) << map << " row " << b;
      ASSERT_TRUE(same_bits(row(cache.values(), b), row(held(v), rows(b)))) << map << " row " << b;
    }
  }
}

TEST(KvCache, SameHeadDimOfValuesUnlessTold) {
  KvCache<float> cache({.batch = 1, .num_kv_heads = 3, .capacity = 4, .head_dim = 8});
  EXPECT_EQ(cache.extend(2).values.shape(), (Shape<4>{1, 3, 2, 8}));
  EXPECT_EQ(cache.options().head_dim_v, 8);
}

TEST(KvCache, AWindowMovesEachKeyAtMostOnceOnAverage) {
  for (const index_t room : {1, 3, 20}) {
    constexpr index_t kWindow = 10;
    KvCache<float> cache({.capacity = kWindow + room, .head_dim = 1, .window = kWindow});
    index_t copied = 0;
    const float* last = nullptr;
    while (cache.length() < 1000) {
      cache.extend(room);
      if (cache.keys().data() < last) copied += kWindow;
      last = cache.keys().data();
    }
    EXPECT_GT(copied, 0);
    EXPECT_LE(copied, cache.length());
  }
}

TEST(KvCache, IsLikeOneThatTakesAsMuch) {
  const KvCacheOptions options{.capacity = 4, .head_dim = 2, .window = 1};
  const KvCache<float> cache(options);
  KvCacheOptions larger = options, all = options, more_rows = options;
  larger.capacity = 5;
  all.window = 0;
  more_rows.batch = 3;
  EXPECT_TRUE(cache.is_like(KvCache<float>({.capacity = 4, .head_dim = 1, .window = 1})));
  EXPECT_FALSE(cache.is_like(KvCache<float>(more_rows)));
  EXPECT_FALSE(cache.is_like(KvCache<float>(larger)));
  EXPECT_FALSE(cache.is_like(KvCache<float>(all)));
  KvCache<float> once = cache, twice = cache;
  once.extend(2);
  EXPECT_FALSE(once.is_like(cache));
  twice.extend(1);
  twice.extend(1);
  EXPECT_TRUE(once.is_like(twice));
  once.extend(1);  // drops one of its two
  once.extend(1);
  twice.extend(2);
  EXPECT_EQ(once.length(), twice.length());
  EXPECT_FALSE(once.is_like(twice));
}

TEST(KvCache, CopiesAreDeep) {
  KvCache<float> a({.capacity = 4, .head_dim = 1});
  a.append(Tensor4<float>({1, 1, 1, 1}, {1}), Tensor4<float>({1, 1, 1, 1}, {2}));
  KvCache<float> b = a;
  b.append(Tensor4<float>({1, 1, 1, 1}, {3}), Tensor4<float>({1, 1, 1, 1}, {4}));
  EXPECT_EQ(to_array(a.keys()).data, (std::vector<float>{1}));
  EXPECT_EQ(to_array(b.keys()).data, (std::vector<float>{1, 3}));
  EXPECT_EQ(to_array(b.values()).data, (std::vector<float>{2, 4}));
}

TEST(KvCache, AppendsTheFirstPositionsOfAnother) {
  Random random(1);
  for (const DType element : {DType::F32, DType::BF16, DType::I8}) {
    const KvCacheOptions options = {
        .num_kv_heads = 2, .capacity = 6, .head_dim = 3, .element = element};
    KvCache<float> from(options), part(options), to(options);
    const auto k = random.tensor<float, 4>({1, 2, 5, 3}), v = random.tensor<float, 4>({1, 2, 5, 3});
    from.append(k, v);
    part.append(k.view().slice(2, 0, 4), v.view().slice(2, 0, 4));
    detail::append_first(to, from, 4);
    detail::with_cache_element<float>(element, [&]<class E>(E) {
      EXPECT_TRUE(same_bits(to_array(to.keys<E>()), to_array(part.keys<E>())));
      EXPECT_TRUE(same_bits(to_array(to.values<E>()), to_array(part.values<E>())));
    });
    if (element == DType::I8) {
      EXPECT_TRUE(same_bits(to_array(to.key_scales()), to_array(part.key_scales())));
      EXPECT_TRUE(same_bits(to_array(to.value_scales()), to_array(part.value_scales())));
    }
    EXPECT_EQ(error_of<ValueError>([&] { detail::append_first(to, from, 6); }),
              "[append_first] n must lie in 0 .. 5; found 6.");
    EXPECT_EQ(to.length(), 4);
  }
}

TEST(KvCache, MovedFromIsEmptyAndCanBeCopied) {
  KvCache<float> a({.capacity = 4, .head_dim = 1, .window = 1}), c({.capacity = 1, .head_dim = 2});
  a.append(Tensor4<float>({1, 1, 2, 1}, {1, 2}), Tensor4<float>({1, 1, 2, 1}, {3, 4}));
  KvCache<float> b = std::move(a);
  c = std::move(b);
  EXPECT_EQ(to_array(c.keys()).data, (std::vector<float>{1, 2}));
  EXPECT_EQ(c.options().window, 1);
  for (KvCache<float>* gone : {&a, &b}) {
    const KvCache<float> copied = *gone;
    EXPECT_EQ(copied.size(), 0);
    EXPECT_EQ(copied.length(), 0);
    EXPECT_EQ(copied.keys().size(), 0);
    EXPECT_EQ(copied.values().size(), 0);
    EXPECT_THROW(gone->extend(1), ValueError);
    EXPECT_THROW(gone->append(Tensor4<float>({1, 1, 1, 1}), Tensor4<float>({1, 1, 1, 1})),
                 ShapeError);
  }
}

TEST(KvCacheErrors, LengthsFarAway) {
  KvCache<float> cache({.capacity = 4, .head_dim = 1});
  cache.extend(3);
  constexpr index_t least = std::numeric_limits<index_t>::min();
  EXPECT_EQ(error_of<ValueError>([&] { cache.truncate_to(least); }),
            "[KvCache::truncate_to] length must lie in 0 .. 3; found -9223372036854775808.");
  EXPECT_THROW(cache.truncate_to(std::numeric_limits<index_t>::max()), ValueError);
  EXPECT_EQ(cache.length(), 3);
}

TEST(KvCacheErrors, Options) {
  const auto error = [](const KvCacheOptions& options) {
    return error_of<ValueError>([&] { KvCache<float> cache(options); });
  };
  EXPECT_EQ(error({.batch = 0, .capacity = 4, .head_dim = 8}),
            "[KvCache] batch must lie in 1 .. 4611686018427387903; found 0.");
  EXPECT_TRUE(attn_test::contains(error({.num_kv_heads = 0, .capacity = 4, .head_dim = 8}),
                                  "num_kv_heads must"));
  EXPECT_TRUE(attn_test::contains(error({.head_dim = 8}), "capacity must"));
  EXPECT_TRUE(attn_test::contains(error({.capacity = 4}), "head_dim must"));
  EXPECT_TRUE(attn_test::contains(error({.capacity = 4, .head_dim = 8, .head_dim_v = -1}),
                                  "head_dim_v must"));
  EXPECT_EQ(error({.capacity = 4, .head_dim = 8, .window = 4}),
            "[KvCache] window must lie in 0 .. 3; found 4.");
  EXPECT_THROW(
      KvCache<float>({.batch = index_t{1} << 40, .capacity = index_t{1} << 40, .head_dim = 8}),
      ShapeError);
}

/// A cache of capacity 6 with 4 positions, and its contents.
class KvCacheOfFour : public ::testing::Test {
 protected:
  KvCacheOfFour() {
    Random random(5);
    k = random.array<float>({2, 2, 4, 3});
    v = random.array<float>({2, 2, 4, 5});
    cache.append(k.view<4>(), v.view<4>());
  }
  void TearDown() override {
    EXPECT_EQ(cache.length(), 4);
    EXPECT_TRUE(same_bits(to_array(cache.keys()), k));
    EXPECT_TRUE(same_bits(to_array(cache.values()), v));
  }
  template <class Error = ValueError, class F>
  std::string error(F f) {
    return error_of<Error>([&] { f(); });
  }
  std::string append_error(const Shape<4>& keys, const Shape<4>& values) {
    return error<ShapeError>([&] { cache.append(Tensor4<float>(keys), Tensor4<float>(values)); });
  }

  Array<float> k, v;
  KvCache<float> cache{{2, 2, 6, 3, 5}};
};

TEST_F(KvCacheOfFour, HasNoRoomForMore) {
  EXPECT_EQ(
      error([&] { cache.extend(3); }),
      "[KvCache::extend] n, beside the 4 kept in a capacity of 6, must lie in 0 .. 2; found 3.");
  EXPECT_EQ(
      error([&] { cache.extend(-1); }),
      "[KvCache::extend] n, beside the 4 kept in a capacity of 6, must lie in 0 .. 2; found -1.");
  EXPECT_EQ(
      error([&] {
        cache.append(Tensor4<float>({2, 2, 3, 3}), Tensor4<float>({2, 2, 3, 5}));
      }),
      "[KvCache::append] n, beside the 4 kept in a capacity of 6, must lie in 0 .. 2; found 3.");
}

TEST_F(KvCacheOfFour, RefusesOtherShapes) {
  EXPECT_EQ(append_error({2, 2, 1, 4}, {2, 2, 1, 5}),
            "[KvCache::append] k must have shape (batch, num_kv_heads, n, head_dim) = (2, 2, 1, "
            "3); found (2, 2, 1, 4).");
  EXPECT_EQ(append_error({2, 2, 1, 3}, {2, 2, 2, 5}),
            "[KvCache::append] v must have shape (batch, num_kv_heads, n, head_dim_v) = (2, 2, 1, "
            "5); found (2, 2, 2, 5).");
  EXPECT_TRUE(attn_test::contains(append_error({1, 2, 1, 3}, {2, 2, 1, 5}), "found (1, 2, 1, 3)"));
  EXPECT_TRUE(attn_test::contains(append_error({2, 1, 1, 3}, {2, 2, 1, 5}), "found (2, 1, 1, 3)"));
}

TEST_F(KvCacheOfFour, RefusesToTruncateMore) {
  EXPECT_EQ(error([&] { cache.truncate(5); }),
            "[KvCache::truncate] n must lie in 0 .. 4; found 5.");
  EXPECT_EQ(error([&] { cache.truncate(-1); }),
            "[KvCache::truncate] n must lie in 0 .. 4; found -1.");
  KvCache<float> windowed({.capacity = 6, .head_dim = 1, .window = 2});
  windowed.extend(3);
  windowed.extend(4);  // 2 kept, 1 dropped
  EXPECT_EQ(error([&] { windowed.truncate(5); }),
            "[KvCache::truncate] n must lie in 0 .. 4; found 5.");
  windowed.truncate(4);
  EXPECT_EQ(windowed.size(), 2);
}

TEST_F(KvCacheOfFour, RefusesRowsOutsideTheBatch) {
  EXPECT_EQ(error([&] {
              cache.reorder(Tensor1<index_t>({2}, {1, 2}));
            }),
            "[KvCache::reorder] rows(1) must lie in 0 .. 1; found 2.");
  EXPECT_EQ(error([&] {
              cache.reorder(Tensor1<index_t>({2}, {-1, 0}));
            }),
            "[KvCache::reorder] rows(0) must lie in 0 .. 1; found -1.");
  EXPECT_EQ(error<ShapeError>([&] { cache.reorder(Tensor1<index_t>({3})); }),
            "[KvCache::reorder] rows must have shape (batch) = (2); found (3).");
}

}  // namespace
}  // namespace attn
