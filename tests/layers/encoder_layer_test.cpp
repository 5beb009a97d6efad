// EncoderLayer: post- and pre-norm, every option, against composed references; in place.
#include "attn/layers/encoder_layer.hpp"

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
class EncoderLayerTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(EncoderLayerTest, Types);

TYPED_TEST(EncoderLayerTest, RandomLayers) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    const TransformerLayerOptions o = attn_test::random_layer_options(random);
    EncoderLayer<T> layer(o);
    attn_test::randomize(layer, random);
    const auto x = random.array<T>({random.integer(1, 3), random.integer(1, 20), o.d_model});
    Tensor2<index_t> positions = attn_test::counted_positions(x.extent(0), x.extent(1));
    const bool given = random.chance(0.5);
    for (index_t& position : positions.elements()) {
      if (given) position = random.integer(0, 29);
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
  EXPECT_EQ(attn_test::names_of(layer),
            (std::vector<std::string>{
                "self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight",
                "self_attn.out_proj.bias", "linear1.weight", "linear1.bias", "linear2.weight",
                "linear2.bias", "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"}));
}

/// With PyTorch's bias = False, norms have no bias, either.
TEST(EncoderLayer, ParametersWithoutBiasAndOneByOne) {
  const EncoderLayer<float> layer(
      {.d_model = 4,
       .nhead = 2,
       .dim_feedforward = 6,
       .bias = false,
       .gated = true,
       .attention = {.query_key_norm = NormKind::layer, .separate_in_proj = true}});
  EXPECT_EQ(attn_test::names_of(layer),
            (std::vector<std::string>{
                "self_attn.q_proj_weight", "self_attn.k_proj_weight", "self_attn.v_proj_weight",
                "self_attn.out_proj.weight", "self_attn.q_norm.weight", "self_attn.q_norm.bias",
                "self_attn.k_norm.weight", "self_attn.k_norm.bias", "gate_proj.weight",
                "up_proj.weight", "down_proj.weight", "norm1.weight", "norm2.weight"}));
}

/// x + norm(f(norm(x))) for both sublayers, against parts with their own tests; in place, too.
TEST(EncoderLayer, NormsBehindItsParts) {
  Random random(5);
  auto layer = attn_test::random_module<EncoderLayer<float>>(
      random, TransformerLayerOptions{.d_model = 8,
                                      .nhead = 2,
                                      .dim_feedforward = 12,
                                      .norm_first = true,
                                      .norm_behind = true,
                                      .norm = NormKind::rms});
  const auto names = attn_test::names_of(layer);
  EXPECT_EQ(names[names.size() - 2], "norm1_behind.weight");
  EXPECT_EQ(names.back(), "norm2_behind.weight");
  const auto x = random.tensor<float, 3>({2, 5, 8});
  const auto branch = layer.norm1_behind(layer.self_attn(layer.norm1(x)));
  Tensor3<float> attended(x.view());
  for (index_t i = 0; i < x.size(); ++i) attended.data()[i] += branch.data()[i];
  const auto second = layer.norm2_behind(layer.feed_forward(layer.norm2(attended)));
  Tensor3<float> in_place(x.view());
  layer.forward(in_place, in_place);
  const auto out = layer(x);
  for (index_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(out.data()[i], second.data()[i] + attended.data()[i]);
    EXPECT_EQ(in_place.data()[i], out.data()[i]);
  }
}

/// Sums of two tensors, the second times a factor.
Tensor3<float> sum_of(const Tensor3<float>& x, const Tensor3<float>& y, float factor = 1) {
  Tensor3<float> result(x.view());
  for (index_t i = 0; i < x.size(); ++i) result.data()[i] += factor * y.data()[i];
  return result;
}

void expect_equal(const Tensor3<float>& x, const Tensor3<float>& expected) {
  for (index_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(x.data()[i], expected.data()[i], 1e-6) << "element " << i;
  }
}

EncoderLayer<float> layer_with(Random& random, TransformerLayerOptions options) {
  options.d_model = 8;
  options.nhead = 2;
  options.dim_feedforward = 12;
  return attn_test::random_module<EncoderLayer<float>>(random, options);
}

/// x + norm(f(x)), with a factor.
TEST(EncoderLayer, NormsBehindItsPartsAlone) {
  Random random(6);
  const auto layer =
      layer_with(random, {.norm_behind = true, .residual_scale = 0.5, .norm = NormKind::rms});
  EXPECT_FALSE(layer.norm1.weight);
  const auto x = random.tensor<float, 3>({2, 5, 8});
  const auto attended = sum_of(x, layer.norm1_behind(layer.self_attn(x)), 0.5f);
  expect_equal(layer(x), sum_of(attended, layer.norm2_behind(layer.feed_forward(attended)), 0.5f));
}

/// x + attention(norm1(x)) + feed_forward(norm2(x)), in place, too.
TEST(EncoderLayer, AddsItsPartsInParallel) {
  for (const bool shared : {false, true}) {
    Random random(7);
    const auto layer = layer_with(random, {.norm_first = true,
                                           .parallel = true,
                                           .shared_norm = shared,
                                           .bias = false,
                                           .norm_bias = true});
    EXPECT_EQ(static_cast<bool>(layer.norm2.weight), !shared);
    EXPECT_TRUE(layer.norm1.bias);
    const auto x = random.tensor<float, 3>({2, 5, 8});
    const auto& norm2 = shared ? layer.norm1 : layer.norm2;
    const auto expected =
        sum_of(sum_of(x, layer.self_attn(layer.norm1(x))), layer.feed_forward(norm2(x)));
    expect_equal(layer(x), expected);
    Tensor3<float> in_place(x.view());
    layer.forward(in_place, in_place);
    expect_equal(in_place, layer(x));
  }
}

/// The last norm refuses strided output rows after keys were appended.
TEST(EncoderLayerErrors, AfterAttentionLeaveTheCache) {
  const EncoderLayer<float> layer({.d_model = 4, .nhead = 2});
  const Tensor3<float> x({2, 3, 4});
  Tensor3<float> turned({2, 4, 3});
  auto cache = layer.self_attn.make_cache(2, 5);
  EXPECT_THROW(layer.forward(x, turned.view().transpose(1, 2), {}, {.cache = &cache}), ShapeError);
  EXPECT_EQ(cache.length(), 0);
}

TEST(EncoderLayerErrors, ShapesAndOptions) {
  EXPECT_EQ(error_of<ValueError>([] { EncoderLayer<float>({.d_model = 10, .nhead = 3}); }),
            "[MultiHeadAttention] num_heads must divide embed_dim = 10; found 3.");
  const auto error_with = [](TransformerLayerOptions options) {
    options.d_model = 4;
    options.nhead = 2;
    return error_of<ValueError>([&] { EncoderLayer<float> layer(options); });
  };
  EXPECT_EQ(error_with({.parallel = true}),
            "[EncoderLayer] parallel must be false without norm_first and with norm_behind; found "
            "true.");
  EXPECT_EQ(error_with({.norm_first = true, .shared_norm = true}),
            "[EncoderLayer] shared_norm must be false without parallel; found true.");
  EXPECT_EQ(error_with({.residual_scale = 2}),
            "[EncoderLayer] residual_scale must be 1 for post-norm; found 2.");
  const auto error_with_latent = [&](const MultiHeadAttentionOptions& attention) {
    TransformerLayerOptions options{.attention = attention};
    options.latent = {.kv_lora_rank = 3, .head_dim = 2, .rotary_dim = 2};
    return error_with(options);
  };
  const std::pair<const char*, MultiHeadAttentionOptions> unsupported[] = {
      {"add_bias_kv", {.add_bias_kv = true}},
      {"add_zero_attn", {.add_zero_attn = true}},
      {"output_projection", {.output_projection = false}},
      {"query_key_norm", {.query_key_norm = NormKind::rms}},
      {"clip_qkv", {.clip_qkv = 1}},
      {"softcap", {.softcap = 2}},
      {"window", {.window = 1}},
      {"sinks", {.sinks = true}},
      {"alibi", {.alibi = true}}};
  for (const auto& [name, attention] : unsupported) {
    EXPECT_EQ(error_with_latent(attention),
              std::string("[EncoderLayer] attention.") + name +
                  " must have its default with latent attention; found another value.");
  }
  for (const bool norm_first : {false, true}) {
    const EncoderLayer<float> layer(
        {.d_model = 4, .nhead = 2, .dim_feedforward = 6, .norm_first = norm_first});
    const Tensor3<float> x({2, 3, 4}), narrow({2, 3, 5}), empty({2, 0, 4});
    Tensor3<float> y({2, 3, 4}), wrong({2, 4, 4}), none({2, 0, 4});
    y.fill(7), wrong.fill(7);
    EXPECT_THROW(layer.forward(narrow, y), ShapeError);
    EXPECT_THROW(layer.forward(x, wrong), ShapeError);
    EXPECT_NO_THROW(layer.forward(empty, none));
    const Tensor2<bool> mask({3, 4});
    EXPECT_THROW(layer.forward(x, y, {.mask = keep_mask(mask)}), ShapeError);
    EXPECT_TRUE(all_are(y, 7));
    EXPECT_TRUE(all_are(wrong, 7));
  }
}

}  // namespace
}  // namespace attn
