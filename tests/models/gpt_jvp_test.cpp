// The tangent of Gpt against central differences and backward.
#include "attn/models/gpt_jvp.hpp"

#include <gtest/gtest.h>

#include "support/tangent_check.hpp"
#include "support/tolerance.hpp"

namespace attn_test {
namespace {

TEST(GptJvp, IsTheTransposeOfBackward) {
  using attn::Positions;
  for (std::uint64_t n = 0; n < draws(16); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    attn::GptOptions o;
    o.vocab_size = 11;
    o.max_positions = 8;
    o.num_layers = random.integer(0, 2);
    o.layer = {.d_model = 8, .nhead = 2, .dim_feedforward = 12};
    o.layer.dropout = random.pick<double>({0, 0.1});  // which jvp does not apply
    o.layer.activation = attn::Activation::gelu;
    o.layer.norm_first = true;
    o.positions = random.pick<Positions>({Positions::learned, Positions::sinusoidal});
    if (random.chance(0.4)) {
      o.positions = Positions::none;
      o.layer.attention.rotary = attn::RotaryOptions{.max_positions = 8};
    }
    o.tied = random.chance(0.5);
    o.head_bias = random.chance(0.5);
    if (random.chance(0.4)) o.logit_scale = 0.7;
    if (random.chance(0.4)) o.logit_softcap = 3;
    if (random.chance(0.4)) o.embedding_norm = true;
    attn::Gpt<double> model(o);
    draw_parameters(random, model, 0.5);
    auto tangents = attn::gradients_of(model), gradients = attn::gradients_of(model);
    attn::Tensor2<int> ids({2, 6});
    for (int& id : ids.elements()) id = static_cast<int>(random.integer(0, 10));
    Direction direction;
    direction.add_parameters(random, model, tangents);
    attn::Tensor3<double> logits({2, 6, 11}), d_logits(logits.shape()), y(logits.shape());
    attn::jvp(model, tangents, ids, logits, d_logits);
    EXPECT_EQ(unlike(logits, model(ids)), "");
    expect_tangent(
        direction, [&] { return model(ids); }, d_logits, 1e-5);
    if (o.layer.dropout > 0) continue;
    attn::GptSaved<double> saved;
    const auto w = random.tensor<double, 3>(logits.shape());
    attn::forward(model, ids, y, saved);
    attn::backward(model, w, saved, gradients);
    const double forward = dot(d_logits, w);
    EXPECT_NEAR(forward, dot_parameters(gradients, tangents), 1e-9 * (1 + std::abs(forward)));
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace attn_test
