// GatherDraw: a random attention call with lists of keys.
#pragma once

#include <algorithm>
#include <set>
#include <string>

#include "support/draws/attention_draw.hpp"

namespace attn_test {

/// A random call with lists of keys; the reference gets them as a mask_mod.
template <class T>
struct GatherDraw : AttentionDraw<T> {
  Index block;
  attn::Tensor4<Index> lists;

  explicit GatherDraw(Random& random, Index work) : AttentionDraw<T>(random, work) {
    ReferenceOptions& told = this->options;
    told.masks.clear();
    told.alibi_slopes.clear();
    told.batch_alibi_slopes = {};
    told.relative_bias = {};
    told.mean_of_masked_row = false;
    told.dropout = 0;
    const auto [batch, heads, q_len, kv_len] = this->scores();
    block = random.pick<Index>({1, 1, 1, 2, 5, 16, 100});
    const Index kv_heads = random.chance(0.3) ? 1 : this->k.extent(1);
    const Index blocks = (q_len + block - 1) / block;
    const Index n = random.chance(0.2) ? kv_len : random.integer(0, kv_len);
    lists = attn::Tensor4<Index>({batch, kv_heads, blocks, n});
    for (Index row = 0; row < batch * kv_heads * blocks; ++row) {
      std::set<Index> keys;
      const Index count = random.chance(0.6) ? n : random.integer(0, n);
      while (std::ssize(keys) < count) keys.insert(random.integer(0, kv_len - 1));
      Index* to = std::transform(keys.begin(), keys.end(), lists.data() + row * n,
                                 [&](Index j) { return told.first_key + j; });
      std::fill(to, lists.data() + (row + 1) * n, Index{-1});
    }
    const Index group = heads / this->k.extent(1);
    told.mask_mod = [this, group](int b, int h, int i, int j) {
      const Index kv_head = lists.extent(1) == 1 ? 0 : h / group;
      for (Index x = 0; x < lists.extent(3); ++x) {
        if (lists(b, kv_head, i / block, x) == j) return true;
      }
      return false;
    };
  }
  GatherDraw(const GatherDraw&) = delete;  // mask_mod refers to this
  GatherDraw& operator=(const GatherDraw&) = delete;

  void add_lists(attn::AttentionOptions<T>& to) const {
    to.gather = lists.view();
    to.gather_block = block;
  }

  std::string text() const {
    return AttentionDraw<T>::text() + ", lists " + attn::to_string(lists.shape()) +
           " of blocks of " + std::to_string(block);
  }
};

}  // namespace attn_test
