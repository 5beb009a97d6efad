// MultiHeadAttention with output_gate: against the module without it, in caches, and gradients.
#include <gtest/gtest.h>

#include "attn/layers/multi_head_attention_backward.hpp"

#include "support/error_of.hpp"
#include "support/models/module_gradients.hpp"
#include "support/models/parameters.hpp"
#include "support/tolerance.hpp"

namespace attn_test {
namespace {

using attn::causal, attn::MultiHeadAttention, attn::MultiHeadAttentionOptions, attn::Tensor3;

MultiHeadAttentionOptions draw_gated(Random& random) {
  MultiHeadAttentionOptions o;
  o.embed_dim = random.integer(1, 12);
  o.num_kv_heads = random.integer(1, 2);
  o.num_heads = o.num_kv_heads * random.integer(1, 3);
  o.head_dim = 2 * random.integer(1, 4);
  if (random.chance(0.5)) o.head_dim_v = random.integer(1, 7);
  o.in_proj_bias = random.chance(0.5);
  o.out_proj_bias = random.chance(0.5);
  o.output_projection = random.chance(0.8);
  if (random.chance(0.5)) o.query_key_norm = attn::NormKind::rms;
  if (random.chance(0.5)) o.rotary = attn::RotaryOptions{.max_positions = 64};
  o.separate_in_proj = random.chance(0.5);
  o.output_gate = true;
  return o;
}

/// The module without the gate and output projection, times sigmoid(gate), projected, in double.
template <class T>
Tensor3<double> reference(MultiHeadAttention<T> gated, const Tensor3<T>& x) {
  MultiHeadAttentionOptions options = gated.options();
  const Index heads = options.num_heads, dim = options.head_dim, dim_v = options.head_dim_v,
              rows = dim + dim_v;
  options.output_gate = options.output_projection = false;
  MultiHeadAttention<double> plain(options);
  const auto at = [&](Index n) { return n / dim * rows + n % dim; };
  for (Index n = 0; n < heads * dim; ++n) {
    for (Index k = 0; k < options.embed_dim; ++k) {
      plain.q_weight()(n, k) = gated.q_weight()(at(n), k);
    }
    if (gated.q_bias()) plain.q_bias()(n) = gated.q_bias()(at(n));
  }
  const auto give = [&](auto from, auto to) {
    for (Index i = 0; i < from.size(); ++i) to.data()[i] = static_cast<double>(from.data()[i]);
  };
  give(gated.k_weight(), plain.k_weight());
  give(gated.v_weight(), plain.v_weight());
  if (gated.k_bias()) {
    give(gated.k_bias(), plain.k_bias());
    give(gated.v_bias(), plain.v_bias());
  }
  if (options.query_key_norm) {
    give(gated.q_norm().weight.view(), plain.q_norm().weight.view());
    give(gated.k_norm().weight.view(), plain.k_norm().weight.view());
  }
  Tensor3<double> wide(x.shape());
  give(x.view(), wide.view());
  Tensor3<double> context = plain(wide, {.mask = causal()});
  const bool projects = gated.options().output_projection;
  Tensor3<double> out({x.extent(0), x.extent(1), gated.out_dim()});
  for (Index b = 0; b < x.extent(0); ++b) {
    for (Index i = 0; i < x.extent(1); ++i) {
      for (Index n = 0; n < heads * dim_v; ++n) {
        const Index row = n / dim_v * rows + dim + n % dim_v;
        double gate = gated.q_bias() ? static_cast<double>(gated.q_bias()(row)) : 0;
        for (Index k = 0; k < options.embed_dim; ++k) {
          gate += static_cast<double>(gated.q_weight()(row, k)) * wide(b, i, k);
        }
        context(b, i, n) /= 1 + std::exp(-gate);
        if (!projects) out(b, i, n) = context(b, i, n);
      }
      for (Index m = 0; projects && m < out.extent(2); ++m) {
        const auto& layer = gated.out_proj();
        double sum = layer.bias ? static_cast<double>(layer.bias(m)) : 0;
        for (Index n = 0; n < heads * dim_v; ++n) {
          sum += static_cast<double>(layer.weight(m, n)) * context(b, i, n);
        }
        out(b, i, m) = sum;
      }
    }
  }
  return out;
}

/// Tolerance: five successive sums of at most 64 products, relative to the largest result.
template <class T>
void expect_definition(Random& random) {
  auto module = random_module<MultiHeadAttention<T>>(random, draw_gated(random));
  if (random.chance(0.5)) module.pack();
  const Index seq = random.integer(1, 20);
  const auto x = random.tensor<T, 3>({random.integer(1, 3), seq, module.options().embed_dim});
  const auto expected = reference(module, x);
  expect_within(5 * 64, module(x, {.mask = causal()}), expected);
  // In pieces, by a cache.
  auto cache = module.make_cache(x.extent(0), seq);
  Tensor3<T> pieces({x.extent(0), seq, module.out_dim()});
  for (Index begin = 0, end = 0; begin < seq; begin = end) {
    end = random.integer(begin + 1, seq);
    const auto part = attn::const_view(x).slice(1, begin, end);
    module.forward(part, part, part, pieces.view().slice(1, begin, end), {.mask = causal()},
                   {.cache = &cache});
  }
  expect_within(5 * 64, pieces, expected);
}

TEST(OutputGate, MultipliesHeadsBySigmoids) {
  for (std::uint64_t n = 0; n < draws(80); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    expect_definition<double>(random);
    expect_definition<float>(random);
    if (HasFailure()) return;
  }
}

TEST(OutputGate, GradientsAgreeWithCentralDifferences) {
  for (std::uint64_t n = 0; n < draws(40); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    auto module = random_module<MultiHeadAttention<double>>(random, draw_gated(random));
    auto x = random.tensor<double, 3>({2, random.integer(1, 6), module.options().embed_dim});
    attn::MultiHeadAttentionSaved<double> saved, other;
    Tensor3<double> out({2, x.extent(1), module.out_dim()}), d_x(x.shape());
    const auto d = random.tensor<double, 3>(out.shape());
    const attn::AttentionOptions<double> options{.mask = causal()};
    const auto loss = [&] {
      attn::forward(module, x, x, x, out, other, options);
      return weighted_sum(d.elements(), out.elements());
    };
    auto gradients = attn::gradients_of(module);
    attn::forward(module, x, x, x, out, saved, options);
    expect_within(5 * 64, out, reference(module, x));
    attn::backward(module, d, saved, {.d_query = d_x}, gradients, options);
    expect_gradient("x", random, x.elements(), d_x.elements(), loss);
    expect_module_gradients(random, module, gradients, loss);
    if (HasFailure()) break;
  }
}

TEST(OutputGate, IsRefusedWithWhatItDoesNotFit) {
  MultiHeadAttentionOptions o{.embed_dim = 4, .num_heads = 2, .clip_qkv = 1, .output_gate = true};
  const auto error = [&] {
    return error_of<attn::ValueError>([&] { MultiHeadAttention<float> module(o); });
  };
  EXPECT_TRUE(contains(error(), "[MultiHeadAttention] output_gate must be false with clip_qkv"));
  o.clip_qkv = 0;
  o.query_key_norm = attn::NormKind::rms;
  o.query_key_norm_of_all_heads = true;
  EXPECT_TRUE(contains(error(), "or query_key_norm_of_all_heads"));
}

}  // namespace
}  // namespace attn_test
