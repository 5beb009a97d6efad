// Transformer: encoder and decoder against composed references; PyTorch's parameter names.
#include "attn/layers/transformer.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/draws/library_options.hpp"
#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::difference;
using attn_test::Order;
using attn_test::Random;
using attn_test::ReferenceOptions;
using attn_test::ReferenceTransformer;
using attn_test::to_array;

TransformerOptions options_of(bool pre) {
  return {.layer = {.d_model = 12, .nhead = 3, .dim_feedforward = 10, .norm_first = pre},
          .num_encoder_layers = 2,
          .num_decoder_layers = 1};
}

TEST(Transformer, IsEncoderThenDecoder) {
  Random random(1);
  for (const bool pre : {false, true}) {
    Transformer<float> module(options_of(pre));
    attn_test::randomize(module, random);
    if (pre) module.pack();
    const auto src = random.array<float>({2, 6, 12}), tgt = random.array<float>({2, 4, 12});
    ReferenceOptions src_masks, tgt_masks, memory_masks;
    tgt_masks.causal = true;
    src_masks.key_lengths = memory_masks.key_lengths = {6, 4};
    const auto reference = [&]<class W>(W, Order order) {
      const ReferenceTransformer<W> model{attn_test::parameters_of<W>(module),
                                          options_of(pre).layer, order};
      const auto memory = model.encoder("encoder.", src.as<W>(), src_masks);
      return model.decoder("decoder.", tgt.as<W>(), memory, tgt_masks, memory_masks);
    };
    const auto exact = reference(double{}, Order::forward);
    const double bound = attn_test::module_bound<float>(reference, exact);
    const attn_test::LibraryOptions<float> s(src_masks), t(tgt_masks), m(memory_masks);
    for (Isa isa : available_isas()) {
      const TransformerCall<float> call{
          .src = s.get(), .tgt = t.get(), .memory = m.get(), .execution = {.isa = isa}};
      EXPECT_EQ(difference(to_array(module(src.view<3>(), tgt.view<3>(), call)), exact, bound, isa),
                "");
    }
  }
}

TEST(Transformer, ParametersByPyTorchsNames) {
  const Transformer<float> module(options_of(false));
  const std::vector<std::string> names = attn_test::names_of(module);
  EXPECT_EQ(names.size(), 2U * 12U + 2U + 18U + 2U);
  EXPECT_EQ(names.front(), "encoder.layers.0.self_attn.in_proj_weight");
  EXPECT_EQ(names.at(24), "encoder.norm.weight");
  EXPECT_EQ(names.at(30), "decoder.layers.0.multihead_attn.in_proj_weight");
  EXPECT_EQ(names.back(), "decoder.norm.bias");
}

TEST(TransformerErrors, Shapes) {
  const Transformer<float> module(options_of(false));
  const Tensor3<float> src({1, 2, 12}), narrow({1, 2, 11}), tgt({1, 3, 12});
  Tensor3<float> y({1, 3, 12});
  y.fill(7);
  EXPECT_THROW(module.forward(narrow, tgt, y), ShapeError);
  EXPECT_THROW(module.forward(src, narrow, y), ShapeError);
  EXPECT_TRUE(attn_test::all_are(y, 7));
}

}  // namespace
}  // namespace attn
