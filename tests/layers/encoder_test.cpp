// Encoder: stacks against composed references, whole and step by step.
#include "attn/layers/encoder.hpp"

#include <gtest/gtest.h>

#include "support/draws/transformer_options.hpp"
#include "support/isas.hpp"
#include "support/models/steps.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::by_steps;
using attn_test::counted_positions;
using attn_test::difference;
using attn_test::Order;
using attn_test::Random;
using attn_test::random_module;
using attn_test::ReferenceOptions;
using attn_test::ReferenceTransformer;
using attn_test::stack_options;
using attn_test::to_array;

constexpr index_t kSequences = 2, kTokens = 9;

TEST(Encoder, IsItsLayersWholeAndStepByStep) {
  Random random(1);
  for (const bool pre : {false, true}) {
    auto encoder = random_module<Encoder<float>>(random, stack_options(pre, kTokens));
    const auto x = random.tensor<float, 3>({kSequences, kTokens, 16});
    ReferenceOptions masks;
    masks.causal = true;
    const auto reference = [&]<class W>(W, Order order) {
      return ReferenceTransformer<W>{attn_test::parameters_of<W>(encoder),
                                     stack_options(pre, kTokens).layer, order,
                                     counted_positions(kSequences, kTokens)}
          .encoder("", to_array(x).template as<W>(), masks);
    };
    const auto exact = reference(double{}, Order::forward);
    const double bound = attn_test::module_bound<float>(reference, exact);
    for (Isa isa : available_isas()) {
      const AttentionOptions<float> on{.mask = causal(), .execution = {.isa = isa}};
      EXPECT_EQ(difference(to_array(encoder(x, on)), exact, bound, isa, "whole"), "");
      Tensor3<float> in_place = x;
      encoder.forward(in_place, in_place, on);
      EXPECT_EQ(to_array(in_place).data, to_array(encoder(x, on)).data);
      auto caches = encoder.make_caches(kSequences, kTokens);
      const auto steps = by_steps(
          x, [&](const Tensor3<float>& rows, bool) { return encoder(rows, on, {}, caches); });
      EXPECT_EQ(difference(steps, exact, bound, isa, "steps"), "");
    }
  }
}

TEST(Encoder, EveryLayerTakesFunctors) {
  Random random(3);
  const auto encoder = random_module<Encoder<float>>(random, stack_options(true, kTokens));
  const auto x = random.tensor<float, 3>({kSequences, kTokens, 16});
  const auto mask = mask_mod([](int, int, int i, int j) { return j <= i; });
  EXPECT_EQ(to_array(encoder(x, {}, {}, {}, mask)).data,
            to_array(encoder(x, {.mask = causal()})).data);
  const BlockMask blocks(mask, {1, 1, kTokens, kTokens}, {.q_block = 2, .kv_block = 2});
  EXPECT_EQ(to_array(encoder(x, {}, {}, {}, blocks)).data,
            to_array(encoder(x, {}, {}, {}, mask)).data);
}

/// A ring cache of the window gives the results of the window over all keys.
TEST(Encoder, WindowedCacheIsTheWindowOverAll) {
  Random random(2);
  const auto encoder = random_module<Encoder<float>>(random, stack_options(true, kTokens));
  const auto x = random.tensor<float, 3>({kSequences, kTokens, 16});
  const AttentionOptions<float> on{.mask = causal() & sliding_window(2, 0)};
  const auto whole = to_array(encoder(x, on));
  auto caches = encoder.make_caches(kSequences, 5, 2);
  const auto steps = by_steps(x, [&](const Tensor3<float>& rows, bool) {
    if (rows.extent(1) <= 3) return encoder(rows, on, {}, caches);
    Tensor3<float> y(rows.shape());  // more than the capacity in one call
    for (index_t i = 0; i < rows.extent(1); ++i) {
      const Tensor3<float> row = encoder(rows.view().slice(1, i, i + 1), on, {}, caches);
      copy(row.view(), y.view().slice(1, i, i + 1));
    }
    return y;
  });
  EXPECT_EQ(difference(steps, whole, attn_test::near(whole), active_isa(), "steps"), "");
}

}  // namespace
}  // namespace attn
