// Gathered keys: each block of queries attends only to its list of keys, forward and backward.
#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "attn/attention/block_mask.hpp"
#include "attn/attention/cached_attention.hpp"
#include "attn/attention/sdpa_backward.hpp"
#include "attn/attention/top_k_keys.hpp"

#include "support/draws/gather_draw.hpp"
#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/references/reference_backward.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::AttentionReference;
using attn_test::available_isas;
using attn_test::contains;
using attn_test::error_of;
using attn_test::GatherDraw;
using attn_test::Index;
using attn_test::LibraryOptions;
using attn_test::Random;
using attn_test::ReferenceResult;
using attn_test::same_bits;
using attn_test::ThreadExecutor;
using attn_test::to_array;

template <class T>
ReferenceResult<T> run(const GatherDraw<T>& draw, const Execution& execution) {
  const auto [batch, heads, q_len, kv_len] = draw.scores();
  ReferenceResult<T> got{
      Array<T>({batch, heads, q_len, draw.v.extent(3)}), {}, Array<T>({batch, heads, q_len})};
  const LibraryOptions<T> library(draw.options);
  AttentionOptions<T> options = library.get();
  draw.add_lists(options);
  options.lse = got.lse.template view<3>();
  options.execution = execution;
  scaled_dot_product_attention(draw.q.template view<4>(), draw.k.template view<4>(),
                               draw.v.template view<4>(), got.y.template view<4>(), options);
  return got;
}

template <class T>
class GatherTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(GatherTest, Types);

TYPED_TEST(GatherTest, AgreesWithTheReference) {
  using T = TypeParam;
  const ThreadExecutor three(3);
  for (std::uint64_t n = 0; n < attn_test::draws(150); ++n) {
    Random random(n);
    const GatherDraw<T> call(random, 60000);
    SCOPED_TRACE(random.trace() + ": " + call.text());
    AttentionReference<T> reference(call.q, call.k, call.v, call.options);
    for (Isa isa : available_isas()) {
      const auto got = run(call, {.isa = isa});
      ASSERT_EQ(reference.difference_of(got, isa), "");
      const auto shared = run(call, {.executor = &three, .isa = isa});
      ASSERT_TRUE(same_bits(shared.y, got.y) && same_bits(shared.lse, got.lse));
    }
  }
}

template <class T>
std::map<std::string, Array<T>> run_backward(const GatherDraw<T>& draw, const Array<T>& d_y,
                                             const Array<T>& d_lse, const Execution& execution) {
  ReferenceResult<T> forward = run(draw, execution);
  std::map<std::string, Array<T>> g{{"d_q", Array<T>(draw.q.shape)},
                                    {"d_k", Array<T>(draw.k.shape)},
                                    {"d_v", Array<T>(draw.v.shape)}};
  const LibraryOptions<T> library(draw.options);
  AttentionOptions<T> options = library.get();
  draw.add_lists(options);
  options.execution = execution;
  AttentionBackwardCall<T> call;
  if (d_lse) call.d_lse = d_lse.template view<3>();
  if (!draw.options.sinks.empty()) {
    g["d_sinks"] = Array<T>({draw.q.extent(1)});
    call.d_sinks = g["d_sinks"].template view<1>();
  }
  if (draw.options.qv) {
    g["d_qv"] = Array<T>(draw.options.qv.shape);
    call.d_qv = g["d_qv"].template view<4>();
  }
  // Gradients overwrite what was there before.
  for (T& x : g["d_k"].data) x = T{7};
  for (T& x : g["d_v"].data) x = T{7};
  scaled_dot_product_attention_backward(
      d_y.template view<4>(), draw.q.template view<4>(), draw.k.template view<4>(),
      draw.v.template view<4>(), forward.y.template view<4>(), forward.lse.template view<3>(),
      g["d_q"].template view<4>(), g["d_k"].template view<4>(), g["d_v"].template view<4>(),
      options, call);
  return g;
}

TYPED_TEST(GatherTest, HasTheGradientsOfTheReference) {
  using T = TypeParam;
  using W = attn_test::Wider<T>;
  const ThreadExecutor three(3);
  for (std::uint64_t n = 0; n < attn_test::draws(60); ++n) {
    Random random(n + 1000);
    const GatherDraw<T> call(random, 40000);
    SCOPED_TRACE(random.trace() + ": " + call.text());
    const auto [batch, heads, q_len, kv_len] = call.scores();
    const auto d_y = random.array<T>({batch, heads, q_len, call.v.extent(3)});
    const auto d_lse = random.chance(0.5) ? random.array<T>({batch, heads, q_len}) : Array<T>();
    const auto exact = attn_test::reference_backward(
        call.q.template as<W>(), call.k.template as<W>(), call.v.template as<W>(), call.options,
        d_y.template as<W>(), d_lse.template as<W>());
    for (Isa isa : available_isas()) {
      const auto got = run_backward(call, d_y, d_lse, {.isa = isa});
      const auto shared = run_backward(call, d_y, d_lse, {.executor = &three, .isa = isa});
      for (const auto& [name, found] : got) {
        const Array<W>& expected = exact.at(name);
        const double bound = 2000 * attn_test::epsilon<T> * (1 + attn_test::max_abs(expected));
        EXPECT_EQ(attn_test::difference(found, expected, bound, isa, name), "");
        EXPECT_TRUE(same_bits(shared.at(name), found)) << name;
      }
    }
    if (this->HasFailure()) break;
  }
}

/// Many keys, which are split, and many queries per block, which are tiled.
TYPED_TEST(GatherTest, AgreesWithAMaskInLongCalls) {
  using T = TypeParam;
  for (std::uint64_t n = 0; n < 6; ++n) {
    Random random(n + 2000);
    const index_t q_len = random.pick<Index>({1, 40, 150}), block = random.pick<Index>({1, 16, 64});
    const auto q = random.tensor<T, 4>({2, 4, q_len, 32}),
               k = random.tensor<T, 4>({2, 2, 6000, 32}), v = random.tensor<T, 4>({2, 2, 6000, 16});
    const auto index_scores = random.tensor<T, 4>({2, 2, (q_len + block - 1) / block, 6000});
    const auto lists = top_k_keys(index_scores, 3000);
    Tensor4<bool> listed({2, 4, q_len, 6000});
    for (index_t row = 0; row < 2 * 4 * q_len; ++row) {
      const index_t b = row / q_len / 4, h = row / q_len % 4, i = row % q_len;
      for (index_t j = 0; j < 3000; ++j) listed(b, h, i, lists(b, h / 2, i / block, j)) = true;
    }
    for (Isa isa : available_isas()) {
      const auto gathered = scaled_dot_product_attention(
          q, k, v,
          {.mask = causal(), .gather = lists, .gather_block = block, .execution = {.isa = isa}});
      const auto masked = scaled_dot_product_attention(
          q, k, v, {.mask = causal() & keep_mask(listed), .execution = {.isa = isa}});
      // Outputs are means of thousands of values that cancel: the tolerance is that of v.
      EXPECT_EQ(
          attn_test::difference(to_array(gathered), to_array(masked), attn_test::near(v), isa), "");
    }
  }
}

/// Blocks and single rows, float and bfloat16, have the bits of calls over copies of their keys.
template <class T>
void expect_bits_of_copies(Random& random) {
  const index_t block = random.pick<Index>({1, 3, 16, 40}), blocks = random.integer(1, 4),
                heads = random.pick<Index>({1, 2}), group = random.pick<Index>({1, 3}),
                n = random.pick<Index>({1, 50, 515}), kv_len = n + random.integer(0, 2000),
                d = random.integer(1, 40), dv = random.integer(1, 40);
  const auto q = random.tensor<T, 4>({1, heads * group, blocks * block, d}),
             k = random.tensor<T, 4>({1, heads, kv_len, d}),
             v = random.tensor<T, 4>({1, heads, kv_len, dv});
  // Every second element of rows of twice the length: lists with a stride.
  const auto index_scores = random.tensor<float, 4>({1, heads, blocks, kv_len});
  const auto chosen = top_k_keys(index_scores, n);
  Tensor4<index_t> wide({1, heads, blocks, 2 * n});
  for (index_t x = 0; x < chosen.size(); ++x) wide.data()[2 * x] = chosen.data()[x];
  const TensorView4<const index_t> lists(
      wide.data(), {1, heads, blocks, n},
      {wide.view().stride(0), wide.view().stride(1), wide.view().stride(2), 2});
  for (Isa isa : attn_test::extended_isas()) {
    const auto gathered = scaled_dot_product_attention(
        q, k, v, {.gather = lists, .gather_block = block, .execution = {.isa = isa}});
    for (index_t x = 0; x < blocks; ++x) {
      Tensor4<T> own_k({1, heads, n, d}), own_v({1, heads, n, dv});
      for (index_t row = 0; row < heads * n; ++row) {
        const index_t h = row / n, j = row % n, key = lists(0, h, x, j);
        std::copy_n(&k(0, h, key, 0), d, &own_k(0, h, j, 0));
        std::copy_n(&v(0, h, key, 0), dv, &own_v(0, h, j, 0));
      }
      const auto rows = [&](const Tensor4<T>& of) {
        return of.view().slice(2, x * block, (x + 1) * block);
      };
      const auto alone =
          scaled_dot_product_attention(rows(q), own_k, own_v, {.execution = {.isa = isa}});
      EXPECT_TRUE(same_bits(to_array(rows(gathered)), to_array(alone)))
          << name(isa) << ", block " << x;
    }
  }
}

TEST(Gather, HasTheBitsOfKeysThatLieTogether) {
  for (std::uint64_t n = 0; n < attn_test::draws(20); ++n) {
    Random random(n + 6000);
    SCOPED_TRACE(random.trace());
    expect_bits_of_copies<float>(random);
    expect_bits_of_copies<double>(random);
    expect_bits_of_copies<bfloat16>(random);
  }
}

/// Caches of any element and pages give the results of tensors; lists hold positions.
TEST(Gather, ReadsCachesAndPages) {
  for (std::uint64_t n = 0; n < 10; ++n) {
    Random random(n + 3000);
    SCOPED_TRACE(random.trace());
    const index_t q_len = random.pick<Index>({1, 3, 40}), kv_len = random.integer(20, 400);
    const auto q = random.tensor<float, 4>({2, 4, q_len, 24}),
               k = random.tensor<float, 4>({2, 2, kv_len, 24}),
               v = random.tensor<float, 4>({2, 2, kv_len, 16});
    const auto index_scores = random.tensor<float, 4>({2, 2, q_len, kv_len});
    const auto lists = top_k_keys(index_scores, kv_len / 3);
    for (Isa isa : attn_test::extended_isas()) {
      AttentionOptions<float> options{.mask = causal(), .gather = lists, .execution = {.isa = isa}};
      const auto expected = scaled_dot_product_attention(q, k, v, options);
      KvCache<float> cache(
          {.batch = 2, .num_kv_heads = 2, .capacity = kv_len, .head_dim = 24, .head_dim_v = 16});
      cache.append(k, v);
      EXPECT_TRUE(
          same_bits(to_array(scaled_dot_product_attention(q, cache, options)), to_array(expected)));
      KvCache<float> coded({.batch = 2,
                            .num_kv_heads = 2,
                            .capacity = kv_len,
                            .head_dim = 24,
                            .head_dim_v = 16,
                            .element = DType::I8});
      coded.append(k, v);
      const auto of_codes = scaled_dot_product_attention(q, coded, options);
      EXPECT_EQ(attn_test::difference(to_array(of_codes), to_array(expected), 0.1, isa, "int8"),
                "");
      const index_t size = random.pick<Index>({1, 5, 16}), pages = (kv_len + size - 1) / size;
      Tensor4<float> k_pages({2 * pages, 2, size, 24}), v_pages({2 * pages, 2, size, 16});
      Tensor2<index_t> table({2, pages});
      for (index_t b = 0; b < 2; ++b) {
        for (index_t p = 0; p < pages; ++p) table(b, p) = 2 * pages - 1 - (b * pages + p);
        for (index_t j = 0; j < kv_len; ++j) {
          for (index_t h = 0; h < 2; ++h) {
            for (index_t x = 0; x < 24; ++x) {
              k_pages(table(b, j / size), h, j % size, x) = k(b, h, j, x);
              if (x < 16) v_pages(table(b, j / size), h, j % size, x) = v(b, h, j, x);
            }
          }
        }
      }
      const Tensor1<index_t> lengths({2}, {kv_len, kv_len});
      options.mask = causal() & key_lengths(lengths);
      options.block_table = table.view();
      EXPECT_TRUE(same_bits(to_array(scaled_dot_product_attention(q, k_pages, v_pages, options)),
                            to_array(expected)));
    }
  }
}

/// A cache that has dropped its first keys: lists hold positions, not indices.
TEST(Gather, CountsFromTheFirstPosition) {
  Random random(4000);
  const auto q = random.tensor<float, 4>({1, 1, 1, 8}), k = random.tensor<float, 4>({1, 1, 20, 8});
  const Tensor4<index_t> late({1, 1, 1, 3}, {12, 15, 19}), early({1, 1, 1, 3}, {2, 5, 9});
  const auto all = scaled_dot_product_attention(q, k, k, {.gather = late});
  const auto last = k.view().slice(2, 10, 20);
  EXPECT_TRUE(same_bits(
      to_array(scaled_dot_product_attention(q, last, last, {.first_key = 10, .gather = late})),
      to_array(all)));
  EXPECT_TRUE(same_bits(to_array(scaled_dot_product_attention(q, last, last, {.gather = early})),
                        to_array(all)));
}

TEST(Gather, NeverReadsOtherKeys) {
  Random random(5000);
  const auto q = random.tensor<float, 4>({1, 2, 30, 8});
  auto k = random.tensor<float, 4>({1, 1, 200, 8});
  Tensor4<index_t> lists({1, 1, 30, 20});
  for (index_t n = 0; n < lists.size(); ++n) lists.data()[n] = 10 * (n % 20) + 3;
  const auto d_out = random.tensor<float, 4>(q.shape());
  const auto gradients = [&] {
    Tensor3<float> lse({1, 2, 30});
    AttentionOptions<float> options{.gather = lists};
    options.lse = lse.view();
    const auto y = scaled_dot_product_attention(q, k, k, options);
    Tensor4<float> d_q(q.shape()), d_k(k.shape()), d_v(k.shape());
    scaled_dot_product_attention_backward(d_out, q, k, k, y, lse.view(), d_q, d_k, d_v, options);
    return std::array{to_array(y), to_array(d_q), to_array(d_k), to_array(d_v)};
  };
  const auto clean = gradients();
  for (index_t j = 0; j < 200; ++j) {
    if (j % 10 != 3) k(0, 0, j, 0) = std::nanf("");
  }
  const auto dirty = gradients();
  for (std::size_t n = 0; n < clean.size(); ++n) EXPECT_TRUE(same_bits(dirty[n], clean[n])) << n;
}

TEST(Gather, RefusesWhatDoesNotFit) {
  const Tensor4<float> q({2, 4, 5, 8}), k({2, 2, 7, 8});
  const auto refused = [&](AttentionOptions<float> options, const Shape<4>& shape,
                           std::vector<index_t> row) {
    Tensor4<index_t> lists(shape);
    for (index_t n = 0; n < lists.size(); ++n) {
      lists.data()[n] = row.at(static_cast<std::size_t>(n) % row.size());
    }
    options.gather = lists;
    return error_of<std::invalid_argument>([&] { scaled_dot_product_attention(q, k, k, options); });
  };
  EXPECT_EQ(refused({}, {2, 3, 5, 2}, {0, 1}),
            "[scaled_dot_product_attention] gather must have shape (batch, num_kv_heads or 1, "
            "q_len / gather_block rounded up, keys) = (2, 2, 5, 2); found (2, 3, 5, 2).");
  EXPECT_TRUE(contains(refused({.gather_block = 2}, {2, 1, 5, 2}, {0, 1}), "= (2, 1, 3, 2)"));
  EXPECT_TRUE(contains(refused({.gather_block = 0}, {2, 1, 5, 2}, {0, 1}), "gather_block"));
  EXPECT_EQ(refused({}, {2, 1, 5, 2}, {3, 3}),
            "[scaled_dot_product_attention] gather must have positions in 0 .. 6 that increase "
            "along a row, then -1; found 3 at (0, 0, 0, 1).");
  EXPECT_TRUE(contains(refused({}, {2, 1, 5, 2}, {0, 7}), "found 7 at"));
  EXPECT_TRUE(contains(refused({}, {2, 1, 5, 2}, {-1, 1}), "found 1 at"));
  EXPECT_TRUE(contains(refused({}, {2, 1, 5, 2}, {-2, 1}), "found -2 at"));
  EXPECT_TRUE(contains(refused({.first_key = 3}, {2, 1, 5, 2}, {2, 5}), "in 3 .. 9"));
  const Tensor4<bool> all({1, 1, 1, 7});
  EXPECT_EQ(refused({.mask = keep_mask(all)}, {2, 1, 5, 2}, {0, 1}),
            "[scaled_dot_product_attention] a dense mask must not be given with gather; found "
            "both.");
  EXPECT_TRUE(contains(refused({.dropout = {.p = 0.5}}, {2, 1, 5, 2}, {0, 1}), "dropout"));
  Tensor4<float> weights({2, 4, 5, 7});
  EXPECT_TRUE(contains(refused({.weights = weights}, {2, 1, 5, 2}, {0, 1}), "weights"));
  const Tensor4<index_t> lists({2, 1, 5, 1});
  EXPECT_EQ(error_of<ValueError>([&] {
              scaled_dot_product_attention(q, k, k, {.gather = lists},
                                           mask_mod([](int, int, int, int) { return true; }));
            }),
            "[scaled_dot_product_attention] functors must not be given with gather; found both.");
}

TEST(TopKKeys, ChoosesTheLargest) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor4<float> scores({1, 1, 2, 5}, {0, 3, 1, 3, 2, -inf, 1, -inf, -inf, inf});
  EXPECT_EQ(to_array(top_k_keys(scores, 3)).data, (std::vector<index_t>{1, 3, 4, 1, 4, -1}));
  EXPECT_EQ(to_array(top_k_keys(scores, 1, 10)).data, (std::vector<index_t>{11, 14}));
  EXPECT_EQ(top_k_keys(scores, 0).shape(), (Shape<4>{1, 1, 2, 0}));
  EXPECT_EQ(error_of<ValueError>([&] { top_k_keys(scores, 6); }),
            "[top_k_keys] k must be 0 to kv_len, 5; found 6.");
  const Tensor4<float> nan({1, 1, 1, 2}, {0, std::nanf("")});
  EXPECT_EQ(error_of<ValueError>([&] { top_k_keys(nan, 1); }),
            "[top_k_keys] every score must be a number; found nan for key 1.");
  EXPECT_EQ(error_of<ValueError>([&] { top_k_keys(scores, 1, -1); }),
            "[top_k_keys] first_key must lie in 0 .. 2^60; found -1.");
  const Tensor4<int> integers({1, 1, 1, 4}, {-3, -1, std::numeric_limits<int>::min(), -2});
  EXPECT_EQ(to_array(top_k_keys(integers, 2)).data, (std::vector<index_t>{1, 3}));
  EXPECT_EQ(to_array(top_k_keys(integers, 4)).data, (std::vector<index_t>{0, 1, 2, 3}));
  const Tensor4<bfloat16> halves({1, 1, 1, 3}, {bfloat16(-2.0f), bfloat16(-inf), bfloat16(-1.0f)});
  EXPECT_EQ(to_array(top_k_keys(halves, 3)).data, (std::vector<index_t>{0, 2, -1}));
}

}  // namespace
}  // namespace attn
