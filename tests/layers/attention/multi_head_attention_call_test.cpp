// Calls of MultiHeadAttention: attention's options, functors, positions and a cache.
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attn/layers/multi_head_attention.hpp"

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/models/steps.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::available_isas;
using attn_test::contains;
using attn_test::difference;
using attn_test::error_of;
using attn_test::near;
using attn_test::Random;
using attn_test::to_array;

MultiHeadAttention<float> random_attention(Random& random,
                                           const MultiHeadAttentionOptions& options) {
  return attn_test::random_module<MultiHeadAttention<float>>(random, options);
}

/// Projections, attention and output projection, one by one.
struct Composed {
  Tensor3<float> y;
  Tensor4<float> weights;
};

template <class... Functors>
Composed compose(MultiHeadAttention<float>& module, const Tensor3<float>& x,
                 AttentionOptions<float> options, const Functors&... functors) {
  const auto& o = module.options();
  const auto q = linear(x, module.q_weight(), module.q_bias());
  const auto k = linear(x, module.k_weight(), module.k_bias());
  const auto v = linear(x, module.v_weight(), module.v_bias());
  Composed result;
  result.weights = Tensor4<float>({x.extent(0), o.num_heads, x.extent(1), x.extent(1)});
  options.weights = result.weights;
  const auto context =
      scaled_dot_product_attention(split_heads(q, o.num_heads), split_heads(k, o.num_kv_heads),
                                   split_heads(v, o.num_kv_heads), options, functors...);
  result.y = module.out_proj()(combine_heads(context));
  return result;
}

TEST(MultiHeadAttentionCalls, TakeEveryOptionOfAttention) {
  Random random(1);
  auto module = random_attention(random, {.embed_dim = 24, .num_heads = 4, .num_kv_heads = 2});
  const auto x = random.tensor<float, 3>({2, 9, 24});
  const auto slopes = random.tensor<float, 1>({4}, 0.1), sinks = random.tensor<float, 1>({4});
  const auto bias = random.tensor<float, 2>({4, 7});
  const Tensor1<index_t> lengths({2}, {9, 5});
  const std::map<std::string, AttentionOptions<float>> calls{
      {"scale", {.scale = 0.3}},
      {"softcap", {.softcap = 2}},
      {"offset", {.mask = causal(), .offset = query_offset(-2)}},
      {"alibi", {.mask = causal(), .alibi_slopes = slopes}},
      {"relative bias", {.relative_bias = bias}},
      {"sinks", {.mask = sliding_window(2, 1), .sinks = sinks}},
      {"dropout", {.dropout = {.p = 0.2, .seed = 3}}},
      {"mean",
       {.mask = key_lengths(lengths) & sliding_window(1, 0), .masked_row = MaskedRow::mean}}};
  for (const auto& [name, options] : calls) {
    const auto expected = compose(module, x, options);
    AttentionOptions<float> told = options;
    Tensor4<float> weights({2, 4, 9, 9});
    told.weights = weights;
    EXPECT_EQ(difference(to_array(module(x, told)), to_array(expected.y), near(expected.y),
                         active_isa(), name),
              "");
    EXPECT_EQ(difference(to_array(weights), to_array(expected.weights), near(expected.weights),
                         active_isa(), name + ", weights"),
              "");
  }
}

// Lengths removed from the mask still determine the positions of queries.
TEST(MultiHeadAttentionCalls, LearnedKeysMoveNoQuery) {
  Random random(11);
  auto module = random_attention(
      random, {.embed_dim = 24, .num_heads = 4, .add_bias_kv = true, .add_zero_attn = true});
  const auto x = random.tensor<float, 3>({2, 9, 24});
  const auto slopes = random.tensor<float, 1>({4}, 0.1);
  const Tensor1<index_t> lengths({2}, {9, 5}), queries({2}, {9, 7}), offsets({2}, {0, -2});
  const Mask mask = key_lengths(lengths) & query_lengths(queries);
  const auto y = module(x, {.mask = mask, .alibi_slopes = slopes});
  const auto same =
      module(x, {.mask = mask, .offset = query_offsets(offsets), .alibi_slopes = slopes});
  EXPECT_EQ(to_array(y).data, to_array(same).data);
  const auto other = module(x, {.mask = mask, .offset = query_offset(0), .alibi_slopes = slopes});
  EXPECT_NE(to_array(y).data, to_array(other).data);
}

TEST(MultiHeadAttentionCalls, TakeFunctorsAndTheModulesScale) {
  Random random(2);
  auto module = random_attention(random, {.embed_dim = 24, .num_heads = 4, .scale = 0.5});
  const auto x = random.tensor<float, 3>({2, 9, 24});
  const auto score = score_mod(
      [](float s, int, int h, int i, int j) { return s + 0.1f * static_cast<float>(h + i - j); });
  const auto mask = mask_mod([](int, int, int i, int j) { return (i + j) % 3 != 0; });
  const auto expected = compose(module, x, {.mask = causal(), .scale = 0.5}, score, mask);
  const auto y = module(x, {.mask = causal()}, {}, score, mask);
  EXPECT_EQ(difference(to_array(y), to_array(expected.y), near(y), active_isa()), "");
  Tensor3<float> sum = x;
  module.forward(x, x, x, sum, {.mask = causal()}, {.residual = x}, score, mask);
  for (index_t i = 0; i < sum.size(); ++i) sum.data()[i] -= x.data()[i];
  EXPECT_EQ(difference(to_array(sum), to_array(y), near(y), active_isa()), "");
}

const MultiHeadAttentionOptions kAll{.embed_dim = 24,
                                     .num_heads = 4,
                                     .num_kv_heads = 2,
                                     .head_dim_v = 5,
                                     .query_key_norm = NormKind::layer,
                                     .rotary = RotaryOptions{.dim = 4, .max_positions = 12}};

TEST(MultiHeadAttentionCalls, CachedStepsAreTheWhole) {
  Random random(3);
  auto module = random_attention(random, kAll);
  const auto x = random.tensor<float, 3>({2, 10, 24});
  for (Isa isa : available_isas()) {
    const AttentionOptions<float> on{.mask = causal(), .execution = {.isa = isa}};
    const auto whole = module(x, on);
    KvCache<float> cache = module.make_cache(2, 10);
    const auto steps = attn_test::by_steps(
        x, [&](const Tensor3<float>& rows, bool) { return module(rows, on, {.cache = &cache}); });
    EXPECT_EQ(difference(steps, to_array(whole), near(whole), isa), "");
    EXPECT_EQ(cache.length(), 10);

    // The last queries again, with only the cache.
    const Tensor3<float> last(x.view().slice(1, 7, 10));
    const auto again = module(last, TensorView3<const float>(), TensorView3<const float>(), on,
                              {.cache = &cache, .append = false});
    EXPECT_EQ(difference(to_array(again), to_array(whole.view().slice(1, 7, 10)), near(whole), isa),
              "");
    EXPECT_EQ(cache.length(), 10);
  }
}

TEST(MultiHeadAttentionCalls, CrossAttentionReadsItsKeysOnce) {
  Random random(4);
  auto module = random_attention(
      random, {.embed_dim = 12, .num_heads = 3, .kdim = 7, .vdim = 5, .num_kv_heads = 1});
  const auto q = random.tensor<float, 3>({2, 4, 12});
  const auto k = random.tensor<float, 3>({2, 6, 7}), v = random.tensor<float, 3>({2, 6, 5});
  const auto expected = module(q, k, v);
  KvCache<float> cache = module.make_cache(2, 6);
  EXPECT_EQ(to_array(module(q, k, v, {}, {.cache = &cache})).data, to_array(expected).data);
  const TensorView3<const float> none;
  EXPECT_EQ(to_array(module(q, none, none, {}, {.cache = &cache, .append = false})).data,
            to_array(expected).data);
  EXPECT_EQ(cache.length(), 6);
}

TEST(MultiHeadAttentionCalls, PackedSequencesEachStartAtPositionZero) {
  Random random(5);
  auto module = random_attention(random, kAll);
  const auto x = random.tensor<float, 3>({1, 9, 24});
  const Tensor1<index_t> ends({4}, {0, 4, 4, 9});
  const auto y = module(x, {.mask = causal(), .cu_seqlens_q = ends, .cu_seqlens_k = ends});
  for (const auto& [begin, end] : {std::pair<index_t, index_t>{0, 4}, {4, 9}}) {
    const auto alone = module(Tensor3<float>(x.view().slice(1, begin, end)), {.mask = causal()});
    EXPECT_EQ(difference(to_array(y.view().slice(1, begin, end)), to_array(alone), near(alone),
                         active_isa()),
              "");
  }
}

/// Packed sequences in a cache that may drop the first keys: A, more of A, then B, then more of B
/// and C.
TEST(MultiHeadAttentionCalls, PackedSequencesGoOnBehindACache) {
  Random random(8);
  MultiHeadAttentionOptions with_room = kAll;
  with_room.rotary->max_positions = 12;
  auto module = random_attention(random, with_room);
  const auto a = random.tensor<float, 3>({1, 7, 24}), b = random.tensor<float, 3>({1, 6, 24}),
             c = random.tensor<float, 3>({1, 2, 24});
  using Starts = std::vector<index_t>;
  struct Step {
    std::vector<std::tuple<const Tensor3<float>*, index_t, index_t>> rows;
    Starts q, k;
  };
  const std::vector<Step> steps = {{{{&a, 0, 4}}, {0, 4}, {0, 4}},
                                   {{{&a, 4, 7}}, {0, 3}, {0, 7}},
                                   {{{&b, 0, 2}}, {0, 0, 2}, {0, 7, 9}},
                                   {{{&b, 2, 6}, {&c, 0, 2}}, {0, 0, 4, 6}, {0, 7, 13, 15}}};
  for (const index_t window : {0, 5}) {
    const Mask mask = causal() & sliding_window(window == 0 ? -1 : window, 0);
    for (Isa isa : available_isas()) {
      const AttentionOptions<float> on{.mask = mask, .execution = {.isa = isa}};
      KvCache<float> cache = module.make_cache(1, window == 0 ? 15 : 11, window);
      for (const Step& step : steps) {
        Tensor3<float> x({1, step.q.back(), 24});
        index_t at = 0;
        for (const auto& [of, begin, end] : step.rows) {
          copy(of->view().slice(1, begin, end), x.view().slice(1, at, at + end - begin));
          at += end - begin;
        }
        AttentionOptions<float> options = on;
        options.cu_seqlens_q = {step.q.data(), {std::ssize(step.q)}};
        options.cu_seqlens_k = {step.k.data(), {std::ssize(step.k)}};
        const auto y = module(x, options, {.cache = &cache});
        at = 0;
        for (const auto& [of, begin, end] : step.rows) {
          const auto alone = module(*of, on);
          EXPECT_EQ(difference(to_array(y.view().slice(1, at, at + end - begin)),
                               to_array(alone.view().slice(1, begin, end)), near(alone), isa),
                    "")
              << "window " << window << ", " << cache.length() << " held";
          at += end - begin;
        }
      }
      EXPECT_EQ(cache.length(), 15);
    }
  }
}

/// Fewer queries than keys without a cache: the last query of each sequence has the position of its
/// last key.
TEST(MultiHeadAttentionCalls, PackedQueriesStandAtTheEndOfTheirKeys) {
  Random random(9);
  auto module = random_attention(random, kAll);
  const auto q = random.tensor<float, 3>({1, 5, 24}), kv = random.tensor<float, 3>({1, 9, 24});
  const Tensor1<index_t> q_starts({3}, {0, 2, 5}), k_starts({3}, {0, 6, 9}), few({3}, {0, 1, 9});
  const auto y = module(q, kv, kv, {.cu_seqlens_q = q_starts, .cu_seqlens_k = k_starts});
  for (index_t b = 0; b < 2; ++b) {
    const Tensor3<float> of_q(q.view().slice(1, q_starts(b), q_starts(b + 1))),
        of_kv(kv.view().slice(1, k_starts(b), k_starts(b + 1)));
    const auto alone = module(of_q, of_kv, of_kv);
    EXPECT_EQ(difference(to_array(y.view().slice(1, q_starts(b), q_starts(b + 1))), to_array(alone),
                         near(alone), active_isa()),
              "");
  }
  EXPECT_EQ(error_of<ValueError>(
                [&] { module(q, kv, kv, {.cu_seqlens_q = q_starts, .cu_seqlens_k = few}); }),
            "[MultiHeadAttention] q_len must be at most the number of keys, 1, with rotary and no "
            "position_ids; found 2.");
}

/// A cache that drops keys outside its window refers to the same keys as one that keeps them.
TEST(MultiHeadAttentionCalls, WindowedCachesCountEveryKey) {
  Random random(10);
  MultiHeadAttentionOptions with_room = kAll;
  with_room.rotary->max_positions = 40;
  auto module = random_attention(random, with_room);
  const auto x = random.tensor<float, 3>({2, 40, 24});
  const Tensor1<index_t> padding({2}, {0, 3}), prefix({2}, {2, 4});
  const std::vector<AttentionOptions<float>> calls = {{},
                                                      {.mask = chunked(5)},
                                                      {.mask = left_padding(padding)},
                                                      {.mask = prefix_lm(prefix)},
                                                      {.dropout = {.p = 0.5, .seed = 3}}};
  const auto even = mask_mod([](int, int, int, int j) { return j % 2 == 0; });
  for (std::size_t n = 0; n <= calls.size(); ++n) {
    KvCache<float> all = module.make_cache(2, 40), some = module.make_cache(2, 9, 3);
    AttentionOptions<float> options = n < calls.size() ? calls[n] : AttentionOptions<float>{};
    options.mask = options.mask & causal() & sliding_window(3, 0);
    for (index_t begin = 0; begin < 40; begin += 5) {
      const Tensor3<float> part(x.view().slice(1, begin, begin + 5));
      const auto step = [&](KvCache<float>& cache) {
        return n < calls.size() ? module(part, options, {.cache = &cache})
                                : module(part, options, {.cache = &cache}, even);
      };
      const auto expected = step(all), found = step(some);
      ASSERT_EQ(attn_test::unlike(found, expected), "") << n << ", from " << begin;
    }
  }
}

TEST(MultiHeadAttentionCalls, PositionsShiftNothingTogether) {
  Random random(6);
  auto module = random_attention(random, kAll);
  const auto x = random.tensor<float, 3>({1, 4, 24});
  const Tensor2<index_t> later({1, 4}, {5, 6, 7, 8}), apart({1, 4}, {0, 1, 2, 9});
  const auto y = module(x);
  EXPECT_EQ(difference(to_array(module(x, {}, {.position_ids = later})), to_array(y), near(y),
                       active_isa()),
            "");
  EXPECT_NE(difference(to_array(module(x, {}, {.position_ids = apart})), to_array(y), near(y),
                       active_isa()),
            "");
}

/// Norms of heads exclude the appended keys.
TEST(MultiHeadAttentionCalls, AppendedKeysAreNotNormed) {
  Random random(8);
  auto module = random_attention(
      random,
      {.embed_dim = 12, .num_heads = 3, .add_bias_kv = true, .query_key_norm = NormKind::rms});
  const auto x = random.tensor<float, 3>({2, 5, 12});
  const Tensor3<float> q = linear(x, module.q_weight(), module.q_bias());
  const Tensor3<float> k = linear(x, module.k_weight(), module.k_bias());
  const Tensor3<float> v = linear(x, module.v_weight(), module.v_bias());
  const auto learned = attn_test::parameters_of<float>(module);
  Tensor4<float> keys({2, 3, 6, 4}), values({2, 3, 6, 4});
  copy(module.k_norm()(split_heads(k, 3)), keys.view().slice(2, 0, 5));
  copy(split_heads(v, 3), values.view().slice(2, 0, 5));
  for (index_t b = 0; b < 2; ++b) {
    const auto of_row = [&](Tensor4<float>& heads) {
      return heads.view().slice(0, b, b + 1).slice(2, 5, 6);
    };
    copy(split_heads(learned.at("bias_k").view<3>(), 3), of_row(keys));
    copy(split_heads(learned.at("bias_v").view<3>(), 3), of_row(values));
  }
  const auto context =
      scaled_dot_product_attention(module.q_norm()(split_heads(q, 3)), keys, values);
  const auto expected = module.out_proj()(combine_heads(context));
  EXPECT_EQ(difference(to_array(module(x)), to_array(expected), near(expected), active_isa()), "");
}

/// `out` may be the residual, with and without output projection.
TEST(MultiHeadAttentionCalls, ResidualInPlace) {
  Random random(9);
  for (const bool projects : {false, true}) {
    const auto module =
        random_attention(random, {.embed_dim = 12, .num_heads = 3, .output_projection = projects});
    const auto x = random.tensor<float, 3>({2, 5, 12});
    auto sum = random.tensor<float, 3>({2, 5, 12});
    Tensor3<float> expected(x.shape());
    module.forward(x, x, x, expected, {}, {.residual = Tensor3<float>(sum)});
    module.forward(x, x, x, sum, {}, {.residual = sum});
    EXPECT_EQ(difference(to_array(sum), to_array(expected), near(expected), active_isa()), "");
  }
}

TEST(MultiHeadAttentionCalls, CachedIntoAPartOfALongerSequence) {
  Random random(10);
  const auto module = random_attention(random, kAll);
  const auto x = random.tensor<float, 3>({2, 3, 24});
  Tensor3<float> longer({2, 5, 24});
  const TensorView3<float> part = longer.view().slice(1, 1, 4);
  KvCache<float> cache = module.make_cache(2, 8), other = module.make_cache(2, 8);
  module.forward(x, x, x, part, {}, {.cache = &cache});
  EXPECT_EQ(to_array(part).data, to_array(module(x, {}, {.cache = &other})).data);
  EXPECT_EQ(cache.length(), 3);
}

TEST(MultiHeadAttentionCallErrors, LeaveOutputAndCacheAsTheyWere) {
  Random random(7);
  auto module = random_attention(random, kAll);
  const auto x = random.tensor<float, 3>({2, 3, 24});
  Tensor3<float> y(x.shape());
  y.fill(7);
  KvCache<float> cache = module.make_cache(2, 8), other({.batch = 2, .capacity = 8, .head_dim = 6});
  (void)module(x, {}, {.cache = &cache});
  const auto error = [&]<class E>(const E*, const AttentionOptions<float>& options,
                                  const MultiHeadAttentionCall<float>& call) {
    return error_of<E>([&] { module.forward(x, x, x, y, options, call); });
  };
  const ShapeError* shape = nullptr;
  const ValueError* value = nullptr;
  EXPECT_EQ(error(value, {}, {.append = false}),
            "[MultiHeadAttention] append must be true without a cache; found false.");
  EXPECT_EQ(
      error(shape, {}, {.cache = &other}),
      "[MultiHeadAttention] cache must have shape (batch, num_kv_heads, head_dim, head_dim_v) = "
      "(2, 2, 6, 5); found (2, 1, 6, 6).");
  const Tensor2<bool> mask({3, 5});
  EXPECT_THROW(module.forward(x, x, x, y, {.mask = keep_mask(mask)}, {.cache = &cache}),
               ShapeError);
  const Tensor2<index_t> outside({2, 3}, {0, 1, 12, 0, 1, 2}), few({2, 2});
  EXPECT_TRUE(contains(error(value, {}, {.position_ids = outside, .cache = &cache}),
                       "position_ids(0, 2) must lie in 0 .. 11; found 12."));
  EXPECT_EQ(error(shape, {}, {.position_ids = few}),
            "[MultiHeadAttention] position_ids must have shape (batch, q_len) = (batch, kv_len) = "
            "(2, 3); found (2, 2).");
  EXPECT_EQ(cache.length(), 3);
  KvCache<float> windowed = module.make_cache(2, 8, 4);
  EXPECT_EQ(
      error(value, {.masked_row = MaskedRow::mean}, {.cache = &windowed}),
      "[MultiHeadAttention] cache must have no window with MaskedRow::mean, which needs the masked "
      "values, too; found one.");
  EXPECT_EQ(windowed.length(), 0);
  module.forward(x, x, x, y, {}, {.cache = &cache});
  y.fill(7);
  EXPECT_THROW(module.forward(x, x, x, y, {}, {.cache = &cache}), ValueError);  // capacity 8
  EXPECT_EQ(cache.length(), 6);
  EXPECT_TRUE(all_are(y, 7));

  const MultiHeadAttention<float> appends({.embed_dim = 24, .num_heads = 4, .add_zero_attn = true});
  KvCache<float> its = appends.make_cache(2, 8);
  EXPECT_EQ(
      error_of<ValueError>([&] { appends(x, {}, {.cache = &its}); }),
      "[MultiHeadAttention] cache must be none with add_bias_kv or add_zero_attn; found one.");
  const Tensor1<index_t> starts({3}, {0, 1, 3});
  EXPECT_EQ(
      error_of<ValueError>([&] { appends(x, {.cu_seqlens_q = starts, .cu_seqlens_k = starts}); }),
      "[MultiHeadAttention] cu_seqlens_q and cu_seqlens_k must be none with add_bias_kv or "
      "add_zero_attn; found some.");
  EXPECT_EQ(error_of<ValueError>([&] { appends(x, {.first_key = 2}); }),
            "[MultiHeadAttention] first_key must be 0 with add_bias_kv or add_zero_attn; found 2.");
  EXPECT_EQ(
      error_of<ValueError>([&] { module(x, x.view().slice(1, 0, 2), x.view().slice(1, 0, 2)); }),
      "[MultiHeadAttention] q_len must be at most the number of keys, 2, with rotary and no "
      "position_ids; found 3.");
}

}  // namespace
}  // namespace attn
