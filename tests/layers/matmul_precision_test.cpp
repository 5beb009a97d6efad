// MatmulPrecision in layers: forward and backward against the layer in double, and packed weights.
#include <cmath>

#include <gtest/gtest.h>

#include "attn/layers/encoder_layer_backward.hpp"

#include "support/isas.hpp"
#include "support/matmul_bound.hpp"
#include "support/models/parameters.hpp"
#include "support/placed.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::extended_isas;
using attn_test::Random;
using attn_test::same_bits;
using attn_test::ThreadExecutor;
using attn_test::to_array;

constexpr TransformerLayerOptions kLayerOptions{.d_model = 48,
                                                .nhead = 2,
                                                .dim_feedforward = 70,
                                                .activation = Activation::gelu,
                                                .norm_first = true};

/// The output of a layer, its d_x, and the gradients of its parameters.
template <class T>
struct LayerRun {
  Tensor3<T> out, d_x;
  EncoderLayer<T> gradients{kLayerOptions};

  LayerRun(const EncoderLayer<T>& layer, const Tensor3<T>& x, const Tensor3<T>& d_out,
           const Execution& execution)
      : out(x.shape()), d_x(x.shape()) {
    gradients.visit_parameters(
        [](std::string_view, const auto& view) { std::fill_n(view.data(), view.size(), T{0}); });
    EncoderLayerSaved<T> saved;
    const AttentionOptions<T> options{.execution = execution};
    forward<T>(layer, x, out, saved, options);
    backward<T>(layer, d_out, saved, d_x, gradients, options);
  }

  std::map<std::string, Array<T>> results() const {
    auto all = attn_test::parameters_of<T>(gradients);
    all["out"] = to_array(out);
    all["d_x"] = to_array(d_x);
    return all;
  }
};

template <class T>
Tensor3<T> in_type(const Tensor3<float>& x) {
  Tensor3<T> result(x.shape());
  std::copy_n(x.data(), x.size(), result.data());
  return result;
}

/// |found - exact| / |exact|, lengths of vectors.
double relative_error(const Array<float>& found, const Array<double>& exact) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < exact.data.size(); ++i) {
    const double off = double{found.data.at(i)} - exact.data[i];
    error += off * off;
    size += exact.data[i] * exact.data[i];
  }
  return std::sqrt(error / size);
}

TEST(MatmulPrecisionOfLayers, ForwardAndBackwardAgreeWithDouble) {
  Random random(1);
  const auto layer = attn_test::random_module<EncoderLayer<float>>(random, kLayerOptions);
  EncoderLayer<double> exact_layer(kLayerOptions);
  const auto parameters = attn_test::parameters_of<double>(layer);
  exact_layer.visit_parameters([&](std::string_view name, const auto& view) {
    std::ranges::copy(parameters.at(std::string(name)).data, view.data());
  });
  const auto x = random.tensor<float, 3>({2, 40, 48}), d_out = random.tensor<float, 3>({2, 40, 48});
  const auto exact =
      LayerRun<double>(exact_layer, in_type<double>(x), in_type<double>(d_out), {}).results();
  const ThreadExecutor threads(3);
  for (Isa isa : extended_isas()) {
    for (MatmulPrecision precision :
         {MatmulPrecision::highest, MatmulPrecision::high, MatmulPrecision::medium}) {
      const Execution execution{.isa = isa, .matmul_precision = precision};
      // The share that a product may be off (docs/precision.md), for the dozen products of a step.
      const double bound = 1e-5 + 12 * attn_test::matmul_bound(execution.matmul_precision_used());
      const auto found = LayerRun<float>(layer, x, d_out, execution).results();
      const auto threaded =
          LayerRun<float>(layer, x, d_out,
                          {.executor = &threads, .isa = isa, .matmul_precision = precision})
              .results();
      ASSERT_EQ(found.size(), exact.size());
      for (const auto& [what, values] : exact) {
        EXPECT_LE(relative_error(found.at(what), values), bound)
            << what << ", " << name(precision) << " on " << name(isa);
        EXPECT_TRUE(same_bits(found.at(what), threaded.at(what))) << what;
      }
    }
  }
}

TEST(MatmulPrecisionOfLayers, PackedWeightsServeTheirPrecision) {
  Random random(2);
  const auto layer = attn_test::random_module<EncoderLayer<float>>(random, kLayerOptions);
  const auto x = random.tensor<float, 3>({1, 20, 48});
  for (MatmulPrecision packed_for : {MatmulPrecision::high, MatmulPrecision::medium}) {
    EncoderLayer<float> packed = layer;
    packed.pack(packed_for);
    for (MatmulPrecision precision :
         {MatmulPrecision::highest, MatmulPrecision::high, MatmulPrecision::medium}) {
      const AttentionOptions<float> options{.execution = {.matmul_precision = precision}};
      EXPECT_TRUE(same_bits(to_array(packed(x, options)), to_array(layer(x, options))))
          << name(packed_for) << ", " << name(precision);
    }
  }
}

}  // namespace
}  // namespace attn
