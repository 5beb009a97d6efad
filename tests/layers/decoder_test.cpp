// Decoder: stacks against composed references, whole and step by step, by PyTorch's names.
#include "attn/layers/decoder.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/isas.hpp"
#include "support/reference_transformer.hpp"
#include "support/steps.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::by_steps;
using attn_test::counted_positions;
using attn_test::difference;
using attn_test::Order;
using attn_test::Random;
using attn_test::ReferenceOptions;
using attn_test::ReferenceTransformer;
using attn_test::to_array;

constexpr index_t kBatch = 2, kTgt = 9, kSrc = 7;

TransformerStackOptions options_of(bool pre) {
  return {
      .num_layers = 3,
      .layer = {.d_model = 16,
                .nhead = 4,
                .dim_feedforward = 20,
                .activation = Activation::silu,
                .norm_first = pre,
                .gated = pre,
                .norm = pre ? NormKind::rms : NormKind::layer,
                .attention = {.num_kv_heads = 2, .rotary = RotaryOptions{.max_positions = kTgt}}},
      .norm = pre};
}

TEST(Decoder, IsItsLayersWholeAndStepByStep) {
  Random random(3);
  for (const bool pre : {false, true}) {
    Decoder<float> decoder(options_of(pre));
    attn_test::randomize(decoder, random);
    if (pre) decoder.pack();
    const auto x = random.tensor<float, 3>({kBatch, kTgt, 16});
    const auto memory = random.tensor<float, 3>({kBatch, kSrc, 16});
    const Tensor1<index_t> lengths({kBatch}, {kSrc, kSrc - 3});
    ReferenceOptions masks, memory_masks;
    masks.causal = true;
    memory_masks.key_lengths = {kSrc, kSrc - 3};
    const auto reference = [&]<class W>(W, Order order) {
      return ReferenceTransformer<W>{attn_test::parameters_of<W>(decoder), options_of(pre).layer,
                                     order, counted_positions(kBatch, kTgt)}
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

TEST(Decoder, ParametersByPyTorchsNames) {
  const Decoder<float> decoder(
      {.num_layers = 2, .layer = {.d_model = 4, .nhead = 2, .bias = false}, .norm = true});
  std::vector<std::string> names;
  decoder.visit_parameters([&](std::string_view name, auto) { names.emplace_back(name); });
  EXPECT_EQ(names.size(), 2U * 9U + 1U);
  EXPECT_EQ(names.at(2), "layers.0.multihead_attn.in_proj_weight");
  EXPECT_EQ(names.back(), "norm.weight");
}

}  // namespace
}  // namespace attn
