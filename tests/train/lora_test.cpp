// Lora: gradients against central differences, merging, files, and interrupted runs.
#include <gtest/gtest.h>

#include "attn/train.hpp"

#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"
#include "support/models/module_gradients.hpp"
#include "support/models/small_run.hpp"

namespace attn_test {
namespace {

using attn::index_t, attn::Lora;

template <class Module>
std::vector<float> elements_of(const Module& module) {
  std::vector<float> all;
  module.visit_parameters([&](std::string_view, const auto& view) {
    all.insert(all.end(), view.data(), view.data() + view.size());
  });
  return all;
}

TEST(Lora, GradientsAgreeWithCentralDifferences) {
  for (std::uint64_t n = 0; n < 6; ++n) {
    Random random(n);
    attn::Gpt<double> model(small_gpt());
    draw_parameters(random, model);
    Lora<double> lora(model, {.rank = random.integer(1, 5), .alpha = 3});
    draw_parameters(random, lora);
    attn::Tensor2<index_t> ids({2, 6});
    for (index_t& id : ids.elements()) id = random.integer(0, 10);
    attn::Tensor3<double> logits({2, 6, 11});
    const auto d = random.tensor<double, 3>(logits.shape());
    const auto loss = [&] {
      lora.merge(model);
      model.forward(ids, logits);
      return weighted_sum(d.elements(), logits.elements());
    };
    loss();
    attn::GptSaved<double> saved;
    auto model_gradients = attn::gradients_of(model);
    auto gradients = attn::gradients_of(lora);
    attn::forward(model, ids, logits, saved);
    attn::backward(model, d, saved, model_gradients);
    lora.backward(model_gradients, gradients);
    expect_module_gradients(random, lora, gradients, loss);
  }
}

TEST(Lora, MergedIsTheModelBesideItsAdaptersAndUnmergedTheModelItself) {
  for (std::uint64_t n = 0; n < attn_test::draws(20); ++n) {
    Random random(n);
    const index_t in = random.integer(1, 40), out = random.integer(1, 40),
                  rank = random.integer(1, 9), rows = random.integer(1, 9);
    attn::Linear<double> layer(in, out);
    draw_parameters(random, layer);
    const auto weight = layer.weight;
    Lora<double> lora(layer, {.rank = rank, .alpha = 5});
    const auto x = random.tensor<double, 2>({rows, in});
    const auto base = layer(x);
    lora.merge(layer);
    EXPECT_TRUE(std::ranges::equal(layer.weight.elements(), weight.elements())) << "B is 0";
    draw_parameters(random, lora);
    attn::Tensor2<double> a({rank, in}), b({out, rank});
    lora.visit_parameters([&]<int Rank>(std::string_view name, attn::TensorView<double, Rank> p) {
      attn::Tensor2<double>& to = name.find("lora_A") != std::string_view::npos ? a : b;
      std::copy_n(p.data(), p.size(), to.data());
    });
    layer.pack();  // merging invalidates the packed copy
    lora.merge(layer);
    const auto merged = layer(x);
    for (index_t r = 0; r < rows; ++r) {
      for (index_t o = 0; o < out; ++o) {
        double sum = base(r, o);
        for (index_t k = 0; k < rank; ++k) {
          double inner = 0;
          for (index_t i = 0; i < in; ++i) inner += x(r, i) * a(k, i);
          sum += 5.0 / static_cast<double>(rank) * inner * b(o, k);
        }
        EXPECT_NEAR(merged(r, o), sum, 1e-12 * (1 + std::abs(sum))) << random.trace();
      }
    }
    lora.unmerge(layer);
    EXPECT_TRUE(std::ranges::equal(layer.weight.elements(), weight.elements()));
  }
}

/// A small run that trains only adapters.
struct AdaptedRun : SmallRun {
  Lora<float> lora{model, {.rank = 4, .alpha = 8, .seed = 2}};
  Lora<float> lora_gradients = attn::gradients_of(lora);
  std::vector<attn::TrainedParameter<float>> adapters =
      attn::parameters_of<float>(lora, lora_gradients);
  attn::Adam<float> adapter_adam{adapters, {}};

  using SmallRun::SmallRun;

  double adapted_step() {
    const double loss = gradient_step();
    attn::clear_gradients(adapters);
    lora.backward(gradients, lora_gradients, execution);
    adapter_adam.step(0.03, execution);
    lora.merge(model, execution);
    return loss;
  }
};

TEST(Lora, IsTrainedAloneAndGoesOnFromACheckpointWithTheSameBits) {
  const TempFolder folder;
  const auto path = folder.path() / "lora.safetensors";
  const attn::SerialExecutor one;
  AdaptedRun run(one), resumed(one);
  const std::vector<float> before = elements_of(run.model);
  std::vector<double> losses;
  for (int n = 0; n < 30; ++n) {
    losses.push_back(run.adapted_step());
    if (n != 9) continue;
    attn::save_checkpoint(path, run.lora, run.adapter_adam,
                          {.step = 10, .batches = run.batches.position()});
  }
  EXPECT_LT(losses.back(), 0.9 * losses.front());
  const auto state = attn::load_checkpoint(path, resumed.lora, resumed.adapter_adam);
  resumed.lora.merge(resumed.model);
  resumed.batches.move_to(state.batches);
  for (std::size_t n = 10; n < 30; ++n) EXPECT_EQ(resumed.adapted_step(), losses[n]);
  EXPECT_EQ(elements_of(resumed.model), elements_of(run.model));

  const std::vector<float> after = elements_of(run.model);
  std::size_t at = 0;
  run.model.visit_parameters([&](std::string_view name, const auto& view) {
    const std::size_t end = at + static_cast<std::size_t>(view.size());
    const bool adapted = name.ends_with("weight") && name.find("norm") == std::string_view::npos &&
                         name.find("embedding") == std::string_view::npos;
    EXPECT_EQ(std::equal(&before[at], before.data() + end, &after[at]), !adapted) << name;
    at = end;
  });
  run.lora.unmerge(run.model);
  EXPECT_EQ(elements_of(run.model), before);
}

TEST(Lora, FilesHavePeftsNames) {
  const TempFolder folder;
  const auto path = folder.path() / "adapter_model.safetensors";
  attn::Bert<float> model({.vocab_size = 9,
                           .hidden_size = 8,
                           .num_hidden_layers = 1,
                           .num_attention_heads = 2,
                           .intermediate_size = 12,
                           .max_position_embeddings = 5});
  attn::initialize(model, {.seed = 3});
  const attn::LoraOptions options{.rank = 2, .takes = [](std::string_view name) {
                                    return name.ends_with("q_proj_weight") ||
                                           name.ends_with("linear1.weight");
                                  }};
  Lora<float> lora(model, options), other(model, options);
  Random random;
  draw_parameters(random, lora);
  attn::save_state_dict(path, lora, {.prefix = "base_model.model.", .rename = attn::bert_name});
  const attn::SafetensorsFile file(path);
  EXPECT_EQ(file.names().size(), 4u);
  EXPECT_TRUE(file.contains("base_model.model.encoder.layer.0.attention.self.query.lora_A.weight"));
  EXPECT_TRUE(file.contains("base_model.model.encoder.layer.0.intermediate.dense.lora_B.weight"));
  attn::load_state_dict(other, file, {.prefix = "base_model.model.", .rename = attn::bert_name});
  EXPECT_EQ(elements_of(other), elements_of(lora));
}

TEST(Lora, ChecksItsArguments) {
  attn::Linear<float> layer(3, 4);
  EXPECT_THROW(Lora<float>(layer, {.rank = 0}), attn::ValueError);
  EXPECT_THROW(Lora<float>(layer, {.alpha = NAN}), attn::ValueError);
  EXPECT_THROW(Lora<float>(layer, {.takes = [](std::string_view) { return false; }}),
               attn::ValueError);
  Lora<float> lora(layer), d = attn::gradients_of(lora);
  attn::Linear<float> narrow(2, 4);
  EXPECT_TRUE(contains(error_of<attn::ShapeError>([&] { lora.merge(narrow); }), "weight"));
  attn::Norm<float> norm(attn::NormKind::layer, 3, 1e-5);
  EXPECT_THROW(lora.unmerge(norm), attn::ValueError);
  EXPECT_THROW(lora.backward(norm, d), attn::ValueError);
}

}  // namespace
}  // namespace attn_test
