// extend_mask: any mask as one bias, with appended keys that every query attends to.
#include "attn/attention/extend_mask.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "support/draws/attention_draw.hpp"

namespace attn {
namespace {

using attn_test::AttentionDraw;
using attn_test::Index;
using attn_test::Random;
using attn_test::reference_offset;

TEST(ExtendMask, ChecksOffsetsAndRoom) {
  Tensor4<float> bias({2, 1, 3, 4});
  const Tensor1<index_t> three({3});
  EXPECT_THROW(extend_mask(causal(), query_offsets(three), 0, bias.view()), ShapeError);
  EXPECT_THROW(extend_mask(causal(), bottom_right, 5, bias.view()), ValueError);
  EXPECT_THROW(extend_mask(causal(), bottom_right, -1, bias.view()), ValueError);
}

TEST(ExtendMask, TheBiasOfAMaskedKeyMayBeNaN) {
  Tensor4<float> out({1, 1, 1, 4});
  const Tensor1<float> bias({3}, {1, std::nanf(""), std::nanf("")});
  const Tensor1<bool> kept({3}, {true, false, true});
  const Tensor1<index_t> lengths({1}, {2});
  extend_mask(keep_mask(kept) & additive_mask(bias) & key_lengths(lengths), bottom_right, 1,
              out.view());
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(attn_test::to_array(out).data, (std::vector<float>{1, -inf, -inf, 0}));
}

TEST(ExtendMask, IsTheBiasOfTheWholeMask) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(75); ++draw) {
    Random random(draw);
    AttentionDraw<float> call(random, 100000);
    call.options.alibi_slopes.clear();  // these two are not masks
    call.options.batch_alibi_slopes = {};
    call.options.relative_bias = {};
    if (call.options.first_key > 0) continue;  // extend_mask() takes no first_key
    SCOPED_TRACE(random.trace() + ": " + call.text());
    const attn_test::LibraryOptions<float> library(call.options);
    const auto [batch, heads, q_len, kv_len] = call.scores();
    const Index appended = random.integer(0, 2);
    Tensor4<float> bias({batch, heads, q_len, kv_len + appended});
    bias.fill(7);
    extend_mask(library.get().mask, library.get().offset, appended, bias.view());
    for (Index b = 0; b < batch; ++b) {
      const Index offset = reference_offset(call.options, b, q_len, kv_len);
      for (Index h = 0; h < heads; ++h) {
        for (Index i = 0; i < q_len; ++i) {
          for (Index j = 0; j < kv_len + appended; ++j) {
            float expected = 0;
            if (j < kv_len) {
              const auto seen =
                  attn_test::reference_bias<float>(call.options, b, h, i, j, i + offset);
              expected = seen ? *seen : -std::numeric_limits<float>::infinity();
            }
            ASSERT_EQ(bias(b, h, i, j), expected) << b << h << i << j;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace attn
