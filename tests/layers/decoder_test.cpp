// Decoder: stacks against composed references, whole and step by step.
#include "attn/layers/decoder.hpp"

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

constexpr index_t kBatch = 2, kTgt = 9, kSrc = 7;

TEST(Decoder, IsItsLayersWholeAndStepByStep) {
  Random random(3);
  for (const bool pre : {false, true}) {
    auto decoder = random_module<Decoder<float>>(random, stack_options(pre, kTgt));
    if (pre) decoder.pack();
    const auto x = random.tensor<float, 3>({kBatch, kTgt, 16});
    const auto memory = random.tensor<float, 3>({kBatch, kSrc, 16});
    const Tensor1<index_t> lengths({kBatch}, {kSrc, kSrc - 3});
    ReferenceOptions masks, memory_masks;
    masks.causal = true;
    memory_masks.key_lengths = {kSrc, kSrc - 3};
    const auto reference = [&]<class W>(W, Order order) {
      return ReferenceTransformer<W>{attn_test::parameters_of<W>(decoder),
                                     stack_options(pre, kTgt).layer, order,
                                     counted_positions(kBatch, kTgt)}
          .decoder("", to_array(x).template as<W>(), to_array(memory).template as<W>(), masks,
                   memory_masks);
    };
    const auto exact = reference(double{}, Order::forward);
    const double bound = attn_test::module_bound<float>(reference, exact);
    const DecoderCall<float> call{.memory = {.mask = key_lengths(lengths)}};
    for (Isa isa : available_isas()) {
      const AttentionOptions<float> on{.mask = causal(), .execution = {.isa = isa}};
      EXPECT_EQ(difference(to_array(decoder(x, memory, on, call)), exact, bound, isa, "whole"), "");
      auto caches = decoder.make_caches(kBatch, kTgt, kSrc);
      const auto steps = by_steps(x, [&](const Tensor3<float>& rows, bool first) {
        return decoder(rows, first ? memory.view() : TensorView3<const float>(), on, call, caches);
      });
      EXPECT_EQ(difference(steps, exact, bound, isa, "steps"), "");
    }
  }
}

TEST(Decoder, SelfAttentionOfEveryLayerTakesFunctors) {
  Random random(3);
  const auto decoder = random_module<Decoder<float>>(random, stack_options(true, 9));
  const auto x = random.tensor<float, 3>({2, 9, 16}), memory = random.tensor<float, 3>({2, 5, 16});
  const auto mask = mask_mod([](int, int, int i, int j) { return j <= i; });
  EXPECT_EQ(to_array(decoder(x, memory, {}, {}, {}, mask)).data,
            to_array(decoder(x, memory, {.mask = causal()})).data);
}

}  // namespace
}  // namespace attn
