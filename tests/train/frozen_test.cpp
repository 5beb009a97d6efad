// Frozen parameters: no gradients, and no other changes.
#include <concepts>
#include <functional>
#include <map>

#include <gtest/gtest.h>

#include "attn/train.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/models/module_gradients.hpp"
#include "support/models/parameters.hpp"
#include "support/models/small_run.hpp"
#include "support/tolerance.hpp"

namespace attn_test {
namespace {

using attn::index_t, attn::Tensor2, attn::Tensor3;

/// Gradients of randomly selected parameters compared with those of all: `backward_of(gradients)`
/// runs backward. The selected ones have the same bits, the others are absent.
template <class Module, class Backward>
void expect_only_trained(Random& random, Module& module, Backward backward_of) {
  std::map<std::string, bool> drawn;
  for (const std::string& name : names_of(module)) drawn[name] = random.chance(0.5);
  drawn.begin()->second = true;
  const auto trained = [&](std::string_view name) { return drawn.at(std::string(name)); };
  Module all = attn::gradients_of(module), some = attn::gradients_of(module, trained);
  backward_of(all);
  backward_of(some);
  const auto expected = parameters_of<double>(all), got = parameters_of<double>(some);
  for (const auto& [name, gradient] : got) {
    EXPECT_EQ(difference(gradient, expected.at(name), 0, attn::active_isa(), name), "");
  }
  for (const auto& [name, is_trained] : drawn) {
    // Gate and up of a gated unit are one tensor, as are q, k and v with separate names.
    const bool may_be_part =
        name.find("q_proj_") != std::string::npos || name.find("k_proj_") != std::string::npos ||
        name.find("v_proj_") != std::string::npos || name.find("gate_proj") != std::string::npos ||
        name.find("up_proj") != std::string::npos;
    if (is_trained || !may_be_part) {
      EXPECT_EQ(got.contains(name), is_trained) << name << ", " << random.trace();
    }
  }
  const auto parameters = attn::parameters_of<double>(module, some);
  ASSERT_EQ(parameters.size(), got.size());
  for (const auto& parameter : parameters) {
    EXPECT_EQ(static_cast<std::size_t>(parameter.size), got.at(parameter.name).data.size());
  }
  // A step changes only them.
  const auto before = parameters_of<double>(module);
  attn::Adam<double>(parameters).step(0.1);
  for (const auto& [name, value] : parameters_of<double>(module)) {
    const auto at = got.find(name);
    const bool moves =
        at != got.end() && std::ranges::any_of(at->second.data, [](double g) { return g != 0; });
    EXPECT_EQ(value.data != before.at(name).data, moves) << name << ", " << random.trace();
  }
}

Tensor2<index_t> draw_ids_below(Random& random, index_t seq, index_t vocab) {
  Tensor2<index_t> ids({2, seq});
  for (index_t& id : ids.elements()) id = random.integer(0, vocab - 1);
  return ids;
}

TEST(Frozen, HaveNoGradientInGpt) {
  for (std::uint64_t n = 0; n < attn_test::draws(20); ++n) {
    Random random(n);
    attn::MultiHeadAttentionOptions attention;
    attention.separate_in_proj = random.chance(0.5);
    if (random.chance(0.5)) attention.query_key_norm = attn::NormKind::layer;
    attn::Gpt<double> model({.vocab_size = 7,
                             .num_layers = 2,
                             .layer = {.d_model = 8,
                                       .nhead = 2,
                                       .dim_feedforward = 12,
                                       .dropout = 0,
                                       .norm_first = random.chance(0.5),
                                       .bias = random.chance(0.7),
                                       .gated = random.chance(0.5),
                                       .attention = attention},
                             .max_positions = 6,
                             .tied = random.chance(0.5)});
    draw_parameters(random, model);
    const auto ids = draw_ids_below(random, 5, 7);
    Tensor3<double> logits({2, 5, 7});
    const auto d = random.tensor<double, 3>(logits.shape());
    attn::GptSaved<double> saved;
    attn::forward(model, ids, logits, saved);
    expect_only_trained(random, model,
                        [&](auto& gradients) { attn::backward(model, d, saved, gradients); });
  }
}

TEST(Frozen, HaveNoGradientInSeq2Seq) {
  for (std::uint64_t n = 0; n < attn_test::draws(20); ++n) {
    Random random(n);
    attn::Seq2SeqTransformer<double> model(
        {.src_vocab_size = 7,
         .tgt_vocab_size = 7,
         .transformer = {.layer = {.d_model = 8, .nhead = 2, .dim_feedforward = 12, .dropout = 0},
                         .num_encoder_layers = 1,
                         .num_decoder_layers = 1,
                         .norm = random.chance(0.5),
                         .relative_buckets = 4},
         .positions = attn::Positions::learned,
         .max_positions = 8,
         .embedding_norm = random.chance(0.5),
         .tied = random.chance(0.5)});
    draw_parameters(random, model);
    const auto src = draw_ids_below(random, 6, 7), tgt = draw_ids_below(random, 5, 7);
    Tensor3<double> logits({2, 5, 7});
    const auto d = random.tensor<double, 3>(logits.shape());
    attn::Seq2SeqSaved<double> saved;
    attn::forward(model, src, tgt, logits, saved);
    expect_only_trained(random, model,
                        [&](auto& gradients) { attn::backward(model, d, saved, gradients); });
  }
}

TEST(Frozen, HaveNoGradientInAttention) {
  for (std::uint64_t n = 0; n < attn_test::draws(20); ++n) {
    Random random(n);
    attn::MultiHeadAttention<double> module({.embed_dim = 8,
                                             .num_heads = 2,
                                             .kdim = random.integer(0, 1) * 6,
                                             .add_bias_kv = random.chance(0.5)});
    draw_parameters(random, module);
    const auto x = random.tensor<double, 3>({2, 5, 8});
    const auto memory = random.tensor<double, 3>({2, 6, module.options().kdim});
    Tensor3<double> y(x.shape()), d_x(x.shape()), d_memory(memory.shape()), d_value({2, 6, 8});
    const auto value = random.tensor<double, 3>(d_value.shape());
    const auto d = random.tensor<double, 3>(x.shape());
    attn::MultiHeadAttentionSaved<double> saved;
    attn::forward(module, x, memory, value, y, saved);
    expect_only_trained(random, module, [&](auto& gradients) {
      attn::backward(module, d, saved,
                     {.d_query = d_x.view(), .d_key = d_memory.view(), .d_value = d_value.view()},
                     gradients);
    });
  }
}

/// The bits of adapters do not depend on which other gradients exist.
TEST(Frozen, AdaptersNeedGradientsOfTheirWeightsAlone) {
  const attn::SerialExecutor one;
  const auto takes = [](std::string_view name) { return name.ends_with("in_proj_weight"); };
  const auto adapters_after = [&](bool frozen) {
    SmallRun run(one);
    attn::Lora<float> lora(run.model, {.rank = 2, .takes = takes});
    auto d_lora = attn::gradients_of(lora);
    const auto adapters = attn::parameters_of<float>(lora, d_lora);
    attn::Adam<float> adam(adapters);
    if (frozen) {
      run.gradients = attn::gradients_of(run.model, takes);
      run.parameters = attn::parameters_of<float>(run.model, run.gradients);
      EXPECT_EQ(run.parameters.size(), 2u);
    }
    for (int n = 0; n < 5; ++n) {
      run.gradient_step();
      attn::clear_gradients(adapters);
      lora.backward(run.gradients, d_lora);
      adam.step(0.01);
      lora.merge(run.model);
    }
    return parameters_of<double>(lora);
  };
  const auto some = adapters_after(true);
  for (const auto& [name, value] : adapters_after(false)) {
    EXPECT_EQ(value.data, some.at(name).data) << name;
  }
}

TEST(Frozen, HalfOfAnAdapterHasTheBitsOfTheWhole) {
  const attn::SerialExecutor one;
  SmallRun run(one);
  attn::Lora<float> lora(run.model, {.rank = 2});
  const auto takes = [](std::string_view name) { return name.ends_with("lora_B.weight"); };
  auto all = attn::gradients_of(lora), some = attn::gradients_of(lora, takes);
  run.gradient_step();
  lora.backward(run.gradients, all);
  lora.backward(run.gradients, some);
  const auto expected = parameters_of<double>(all);
  const auto got = parameters_of<double>(some);
  EXPECT_EQ(2 * got.size(), expected.size());
  for (const auto& [name, gradient] : got) {
    EXPECT_EQ(gradient.data, expected.at(name).data) << name;
  }
}

TEST(Frozen, APoolersBiasTrainsAlone) {
  Random random;
  attn::Bert<double> model({.vocab_size = 7,
                            .hidden_size = 8,
                            .num_hidden_layers = 1,
                            .num_attention_heads = 2,
                            .intermediate_size = 12,
                            .max_position_embeddings = 4,
                            .pooler = true});
  draw_parameters(random, model);
  auto gradients =
      attn::gradients_of(model, [](std::string_view name) { return name == "pooler.bias"; });
  const auto parameters = attn::parameters_of<double>(model, gradients);
  ASSERT_EQ(parameters.size(), 1u);
  EXPECT_EQ(parameters[0].name, "pooler.bias");
  for (const double x : gradients.pooler.bias.elements()) EXPECT_EQ(x, 0.0);
}

/// 16-bit parameters are their rounded masters, after loading, too.
TEST(Frozen, FollowTheirMasters) {
  const TempFolder folder;
  const auto takes = [](std::string_view name) { return name.ends_with("linear1.weight"); };
  struct Mixed {
    attn::Gpt<float> masters{small_gpt()};
    attn::Gpt<attn::bfloat16> model{small_gpt()};
    attn::Gpt<float> gradients;
    std::vector<attn::TrainedParameter<float>> parameters;
    Mixed(std::uint64_t seed, const std::function<bool(std::string_view)>& trained) {
      attn::initialize(masters, {.seed = seed});
      gradients = attn::gradients_of(masters, trained);
      parameters = attn::parameters_of<float>(masters, gradients, model);
    }
    void expect_rounded() const {
      const auto rounded = parameters_of<double>(model);
      for (const auto& [name, value] : parameters_of<float>(masters)) {
        for (std::size_t i = 0; i < value.data.size(); ++i) {
          EXPECT_EQ(rounded.at(name).data[i],
                    static_cast<double>(static_cast<attn::bfloat16>(value.data[i])))
              << name;
        }
      }
    }
  };
  Mixed first(1, takes), second(2, takes);
  first.expect_rounded();
  attn::Adam<float> of_first(first.parameters), of_second(second.parameters);
  attn::save_checkpoint(folder / "run", first.masters, of_first, {});
  attn::load_checkpoint(folder / "run", second.masters, of_second);
  second.expect_rounded();
}

TEST(Frozen, GradientsOfAnotherModelAreRefused) {
  attn::Linear<float> layer(2, 3, false), none;
  EXPECT_EQ(error_of<attn::ValueError>([&] { attn::parameters_of<float>(layer, none); }),
            "[parameters_of] gradients must be gradients_of() the model; found none.");
  auto other = attn::gradients_of(attn::Linear<float>(2, 3));
  EXPECT_EQ(error_of<attn::ValueError>([&] { attn::parameters_of<float>(layer, other); }),
            "[parameters_of] gradients must be gradients_of() the model; found another parameter, "
            "bias.");
}

}  // namespace
}  // namespace attn_test
