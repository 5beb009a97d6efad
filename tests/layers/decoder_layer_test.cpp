// DecoderLayer: post- and pre-norm, every option, against composed references; step by step.
#include "attn/layers/decoder_layer.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/draws/library_options.hpp"
#include "support/draws/transformer_options.hpp"
#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/models/steps.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::Array;
using attn_test::available_isas;
using attn_test::difference;
using attn_test::error_of;
using attn_test::Order;
using attn_test::Random;
using attn_test::ReferenceOptions;
using attn_test::ReferenceTransformer;
using attn_test::to_array;
using attn_test::Wider;

template <class T>
class DecoderLayerTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(DecoderLayerTest, Types);

TYPED_TEST(DecoderLayerTest, RandomLayersWholeAndStepByStep) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(40); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const TransformerLayerOptions o = attn_test::random_layer_options(random);
    DecoderLayer<T> layer(o);
    attn_test::randomize(layer, random);
    if (random.chance(0.5)) layer.pack();
    const index_t batch = random.integer(1, 3), tgt = random.integer(1, 12);
    const index_t src = random.integer(1, 15);
    const auto x = random.array<T>({batch, tgt, o.d_model});
    const auto memory = random.array<T>({batch, src, o.d_model});
    const Tensor2<index_t> positions = attn_test::counted_positions(batch, tgt);
    ReferenceOptions masks, memory_masks;
    masks.causal = true;
    if (random.chance(0.5)) {
      memory_masks.masks.push_back(
          {ReferenceOptions::Mask::Kind::drop, random.bits({batch, 1, 1, src}, 0.3)});
    }
    const auto reference = [&]<class W>(W, Order order) {
      return ReferenceTransformer<W>{attn_test::parameters_of<W>(layer), o, order, positions}
          .decoder_layer("", x.template as<W>(), memory.template as<W>(), masks, memory_masks);
    };
    const auto exact = reference(Wider<T>{}, Order::forward);
    const double bound = attn_test::module_bound<T>(reference, exact);
    const attn_test::LibraryOptions<T> self(masks), cross(memory_masks);
    const DecoderCall<T> call{.memory = cross.get()};
    for (Isa isa : available_isas()) {
      const AttentionOptions<T> options{.mask = self.get().mask, .execution = {.isa = isa}};
      const auto memory_view = static_cast<const Array<T>&>(memory).template view<3>();
      const auto y = to_array(layer(x.template view<3>(), memory_view, options, call));
      ASSERT_EQ(difference(y, exact, bound, isa, "y"), "");
      Array<T> in_place = x;
      layer.forward(in_place.template view<3>(), memory_view, in_place.template view<3>(), options,
                    call);
      ASSERT_EQ(in_place.data, y.data) << name(isa);

      auto cache = layer.make_cache(batch, tgt, src);
      Array<T> steps({batch, tgt, o.d_model});
      for (index_t i = 0, n = 0; i < tgt; i += n) {
        n = std::min(tgt - i, random.integer(1, 3));
        const Tensor3<T> rows(x.template view<3>().slice(1, i, i + n));
        // Only the first step reads memory.
        const Tensor3<T> out =
            layer(rows, i == 0 ? memory_view : TensorView3<const T>(), options, call, &cache);
        copy(out.view(), steps.template view<3>().slice(1, i, i + n));
      }
      ASSERT_EQ(difference(steps, exact, bound, isa, "steps"), "");
    }
  }
}

TEST(DecoderLayer, ParametersByPyTorchsNames) {
  const DecoderLayer<float> layer({.d_model = 4, .nhead = 2, .dim_feedforward = 6, .bias = false});
  EXPECT_EQ(attn_test::names_of(layer),
            (std::vector<std::string>{
                "self_attn.in_proj_weight", "self_attn.out_proj.weight",
                "multihead_attn.in_proj_weight", "multihead_attn.out_proj.weight", "linear1.weight",
                "linear2.weight", "norm1.weight", "norm2.weight", "norm3.weight"}));
}

TEST(DecoderLayerErrors, ShapesLeaveOutputAndCacheAsTheyWere) {
  for (const bool norm_first : {false, true}) {
    const DecoderLayer<float> layer(
        {.d_model = 4, .nhead = 2, .dim_feedforward = 6, .norm_first = norm_first});
    const Tensor3<float> x({2, 3, 4}), memory({2, 5, 4}), narrow({2, 5, 3});
    Tensor3<float> y({2, 3, 4}), wrong({2, 4, 4});
    y.fill(7), wrong.fill(7);
    EXPECT_EQ(error_of<ShapeError>([&] { layer.forward(x, memory, wrong); }),
              "[DecoderLayer] out must have shape (2, 3, 4); found (2, 4, 4).");
    EXPECT_THROW(layer.forward(narrow, memory, y), ShapeError);
    EXPECT_THROW(layer.forward(x, narrow, y), ShapeError);
    const Tensor2<bool> mask({3, 4});
    EXPECT_THROW(layer.forward(x, memory, y, {.mask = keep_mask(mask)}), ShapeError);
    EXPECT_THROW(layer.forward(x, memory, y, {}, {.memory = {.mask = keep_mask(mask)}}),
                 ShapeError);
    auto cache = layer.make_cache(2, 5, 5);
    EXPECT_THROW(layer.forward(x, memory, y, {.mask = keep_mask(mask)}, {}, &cache), ShapeError);
    EXPECT_THROW(layer.forward(x, memory, y, {}, {.memory = {.mask = keep_mask(mask)}}, &cache),
                 ShapeError);
    Tensor3<float> turned({2, 4, 3});  // strided rows, which the last norm refuses
    if (!norm_first) {
      EXPECT_THROW(layer.forward(x, memory, turned.view().transpose(1, 2), {}, {}, &cache),
                   ShapeError);
    }
    EXPECT_EQ(cache.self.length(), 0);
    EXPECT_EQ(cache.memory.length(), 0);
    EXPECT_TRUE(all_are(y, 7));
    EXPECT_TRUE(all_are(wrong, 7));
  }
}

}  // namespace
}  // namespace attn
