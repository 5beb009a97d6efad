// Backward of layers: all gradients against central differences, with random options.
#include <gtest/gtest.h>

#include "attn/layers/embedding/input_embedding_backward.hpp"
#include "attn/layers/layer_stack_backward.hpp"
#include "attn/layers/module/dropout.hpp"

#include "support/isas.hpp"
#include "support/models/module_gradients.hpp"
#include "support/references/reference.hpp"
#include "support/thread_executor.hpp"

namespace attn_test {
namespace {

using attn::Tensor2, attn::Tensor3;

double loss_of(const Tensor3<double>& weights, const Tensor3<double>& out) {
  return weighted_sum(weights.elements(), out.elements());
}

attn::Activation draw_activation(Random& random) {
  // No relu: central differences may straddle its kink.
  return random.pick<attn::Activation>(
      {attn::Activation::gelu, attn::Activation::gelu_tanh, attn::Activation::silu});
}

attn::MultiHeadAttentionOptions draw_attention(Random& random, bool self) {
  attn::MultiHeadAttentionOptions o;
  o.num_heads = random.pick<Index>({1, 2, 4});
  o.embed_dim = o.num_heads * random.pick<Index>({2, 4, 6});
  o.bias = random.chance(0.7);
  if (!self && random.chance(0.4)) o.kdim = random.integer(1, 9);
  if (!self && random.chance(0.4)) o.vdim = random.integer(1, 9);
  o.add_bias_kv = random.chance(0.3);
  o.add_zero_attn = random.chance(0.3);
  if (o.num_heads > 1 && random.chance(0.4)) o.num_kv_heads = o.num_heads / 2;
  if (random.chance(0.3)) o.head_dim_v = random.integer(1, 7);
  o.output_projection = random.chance(0.8);
  o.sinks = random.chance(0.3);
  o.alibi = random.chance(0.3);
  if (random.chance(0.3)) {
    o.query_key_norm = random.pick<attn::NormKind>({attn::NormKind::layer, attn::NormKind::rms});
    o.query_key_norm_eps = 0.1;
    o.query_key_norm_of_all_heads = random.chance(0.5);
  }
  if (random.chance(0.4)) {
    o.rotary = attn::RotaryOptions{.dim = 2,
                                   .pairs = random.pick<attn::RotaryPairs>(
                                       {attn::RotaryPairs::halves, attn::RotaryPairs::interleaved}),
                                   .max_positions = 32};
    if (random.chance(0.3)) {
      o.rotary->scaling.query_beta = 0.7;
      o.rotary->scaling.original_max_positions = 2;
    }
  }
  if (random.chance(0.3)) o.clip_qkv = 0.4;
  return o;
}

/// Dropped elements of a layer, by the random numbers of the reference.
TEST(LayerDropout, FollowsSeedStepLayerPlaceAndElement) {
  const ThreadExecutor three(3);
  for (std::uint64_t n = 0; n < attn_test::draws(20); ++n) {
    Random random(n);
    const attn::detail::DropoutPlace place{
        random.pick<double>({0.1, 0.5, 0.9}),
        {.seed = n << 40 | 7, .step = random.integer(0, 1 << 30), .layer = random.integer(0, 50)},
        random.integer(0, 4)};
    const auto x = random.tensor<float, 3>({2, random.integer(1, 9), random.integer(1, 150)});
    const auto residual = random.tensor<float, 3>(x.shape());
    for (attn::Isa isa : available_isas()) {
      Tensor3<float> out(x.shape());
      attn::detail::apply_dropout<float>(place, x, out, residual, {.executor = &three, .isa = isa});
      const auto word = [](Index value) { return static_cast<std::uint32_t>(value); };
      for (Index e = 0; e < x.size(); ++e) {
        const auto words =
            philox({word(e / 4), word(place.place), word(place.at.step), word(place.at.layer)},
                   place.at.seed);
        const double drawn =
            std::ldexp(static_cast<double>(words[static_cast<std::size_t>(e % 4)] >> 8), -24);
        const float factor = drawn >= place.p ? static_cast<float>(1 / (1 - place.p)) : 0.0f;
        EXPECT_EQ(out.data()[e], x.data()[e] * factor + residual.data()[e])
            << random.trace() << " element " << e << " on " << attn::name(isa);
      }
    }
  }
}

TEST(MultiHeadAttentionBackward, AgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < attn_test::draws(40); ++n) {
    Random random(n);
    const bool self = random.chance(0.4), shared = random.chance(0.5);
    auto o = draw_attention(random, self);
    if (shared) o.vdim = o.kdim;
    attn::MultiHeadAttention<double> module(o);
    draw_parameters(random, module);
    const Index batch = random.integer(1, 2), q_len = random.integer(1, 5);
    const Index kv_len = self ? q_len : random.integer(q_len, 9);
    auto query = random.tensor<double, 3>({batch, q_len, o.embed_dim});
    auto key = random.tensor<double, 3>({batch, kv_len, o.kdim > 0 ? o.kdim : o.embed_dim});
    auto value = random.tensor<double, 3>({batch, kv_len, o.vdim > 0 ? o.vdim : o.embed_dim});
    const attn::TensorView3<const double> q = query.view(), k = self ? q : key.view(),
                                          v = self || shared ? k : value.view();
    const attn::AttentionOptions<double> options{
        .mask = random.chance(0.5) ? attn::causal() : attn::Mask(),
        .execution = {.isa = random.pick(available_isas())}};
    Tensor3<double> out({batch, q_len, module.out_dim()});
    const auto d = random.tensor<double, 3>(out.shape());
    const auto loss = [&] {
      module.forward(q, k, v, out, options);
      return loss_of(d, out);
    };
    attn::MultiHeadAttentionSaved<double> saved;
    auto gradients = attn::gradients_of(module);
    Tensor3<double> d_q(query.shape()), d_k(key.shape()), d_v(value.shape());
    attn::forward(module, q, k, v, out, saved, options);
    EXPECT_NEAR(loss_of(d, out), loss(), 1e-12 * (1 + std::abs(loss())));
    attn::backward(module, d, saved,
                   {.d_query = d_q.view(), .d_key = d_k.view(), .d_value = d_v.view()}, gradients,
                   options);
    expect_gradient("query", random, query.elements(), d_q.elements(), loss);
    if (!self) expect_gradient("key", random, key.elements(), d_k.elements(), loss);
    if (!self && !shared) expect_gradient("value", random, value.elements(), d_v.elements(), loss);
    expect_module_gradients(random, module, gradients, loss);
    if (HasFailure()) break;
  }
}

/// Fewer queries than keys with first_key: positions, and so gradients, are those of inference.
TEST(MultiHeadAttentionBackward, PackedQueriesStandAtTheEndOfTheirKeys) {
  Random random(4);
  attn::MultiHeadAttention<double> module(
      {.embed_dim = 8, .num_heads = 2, .rotary = attn::RotaryOptions{.max_positions = 32}});
  draw_parameters(random, module);
  auto q = random.tensor<double, 3>({1, 5, 8}), kv = random.tensor<double, 3>({1, 9, 8});
  const attn::Tensor1<Index> q_starts({3}, {0, 2, 5});
  for (const Index first_key : {0, 2}) {
    const attn::Tensor1<Index> k_starts({3}, {0, 6, first_key + 9});
    const attn::AttentionOptions<double> options{.mask = attn::causal(),
                                                 .first_key = first_key,
                                                 .cu_seqlens_q = q_starts,
                                                 .cu_seqlens_k = k_starts};
    Tensor3<double> out({1, 5, 8}), d_q(q.shape()), d_kv(kv.shape());
    const auto d = random.tensor<double, 3>(out.shape());
    const auto loss = [&] {
      module.forward(q, kv, kv, out, options);
      return loss_of(d, out);
    };
    attn::MultiHeadAttentionSaved<double> saved;
    auto gradients = attn::gradients_of(module);
    attn::forward(module, q, kv, kv, out, saved, options);
    EXPECT_NEAR(loss_of(d, out), loss(), 1e-12 * (1 + std::abs(loss())));
    attn::backward(module, d, saved, {.d_query = d_q.view(), .d_key = d_kv.view()}, gradients,
                   options);
    expect_gradient("query", random, q.elements(), d_q.elements(), loss);
    expect_gradient("key", random, kv.elements(), d_kv.elements(), loss);
    expect_module_gradients(random, module, gradients, loss);
  }
}

attn::TransformerLayerOptions draw_layer(Random& random) {
  attn::TransformerLayerOptions o;
  o.nhead = random.pick<Index>({1, 2});
  o.d_model = 4 * o.nhead;
  o.dim_feedforward = random.integer(1, 9);
  o.dropout = random.chance(0.5) ? 0.3 : 0;
  o.activation = draw_activation(random);
  o.layer_norm_eps = 0.01;
  o.norm_first = random.chance(0.5);
  o.bias = random.chance(0.7);
  o.gated = random.chance(0.4);
  o.norm = random.pick<attn::NormKind>({attn::NormKind::layer, attn::NormKind::rms});
  if (random.chance(0.3)) o.attention.rotary = attn::RotaryOptions{.max_positions = 32};
  return o;
}

TEST(TransformerBackward, AgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < attn_test::draws(24); ++n) {
    Random random(n);
    const auto layer = draw_layer(random);
    attn::Transformer<double> module({.layer = layer,
                                      .num_encoder_layers = random.integer(0, 2),
                                      .num_decoder_layers = random.integer(0, 2),
                                      .norm = random.chance(0.5)});
    draw_parameters(random, module);
    const Index batch = random.integer(1, 2), src_len = random.integer(1, 5),
                tgt_len = random.integer(1, 5);
    auto src = random.tensor<double, 3>({batch, src_len, layer.d_model});
    auto tgt = random.tensor<double, 3>({batch, tgt_len, layer.d_model});
    const attn::TransformerCall<double> call{.tgt = {.mask = attn::causal()},
                                             .execution = {.isa = random.pick(available_isas())}};
    Tensor3<double> out(tgt.shape()), d_src(src.shape()), d_tgt(tgt.shape());
    const auto d = random.tensor<double, 3>(out.shape());
    attn::TransformerSaved<double> saved, other;
    saved.dropout = other.dropout = {.seed = 5, .step = random.integer(1, 3)};
    const auto loss = [&] {
      if (layer.dropout > 0) {
        attn::forward(module, src, tgt, out, other, call);
      } else {
        module.forward(src, tgt, out, call);
      }
      return loss_of(d, out);
    };
    auto gradients = attn::gradients_of(module);
    for (int twice = 0; twice < 2; ++twice) {  // saved tensors are overwritten, gradients add up
      attn::forward(module, src, tgt, out, saved, call);
      EXPECT_NEAR(loss_of(d, out), loss(), 1e-12 * (1 + std::abs(loss())));
      attn::backward(module, d, saved, d_src, d_tgt, gradients, call);
    }
    gradients.visit_parameters([](std::string_view, const auto& view) {
      for (Index i = 0; i < view.size(); ++i) view.data()[i] /= 2;
    });
    expect_gradient("src", random, src.elements(), d_src.elements(), loss);
    expect_gradient("tgt", random, tgt.elements(), d_tgt.elements(), loss);
    expect_module_gradients(random, module, gradients, loss);
    if (HasFailure()) break;
  }
}

/// Draws where a layer has its norms and how it adds its residuals.
void draw_norms(Random& random, attn::TransformerLayerOptions& o) {
  o.norm_behind = random.chance(0.5);
  if (o.norm_first && !o.norm_behind) {
    o.parallel = random.chance(0.7);
    o.shared_norm = o.parallel && random.chance(0.5);
  }
  if (o.norm_first || o.norm_behind) o.residual_scale = random.pick<double>({1, 0.4});
  if (random.chance(0.3)) o.norm_bias = !o.bias;
  o.joint_gate = o.gated;
  if (random.chance(0.3)) {
    o.experts = {.num_experts = 3,
                 .experts_per_token = random.integer(1, 2),
                 .dim_feedforward = 5,
                 .dim_shared = random.integer(0, 1) * 4};
  }
}

TEST(EncoderBackward, AgreesWithCentralDifferencesWhereverNormsAre) {
  for (std::uint64_t n = 0; n < attn_test::draws(40); ++n) {
    Random random(n);
    attn::TransformerStackOptions options{.num_layers = random.integer(1, 3),
                                          .layer = draw_layer(random),
                                          .norm = random.chance(0.5)};
    draw_norms(random, options.layer);
    if (n % 4 == 3) {
      options.layer.latent = {.q_lora_rank = random.integer(0, 1) * 3,
                              .kv_lora_rank = random.integer(1, 6),
                              .head_dim = random.integer(1, 4),
                              .rotary_dim = 2,
                              .head_dim_v = random.integer(1, 4),
                              .norm_eps = 0.1};
    }
    if (n % 4 == 2) {
      options.mixers = {attn::TokenMixer::short_convolution, attn::TokenMixer::attention};
      if (random.chance(0.5)) options.mixers[0] = attn::TokenMixer::gated_delta;
      options.layer.convolution = {.width = random.integer(2, 4), .bias = random.chance(0.5)};
      options.layer.gated_delta = {
          .num_value_heads = 2, .key_dim = 2, .value_dim = 3, .norm_eps = 0.1};
    }
    if (options.layer.experts.num_experts > 0) options.dense_layers = random.integer(0, 1);
    if (random.chance(0.5)) {
      options.rotary = {attn::RotaryOptions{.max_positions = 32}, std::nullopt,
                        attn::RotaryOptions{.theta = 50, .max_positions = 32}};
    }
    attn::Encoder<double> module(options);
    draw_parameters(random, module);
    auto x = random.tensor<double, 3>({2, random.integer(1, 5), options.layer.d_model});
    const auto d = random.tensor<double, 3>(x.shape());
    const attn::AttentionOptions<double> call{.mask = attn::causal(),
                                              .execution = {.isa = random.pick(available_isas())}};
    Tensor3<double> out(x.shape()), d_x(d.view());
    attn::EncoderSaved<double> saved, other;
    saved.recompute = random.chance(0.5);
    saved.dropout = other.dropout = {.seed = 5, .step = random.integer(1, 3)};
    const auto loss = [&] {
      if (options.layer.dropout > 0) {
        attn::forward(module, x, out, other, call);
      } else {
        module.forward(x, out, call);
      }
      return loss_of(d, out);
    };
    auto gradients = attn::gradients_of(module);
    attn::forward(module, x, out, saved, call);
    EXPECT_NEAR(loss_of(d, out), loss(), 1e-12 * (1 + std::abs(loss())));
    attn::backward(module, d_x, saved, d_x, gradients, call);  // in place
    expect_gradient("x", random, x.elements(), d_x.elements(), loss);
    expect_module_gradients(random, module, gradients, loss);
    if (HasFailure()) {
      ADD_FAILURE() << random.trace();
      break;
    }
  }
}

/// Parameters of a score function that both layers share, with saved and recomputed activations.
TEST(EncoderBackward, GivesScoreParametersTheirGradients) {
  for (const bool recompute : {false, true}) {
    Random random;
    SCOPED_TRACE(random.trace());
    attn::Encoder<double> module({.num_layers = 2,
                                  .layer = {.d_model = 8,
                                            .nhead = 2,
                                            .dim_feedforward = 6,
                                            .dropout = 0,
                                            .activation = attn::Activation::gelu,
                                            .norm_first = true}});
    draw_parameters(random, module);
    auto x = random.tensor<double, 3>({2, 7, 8});
    const auto d = random.tensor<double, 3>(x.shape());
    auto slopes = random.tensor<double, 1>({2});
    std::vector<double> offset{0.4};
    attn::Tensor1<double> d_slopes({2}), d_offset({1});
    Tensor3<double> y(x.shape()), d_x(x.shape());
    attn::EncoderSaved<double> saved;
    saved.recompute = recompute;
    const attn::AttentionOptions<double> options{
        .mask = attn::causal(), .execution = {.isa = random.pick(available_isas())}};
    const auto mod = [&] {
      return attn::score_mod(
          [](auto score, int, int, int i, int j, auto slope, auto offset_of) {
            return score * offset_of - slope * (0.3 * (i - j));
          },
          attn::with_gradient(slopes, d_slopes), attn::with_gradient(offset[0], d_offset));
    };
    const auto loss = [&] {
      module.forward(x, y, options, {}, {}, mod());
      return loss_of(d, y);
    };
    auto gradients = attn::gradients_of(module);
    attn::forward(module, x, y, saved, options, {}, mod());
    attn::backward(module, d, saved, d_x, gradients, options, {}, mod());
    expect_gradient("slopes", random, slopes.elements(), d_slopes.elements(), loss);
    expect_gradient("offset", random, offset, d_offset.elements(), loss);
    expect_gradient("x", random, x.elements(), d_x.elements(), loss);
    expect_module_gradients(random, module, gradients, loss);
  }
}

TEST(EncoderBackward, SameBitsOnAnyThreads) {
  Random random;
  attn::Encoder<float> module({.num_layers = 2,
                               .layer = {.d_model = 64, .nhead = 4, .dim_feedforward = 200},
                               .norm = true});
  draw_parameters(random, module, 0.1);
  const auto x = random.tensor<float, 3>({3, 50, 64}), d = random.tensor<float, 3>({3, 50, 64});
  const auto run = [&](const attn::Executor& executor) {
    const attn::AttentionOptions<float> options{.mask = attn::causal(),
                                                .execution = {.executor = &executor}};
    attn::EncoderSaved<float> saved;
    auto gradients = attn::gradients_of(module);
    Tensor3<float> y(x.shape()), d_x(x.shape());
    attn::forward(module, x, y, saved, options);
    attn::backward(module, d, saved, d_x, gradients, options);
    std::vector<float> all(d_x.elements().begin(), d_x.elements().end());
    gradients.visit_parameters([&](std::string_view, const auto& view) {
      all.insert(all.end(), view.data(), view.data() + view.size());
    });
    return all;
  };
  EXPECT_EQ(run(attn::SerialExecutor()), run(ThreadExecutor(3)));
}

/// Twelve layers: recomputing gives the same bits in less than a third of the memory.
TEST(StackSaved, RecomputesLayersInLessMemory) {
  Random random;
  attn::Transformer<float> module(
      {.layer = {.d_model = 32, .nhead = 2, .dim_feedforward = 64, .norm_first = true},
       .num_encoder_layers = 12,
       .num_decoder_layers = 12});
  draw_parameters(random, module, 0.1);
  const auto src = random.tensor<float, 3>({2, 10, 32}), tgt = random.tensor<float, 3>({2, 9, 32}),
             d = random.tensor<float, 3>({2, 9, 32});
  const auto run = [&](bool recompute, attn::index_t& bytes) {
    attn::TransformerSaved<float> saved;
    saved.encoder.recompute = saved.decoder.recompute = recompute;
    saved.dropout = {.seed = 3, .step = 1};
    auto gradients = attn::gradients_of(module);
    Tensor3<float> y(tgt.shape()), d_src(src.shape()), d_tgt(tgt.shape());
    attn::forward(module, src, tgt, y, saved, {.tgt = {.mask = attn::causal()}});
    attn::backward(module, d, saved, d_src, d_tgt, gradients, {.tgt = {.mask = attn::causal()}});
    bytes = saved.bytes();
    std::vector<float> all(d_src.elements().begin(), d_src.elements().end());
    all.insert(all.end(), d_tgt.elements().begin(), d_tgt.elements().end());
    gradients.visit_parameters([&](std::string_view, const auto& view) {
      all.insert(all.end(), view.data(), view.data() + view.size());
    });
    return all;
  };
  attn::index_t whole = 0, inputs = 0;
  EXPECT_EQ(run(false, whole), run(true, inputs));
  EXPECT_LT(3 * inputs, whole);
}

TEST(StackSaved, OfAnotherStackIsRefused) {
  const attn::TransformerLayerOptions layer{.d_model = 8, .nhead = 2, .dim_feedforward = 4};
  const attn::Encoder<float> one({.num_layers = 1, .layer = layer}),
      two({.num_layers = 2, .layer = layer});
  const Tensor3<float> x({1, 3, 8});
  Tensor3<float> y(x.shape());
  for (const bool recompute : {false, true}) {
    attn::EncoderSaved<float> of_one, of_two;
    of_one.recompute = of_two.recompute = recompute;
    attn::forward(one, x, y, of_one);
    attn::forward(two, x, y, of_two);
    auto d_one = attn::gradients_of(one), d_two = attn::gradients_of(two);
    EXPECT_THROW(attn::backward(two, y, of_one, y, d_two), attn::ValueError);
    EXPECT_THROW(attn::backward(two, y, of_two, y, d_one), attn::ValueError);
    EXPECT_NO_THROW(attn::backward(two, y, of_two, y, d_two));
  }
}

TEST(LayerDropout, FollowsSeedStepLayerAndPlace) {
  constexpr Index kSize = 40000;
  Tensor3<float> x({1, 4, kSize / 4}), a(x.shape()), b(x.shape());
  x.fill(1);
  const attn::detail::DropoutPlace place{0.3, {.seed = 9, .step = 2, .layer = 1}, 1};
  const auto dropped = [&](const attn::detail::DropoutPlace& at, const attn::Execution& execution) {
    Tensor3<float> out(x.shape());
    attn::detail::apply_dropout<float>(at, x, out.view(), {}, execution);
    return std::vector<float>(out.elements().begin(), out.elements().end());
  };
  const auto first = dropped(place, {});
  const auto kept = std::count_if(first.begin(), first.end(), [](float v) { return v != 0; });
  EXPECT_NEAR(static_cast<double>(kept) / kSize, 0.7, 0.01);
  for (float v : first) EXPECT_TRUE(v == 0 || v == static_cast<float>(1 / 0.7));
  const ThreadExecutor three(3);
  for (attn::Isa isa : available_isas()) {
    EXPECT_EQ(dropped(place, {.executor = &three, .isa = isa}), first);
  }
  for (int part = 0; part < 4; ++part) {
    auto other = place;
    (part == 0 ? other.at.step : part == 1 ? other.at.layer : other.place) += part < 3 ? 1 : 0;
    if (part == 3) other.at.seed = 10;
    EXPECT_NE(dropped(other, {}), first) << part;
  }
}

TEST(InputEmbeddingBackward, AgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < 12; ++n) {
    Random random(n);
    attn::InputEmbeddingOptions options{
        .vocab_size = 5,
        .d_model = 6,
        .positions = random.pick<attn::Positions>(
            {attn::Positions::none, attn::Positions::sinusoidal, attn::Positions::learned}),
        .max_positions = 9,
        .num_token_types = random.integer(0, 2),
        .scale = random.chance(0.5),
        .factor = random.pick<double>({1, 0.3}),
        .norm = random.chance(0.5),
        .layer_norm_eps = 0.1};
    if (options.positions == attn::Positions::learned) options.position_offset = 2;
    attn::InputEmbedding<double> module(options);
    draw_parameters(random, module);
    Tensor2<attn::index_t> ids({2, 7}), positions({2, 7});
    for (attn::index_t& id : ids.elements()) id = random.integer(0, 4);
    for (attn::index_t& position : positions.elements()) position = random.integer(0, 8);
    attn::InputEmbeddingCall call;
    if (random.chance(0.5)) call.position_ids = positions;
    Tensor3<double> out({2, 7, 6});
    const auto d = random.tensor<double, 3>(out.shape());
    attn::InputEmbeddingSaved<double> saved;
    auto gradients = attn::gradients_of(module);
    attn::forward(module, ids, out, saved, call);
    attn::backward(module, d, saved, gradients);
    expect_module_gradients(random, module, gradients, [&] {
      module.forward(ids, out, call);
      return loss_of(d, out);
    });
  }
}

TEST(EmbeddingBackward, AddsUpRepeatedIds) {
  Tensor2<int> ids({2, 2}, {1, 0, 1, 1});
  Tensor3<float> d({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  Tensor2<float> d_table({3, 2});
  attn::embedding_backward(d, ids, d_table);
  EXPECT_EQ(d_table(0, 0), 3);
  EXPECT_EQ(d_table(1, 0), 1 + 5 + 7);
  EXPECT_EQ(d_table(1, 1), 2 + 6 + 8);
  EXPECT_EQ(d_table(2, 1), 0);
  Tensor2<int> wrong({2, 2}, {1, 0, 3, 1});
  EXPECT_THROW(attn::embedding_backward(d, wrong, d_table), attn::ValueError);
}

}  // namespace
}  // namespace attn_test
