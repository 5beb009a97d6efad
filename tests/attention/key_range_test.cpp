// The interval of keys of a query: worked examples of each kind of mask.
#include "attn/attention/key_range.hpp"

#include <limits>

#include <gtest/gtest.h>

namespace attn {
namespace {

/// Interval [begin, end) of query i of batch row 0.
std::pair<index_t, index_t> keys_seen(const Mask& mask, const QueryOffset& offset, index_t i,
                                      index_t q_len, index_t kv_len, index_t first_key = 0) {
  const auto range = detail::keys_seen(mask, offset, {0, q_len, kv_len, first_key}, i);
  return {range.begin, range.end};
}
using Range = std::pair<index_t, index_t>;

TEST(KeyRange, CausalKeepsKeysUpToTheQuerysPosition) {
  EXPECT_EQ(keys_seen(causal(), bottom_right, 0, 3, 10), (Range{0, 8}));
  EXPECT_EQ(keys_seen(causal(), bottom_right, 2, 3, 10), (Range{0, 10}));
  EXPECT_EQ(keys_seen(causal(), top_left, 0, 3, 10), (Range{0, 1}));
  EXPECT_EQ(keys_seen(causal(), query_offset(4), 1, 3, 10), (Range{0, 6}));
  EXPECT_EQ(keys_seen(causal(), query_offset(-2), 2, 3, 10), (Range{0, 1}));
  const Range none = keys_seen(causal(), query_offset(-5), 2, 3, 10);
  EXPECT_EQ(none.first, none.second);
}

TEST(KeyRange, WithoutAMaskNoOffsetMasksKeys) {
  constexpr index_t kMax = index_t{1}
                           << 60;  // calls accept no larger one: SdpaErrors.EntriesOfEachBatchRow
  for (const index_t offset : {kMax, -kMax}) {
    for (const index_t i : {0, 3, 9}) {
      EXPECT_EQ(keys_seen({}, query_offset(offset), i, 10, 10), (Range{0, 10})) << offset;
    }
  }
}

TEST(KeyRange, OneChunkOfAnySizeMasksNothing) {
  for (const index_t size : {index_t{10}, std::numeric_limits<index_t>::max()}) {
    EXPECT_EQ(keys_seen(chunked(size), top_left, 9, 10, 10), (Range{0, 10})) << size;
    const Range before = keys_seen(chunked(size), query_offset(-3), 2, 10, 10);
    EXPECT_EQ(before.first, before.second) << size;
  }
}

TEST(KeyRange, WindowsAreInclusiveOnBothSides) {
  EXPECT_EQ(keys_seen(sliding_window(2, 1), top_left, 5, 10, 10), (Range{3, 7}));
  EXPECT_EQ(keys_seen(sliding_window(2, -1), top_left, 5, 10, 10), (Range{3, 10}));
  EXPECT_EQ(keys_seen(sliding_window(-1, 0), top_left, 5, 10, 10), (Range{0, 6}));
  EXPECT_EQ(keys_seen(sliding_window(0, 0), top_left, 5, 10, 10), (Range{5, 6}));
  EXPECT_EQ(keys_seen(sliding_window(2, 1) & causal(), top_left, 0, 10, 10), (Range{0, 1}));
  const Range beyond = keys_seen(sliding_window(2, 1), query_offset(100), 0, 10, 10);
  EXPECT_EQ(beyond.first, beyond.second);
}

TEST(KeyRange, LengthsMoveTheBottomRightCorner) {
  const Tensor1<index_t> lengths({1}, {6});
  EXPECT_EQ(keys_seen(key_lengths(lengths) & causal(), bottom_right, 0, 3, 10), (Range{0, 4}));
  EXPECT_EQ(keys_seen(key_lengths(lengths) & causal(), top_left, 9, 10, 10), (Range{0, 6}));
  EXPECT_EQ(keys_seen(key_lengths(lengths), bottom_right, 0, 3, 10), (Range{0, 6}));
}

TEST(KeyRange, QueryLengthsLeaveNothingToThoseBeyondAndMoveTheCorner) {
  const Tensor1<index_t> queries({1}, {2}), keys({1}, {6});
  EXPECT_EQ(keys_seen(query_lengths(queries), bottom_right, 1, 3, 10), (Range{0, 10}));
  EXPECT_EQ(keys_seen(query_lengths(queries), bottom_right, 2, 3, 10), (Range{0, 0}));
  EXPECT_EQ(
      keys_seen(query_lengths(queries) & key_lengths(keys) & causal(), bottom_right, 1, 3, 10),
      (Range{0, 6}));
}

TEST(KeyRange, LeftPaddingMasksTheFirstKeys) {
  const Tensor1<index_t> padding({1}, {3});
  EXPECT_EQ(keys_seen(left_padding(padding), bottom_right, 0, 4, 8), (Range{3, 8}));
  EXPECT_EQ(keys_seen(left_padding(padding) & causal(), top_left, 2, 8, 8), (Range{0, 0}));
  EXPECT_EQ(keys_seen(left_padding(padding) & causal(), top_left, 3, 8, 8), (Range{3, 4}));
}

TEST(KeyRange, APrefixIsSeenByAll) {
  const Tensor1<index_t> prefix({1}, {4});
  EXPECT_EQ(keys_seen(prefix_lm(prefix), top_left, 0, 8, 8), (Range{0, 4}));
  EXPECT_EQ(keys_seen(prefix_lm(prefix), top_left, 5, 8, 8), (Range{0, 6}));
  EXPECT_EQ(keys_seen(prefix_lm(prefix) & causal(), top_left, 1, 8, 8), (Range{0, 2}));
}

TEST(KeyRange, ChunksDoNotSeeOneAnother) {
  EXPECT_EQ(keys_seen(chunked(3), top_left, 4, 8, 8), (Range{3, 6}));
  EXPECT_EQ(keys_seen(chunked(3), top_left, 7, 8, 8), (Range{6, 8}));
  EXPECT_EQ(keys_seen(chunked(3) & causal(), top_left, 4, 8, 8), (Range{3, 5}));
  EXPECT_EQ(keys_seen(chunked(3), query_offset(-1), 0, 8, 8), (Range{0, 0}));
}

TEST(KeyRange, DocumentsDoNotSeeOneAnother) {
  const Tensor2<index_t> ids({1, 8}, {-4, -4, -4, 0, 0, 7, 9, 9});
  EXPECT_EQ(keys_seen(documents(ids), top_left, 0, 8, 8), (Range{0, 3}));
  EXPECT_EQ(keys_seen(documents(ids), top_left, 4, 8, 8), (Range{3, 5}));
  EXPECT_EQ(keys_seen(documents(ids), bottom_right, 0, 3, 8), (Range{5, 6}));
  EXPECT_EQ(keys_seen(documents(ids), query_offset(7), 0, 3, 8), (Range{6, 8}));
  EXPECT_EQ(keys_seen(documents(ids), query_offset(7), 1, 3, 8), (Range{0, 0}));
  EXPECT_EQ(keys_seen(documents(ids) & causal(), top_left, 6, 8, 8), (Range{6, 7}));
}

/// Masks use positions; the result counts from the first key given.
TEST(KeyRange, CountsFromTheFirstKeyGiven) {
  EXPECT_EQ(keys_seen({}, top_left, 0, 3, 10, 100), (Range{0, 10}));
  EXPECT_EQ(keys_seen(causal(), bottom_right, 1, 3, 10, 100), (Range{0, 9}));
  EXPECT_EQ(keys_seen(causal(), top_left, 1, 3, 10, 100), (Range{0, 0}));
  EXPECT_EQ(keys_seen(causal(), query_offset(104), 1, 3, 10, 100), (Range{0, 6}));
  EXPECT_EQ(keys_seen(sliding_window(2, 1), query_offset(100), 1, 3, 10, 100), (Range{0, 3}));
  EXPECT_EQ(keys_seen(chunked(8), query_offset(105), 0, 3, 10, 100), (Range{4, 10}));
  const Tensor1<index_t> lengths({1}, {106}), few({1}, {99}), padding({1}, {103});
  EXPECT_EQ(keys_seen(key_lengths(lengths) & causal(), bottom_right, 0, 3, 10, 100), (Range{0, 4}));
  EXPECT_EQ(keys_seen(key_lengths(few), bottom_right, 0, 3, 10, 100), (Range{0, 0}));
  EXPECT_EQ(keys_seen(left_padding(padding), bottom_right, 0, 3, 10, 100), (Range{3, 10}));
  EXPECT_EQ(keys_seen(prefix_lm(lengths), top_left, 0, 3, 10, 100), (Range{0, 6}));
  const Tensor2<index_t> ids({1, 8}, {0, 0, 0, 1, 1, 1, 1, 2});
  EXPECT_EQ(keys_seen(documents(ids), query_offset(5), 0, 3, 4, 4), (Range{0, 3}));
}

TEST(KeyRange, OffsetsOfEachBatchRow) {
  const Tensor1<index_t> offsets({1}, {5});
  EXPECT_EQ(keys_seen(causal(), query_offsets(offsets), 1, 3, 10), (Range{0, 7}));
}

}  // namespace
}  // namespace attn
