// A few queries in one call have the bits of one query at a time, which speculative decoding needs.
#include <cstring>

#include <gtest/gtest.h>

#include "attn/attention/sdpa.hpp"

#include "support/isas.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::Random;

template <class T>
class DecodeQueriesTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(DecodeQueriesTest, Types);

TYPED_TEST(DecodeQueriesTest, HaveTheBitsOfOneAtATime) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(400); ++draw) {
    Random random(draw);
    const index_t group = random.integer(1, 12), kv_heads = random.integer(1, 2),
                  dim = random.pick<index_t>({8, 24, 64});
    // Near the end of a block, near 512, and near a split.
    const index_t border = random.pick<index_t>({8, 64, 512, 640, 1024, 2048, 4096});
    const index_t before = std::max(border + random.integer(-16, 4), index_t{0});
    const index_t n = random.integer(1, detail::max_decode_queries(group, before + 1));
    const index_t keys = before + n;
    const auto q = random.tensor<T, 4>({1, group * kv_heads, n, dim});
    const auto k = random.tensor<T, 4>({1, kv_heads, keys, dim});
    const auto v = random.tensor<T, 4>({1, kv_heads, keys, dim});
    for (const Isa isa : available_isas()) {
      SCOPED_TRACE(random.trace() + ", " + std::string(name(isa)) + ": group " +
                   std::to_string(group) + ", " + std::to_string(n) + " queries behind " +
                   std::to_string(before));
      const AttentionOptions<T> options{.mask = causal(), .execution = {.isa = isa}};
      const auto together = scaled_dot_product_attention(q, k, v, options);
      bool same = true;
      for (index_t i = 0; i < n; ++i) {
        const auto alone = scaled_dot_product_attention(
            q.view().slice(2, i, i + 1), k.view().slice(2, 0, before + i + 1),
            v.view().slice(2, 0, before + i + 1), options);
        for (index_t h = 0; h < group * kv_heads; ++h)
          for (index_t d = 0; d < dim; ++d)
            same = same && std::memcmp(&alone(0, h, 0, d), &together(0, h, i, d), sizeof(T)) == 0;
      }
      EXPECT_TRUE(same);
    }
  }
}

}  // namespace
}  // namespace attn
