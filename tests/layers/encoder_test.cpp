// Encoder: stacks against composed references, whole and step by step, by PyTorch's names.
#include "attn/layers/encoder.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/reference_transformer.hpp"
#include "support/steps.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::available_isas;
using attn_test::by_steps;
using attn_test::counted_positions;
using attn_test::difference;
using attn_test::error_of;
using attn_test::Order;
using attn_test::Random;
using attn_test::ReferenceOptions;
using attn_test::ReferenceTransformer;
using attn_test::to_array;

constexpr index_t kBatch = 2, kTgt = 9;

TransformerStackOptions options_of(bool pre) {
  return {
      .num_layers = 3,
      .layer = {.d_model = 16,
                .nhead = 4,
                .dim_feedforward = 20,
                .activation = Activation::silu,
                .norm_first = pre,
                .gated = pre,
                .norm = pre ? NormKind::rms : NormKind::layer,
                .attention = {.num_kv_heads = 2, .rotary = RotaryOptions{.max_positions = kTgt}}},
      .norm = pre};
}

TEST(Encoder, IsItsLayersWholeAndStepByStep) {
  Random random(1);
  for (const bool pre : {false, true}) {
    Encoder<float> encoder(options_of(pre));
    attn_test::randomize(encoder, random);
    const auto x = random.tensor<float, 3>({kBatch, kTgt, 16});
    ReferenceOptions masks;
    masks.causal = true;
    const auto reference = [&]<class W>(W, Order order) {
      return ReferenceTransformer<W>{attn_test::parameters_of<W>(encoder), options_of(pre).layer,
                                     order, counted_positions(kBatch, kTgt)}
          .encoder("", to_array(x).template as<W>(), masks);
    };
    const auto exact = reference(double{}, Order::forward);
    const double bound = attn_test::module_bound<float>(reference, exact);
    for (Isa isa : available_isas()) {
      const AttentionOptions<float> on{.mask = causal(), .execution = {.isa = isa}};
      EXPECT_EQ(difference(to_array(encoder(x, on)), exact, bound, isa, "whole"), "");
      Tensor3<float> in_place = x;
      encoder.forward(in_place, in_place, on);
      EXPECT_EQ(to_array(in_place).data, to_array(encoder(x, on)).data);
      auto caches = encoder.make_caches(kBatch, kTgt);
      const auto steps = by_steps(
          x, [&](const Tensor3<float>& rows, bool) { return encoder(rows, on, {}, caches); });
      EXPECT_EQ(difference(steps, exact, bound, isa, "steps"), "");
    }
  }
}

/// A ring of the window's keys gives what the window over all keys shows.
TEST(Encoder, WindowedCacheIsTheWindowOverAll) {
  Random random(2);
  Encoder<float> encoder(options_of(true));
  attn_test::randomize(encoder, random);
  const auto x = random.tensor<float, 3>({kBatch, kTgt, 16});
  const AttentionOptions<float> on{.mask = causal() & sliding_window(2, 0)};
  const auto whole = to_array(encoder(x, on));
  auto caches = encoder.make_caches(kBatch, 5, 2);
  const auto steps = by_steps(x, [&](const Tensor3<float>& rows, bool) {
    if (rows.extent(1) <= 3) return encoder(rows, on, {}, caches);
    Tensor3<float> y(rows.shape());  // more than there is room for at once
    for (index_t i = 0; i < rows.extent(1); ++i) {
      const Tensor3<float> row = encoder(rows.view().slice(1, i, i + 1), on, {}, caches);
      copy<float, 3>(row.view(), y.view().slice(1, i, i + 1));
    }
    return y;
  });
  EXPECT_EQ(difference(steps, whole, 64 * attn_test::epsilon<float> * attn_test::max_abs(whole),
                       active_isa(), "steps"),
            "");
}

template <class Module>
std::vector<std::string> names_of(const Module& module) {
  std::vector<std::string> names;
  module.visit_parameters([&](std::string_view name, auto) { names.emplace_back(name); });
  return names;
}

TEST(Encoder, ParametersByPyTorchsNames) {
  const TransformerStackOptions options{
      .num_layers = 2, .layer = {.d_model = 4, .nhead = 2, .bias = false}, .norm = true};
  EXPECT_EQ(names_of(Encoder<float>(options)),
            (std::vector<std::string>{
                "layers.0.self_attn.in_proj_weight", "layers.0.self_attn.out_proj.weight",
                "layers.0.linear1.weight", "layers.0.linear2.weight", "layers.0.norm1.weight",
                "layers.0.norm2.weight", "layers.1.self_attn.in_proj_weight",
                "layers.1.self_attn.out_proj.weight", "layers.1.linear1.weight",
                "layers.1.linear2.weight", "layers.1.norm1.weight", "layers.1.norm2.weight",
                "norm.weight"}));
}

TEST(Encoder, WithoutLayersIsItsNorm) {
  Random random(4);
  const auto x = random.tensor<float, 3>({1, 3, 4});
  EXPECT_EQ(to_array(Encoder<float>({.num_layers = 0})(x)).data, to_array(x).data);
  EXPECT_EQ(
      to_array(Encoder<float>({.num_layers = 0, .layer = {.d_model = 4}, .norm = true})(x)).data,
      to_array(LayerNorm<float>(4)(x)).data);
}

TEST(EncoderErrors, CachesAndShapes) {
  const Encoder<float> encoder({.num_layers = 2, .layer = {.d_model = 4, .nhead = 2}});
  const Tensor3<float> x({1, 3, 4});
  Tensor3<float> wrong({1, 3, 5}), y({1, 3, 4});
  EXPECT_EQ(error_of<ShapeError>([&] { encoder.forward(x, wrong); }),
            "[Encoder] out must have shape (1, 3, 4); found (1, 3, 5).");
  auto caches = encoder.make_caches(1, 2);
  EXPECT_THROW(encoder.forward(x, y, {}, {}, caches), ValueError);  // room for 2 only
  caches.pop_back();
  EXPECT_EQ(error_of<ValueError>([&] { encoder.forward(x, y, {}, {}, caches); }),
            "[Encoder] caches must number one per layer, 2; found 1.");
}

}  // namespace
}  // namespace attn
