// AttentionOptions: defaults, and the order of its members.
#include "attn/attention/options.hpp"

#include <gtest/gtest.h>

namespace attn {
namespace {

TEST(AttentionOptions, Defaults) {
  const AttentionOptions<float> options;
  EXPECT_EQ(options.offset.kind, QueryOffset::Kind::bottom_right);
  EXPECT_EQ(options.masked_row, MaskedRow::zero);
  EXPECT_FALSE(options.scale);
  EXPECT_FALSE(options.alibi_slopes);
  EXPECT_FALSE(options.sinks);
  EXPECT_FALSE(options.weights);
  EXPECT_FALSE(options.lse);
}

TEST(AttentionOptions, DesignatedInitializersInTheOrderOfTheMembers) {
  const Tensor1<float> heads({4});
  Tensor4<float> weights({1, 4, 2, 2});
  Tensor3<float> lse({1, 4, 2});
  const AttentionOptions<float> options{.mask = causal() & sliding_window(8, 0),
                                        .scale = 0.125f,
                                        .offset = query_offset(-3),
                                        .alibi_slopes = heads,
                                        .sinks = heads,
                                        .masked_row = MaskedRow::mean,
                                        .weights = weights,
                                        .lse = lse,
                                        .execution = {}};
  EXPECT_EQ(options.offset.value, -3);
  EXPECT_EQ(*options.scale, 0.125);
}

}  // namespace
}  // namespace attn
