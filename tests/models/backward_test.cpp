// Backward of models against central differences; tied tables get the gradients of both uses.
#include <gtest/gtest.h>

#include "attn/core/compare.hpp"
#include "attn/kernels/losses/loss.hpp"
#include "attn/models/bert_backward.hpp"
#include "attn/models/gpt_backward.hpp"
#include "attn/models/seq2seq_transformer_backward.hpp"

#include "support/models/module_gradients.hpp"

namespace attn_test {
namespace {

using attn::Tensor2, attn::Tensor3;

attn::TransformerLayerOptions layer(Random& random) {
  return {.d_model = 8,
          .nhead = 2,
          .dim_feedforward = 12,
          .dropout = random.chance(0.5) ? 0.3 : 0,
          .activation = attn::Activation::gelu_tanh,
          .layer_norm_eps = 0.01,
          .norm_first = random.chance(0.5)};
}

Tensor2<attn::index_t> draw_ids(Random& random, Index batch, Index seq, Index vocab) {
  Tensor2<attn::index_t> ids({batch, seq});
  for (attn::index_t& id : ids.elements()) id = random.integer(0, vocab - 1);
  return ids;
}

TEST(GptBackward, AgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < 8; ++n) {
    Random random(n);
    attn::Gpt<double> model({.vocab_size = 7,
                             .num_layers = random.integer(0, 2),
                             .layer = layer(random),
                             .max_positions = 6,
                             .scale_embedding = random.chance(0.5),
                             .embedding_factor = random.pick<double>({1, 0.6}),
                             .norm = random.chance(0.7),
                             .tied = random.chance(0.6),
                             .head_bias = random.chance(0.5),
                             .logit_scale = random.chance(0.5) ? 1 : 0.7,
                             .logit_softcap = random.chance(0.5) ? 0 : 1.5,
                             .windows = {1, -1}});
    draw_parameters(random, model);
    const auto ids = draw_ids(random, 2, 5, 7), targets = draw_ids(random, 1, 10, 7);
    Tensor3<double> logits({2, 5, 7});
    const attn::TensorView2<double> rows(logits.data(), {10, 7});
    attn::GptSaved<double> saved, other;
    saved.dropout = other.dropout = {.seed = 3, .step = random.integer(1, 9)};
    auto gradients = attn::gradients_of(model);
    attn::forward(model, ids, logits, saved);
    attn::cross_entropy_backward(rows, targets.view().select(0, 0), rows);
    attn::backward(model, logits, saved, gradients);
    expect_module_gradients(random, model, gradients, [&] {
      attn::forward(model, ids, logits, other);
      return attn::cross_entropy(rows, targets.view().select(0, 0));
    });
  }
}

/// Qwen3-Next's layers: the gated delta rule, attention with a gate, experts with a shared one.
TEST(GptBackward, OfGatedDeltaLayersAgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < 4; ++n) {
    Random random(n);
    attn::TransformerLayerOptions of_layer = layer(random);
    of_layer.norm = attn::NormKind::rms;
    of_layer.norm_first = true;
    of_layer.attention.output_gate = true;
    of_layer.attention.query_key_norm = attn::NormKind::rms;
    of_layer.experts = {.num_experts = 3,
                        .experts_per_token = 3,
                        .dim_feedforward = 5,
                        .dim_shared = 4,
                        .shared_gate = true};
    of_layer.gated_delta = {.num_key_heads = random.integer(1, 2),
                            .num_value_heads = 2,
                            .key_dim = 3,
                            .value_dim = 4,
                            .width = 3,
                            .norm_eps = 0.1};
    attn::Gpt<double> model(
        {.vocab_size = 7,
         .num_layers = 2,
         .layer = of_layer,
         .max_positions = 6,
         .mixers = {attn::TokenMixer::gated_delta, attn::TokenMixer::attention}});
    draw_parameters(random, model);
    const auto ids = draw_ids(random, 2, 5, 7), targets = draw_ids(random, 1, 10, 7);
    Tensor3<double> logits({2, 5, 7});
    const attn::TensorView2<double> rows(logits.data(), {10, 7});
    attn::GptSaved<double> saved, other;
    saved.dropout = other.dropout = {.seed = 3, .step = 1};
    auto gradients = attn::gradients_of(model);
    attn::forward(model, ids, logits, saved);
    attn::cross_entropy_backward(rows, targets.view().select(0, 0), rows);
    attn::backward(model, logits, saved, gradients);
    expect_module_gradients(random, model, gradients, [&] {
      attn::forward(model, ids, logits, other);
      return attn::cross_entropy(rows, targets.view().select(0, 0));
    });
  }
}

TEST(BertBackward, AgreesWithCentralDifferences) {
  for (const double dropout : {0.0, 0.2}) {
    Random random;
    attn::Bert<double> model({.vocab_size = 7,
                              .hidden_size = 8,
                              .num_hidden_layers = 2,
                              .num_attention_heads = 2,
                              .intermediate_size = 10,
                              .max_position_embeddings = 6,
                              .layer_norm_eps = 0.01,
                              .hidden_dropout_prob = dropout});
    draw_parameters(random, model);
    const auto ids = draw_ids(random, 2, 5, 7), types = draw_ids(random, 2, 5, 2);
    Tensor3<double> out({2, 5, 8});
    const auto d = random.tensor<double, 3>(out.shape());
    attn::BertSaved<double> saved, other;
    saved.dropout = other.dropout = {.seed = 3, .step = 4};
    auto gradients = attn::gradients_of(model);
    attn::forward(model, ids, out, saved, {}, {.token_type_ids = types});
    attn::backward(model, d, saved, gradients);
    expect_module_gradients(random, model, gradients, [&] {
      attn::forward(model, ids, out, other, {}, {.token_type_ids = types});
      return weighted_sum(d.elements(), out.elements());
    });
  }
}

/// Each option of encoders after BERT, alone and together.
TEST(BertBackward, OptionsOfLaterEncodersAgreeWithCentralDifferences) {
  for (std::uint64_t n = 0; n < 12; ++n) {
    Random random(n);
    attn::BertOptions options{.vocab_size = 7,
                              .hidden_size = 8,
                              .num_hidden_layers = 3,
                              .num_attention_heads = 2,
                              .intermediate_size = 6,
                              .max_position_embeddings = 7,
                              .layer_norm_eps = 0.01,
                              .hidden_act = attn::Activation::gelu,
                              .hidden_dropout_prob = n % 3 == 0 ? 0.2 : 0};
    if (random.chance(0.5)) options.embedding_size = 5;
    options.embedding_norm = random.chance(0.7);
    options.embedding_norm_bias = random.chance(0.5);
    options.scale_embedding = random.chance(0.5);
    attn::TransformerStackOptions& encoder = options.encoder;
    encoder.layer.norm_first = random.chance(0.7);
    encoder.layer.norm_bias = random.chance(0.5);
    encoder.layer.norm_behind = random.chance(0.3);
    encoder.layer.gated = encoder.layer.joint_gate = random.chance(0.5);
    encoder.norm = random.chance(0.5);
    if (random.chance(0.3)) encoder.num_groups = 2;
    encoder.first_norm = !encoder.layer.norm_first || encoder.num_groups > 0 || random.chance(0.3);
    encoder.windows = {-1, 1, 2};
    encoder.layer.attention.symmetric_window = random.chance(0.7);
    if (n % 2 == 0) {
      options.positions = attn::Positions::none;
      encoder.rotary = {attn::RotaryOptions{.theta = 100, .max_positions = 7},
                        attn::RotaryOptions{.theta = 10, .max_positions = 7}};
    } else {
      encoder.relative_buckets = 4;
      encoder.relative_max_distance = 3;
    }
    attn::Bert<double> model(options);
    draw_parameters(random, model);
    const auto ids = draw_ids(random, 2, 5, 7);
    const Tensor2<attn::index_t> positions({2, 5}, {0, 1, 2, 3, 4, 2, 4, 3, 6, 5});
    const attn::BertCall call{.position_ids = positions};
    Tensor3<double> out({2, 5, 8});
    const auto d = random.tensor<double, 3>(out.shape());
    attn::BertSaved<double> saved, other;
    saved.dropout = other.dropout = {.seed = 3, .step = random.integer(1, 9)};
    saved.encoder.recompute = random.chance(0.3);
    auto gradients = attn::gradients_of(model);
    attn::forward(model, ids, out, saved, {}, call);
    if (options.hidden_dropout_prob == 0) {
      EXPECT_LT(attn::max_abs_difference(model(ids, {}, call), out), 1e-12) << n;
    }
    attn::backward(model, d, saved, gradients, {}, call);
    expect_module_gradients(random, model, gradients, [&] {
      attn::forward(model, ids, out, other, {}, call);
      return weighted_sum(d.elements(), out.elements());
    });
  }
}

TEST(Seq2SeqBackward, AgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < 10; ++n) {
    Random random(n);
    attn::Seq2SeqOptions options{.src_vocab_size = 7,
                                 .tgt_vocab_size = 9,
                                 .transformer = {.layer = layer(random),
                                                 .num_encoder_layers = 1,
                                                 .num_decoder_layers = 2,
                                                 .norm = random.chance(0.5)},
                                 .positions = attn::Positions::learned,
                                 .max_positions = 8,
                                 .embedding_norm = random.chance(0.5),
                                 .tied = random.chance(0.5),
                                 .pad_id = 0};
    if (n >= 6) {  // as T5
      options.positions = attn::Positions::none;
      options.output_scale = 0.6;
      options.pad_target = false;
      options.transformer.num_encoder_layers = 2;
      options.transformer.relative_buckets = 4 + 2 * random.integer(0, 2);
      options.transformer.relative_max_distance = 5;
      attn::TransformerLayerOptions& layer = options.transformer.layer;
      layer.bias = false;
      layer.gated = random.chance(0.5);
      layer.norm = attn::NormKind::rms;
      layer.norm_first = true;
      layer.attention.scale = 1;
      layer.attention.head_dim = 3;
    }
    attn::Seq2SeqTransformer<double> model(options);
    draw_parameters(random, model);
    const auto src = draw_ids(random, 2, 6, 7), tgt = draw_ids(random, 2, 5, 9);
    Tensor3<double> logits({2, 5, 9});
    const auto d = random.tensor<double, 3>(logits.shape());
    attn::Seq2SeqSaved<double> saved, other;
    saved.dropout = other.dropout = {.seed = 3, .step = random.integer(1, 9)};
    saved.transformer.encoder.recompute = saved.transformer.decoder.recompute = n % 2 == 1;
    auto gradients = attn::gradients_of(model);
    attn::forward(model, src, tgt, logits, saved);
    attn::backward(model, d, saved, gradients);
    expect_module_gradients(random, model, gradients, [&] {
      attn::forward(model, src, tgt, logits, other);
      return weighted_sum(d.elements(), logits.elements());
    });
  }
}

}  // namespace
}  // namespace attn_test
