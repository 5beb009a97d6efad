// Cases that every recurrent layer must pass.
#pragma once

#include <deque>
#include <vector>

#include <gtest/gtest.h>

#include "attn/attention/kv_cache.hpp"

#include "support/random.hpp"
#include "support/thread_executor.hpp"

namespace attn_test {

/// Calls with row caches, on three threads, have the bits of a call of each row.
template <class Module>
void expect_bits_of_rows_alone(Random& random, const Module& module, Index batch, Index seq) {
  const ThreadExecutor three(3);
  const Index dim = module.options().d_model;
  std::deque<attn::KvCache<float>> together, alone;
  std::vector<attn::KvCache<float>*> rows;
  for (Index b = 0; b < batch; ++b) {
    together.push_back(module.make_cache(1, 100));
    module(random.tensor<float, 3>({1, random.integer(0, 9), dim}), {.cache = &together.back()});
    alone.push_back(together.back());
    rows.push_back(&together.back());
  }
  const auto x = random.tensor<float, 3>({batch, seq, dim});
  const auto found = module(x, {.row_caches = rows}, {.executor = &three});
  for (Index b = 0; b < batch; ++b) {
    const auto expected = module(attn::const_view(x).slice(0, b, b + 1),
                                 {.cache = &alone[static_cast<std::size_t>(b)]});
    for (Index i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(found.data()[b * expected.size() + i], expected.data()[i]) << b << " " << i;
    }
  }
}

}  // namespace attn_test
