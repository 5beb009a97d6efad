// AttentionOptions: defaults, the names of query offsets, and which keys causality and windows leave to whom.
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

/// [begin, end) of query i of batch row 0.
std::pair<index_t, index_t> keys_seen(const Mask& mask, QueryOffset offset, index_t i,
                                      index_t q_len, index_t kv_len) {
  const auto range = detail::keys_seen(mask, offset, 0, i, q_len, kv_len);
  return {range.begin, range.end};
}
using Range = std::pair<index_t, index_t>;

TEST(AttentionOptions, CausalKeepsKeysUpToTheQuerysPosition) {
  EXPECT_EQ(keys_seen(causal(), bottom_right, 0, 3, 10), (Range{0, 8}));
  EXPECT_EQ(keys_seen(causal(), bottom_right, 2, 3, 10), (Range{0, 10}));
  EXPECT_EQ(keys_seen(causal(), top_left, 0, 3, 10), (Range{0, 1}));
  EXPECT_EQ(keys_seen(causal(), query_offset(4), 1, 3, 10), (Range{0, 6}));
  EXPECT_EQ(keys_seen(causal(), query_offset(-2), 2, 3, 10), (Range{0, 1}));
  const Range none = keys_seen(causal(), query_offset(-5), 2, 3, 10);
  EXPECT_EQ(none.first, none.second);
}

TEST(AttentionOptions, WindowsAreInclusiveOnBothSides) {
  EXPECT_EQ(keys_seen(sliding_window(2, 1), top_left, 5, 10, 10), (Range{3, 7}));
  EXPECT_EQ(keys_seen(sliding_window(2, -1), top_left, 5, 10, 10), (Range{3, 10}));
  EXPECT_EQ(keys_seen(sliding_window(-1, 0), top_left, 5, 10, 10), (Range{0, 6}));
  EXPECT_EQ(keys_seen(sliding_window(0, 0), top_left, 5, 10, 10), (Range{5, 6}));
  EXPECT_EQ(keys_seen(sliding_window(2, 1) & causal(), top_left, 0, 10, 10), (Range{0, 1}));
  const Range beyond = keys_seen(sliding_window(2, 1), query_offset(100), 0, 10, 10);
  EXPECT_EQ(beyond.first, beyond.second);
}

TEST(AttentionOptions, LengthsMoveTheBottomRightCorner) {
  const Tensor1<index_t> lengths({1}, {6});
  EXPECT_EQ(keys_seen(key_lengths(lengths) & causal(), bottom_right, 0, 3, 10), (Range{0, 4}));
  EXPECT_EQ(keys_seen(key_lengths(lengths) & causal(), top_left, 9, 10, 10), (Range{0, 6}));
  EXPECT_EQ(keys_seen(key_lengths(lengths), bottom_right, 0, 3, 10), (Range{0, 6}));
}

}  // namespace
}  // namespace attn
