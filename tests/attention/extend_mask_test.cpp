// extend_mask: any mask written out as one bias, with keys behind that every query sees.
#include "attn/attention/extend_mask.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "support/attention_draw.hpp"

namespace attn {
namespace {

using attn_test::AttentionDraw;
using attn_test::Index;
using attn_test::Random;
using attn_test::reference_offset;

TEST(ExtendMask, ChecksOffsets) {
  Tensor4<float> bias({2, 1, 3, 4});
  const Tensor1<index_t> three({3});
  EXPECT_THROW(extend_mask(causal(), query_offsets(three), 0, bias.view()), ShapeError);
}

TEST(ExtendMask, IsTheBiasOfTheWholeMask) {
  for (std::uint64_t draw = 0; draw < 60; ++draw) {
    Random random(draw);
    AttentionDraw<float> call(random, 100000);
    call.options.alibi_slopes.clear();  // these two are no part of a mask
    call.options.relative_bias = {};
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
