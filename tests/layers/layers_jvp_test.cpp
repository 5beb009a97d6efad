// Tangents of layers against central differences and backward, with random options.
#include <gtest/gtest.h>

#include "attn/layers/jvp/embedding_jvp.hpp"
#include "attn/layers/jvp/encoder_jvp.hpp"
#include "attn/layers/layer_stack_backward.hpp"

#include "support/error_of.hpp"
#include "support/tangent_check.hpp"
#include "support/tolerance.hpp"

namespace attn_test {
namespace {

using TokenFeatures = attn::Tensor3<double>;

attn::MultiHeadAttentionOptions draw_attention(Random& random, attn::index_t heads) {
  attn::MultiHeadAttentionOptions o;
  o.num_heads = heads;
  if (random.chance(0.4)) o.num_kv_heads = 2;
  o.bias = random.chance(0.6);
  o.head_dim = 4;
  if (random.chance(0.3)) o.head_dim_v = 3;
  if (random.chance(0.3))
    o.query_key_norm = random.pick<attn::NormKind>({attn::NormKind::layer, attn::NormKind::rms});
  o.query_key_norm_of_all_heads = random.chance(0.3);
  if (random.chance(0.3)) o.clip_qkv = 0.8;
  if (random.chance(0.3)) o.softcap = 2;
  if (random.chance(0.3)) o.window = 3;
  o.sinks = random.chance(0.3);
  o.alibi = random.chance(0.3);
  if (random.chance(0.4)) o.rotary = attn::RotaryOptions{.max_positions = 32};
  if (o.clip_qkv == 0 && !o.query_key_norm_of_all_heads) o.output_gate = random.chance(0.4);
  return o;
}

/// Attention to another sequence, with keys and values of other widths and appended keys.
TEST(LayersJvp, MultiHeadAttentionIsTheTransposeOfBackward) {
  for (std::uint64_t n = 0; n < draws(24); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    attn::MultiHeadAttentionOptions o = draw_attention(random, 4);
    o.embed_dim = 12;
    if (random.chance(0.5)) o.kdim = 7, o.vdim = 9;
    o.add_bias_kv = random.chance(0.3), o.add_zero_attn = random.chance(0.3);
    o.output_projection = random.chance(0.7);
    attn::MultiHeadAttention<double> layer(o);
    draw_parameters(random, layer, 0.5);
    auto tangents = attn::gradients_of(layer), gradients = attn::gradients_of(layer);
    const attn::index_t q_len = 5, kv_len = 8;
    auto query = random.tensor<double, 3>({2, q_len, 12}),
         key = random.tensor<double, 3>({2, kv_len, layer.options().kdim}),
         value = random.tensor<double, 3>({2, kv_len, layer.options().vdim});
    const auto d_query = random.tensor<double, 3>(query.shape()),
               d_key = random.tensor<double, 3>(key.shape()),
               d_value = random.tensor<double, 3>(value.shape());
    TokenFeatures out({2, q_len, layer.out_dim()}), d_out(out.shape());
    Direction direction;
    direction.add(query, d_query), direction.add(key, d_key), direction.add(value, d_value);
    direction.add_parameters(random, layer, tangents);
    const attn::AttentionOptions<double> options{.mask = attn::causal()};
    attn::jvp(layer, tangents, query, d_query, key, d_key, value, d_value, out, d_out, options);
    EXPECT_EQ(unlike(out, layer(query, key, value, options)), "");

    attn::MultiHeadAttentionSaved<double> saved;
    TokenFeatures y(out.shape()), g_query(query.shape()), g_key(key.shape()),
        g_value(value.shape());
    const auto w = random.tensor<double, 3>(out.shape());
    attn::forward(layer, query, key, value, y, saved, options);
    attn::backward(layer, w, saved,
                   {.d_query = g_query.view(), .d_key = g_key.view(), .d_value = g_value.view()},
                   gradients, options);
    const double forward = dot(d_out, w);
    const double backward = dot(g_query, d_query) + dot(g_key, d_key) + dot(g_value, d_value) +
                            dot_parameters(gradients, tangents);
    EXPECT_NEAR(forward, backward, 1e-10 * (1 + std::abs(forward)));
    if (o.clip_qkv == 0) {
      expect_tangent(
          direction, [&] { return layer(query, key, value, options); }, d_out, 1e-5);
    }
    if (HasFailure()) break;
  }
}

attn::TransformerLayerOptions draw_jvp_layer(Random& random) {
  attn::TransformerLayerOptions o;
  o.d_model = 12, o.nhead = 4, o.dim_feedforward = 20;
  o.dropout = random.pick<double>({0, 0.3});  // which jvp does not apply
  o.activation = random.pick<attn::Activation>(
      {attn::Activation::gelu, attn::Activation::silu, attn::Activation::gelu_tanh});
  o.norm_first = random.chance(0.6);
  if (o.norm_first && random.chance(0.3)) {
    o.parallel = true;
    o.shared_norm = random.chance(0.5);
  } else {
    o.norm_behind = random.chance(0.3);
  }
  if (o.norm_first || o.norm_behind) o.residual_scale = random.pick<double>({1, 0.3});
  o.bias = random.chance(0.6);
  o.gated = random.chance(0.5);
  o.norm = random.pick<attn::NormKind>({attn::NormKind::layer, attn::NormKind::rms});
  o.attention = draw_attention(random, o.nhead);
  return o;
}

/// Stacks of one or two layers: every placement of norms, and shared weights; x may be out.
TEST(LayersJvp, EncoderIsTheTransposeOfBackward) {
  for (std::uint64_t n = 100; n < 100 + draws(24); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    attn::TransformerStackOptions o{.num_layers = random.integer(0, 2),
                                    .layer = draw_jvp_layer(random),
                                    .norm = random.chance(0.5)};
    if (o.num_layers == 2 && random.chance(0.3)) o.num_groups = 1;
    attn::Encoder<double> stack(o);
    draw_parameters(random, stack, 0.5);
    auto tangents = attn::gradients_of(stack), gradients = attn::gradients_of(stack);
    auto x = random.tensor<double, 3>({2, 6, 12});
    const auto d_x = random.tensor<double, 3>(x.shape()), w = random.tensor<double, 3>(x.shape());
    Direction direction;
    direction.add(x, d_x);
    direction.add_parameters(random, stack, tangents);
    const attn::AttentionOptions<double> options{.mask = attn::causal()};
    TokenFeatures out(x.shape()), d_out(x.shape()), in_place = x, d_in_place = d_x;
    attn::jvp(stack, tangents, x, d_x, out, d_out, options);
    EXPECT_EQ(unlike(out, stack(x, options)), "");
    attn::jvp(stack, tangents, in_place, d_in_place, in_place, d_in_place, options);
    EXPECT_TRUE(std::ranges::equal(d_in_place.elements(), d_out.elements()));
    auto zero = tangents, empty = tangents;
    for (auto& layer : empty.layers) layer.norm2.weight = {}, layer.norm2.bias = {};
    for (auto& layer : zero.layers) {
      for (auto* t : {&layer.norm2.weight, &layer.norm2.bias}) {
        if (*t) t->fill(0);
      }
    }
    attn::jvp(stack, zero, x, d_x, out, d_in_place, options);
    attn::jvp(stack, empty, x, d_x, out, d_out, options);
    EXPECT_TRUE(std::ranges::equal(d_in_place.elements(), d_out.elements()));
    attn::jvp(stack, tangents, x, d_x, out, d_out, options);
    for (auto& layer : stack.layers) layer.dropout = 0;
    attn::EncoderSaved<double> saved;
    TokenFeatures y(x.shape()), g_x(x.shape());
    attn::forward(stack, x, y, saved, options);
    attn::backward(stack, w, saved, g_x, gradients, options);
    const double forward = dot(d_out, w);
    EXPECT_NEAR(forward, dot(g_x, d_x) + dot_parameters(gradients, tangents),
                1e-9 * (1 + std::abs(forward)));
    if (HasFailure()) break;
  }
}

TEST(LayersJvp, EncoderLayerAgreesWithCentralDifferences) {
  for (std::uint64_t n = 200; n < 200 + draws(16); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    attn::TransformerLayerOptions o = draw_jvp_layer(random);
    o.attention.clip_qkv = 0;  // not smooth
    attn::EncoderLayer<double> layer(o);
    draw_parameters(random, layer, 0.5);
    auto tangents = attn::gradients_of(layer);
    auto x = random.tensor<double, 3>({2, 6, 12});
    const auto d_x = random.tensor<double, 3>(x.shape());
    Direction direction;
    direction.add(x, d_x);
    direction.add_parameters(random, layer, tangents);
    const attn::AttentionOptions<double> options{.mask = attn::causal()};
    const auto bends = attn::score_mod([](auto s, int, int, int i, int j) {
      using std::tanh;
      return s + tanh(s) * 0.1 * (i - j);
    });
    TokenFeatures out(x.shape()), d_out(x.shape());
    attn::jvp(layer, tangents, x, d_x, out, d_out, options, {}, bends);
    expect_tangent(
        direction, [&] { return layer(x, options, {}, bends); }, d_out, 1e-5);
    // Tangents without parameters: those of x alone.
    const attn::EncoderLayer<double> none;
    Direction of_x;
    of_x.add(x, d_x);
    attn::jvp(layer, none, x, d_x, out, d_out, options, {}, bends);
    expect_tangent(
        of_x, [&] { return layer(x, options, {}, bends); }, d_out, 1e-5);
    if (HasFailure()) break;
  }
}

/// jvp(layer, tangents, x, d_x, out, d_out) against central differences.
template <class Layer, class Jvp, class Forward>
void expect_layer_tangent(const std::string& name, Random& random, Layer layer, Index out_dim,
                          Direction direction, const Jvp& jvp, const Forward& forward) {
  SCOPED_TRACE(name);
  draw_parameters(random, layer, 0.5);
  Layer tangents = attn::gradients_of(layer);
  auto x = random.tensor<double, 3>({2, 3, 8});
  const auto d_x = random.tensor<double, 3>(x.shape());
  direction.add(x, d_x);
  direction.add_parameters(random, layer, tangents);
  TokenFeatures out({2, 3, out_dim}), d_out(out.shape());
  jvp(layer, tangents, x, d_x, out, d_out);
  const auto run = [&] {
    TokenFeatures y(out.shape());
    forward(layer, x, y);
    return y;
  };
  EXPECT_EQ(unlike(out, run()), "");
  expect_tangent(direction, run, d_out, 1e-5);
}

TEST(LayersJvp, SmallLayersAgreeWithCentralDifferences) {
  Random random(300);
  const auto jvp = [](auto&... all) { attn::jvp(all...); };
  const auto forward = [](const auto& layer, const auto& x, auto& y) { layer.forward(x, y); };
  const auto check = [&](const std::string& name, auto layer, Index out_dim) {
    expect_layer_tangent(name, random, std::move(layer), out_dim, {}, jvp, forward);
  };
  for (const bool bias : {false, true}) {
    check("Linear", attn::Linear<double>(8, 5, bias), 5);
    check("layer norm", attn::Norm<double>(attn::NormKind::layer, 8, 1e-5, bias), 8);
    for (const auto activation : {attn::Activation::gelu, attn::Activation::silu}) {
      for (const bool gated : {false, true}) {
        check("FeedForward",
              attn::FeedForward<double>(attn::FeedForwardOptions{.d_model = 8,
                                                                 .dim_feedforward = 6,
                                                                 .activation = activation,
                                                                 .gated = gated,
                                                                 .bias = bias}),
              8);
      }
    }
    attn::Embedding<double> words(7, 8);
    for (double& w : words.weight.elements()) w = random.normal();
    const auto d_table = random.tensor<double, 2>({7, 8});
    for (const bool tied : {false, true}) {
      Direction of_table;
      if (tied) of_table.add(words.weight, d_table);
      expect_layer_tangent(
          "OutputProjection", random, attn::OutputProjection<double>(8, 7, tied, bias), 7, of_table,
          [&](const auto& layer, const auto& tangents, const auto& x, const auto& d_x, auto& out,
              auto& d_out) {
            attn::jvp(layer, tangents, x, d_x, words.weight, d_table, out, d_out);
          },
          [&](const auto& layer, const auto& x, auto& y) { layer.forward(x, words, y); });
    }
  }
  check("RMS norm", attn::Norm<double>(attn::NormKind::rms, 8, 1e-5), 8);
}

/// The call applies no dropout, and checks its arguments before it writes.
TEST(LayersJvp, InputEmbeddingTakesTangentsOfTablesAndNorm) {
  for (std::uint64_t n = 0; n < 8; ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    attn::InputEmbeddingOptions o{.vocab_size = 7, .d_model = 8, .max_positions = 4};
    o.positions = random.pick<attn::Positions>(
        {attn::Positions::none, attn::Positions::sinusoidal, attn::Positions::learned});
    o.num_token_types = random.integer(0, 2);
    o.scale = random.chance(0.5);
    o.norm = random.chance(0.5);
    o.dropout = random.pick<double>({0, 0.5});
    attn::InputEmbedding<double> layer(o), tangents(o);
    layer.visit_parameters([&](std::string_view, const auto& x) {
      for (Index i = 0; i < x.size(); ++i) x.data()[i] = random.normal();
    });
    attn::Tensor2<int> ids({2, 3});
    for (int& id : ids.elements()) id = static_cast<int>(random.integer(0, 6));
    Direction direction;
    direction.add_parameters(random, layer, tangents);
    attn::Tensor3<double> out({2, 3, 8}), d_out(out.shape());
    attn::jvp(layer, tangents, ids, out, d_out);
    const auto expected = layer(ids);
    EXPECT_TRUE(std::ranges::equal(out.elements(), expected.elements()));
    expect_tangent(
        direction, [&] { return layer(ids); }, d_out, 1e-5);

    out.fill(7);
    tangents.words.weight = attn::Tensor2<double>({6, 8});
    EXPECT_TRUE(
        contains(error_of<attn::ShapeError>([&] { attn::jvp(layer, tangents, ids, out, d_out); }),
                 "tangents.words"));
    EXPECT_EQ(out(0, 0, 0), 7);
    if (HasFailure()) break;
  }
}

TEST(LayersJvp, RefusesByName) {
  attn::TransformerLayerOptions o{.d_model = 8, .nhead = 2, .dim_feedforward = 8};
  TokenFeatures x({1, 3, 8}), out(x.shape()), d_out(x.shape()), narrow({1, 3, 7});
  const auto error = [&](const attn::TransformerStackOptions& options) {
    attn::Encoder<double> stack(options);
    const auto tangents = attn::gradients_of(stack);
    // Behind a layer that has a jvp: it is refused before that one writes.
    stack.layers.emplace(stack.layers.begin(), attn::TransformerLayerOptions{
                                                   .d_model = 8, .nhead = 2, .dim_feedforward = 8});
    out.fill(7);
    const std::string text =
        error_of<attn::ValueError>([&] { attn::jvp(stack, stack, x, x, out, d_out); });
    EXPECT_EQ(out(0, 0, 0), 7);
    return text;
  };
  o.experts = {.num_experts = 2, .experts_per_token = 1, .dim_feedforward = 4};
  EXPECT_TRUE(contains(error({.num_layers = 1, .layer = o}), "experts must be none"));
  o.experts = {};
  o.gated_delta = {.key_dim = 4, .value_dim = 4};
  o.mixer = attn::TokenMixer::short_convolution;
  EXPECT_TRUE(contains(error({.num_layers = 1, .layer = o}), "short convolution must be none"));
  o.mixer = attn::TokenMixer::gated_delta;
  EXPECT_TRUE(contains(error({.num_layers = 1, .layer = o}), "gated delta rule must be none"));
  o.mixer = attn::TokenMixer::attention;
  EXPECT_TRUE(contains(error({.num_layers = 1, .layer = o, .relative_buckets = 8}),
                       "relative_buckets must be 0"));
  o.latent = {.kv_lora_rank = 4, .head_dim = 4, .rotary_dim = 4};
  o.attention.rotary = attn::RotaryOptions{.max_positions = 8};
  EXPECT_TRUE(contains(error({.num_layers = 1, .layer = o}), "latent attention must be none"));
  o.latent = {};
  o.attention.rotary = {};
  const attn::Encoder<double> stack({.num_layers = 1, .layer = o});
  EXPECT_TRUE(contains(error_of<attn::ValueError>([&] { attn::jvp(stack, {}, x, x, out, d_out); }),
                       "tangents"));
  EXPECT_TRUE(contains(
      error_of<attn::ShapeError>([&] { attn::jvp(stack, stack, x, narrow, out, d_out); }), "d_x"));
  auto tangents = attn::gradients_of(stack);
  tangents.layers[0].feed_forward.linear2.weight = attn::Tensor2<double>({8, 9});
  x.fill(7);
  EXPECT_TRUE(
      contains(error_of<attn::ShapeError>([&] { attn::jvp(stack, tangents, x, x, x, d_out); }),
               "[Encoder] tangents.layers.0.linear2.weight must have shape (8, 8); found (8, 9)"));
  EXPECT_EQ(x(0, 0, 0), 7);
}

}  // namespace
}  // namespace attn_test
