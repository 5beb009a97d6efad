// MultiHeadAttention: random modules and calls against composed references.
#include "attn/layers/multi_head_attention.hpp"

#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/draws/attention_draw.hpp"
#include "support/isas.hpp"
#include "support/references/reference_layers.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::available_isas;
using attn_test::difference;
using attn_test::Index;
using attn_test::LibraryOptions;
using attn_test::max_abs;
using attn_test::Order;
using attn_test::Random;
using attn_test::reference_add;
using attn_test::reference_average_heads;
using attn_test::reference_multi_head_attention;
using attn_test::ReferenceHeads;
using attn_test::ReferenceOptions;
using attn_test::ReferenceResult;
using attn_test::to_array;
using attn_test::twice_naive;
using attn_test::Wider;

template <class T>
class MultiHeadAttentionTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(MultiHeadAttentionTest, Types);

/// Random parameters scaled by fan-in.
template <class T>
MultiHeadAttention<T> normal_module(Random& random, const MultiHeadAttentionOptions& options) {
  MultiHeadAttention<T> module(options);
  module.visit_parameters([&]<int Rank>(std::string_view, TensorView<T, Rank> p) {
    const double scale = 1 / std::sqrt(static_cast<double>(p.extent(Rank - 1)));
    for (index_t i = 0; i < p.size(); ++i) p.data()[i] = static_cast<T>(scale * random.normal());
  });
  return module;
}

template <class T>
ReferenceHeads<T> parameters_of(MultiHeadAttention<T>& module) {
  ReferenceHeads<T> heads;
  const auto& o = module.options();
  heads.num_heads = o.num_heads;
  heads.num_kv_heads = o.num_kv_heads;
  heads.wq = to_array(module.q_weight());
  heads.wk = to_array(module.k_weight());
  heads.wv = to_array(module.v_weight());
  if (o.bias) {
    heads.bq = to_array(module.q_bias());
    heads.bk = to_array(module.k_bias());
    heads.bv = to_array(module.v_bias());
  }
  module.visit_parameters([&]<int Rank>(std::string_view name, TensorView<T, Rank> p) {
    if (name == "bias_k") heads.bias_k = to_array(p);
    if (name == "bias_v") heads.bias_v = to_array(p);
  });
  heads.add_zero_attn = o.add_zero_attn;
  if (o.output_projection) {
    heads.wo = to_array(module.out_proj().weight);
    if (o.bias) heads.bo = to_array(module.out_proj().bias);
  }
  return heads;
}

template <class W, class T>
ReferenceHeads<W> as(const ReferenceHeads<T>& h) {
  const auto to = [](const Array<T>& x) { return x.template as<W>(); };
  return {.num_heads = h.num_heads,
          .wq = to(h.wq),
          .wk = to(h.wk),
          .wv = to(h.wv),
          .bq = to(h.bq),
          .bk = to(h.bk),
          .bv = to(h.bv),
          .bias_k = to(h.bias_k),
          .bias_v = to(h.bias_v),
          .add_zero_attn = h.add_zero_attn,
          .wo = to(h.wo),
          .bo = to(h.bo),
          .num_kv_heads = h.num_kv_heads};
}

MultiHeadAttentionOptions random_options(Random& random) {
  MultiHeadAttentionOptions o;
  o.num_kv_heads = random.integer(1, 3);
  o.num_heads = o.num_kv_heads * random.integer(1, 2);
  o.embed_dim = o.num_heads * random.integer(1, 12);
  o.bias = random.chance(0.7);
  if (random.chance(0.3)) o.kdim = random.integer(1, 40), o.vdim = random.integer(1, 40);
  o.add_bias_kv = random.chance(0.25);
  o.add_zero_attn = random.chance(0.25);
  if (random.chance(0.3)) o.head_dim = random.integer(1, 20), o.head_dim_v = random.integer(1, 20);
  o.output_projection = random.chance(0.8);
  if (random.chance(0.2)) o.scale = random.normal();
  return o;
}

/// Masks over (batch, heads, q_len, kv_len), except those that appended keys do not support.
ReferenceOptions random_masks(Random& random, const Shape<4>& scores, bool appended) {
  ReferenceOptions options;
  using Kind = ReferenceOptions::Mask::Kind;
  if (random.chance(0.5)) {
    options.masks.push_back({Kind::drop, random.bits({scores[0], 1, 1, scores[3]}, 0.3)});
  }
  if (random.chance(0.4)) {
    auto bias = random.array<double>({1, scores[1], scores[2], scores[3]});
    for (double& x : bias.data) x = static_cast<double>(static_cast<float>(x));
    options.masks.push_back({Kind::add, bias});
  }
  if (!appended && random.chance(0.4)) options.causal = true;
  if (!appended && random.chance(0.3)) {
    for (Index b = 0; b < scores[0]; ++b) {
      options.key_lengths.push_back(random.integer(0, scores[3]));
    }
  }
  return options;
}

TYPED_TEST(MultiHeadAttentionTest, RandomModulesAndCalls) {
  using T = TypeParam;
  using W = Wider<T>;
  for (std::uint64_t draw = 0; draw < attn_test::draws(120); ++draw) {
    Random random(draw);
    auto module = normal_module<T>(random, random_options(random));
    const MultiHeadAttentionOptions& o = module.options();
    const bool self = o.kdim == o.embed_dim && o.vdim == o.embed_dim && random.chance(0.5);
    const Index batch = random.integer(1, 3), q_len = random.integer(1, 20);
    const Index kv_len = self ? q_len : random.integer(1, 30);
    const Index keys = kv_len + module.appended_keys();
    const auto q = random.array<T>({batch, q_len, o.embed_dim});
    const auto k = self ? q : random.array<T>({batch, kv_len, o.kdim});
    const auto v = self ? q : random.array<T>({batch, kv_len, o.vdim});
    const auto residual =
        random.chance(0.4) ? random.array<T>({batch, q_len, module.out_dim()}) : Array<T>();
    auto options =
        random_masks(random, {batch, o.num_heads, q_len, kv_len}, module.appended_keys() > 0);
    options.mean_of_masked_row = random.chance(0.3);
    options.scale = o.scale;
    SCOPED_TRACE(random.trace());

    const auto heads = parameters_of(module);
    auto exact = reference_multi_head_attention(as<W>(heads), q.template as<W>(),
                                                k.template as<W>(), v.template as<W>(), options);
    if (residual) exact.y = reference_add(exact.y, residual.template as<W>());
    std::map<Order, ReferenceResult<T>> naive;
    for (Order order : attn_test::kOrders) {
      naive[order] = reference_multi_head_attention(heads, q, k, v, options, order);
      if (residual) naive[order].y = reference_add(naive[order].y, residual);
    }
    const double y_bound = twice_naive([&](Order order) { return naive[order].y; }, exact.y);
    const double weights_bound =
        twice_naive([&](Order order) { return naive[order].weights; }, exact.weights);
    const LibraryOptions<T> library(options);
    for (Isa isa : available_isas()) {
      Array<T> y({batch, q_len, module.out_dim()}), weights({batch, o.num_heads, q_len, keys}),
          average({batch, q_len, keys});
      AttentionOptions<T> call = library.get();
      call.scale = {};  // the scale of the module
      call.execution = {.isa = isa};
      MultiHeadAttentionCall<T> module_call;
      if (residual) module_call.residual = residual.template view<3>();
      const int wanted = static_cast<int>(random.integer(0, 3));
      if (wanted & 1) call.weights = weights.template view<4>();
      if (wanted & 2) call.average_weights = average.template view<3>();
      const auto qv = static_cast<const Array<T>&>(q).template view<3>();
      module.forward(qv, self ? qv : k.template view<3>(), self ? qv : v.template view<3>(),
                     y.template view<3>(), call, module_call);
      ASSERT_EQ(difference(y, exact.y, y_bound, isa, "y"), "");
      if (wanted & 1) {
        ASSERT_EQ(difference(weights, exact.weights, weights_bound, isa, "weights"), "");
      }
      if (wanted & 2) {
        const auto mean = reference_average_heads(exact.weights);
        ASSERT_EQ(difference(average, mean, weights_bound, isa, "average"), "");
      }
    }
  }
}

TYPED_TEST(MultiHeadAttentionTest, IsTheCompositionOfFreeFunctions) {
  using T = TypeParam;
  Random random(1);
  auto module = normal_module<T>(random, {.embed_dim = 24, .num_heads = 4});
  const auto query = random.tensor<T, 3>({2, 7, 24}), key = random.tensor<T, 3>({2, 9, 24});
  for (Isa isa : available_isas()) {
    const Execution on{.isa = isa};
    const auto project = [&](const Tensor3<T>& x, auto weight, auto bias) {
      return linear(x, weight, bias, Activation::none, on);
    };
    const Tensor3<T> q = project(query, module.q_weight(), module.q_bias());
    const Tensor3<T> k = project(key, module.k_weight(), module.k_bias());
    const Tensor3<T> v = project(key, module.v_weight(), module.v_bias());
    const auto context = combine_heads(scaled_dot_product_attention(
        split_heads(q, 4), split_heads(k, 4), split_heads(v, 4), {.execution = on}));
    const auto composed = module.out_proj()(context, Activation::none, on);
    const auto y = module(query, key, key, {.execution = on});
    EXPECT_EQ(difference(to_array(y), to_array(composed),
                         32 * attn_test::epsilon<T> * max_abs(to_array(composed)), isa),
              "");
  }
}

TYPED_TEST(MultiHeadAttentionTest, SelfAttentionFormAndResidualInPlace) {
  using T = TypeParam;
  Random random(2);
  const auto module = normal_module<T>(random, {.embed_dim = 12, .num_heads = 3});
  const auto x = random.tensor<T, 3>({2, 5, 12});
  const auto y = module(x);
  EXPECT_EQ(to_array(y).data, to_array(module(x, x, x)).data);
  Tensor3<T> sum = x;  // both residual and output; x is only read
  module.forward(x, x, x, sum, {}, {.residual = sum});
  EXPECT_EQ(difference(to_array(sum), reference_add(to_array(y), to_array(x)),
                       8 * attn_test::epsilon<T> * (1 + max_abs(to_array(sum))), active_isa()),
            "");
}

TYPED_TEST(MultiHeadAttentionTest, SameBitsFromManyThreadsAndOnAnyExecutor) {
  using T = TypeParam;
  Random random(3);
  const auto module = normal_module<T>(random, {.embed_dim = 64, .num_heads = 4});
  const auto x = random.tensor<T, 3>({4, 50, 64});
  for (Isa isa : available_isas()) {
    const SerialExecutor serial;
    const auto expected = to_array(module(x, {.execution = {.executor = &serial, .isa = isa}}));
    for (int workers : {2, 5}) {
      const attn_test::ThreadExecutor executor(workers);
      EXPECT_TRUE(same_bits(to_array(module(x, {.execution = {.executor = &executor, .isa = isa}})),
                            expected));
    }
    std::vector<int> same(6);
    std::vector<std::thread> threads;
    for (int& result : same) {
      threads.emplace_back([&] {
        result = same_bits(to_array(module(x, {.execution = {.executor = &serial, .isa = isa}})),
                           expected);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(same, std::vector<int>(6, 1)) << name(isa);
  }
}

}  // namespace
}  // namespace attn
