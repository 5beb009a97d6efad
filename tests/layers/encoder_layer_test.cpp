// EncoderLayer: post- and pre-norm with every option against composed references, in place, and by PyTorch's names.
#include "attn/layers/encoder_layer.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/library_options.hpp"
#include "support/reference_transformer.hpp"

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
class EncoderLayerTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(EncoderLayerTest, Types);

TransformerLayerOptions random_options(Random& random) {
  TransformerLayerOptions o;
  const index_t kv_heads = random.integer(1, 3);
  o.nhead = kv_heads * random.integer(1, 2);
  o.d_model = o.nhead * random.integer(2, 12);
  o.dim_feedforward = random.integer(1, 70);
  o.activation = random.pick<Activation>(
      {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu});
  o.layer_norm_eps = random.pick<double>({1e-5, 1e-12});
  o.norm_first = random.chance(0.5);
  o.bias = random.chance(0.7);
  o.gated = random.chance(0.3);
  o.norm = random.chance(0.3) ? NormKind::rms : NormKind::layer;
  MultiHeadAttentionOptions& a = o.attention;
  a.bias = random.chance(0.7);
  if (random.chance(0.4)) a.num_kv_heads = kv_heads;
  if (random.chance(0.4))
    a.head_dim = 2 * random.integer(1, 8), a.head_dim_v = random.integer(1, 9);
  if (random.chance(0.3)) {
    a.query_key_norm = random.chance(0.5) ? NormKind::rms : NormKind::layer;
  }
  if (a.head_dim > 0 && random.chance(0.6)) {
    a.rotary =
        RotaryOptions{.dim = random.chance(0.5) ? 0 : 2 * random.integer(1, a.head_dim / 2),
                      .pairs = random.chance(0.5) ? RotaryPairs::halves : RotaryPairs::interleaved,
                      .theta = random.pick<double>({10000, 500000}),
                      .max_positions = 30};
  }
  a.separate_in_proj = random.chance(0.3);
  return o;
}

TYPED_TEST(EncoderLayerTest, RandomLayers) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < 60; ++draw) {
    Random random(draw);
    const TransformerLayerOptions o = random_options(random);
    EncoderLayer<T> layer(o);
    attn_test::randomize(layer, random);
    const auto x = random.array<T>({random.integer(1, 3), random.integer(1, 20), o.d_model});
    Tensor2<index_t> positions({x.extent(0), x.extent(1)});
    const bool given = random.chance(0.5);
    for (index_t i = 0; i < positions.size(); ++i) {
      positions.data()[i] = given ? random.integer(0, 29) : i % x.extent(1);
    }
    ReferenceOptions masks;
    masks.causal = random.chance(0.4);
    if (random.chance(0.5)) {
      masks.masks.push_back(
          {ReferenceOptions::Mask::Kind::drop, random.bits({x.extent(0), 1, 1, x.extent(1)}, 0.3)});
    }
    SCOPED_TRACE(random.trace() + ": " + attn_test::shape_text(x.shape) +
                 (o.norm_first ? " pre" : " post"));
    const auto reference = [&]<class W>(W, Order order) {
      return ReferenceTransformer<W>{attn_test::parameters_of<W>(layer), o, order, positions}
          .encoder_layer("", x.template as<W>(), masks);
    };
    const auto exact = reference(Wider<T>{}, Order::forward);
    const double bound = attn_test::module_bound<T>(reference, exact);
    const attn_test::LibraryOptions<T> library(masks);
    MultiHeadAttentionCall<T> call;
    if (given) call.position_ids = positions;
    for (Isa isa : available_isas()) {
      const AttentionOptions<T> options{.mask = library.get().mask, .execution = {.isa = isa}};
      const auto y = to_array(layer(x.template view<3>(), options, call));
      ASSERT_EQ(difference(y, exact, bound, isa, "y"), "");
      Array<T> in_place = x;
      layer.forward(in_place.template view<3>(), in_place.template view<3>(), options, call);
      ASSERT_EQ(in_place.data, y.data) << name(isa);
    }
  }
}

TEST(EncoderLayer, ParametersByPyTorchsNames) {
  const EncoderLayer<float> layer({.d_model = 4, .nhead = 2, .dim_feedforward = 6});
  std::vector<std::string> names;
  layer.visit_parameters([&](std::string_view name, auto) { names.emplace_back(name); });
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight",
                "self_attn.out_proj.bias", "linear1.weight", "linear1.bias", "linear2.weight",
                "linear2.bias", "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"}));
}

/// PyTorch's bias = False leaves norms without a bias, too.
TEST(EncoderLayer, ParametersWithoutBiasAndOneByOne) {
  const EncoderLayer<float> layer(
      {.d_model = 4,
       .nhead = 2,
       .dim_feedforward = 6,
       .bias = false,
       .gated = true,
       .attention = {.query_key_norm = NormKind::layer, .separate_in_proj = true}});
  std::vector<std::string> names;
  layer.visit_parameters([&](std::string_view name, auto) { names.emplace_back(name); });
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "self_attn.q_proj_weight", "self_attn.k_proj_weight", "self_attn.v_proj_weight",
                "self_attn.out_proj.weight", "self_attn.q_norm.weight", "self_attn.q_norm.bias",
                "self_attn.k_norm.weight", "self_attn.k_norm.bias", "gate_proj.weight",
                "up_proj.weight", "down_proj.weight", "norm1.weight", "norm2.weight"}));
}

TEST(EncoderLayerErrors, ShapesAndOptions) {
  EXPECT_EQ(error_of<ValueError>([] { EncoderLayer<float>({.d_model = 10, .nhead = 3}); }),
            "[MultiHeadAttention] num_heads must divide embed_dim = 10; found 3.");
  for (const bool norm_first : {false, true}) {
    const EncoderLayer<float> layer(
        {.d_model = 4, .nhead = 2, .dim_feedforward = 6, .norm_first = norm_first});
    const Tensor3<float> x({2, 3, 4}), narrow({2, 3, 5}), empty({2, 0, 4});
    Tensor3<float> y({2, 3, 4}), wrong({2, 4, 4}), none({2, 0, 4});
    y.fill(7), wrong.fill(7);
    EXPECT_THROW(layer.forward(narrow, y), ShapeError);
    EXPECT_THROW(layer.forward(x, wrong), ShapeError);
    EXPECT_THROW(layer.forward(empty, none), ShapeError);
    const Tensor2<bool> mask({3, 4});
    EXPECT_THROW(layer.forward(x, y, {.mask = keep_mask(mask)}), ShapeError);
    EXPECT_TRUE(all_are(y, 7));
    EXPECT_TRUE(all_are(wrong, 7));
  }
}

}  // namespace
}  // namespace attn
