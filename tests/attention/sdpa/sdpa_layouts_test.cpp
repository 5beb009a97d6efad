// Packed sequences, pages and views of larger caches have the bits of plain calls.
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "attn/attention/sdpa.hpp"

#include "support/array.hpp"
#include "support/draws/attention_draw.hpp"
#include "support/isas.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::AttentionDraw;
using attn_test::available_isas;
using attn_test::Index;
using attn_test::Random;
using attn_test::same_bits;
using attn_test::to_array;

template <class T>
class SdpaLayoutsTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(SdpaLayoutsTest, Types);

template <class T>
constexpr T kNan = std::numeric_limits<T>::quiet_NaN();

/// Start offsets of sequences with these lengths.
Tensor1<index_t> starts_of(const std::vector<Index>& lengths) {
  Tensor1<index_t> starts({static_cast<index_t>(lengths.size()) + 1});
  std::partial_sum(lengths.begin(), lengths.end(), starts.data() + 1);
  return starts;
}

TYPED_TEST(SdpaLayoutsTest, PackedSequencesHaveTheBitsOfEachAlone) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(25); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    std::vector<Index> q_lens, kv_lens;
    for (Index b = random.integer(1, 5); b > 0; --b) {
      q_lens.push_back(random.pick<Index>({0, 1, 2, 7, 8, 9, 33, 100, 401}));
      kv_lens.push_back(random.pick<Index>({0, 1, 5, 64, 97, 300, 2049}));
    }
    if (std::accumulate(q_lens.begin(), q_lens.end(), Index{0}) == 0) q_lens[0] = 3;
    if (std::accumulate(kv_lens.begin(), kv_lens.end(), Index{0}) == 0) kv_lens[0] = 3;
    const Tensor1<index_t> q_starts = starts_of(q_lens), kv_starts = starts_of(kv_lens);
    const auto batch = static_cast<index_t>(q_lens.size());
    const index_t total_q = q_starts(batch), total_kv = kv_starts(batch), kv_heads = 2,
                  heads = kv_heads * random.integer(1, 3);
    const auto q = random.tensor<T, 4>({1, heads, total_q, 24}),
               k = random.tensor<T, 4>({1, kv_heads, total_kv, 24}),
               v = random.tensor<T, 4>({1, kv_heads, total_kv, 17});
    const Index longest_q = *std::max_element(q_lens.begin(), q_lens.end()),
                longest_kv = *std::max_element(kv_lens.begin(), kv_lens.end());
    Mask mask;
    if (random.chance(0.5)) mask = mask & causal();
    if (random.chance(0.3)) mask = mask & sliding_window(random.integer(0, 100), -1);
    const auto bias = random.tensor<T, 4>({batch, 1, longest_q, longest_kv});
    const bool biased = random.chance(0.4);
    const auto slopes = random.tensor<T, 1>({heads});
    const bool slanted = random.chance(0.3);

    for (Isa isa : available_isas()) {
      Tensor4<T> out({1, heads, total_q, 17}), weights({batch, heads, longest_q, longest_kv});
      weights.fill(kNan<T>);
      Tensor3<T> lse({1, heads, total_q}), columns({batch, heads, longest_kv});
      Tensor2<T> most({batch, heads});
      AttentionOptions<T> options{.mask = biased ? mask & additive_mask(bias) : mask,
                                  .cu_seqlens_q = q_starts,
                                  .cu_seqlens_k = kv_starts,
                                  .weights = weights,
                                  .column_sums = columns,
                                  .max_logits = most,
                                  .lse = lse,
                                  .execution = {.isa = isa}};
      if (slanted) options.alibi_slopes = slopes;
      scaled_dot_product_attention(q, k, v, out, options);
      for (index_t b = 0; b < batch; ++b) {
        SCOPED_TRACE("sequence " + std::to_string(b));
        const index_t q_len = q_starts(b + 1) - q_starts(b),
                      kv_len = kv_starts(b + 1) - kv_starts(b);
        const auto w = weights.view().slice(0, b, b + 1);
        for (index_t h = 0; h < heads; ++h) {
          for (index_t i = 0; i < longest_q; ++i) {
            for (index_t j = 0; j < longest_kv; ++j) {
              if (i >= q_len || j >= kv_len) {
                ASSERT_EQ(w(0, h, i, j), T{0});
              }
            }
          }
        }
        const auto rows = [&](const auto& x) {
          return x.view().slice(2, q_starts(b), q_starts(b + 1));
        };
        if (q_len == 0) continue;
        if (kv_len == 0) {
          ASSERT_TRUE(attn_test::all_are(rows(out), T{0}));
          continue;
        }
        Tensor4<T> alone({1, heads, q_len, 17}), w_alone({1, heads, q_len, kv_len});
        Tensor3<T> lse_alone({1, heads, q_len}), columns_alone({1, heads, kv_len});
        Tensor2<T> most_alone({1, heads});
        AttentionOptions<T> alone_options{.mask = mask,
                                          .weights = w_alone,
                                          .column_sums = columns_alone,
                                          .max_logits = most_alone,
                                          .lse = lse_alone,
                                          .execution = {.isa = isa}};
        if (biased) {
          alone_options.mask =
              mask &
              additive_mask(bias.view().slice(0, b, b + 1).slice(2, 0, q_len).slice(3, 0, kv_len));
        }
        if (slanted) alone_options.alibi_slopes = slopes;
        const auto keys = [&](const auto& x) {
          return x.view().slice(2, kv_starts(b), kv_starts(b + 1));
        };
        scaled_dot_product_attention(rows(q), keys(k), keys(v), alone, alone_options);
        ASSERT_TRUE(same_bits(to_array(rows(out)), to_array(alone)));
        ASSERT_TRUE(same_bits(to_array(rows(lse)), to_array(lse_alone)));
        ASSERT_TRUE(
            same_bits(to_array(w.slice(2, 0, q_len).slice(3, 0, kv_len)), to_array(w_alone)));
        ASSERT_TRUE(same_bits(to_array(columns.view().slice(0, b, b + 1).slice(2, 0, kv_len)),
                              to_array(columns_alone)));
        ASSERT_TRUE(same_bits(to_array(most.view().slice(0, b, b + 1)), to_array(most_alone)));
      }
    }
  }
}

/// k or v in pages of `size` keys in random order; unused memory holds NaN.
template <class T>
Tensor4<T> in_pages(const Tensor4<T>& x, const Tensor2<index_t>& table, index_t num_pages,
                    index_t size) {
  Tensor4<T> pages({num_pages, x.extent(1), size, x.extent(3)});
  pages.fill(kNan<T>);
  for (index_t b = 0; b < x.extent(0); ++b) {
    for (index_t h = 0; h < x.extent(1); ++h) {
      for (index_t j = 0; j < x.extent(2); ++j) {
        std::copy_n(&x(b, h, j, 0), x.extent(3), &pages(table(b, j / size), h, j % size, 0));
      }
    }
  }
  return pages;
}

TYPED_TEST(SdpaLayoutsTest, PagesHaveTheBitsOfContiguousKeys) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(25); ++draw) {
    Random random(draw);
    const index_t batch = random.integer(1, 3), kv_heads = random.integer(1, 2),
                  heads = kv_heads * random.integer(1, 4),
                  q_len = random.pick<Index>({1, 2, 3, 9, 40, 150}),
                  kv_len = random.pick<Index>({1, 16, 17, 100, 700, 2300}),
                  size = random.pick<Index>({1, 5, 16, 64, 100});
    SCOPED_TRACE(random.trace() + ": q_len " + std::to_string(q_len) + ", kv_len " +
                 std::to_string(kv_len) + ", pages of " + std::to_string(size));
    const auto q = random.tensor<T, 4>({batch, heads, q_len, 24}),
               k = random.tensor<T, 4>({batch, kv_heads, kv_len, 24}),
               v = random.tensor<T, 4>({batch, kv_heads, kv_len, 40});
    const index_t pages = (kv_len + size - 1) / size, spare = 3;
    std::vector<index_t> shuffled(static_cast<std::size_t>(batch * pages + spare));
    std::iota(shuffled.begin(), shuffled.end(), index_t{0});
    for (std::size_t i = shuffled.size() - 1; i > 0; --i) {
      std::swap(shuffled[i],
                shuffled[static_cast<std::size_t>(random.integer(0, static_cast<Index>(i)))]);
    }
    Tensor2<index_t> table({batch, pages + 1});
    table.fill(-1);  // entries after the lengths are not read
    for (index_t b = 0; b < batch; ++b) {
      for (index_t page = 0; page < pages; ++page) {
        table(b, page) = shuffled[static_cast<std::size_t>(b * pages + page)];
      }
    }
    const auto num_pages = static_cast<index_t>(shuffled.size());
    const Tensor4<T> k_pages = in_pages(k, table, num_pages, size),
                     v_pages = in_pages(v, table, num_pages, size);
    Tensor1<index_t> lengths({batch});
    for (index_t b = 0; b < batch; ++b) lengths(b) = random.integer(0, kv_len);
    lengths(0) = kv_len;
    Mask mask = key_lengths(lengths);
    if (random.chance(0.5)) mask = mask & causal();
    if (random.chance(0.3)) mask = mask & sliding_window(random.integer(0, 100), -1);
    // Splits and blocks depend on kv_len, so the plain call needs the same kv_len.
    const index_t padded = (pages + 1) * size;
    const auto pad = [&](const Tensor4<T>& x) {
      Tensor4<T> to({batch, kv_heads, padded, x.extent(3)});
      to.fill(kNan<T>);
      for (index_t b = 0; b < batch; ++b) {
        for (index_t h = 0; h < kv_heads; ++h) {
          std::copy_n(&x(b, h, 0, 0), kv_len * x.extent(3), &to(b, h, 0, 0));
        }
      }
      return to;
    };
    for (Isa isa : available_isas()) {
      Tensor3<T> lse({batch, heads, q_len}), lse_plain({batch, heads, q_len});
      const auto paged = scaled_dot_product_attention(
          q, k_pages, v_pages,
          {.mask = mask, .block_table = table, .lse = lse, .execution = {.isa = isa}});
      const auto plain = scaled_dot_product_attention(
          q, pad(k), pad(v), {.mask = mask, .lse = lse_plain, .execution = {.isa = isa}});
      ASSERT_TRUE(same_bits(to_array(paged), to_array(plain))) << name(isa);
      ASSERT_TRUE(same_bits(to_array(lse), to_array(lse_plain))) << name(isa);
    }
  }
}

TYPED_TEST(SdpaLayoutsTest, PackedQueriesOnPagedKeys) {
  using T = TypeParam;
  Random random(1);
  const Tensor1<index_t> starts = starts_of({1, 12, 3}), lengths({3}, {20, 12, 31});
  const Tensor2<index_t> table({3, 2}, {4, 0, 1, 5, 2, 3});
  const auto q = random.tensor<T, 4>({1, 4, 16, 16}), k = random.tensor<T, 4>({6, 2, 16, 16}),
             v = random.tensor<T, 4>({6, 2, 16, 16});
  const auto out = scaled_dot_product_attention(
      q, k, v,
      {.mask = key_lengths(lengths) & causal(), .cu_seqlens_q = starts, .block_table = table});
  for (index_t b = 0; b < 3; ++b) {
    const auto rows = [&](const auto& x) { return x.view().slice(2, starts(b), starts(b + 1)); };
    const auto alone = scaled_dot_product_attention(
        rows(q), k, v,
        {.mask = key_lengths(lengths.view().slice(0, b, b + 1)) & causal(),
         .block_table = table.view().slice(0, b, b + 1)});
    EXPECT_TRUE(same_bits(to_array(rows(out)), to_array(alone)));
  }
}

TYPED_TEST(SdpaLayoutsTest, ValuesMayBeAPartOfTheKeys) {
  using T = TypeParam;
  Random random(1);
  const auto q = random.tensor<T, 4>({1, 6, 20, 24}), k = random.tensor<T, 4>({1, 1, 50, 24});
  const auto values = k.view().slice(3, 0, 16);  // multi-head latent attention
  Tensor4<T> copy({1, 1, 50, 16});
  for (index_t j = 0; j < 50; ++j) std::copy_n(&values(0, 0, j, 0), 16, &copy(0, 0, j, 0));
  EXPECT_TRUE(same_bits(to_array(scaled_dot_product_attention(q, k, values)),
                        to_array(scaled_dot_product_attention(q, k, copy))));
}

}  // namespace
}  // namespace attn
