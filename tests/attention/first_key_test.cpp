// first_key: keys keep their positions in every mask, bias, functor and layout.
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attn/attention/kv_cache.hpp"
#include "attn/attention/sdpa.hpp"

#include "support/array.hpp"
#include "support/draws/attention_draw.hpp"
#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::attention_difference;
using attn_test::AttentionDraw;
using attn_test::available_isas;
using attn_test::error_of;
using attn_test::Index;
using attn_test::LibraryOptions;
using attn_test::near;
using attn_test::Random;
using attn_test::ReferenceResult;
using attn_test::same_bits;
using attn_test::to_array;
using Kind = attn_test::ReferenceOptions::Mask::Kind;

template <class T>
class FirstKeyTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(FirstKeyTest, Types);

/// The reference has all keys, no first_key, and a mask that masks out the first keys.
TYPED_TEST(FirstKeyTest, IsAMaskOfTheKeysBefore) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(150); ++draw) {
    Random random(draw);
    AttentionDraw<T> whole(random, 150000);
    if (whole.options.first_key > 0) continue;
    whole.options.mean_of_masked_row = false;
    const auto [batch, heads, q_len, kv_len] = whole.scores();
    const Index first = random.integer(0, kv_len - 1);
    Array<double> drops({1, 1, 1, kv_len});
    for (Index j = 0; j < first; ++j) drops(0, 0, 0, j) = 1;
    whole.options.masks.push_back({Kind::drop, drops});
    SCOPED_TRACE(random.trace() + ": " + whole.text() + ", first " + std::to_string(first));
    const LibraryOptions<T> library(whole.options);
    for (Isa isa : available_isas()) {
      AttentionOptions<T> options = library.get();
      options.first_key = first;
      options.execution.isa = isa;
      // Arrays with the extent of all keys get the extent of the keys given.
      for (int part = 0; part < options.mask.num_dense; ++part) {
        Mask::Dense& dense = options.mask.dense[static_cast<std::size_t>(part)];
        if (dense.shape[3] == 1) continue;
        const index_t size = dense.kind != Mask::Dense::Kind::add ? 1 : index_t{sizeof(T)};
        dense.data = static_cast<const char*>(dense.data) + first * dense.strides[3] * size;
        dense.shape[3] -= first;
      }
      ReferenceResult<T> got{
          Array<T>({batch, heads, q_len, whole.v.extent(3)}), {}, Array<T>({batch, heads, q_len})};
      options.lse = got.lse.template view<3>();
      scaled_dot_product_attention(
          whole.q.template view<4>(), whole.k.template view<4>().slice(2, first, kv_len),
          whole.v.template view<4>().slice(2, first, kv_len), got.y.template view<4>(), options);
      ASSERT_EQ(attention_difference(got, whole.q, whole.k, whole.v, whole.options, isa), "");
    }
  }
}

/// Decoding with a cache that drops keys outside the window, and with one that keeps them.
template <class T, class... Functors>
std::string steps_differ(Random& random, Isa isa, const AttentionOptions<T>& told,
                         const Tensor2<index_t>& ids, const Functors&... functors) {
  constexpr index_t kWindow = 3, kLength = 31;
  const auto q = random.tensor<T, 4>({2, 4, kLength, 8}),
             k = random.tensor<T, 4>({2, 2, kLength, 8}),
             v = random.tensor<T, 4>({2, 2, kLength, 8});
  KvCache<T> all({.batch = 2, .num_kv_heads = 2, .capacity = kLength, .head_dim = 8});
  KvCache<T> some({.batch = 2, .num_kv_heads = 2, .capacity = 8, .head_dim = 8, .window = kWindow});
  Array<T> expected({2, 4, kLength, 8}), found = expected;
  for (index_t begin = 0, n = 5; begin < kLength; begin += n, n = random.integer(1, 5)) {
    const index_t end = std::min(begin + n, kLength);
    for (KvCache<T>* cache : {&all, &some}) {
      cache->append(k.view().slice(2, begin, end), v.view().slice(2, begin, end));
      AttentionOptions<T> options = told;
      options.mask = options.mask & causal() & sliding_window(kWindow, 0);
      if (ids.size() > 0) options.mask = options.mask & documents(ids.view().slice(1, 0, end));
      options.first_key = cache->first_position();
      options.execution.isa = isa;
      scaled_dot_product_attention(
          q.view().slice(2, begin, end), cache->keys(), cache->values(),
          (cache == &all ? expected : found).template view<4>().slice(2, begin, end), options,
          functors...);
    }
  }
  return attn_test::difference(found, expected, near(expected), isa);
}

TYPED_TEST(FirstKeyTest, CachesThatForgetMeanTheSameKeys) {
  using T = TypeParam;
  const Tensor1<index_t> padding({2}, {0, 4}), prefix({2}, {2, 5}), lengths({2}, {5, 3});
  const Tensor1<T> slopes({4}, {T(0.5), T(0.25), T(1), T(2)});
  Random random(1);
  const auto bias = random.tensor<T, 2>({4, 5});
  Tensor2<index_t> ids({1, 31});
  for (index_t j = 0; j < 31; ++j) ids(0, j) = j / 7;
  const std::vector<std::pair<const char*, AttentionOptions<T>>> calls = {
      {"nothing", {}},
      {"left padding", {.mask = left_padding(padding)}},
      {"prefix", {.mask = prefix_lm(prefix)}},
      {"chunks", {.mask = chunked(5)}},
      {"slopes", {.alibi_slopes = slopes}},
      {"relative bias", {.relative_bias = bias}},
      {"dropout", {.dropout = {.p = 0.4, .seed = 7}}}};
  const auto even = mask_mod([](int, int, int, int j) { return j % 2 == 0; });
  const auto by_key = score_mod([](T s, int, int, int, int j) { return s + T(0.5) * T(j % 3); });
  const auto weighed = prob_mod([](T p, int, int, int, int j) { return p * T(j % 4); });
  for (Isa isa : available_isas()) {
    for (const auto& [what, options] : calls) {
      EXPECT_EQ(steps_differ<T>(random, isa, options, {}), "") << what;
    }
    EXPECT_EQ(steps_differ<T>(random, isa, {}, ids), "") << "documents";
    EXPECT_EQ(steps_differ<T>(random, isa, {}, {}, even), "");
    EXPECT_EQ(steps_differ<T>(random, isa, {}, {}, by_key), "");
    EXPECT_EQ(steps_differ<T>(random, isa, {}, {}, weighed), "");
    EXPECT_EQ(steps_differ<T>(random, isa, {.mask = chunked(5)}, ids, weighed, even, by_key), "");
  }
}

/// A mask functor that classifies blocks also gets positions.
struct EveryOtherHundred {
  bool operator()(int, int, int, int j) const { return j / 100 % 2 == 0; }
  Visibility classify(index_t, index_t, IndexRange, IndexRange keys) const {
    const index_t first = keys.begin / 100, last = (keys.end - 1) / 100;
    if (first != last) return Visibility::partial;
    return first % 2 == 0 ? Visibility::full : Visibility::empty;
  }
};

TYPED_TEST(FirstKeyTest, BlocksAreAskedAboutByNumber) {
  using T = TypeParam;
  Random random(2);
  for (const Index q_len : {1, 40}) {
    AttentionDraw<T> call(random, 100);
    call.options = {};
    call.options.first_key = 130;
    call.options.mask_mod = EveryOtherHundred{};
    call.q = random.array<T>({1, 2, q_len, 16});
    call.k = random.array<T>({1, 2, 600, 16});
    call.v = random.array<T>({1, 2, 600, 16});
    for (Isa isa : available_isas()) {
      const auto y = scaled_dot_product_attention(
          call.q.template view<4>(), call.k.template view<4>(), call.v.template view<4>(),
          {.first_key = 130, .execution = {.isa = isa}}, mask_mod(EveryOtherHundred{}));
      EXPECT_EQ(
          attention_difference<T>({to_array(y), {}, {}}, call.q, call.k, call.v, call.options, isa),
          "");
    }
  }
}

/// first_key lies within one of the sequences: earlier sequences have no keys.
TYPED_TEST(FirstKeyTest, OfPackedSequences) {
  using T = TypeParam;
  Random random(3);
  const Tensor1<index_t> q_starts({5}, {0, 2, 5, 25, 26}), k_starts({5}, {0, 3, 60, 160, 2300});
  const auto q = random.tensor<T, 4>({1, 4, 26, 16}), k = random.tensor<T, 4>({1, 2, 2300, 16}),
             v = random.tensor<T, 4>({1, 2, 2300, 16});
  Tensor2<index_t> ids({1, 2140});
  for (index_t j = 0; j < 2140; ++j) ids(0, j) = j / 50;
  for (const index_t first : {1, 3, 40, 60, 150}) {
    for (const bool has_documents : {false, true}) {
      for (Isa isa : available_isas()) {
        const auto given = [&](const Tensor4<T>& x) { return x.view().slice(2, first, 2300); };
        Mask mask = causal() & sliding_window(70, 0);
        AttentionOptions<T> options{.mask = has_documents ? mask & documents(ids) : mask,
                                    .first_key = first,
                                    .cu_seqlens_q = q_starts,
                                    .cu_seqlens_k = k_starts,
                                    .execution = {.isa = isa}};
        const auto y = scaled_dot_product_attention(q, given(k), given(v), options);
        for (index_t b = 0; b < 4; ++b) {
          const index_t begin = std::max(k_starts(b), first), end = k_starts(b + 1);
          const auto rows = y.view().slice(2, q_starts(b), q_starts(b + 1));
          if (begin >= end) {
            EXPECT_TRUE(attn_test::all_are(rows, T{0}));
            continue;
          }
          if (has_documents)
            mask = causal() & sliding_window(70, 0) &
                   documents(ids.view().slice(1, 0, end - k_starts(b)));
          const auto alone = scaled_dot_product_attention(
              q.view().slice(2, q_starts(b), q_starts(b + 1)), k.view().slice(2, begin, end),
              v.view().slice(2, begin, end),
              {.mask = mask, .first_key = begin - k_starts(b), .execution = {.isa = isa}});
          EXPECT_TRUE(same_bits(to_array(rows), to_array(alone))) << first << ' ' << b;
        }
      }
    }
  }
}

TYPED_TEST(FirstKeyTest, OfPages) {
  using T = TypeParam;
  Random random(4);
  const auto q = random.tensor<T, 4>({2, 2, 3, 8}), k = random.tensor<T, 4>({6, 2, 4, 8});
  const Tensor2<index_t> table({2, 3}, {4, 0, 2, 1, 99, 99});
  const Tensor1<index_t> lengths({2}, {21, 13});  // of which 12 and 4 are given
  Tensor4<T> keys({2, 2, 12, 8});
  for (index_t b = 0; b < 2; ++b) {
    for (index_t j = 0; j < lengths(b) - 9; ++j) {
      copy(k.view().select(0, table(b, j / 4)).select(1, j % 4),
           keys.view().select(0, b).select(1, j));
    }
  }
  for (Isa isa : available_isas()) {
    AttentionOptions<T> options{.mask = key_lengths(lengths) & causal() & chunked(3),
                                .first_key = 9,
                                .execution = {.isa = isa}};
    const auto expected = scaled_dot_product_attention(q, keys, keys, options);
    options.block_table = table;
    EXPECT_TRUE(
        same_bits(to_array(scaled_dot_product_attention(q, k, k, options)), to_array(expected)));
  }
}

TEST(FirstKeyErrors, OutsideOfItsRange) {
  const Tensor4<float> q({1, 1, 2, 4}), k({1, 1, 3, 4});
  const Tensor2<index_t> ids({1, 3});
  const Tensor1<index_t> lengths({1}, {9});
  const auto error = [&]<class E>(const E*, const AttentionOptions<float>& options,
                                  const auto&... functors) {
    return error_of<E>([&] { (void)scaled_dot_product_attention(q, k, k, options, functors...); });
  };
  const ValueError* value = nullptr;
  const ShapeError* shape = nullptr;
  const std::string name = "[scaled_dot_product_attention] ";
  EXPECT_EQ(error(value, {.first_key = -1}), name + "first_key must lie in 0 .. 2^60; found -1.");
  EXPECT_EQ(error(value, {.first_key = (index_t{1} << 60) + 1}),
            name + "first_key must lie in 0 .. 2^60; found 1152921504606846977.");
  EXPECT_EQ(error(value, {.first_key = 2, .masked_row = MaskedRow::mean}),
            name +
                "first_key must be 0 with MaskedRow::mean, which needs the masked values, too; "
                "found 2.");
  EXPECT_EQ(
      error(shape, {.mask = documents(ids), .first_key = 2}),
      name + "documents must have shape (batch or 1, first_key + kv_len) = (1, 5); found (1, 3).");
  EXPECT_EQ(error(value, {.mask = key_lengths(lengths), .first_key = 5}),
            name + "key_lengths(0) must lie in 0 .. 8; found 9.");
  const auto any = mask_mod([](int, int, int, int) { return true; });
  EXPECT_EQ(error(value, {.first_key = (index_t{1} << 31) - 3}, any),
            name +
                "functors must be given with batch, num_heads, q_len and first_key + kv_len below "
                "2^31; found 2147483648.");
  EXPECT_NO_THROW((void)scaled_dot_product_attention(q, k, k, {.first_key = index_t{1} << 60}));
}

}  // namespace
}  // namespace attn
