// tree_mask and KvCache::keep_path: random trees against nested loops, and paths against a cache
// that never held the rest of the tree.
#include "attn/attention/tree_mask.hpp"

#include <gtest/gtest.h>

#include "attn/attention/block_mask.hpp"
#include "attn/attention/cached_attention.hpp"

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/placed.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::attention_difference;
using attn_test::error_of;
using attn_test::Random;
using attn_test::to_array;

Tensor1<index_t> random_tree(Random& random, index_t n) {
  Tensor1<index_t> parents({n});
  for (index_t i = 0; i < n; ++i) parents(i) = random.integer(-1, i - 1);
  return parents;
}

TEST(TreeMask, RandomTreesSeeThePastAndTheirAncestors) {
  for (const Isa isa : attn_test::available_isas()) {
    for (std::uint64_t draw = 0; draw < attn_test::draws(12); ++draw) {
      Random random(draw);
      SCOPED_TRACE(random.trace());
      const index_t n = random.integer(1, 30), past = random.integer(0, 150),
                    forgotten = random.integer(0, past);
      const Tensor1<index_t> parents = random_tree(random, n);
      const auto q = random.tensor<float, 4>({2, 4, n, 16});
      const auto k = random.tensor<float, 4>({2, 2, past - forgotten + n, 16});
      const auto v = random.tensor<float, 4>({2, 2, past - forgotten + n, 9});
      attn_test::ReferenceOptions expected;
      expected.first_key = forgotten;
      expected.mask_mod = [&](int, int, int i, int j) {
        index_t at = i;
        while (at >= 0 && at != j - past) at = parents(at);
        return j < past || at >= 0;
      };
      const auto y = scaled_dot_product_attention(
          q, k, v, {.first_key = forgotten, .execution = {.isa = isa}}, tree_mask(parents, past));
      EXPECT_EQ(attention_difference<float>({to_array(y), {}, {}}, to_array(q), to_array(k),
                                            to_array(v), expected, isa),
                "");
    }
  }
}

TEST(TreeMask, RefusesOtherTreesAndLengths) {
  const Tensor1<index_t> tree({3}, {-1, 0, 0}), cycle({2}, {-1, 1}), far({1}, {-2});
  EXPECT_EQ(error_of<ValueError>([&] { (void)tree_mask(cycle, 0); }),
            "[tree_mask] parents(1) must lie in -1 .. 0; found 1.");
  EXPECT_EQ(error_of<ValueError>([&] { (void)tree_mask(far, 0); }),
            "[tree_mask] parents(0) must lie in -1 .. -1; found -2.");
  EXPECT_EQ(error_of<ValueError>([&] { (void)tree_mask(tree, -1); }),
            "[tree_mask] past must be at least 0; found -1.");
  const Tensor4<float> q({1, 1, 3, 4}), k({1, 1, 6, 4});
  EXPECT_EQ(
      error_of<ShapeError>(
          [&] { (void)scaled_dot_product_attention(q, k, k, {}, tree_mask(tree, 2)); }),
      "[tree_mask] scores must have shape (q_len, first_key + kv_len) = (3, 5); found (3, 6).");
}

TEST(TreeMask, WithinOthersFurtherQueriesSeeThePastAlone) {
  Random random(5);
  const Tensor1<index_t> tree({3}, {-1, 0, 0});
  const auto q = random.tensor<double, 4>({1, 1, 4, 4}), k = random.tensor<double, 4>({1, 1, 6, 4});
  const auto all = mask_mod([](int, int, int, int) { return true; });
  const auto none = mask_mod([](int, int, int, int) { return false; });
  Tensor<bool, 2> seen({4, 6});  // two keys of the past, three tokens, and one of none
  for (index_t i = 0; i < 4; ++i) {
    for (index_t j = 0; j < 6; ++j) {
      const index_t token = j - 2;
      seen(i, j) = token < 0 || (i < 3 && token < 3 && (token == i || token == 0));
    }
  }
  const auto expected = to_array(scaled_dot_product_attention(q, k, k, {.mask = keep_mask(seen)}));
  const auto expect_past = [&](const auto& mask) {
    EXPECT_EQ(to_array(scaled_dot_product_attention(q, k, k, {}, mask)).data, expected.data);
  };
  expect_past(tree_mask(tree, 2) & all);
  expect_past(tree_mask(tree, 2) | none);
  expect_past(BlockMask(tree_mask(tree, 2), {1, 1, 4, 6}));
}

template <class E>
void expect_same(const KvCache<float>& a, const KvCache<float>& b) {
  EXPECT_EQ(to_array(a.keys<E>()).data, to_array(b.keys<E>()).data);
  EXPECT_EQ(to_array(a.values<E>()).data, to_array(b.values<E>()).data);
  if (!std::same_as<E, std::int8_t>) return;
  EXPECT_EQ(to_array(a.key_scales()).data, to_array(b.key_scales()).data);
  EXPECT_EQ(to_array(a.value_scales()).data, to_array(b.value_scales()).data);
}

TEST(TreeCache, KeptPathsAreAllThatWasAppended) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const DType element = random.pick<DType>({DType::F32, DType::BF16, DType::F16, DType::I8});
    const index_t window = random.chance(0.5) ? random.integer(1, 9) : 0;
    const KvCacheOptions options{.batch = 2,
                                 .num_kv_heads = 2,
                                 .capacity = 90,
                                 .head_dim = 5,
                                 .head_dim_v = 3,
                                 .window = window,
                                 .element = element};
    KvCache<float> cache(options), expected(options);
    for (int step = 0; step < 6; ++step) {
      const index_t n = random.integer(1, 14);
      const auto k = random.tensor<float, 4>({2, 2, n, 5}),
                 v = random.tensor<float, 4>({2, 2, n, 3});
      std::vector<index_t> path;
      for (index_t i = 0; i < n; ++i) {
        if (random.chance(0.5)) path.push_back(i);
      }
      cache.append(k, v);
      cache.keep_path(n, {path.data(), {std::ssize(path)}});
      Tensor4<float> kept_k({2, 2, std::ssize(path), 5}), kept_v({2, 2, std::ssize(path), 3});
      for (index_t i = 0; i < std::ssize(path); ++i) {
        const index_t from = path[static_cast<std::size_t>(i)];
        copy(k.view().slice(2, from, from + 1), kept_k.view().slice(2, i, i + 1));
        copy(v.view().slice(2, from, from + 1), kept_v.view().slice(2, i, i + 1));
      }
      expected.append(kept_k, kept_v);
      ASSERT_EQ(cache.length(), expected.length());
      ASSERT_EQ(cache.size(), expected.size());
      if (element == DType::F32) expect_same<float>(cache, expected);
      if (element == DType::BF16) expect_same<bfloat16>(cache, expected);
      if (element == DType::F16) expect_same<float16>(cache, expected);
      if (element == DType::I8) expect_same<std::int8_t>(cache, expected);
    }
  }
}

TEST(TreeCache, RefusesOtherPathsAndStates) {
  KvCache<float> cache({.batch = 1, .num_kv_heads = 1, .capacity = 9, .head_dim = 2, .window = 2});
  const Tensor4<float> rows({1, 1, 4, 2});
  cache.append(rows, rows);
  cache.append(rows, rows);
  const auto error = [&](index_t n, std::vector<index_t> path) {
    return error_of<ValueError>([&] { cache.keep_path(n, {path.data(), {std::ssize(path)}}); });
  };
  EXPECT_EQ(error(5, {}), "[KvCache::keep_path] n must lie in 0 .. 4; found 5.");
  EXPECT_EQ(error(-1, {}), "[KvCache::keep_path] n must lie in 0 .. 4; found -1.");
  EXPECT_EQ(error(3, {0, 3}), "[KvCache::keep_path] path(1) must lie in 1 .. 2; found 3.");
  EXPECT_EQ(error(3, {1, 1}), "[KvCache::keep_path] path(1) must lie in 2 .. 2; found 1.");
  EXPECT_EQ(error(3, {-1}), "[KvCache::keep_path] path(0) must lie in 0 .. 2; found -1.");
  EXPECT_EQ(cache.length(), 8);
  KvCache<float> state({.batch = 1, .capacity = 4, .state_size = 3});
  state.advance(2);
  EXPECT_EQ(
      error_of<ValueError>([&] { state.keep_path(2, {}); }),
      "[KvCache::keep_path] n, with a state, must be the number of tokens in the last step, a "
      "tree; found 2.");
  EXPECT_EQ(error_of<ValueError>([&] { cache.advance(1, true); }),
            "[KvCache::advance] state_size must be positive; found 0.");
}

TEST(TreeCache, APathKeepsTheStateOfItsLastToken) {
  KvCache<float> cache({.batch = 2, .capacity = 9, .state_size = 3});
  const auto write = [](const TensorView2<float>& state, float value) {
    for (index_t i = 0; i < 6; ++i) state(i / 3, i % 3) = value;
  };
  const auto expect = [&](index_t length, float value) {
    EXPECT_EQ(cache.length(), length);
    for (index_t i = 0; i < 6; ++i) EXPECT_EQ(cache.state()(i / 3, i % 3), value);
  };
  cache.advance(2);
  write(cache.state(), 1);
  for (const index_t n : {4, 2, 5}) {
    for (index_t last = -1; last < n; ++last) {
      cache.advance(n, true);
      for (index_t i = 0; i < n; ++i) write(cache.state_after(i), static_cast<float>(10 + i));
      const TensorView1<const index_t> path(&last, {last < 0 ? 0 : 1});
      EXPECT_TRUE(cache.can_keep_path(n) && !cache.can_keep_path(n - 1));
      cache.keep_path(n, path);
      EXPECT_FALSE(cache.can_keep_path(n));
      last < 0 ? expect(2, 1) : expect(3, static_cast<float>(10 + last));
      cache.truncate_to(2);
      expect(2, 1);
    }
  }
  // A step that is undone leaves the tree before.
  cache.advance(3, true);
  write(cache.state_after(1), 7);
  cache.advance(1);
  cache.undo_to(5);
  cache.keep_path(3, Tensor1<index_t>({1}, {1}));
  expect(3, 7);
  EXPECT_THROW(cache.advance(7, true), ValueError);
  expect(3, 7);
}

}  // namespace
}  // namespace attn
