// LatentAttention against loops in double, its cache and gradients.
#include <deque>

#include <gtest/gtest.h>

#include "attn/layers/attention/latent_attention_backward.hpp"

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/models/module_gradients.hpp"
#include "support/models/parameters.hpp"
#include "support/thread_executor.hpp"

namespace attn_test {
namespace {

using attn::causal, attn::KvCache, attn::LatentAttention, attn::LatentAttentionOptions;
using attn::Tensor3;

LatentAttentionOptions draw_latent(Random& random) {
  LatentAttentionOptions o;
  o.embed_dim = random.integer(1, 20);
  o.num_heads = random.integer(1, 5);
  if (random.chance(0.5)) o.q_lora_rank = random.integer(1, 12);
  o.kv_lora_rank = random.integer(1, 24);
  o.head_dim = random.integer(1, 9);
  o.rotary_dim = 2 * random.integer(1, 4);
  if (random.chance(0.7)) o.head_dim_v = random.integer(1, 9);
  o.bias = random.chance(0.4);
  if (random.chance(0.3)) o.scale = 0.3;
  if (random.chance(0.8)) {
    o.rotary = attn::RotaryOptions{.max_positions = 300};
    o.rotary->pairs =
        random.pick<attn::RotaryPairs>({attn::RotaryPairs::halves, attn::RotaryPairs::interleaved});
  }
  return o;
}

using Row = std::vector<double>;

template <class T>
Row product(const attn::Linear<T>& layer, const Row& x, Index begin, Index end) {
  Row y;
  for (Index i = begin; i < end; ++i) {
    double sum = layer.bias ? static_cast<double>(layer.bias(i)) : 0;
    for (std::size_t k = 0; k < x.size(); ++k) {
      sum += static_cast<double>(layer.weight(i, static_cast<Index>(k))) * x[k];
    }
    y.push_back(sum);
  }
  return y;
}

template <class T>
Row normed(const attn::Norm<T>& norm, Row x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + norm.eps);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] *= factor * static_cast<double>(norm.weight(static_cast<Index>(i)));
  }
  return x;
}

void turn(const LatentAttentionOptions& o, double* x, Index position) {
  if (!o.rotary) return;
  const Index pairs = o.rotary_dim / 2;
  for (Index j = 0; j < pairs; ++j) {
    const double angle =
        static_cast<double>(position) *
        std::pow(o.rotary->theta, -static_cast<double>(j) / static_cast<double>(pairs));
    const bool halves = o.rotary->pairs == attn::RotaryPairs::halves;
    double &u = x[halves ? j : 2 * j], &v = x[halves ? j + pairs : 2 * j + 1];
    const double turned = u * std::cos(angle) - v * std::sin(angle);
    v = v * std::cos(angle) + u * std::sin(angle);
    u = turned;
  }
}

/// Causal attention by the definition: keys and values of every head from each token's latent.
template <class T>
Tensor3<double> reference(const LatentAttention<T>& m, const Tensor3<T>& x) {
  const LatentAttentionOptions& o = m.options();
  const Index seq = x.extent(1), qk_dim = o.head_dim + o.rotary_dim,
              kv_dim = o.head_dim + o.head_dim_v;
  Tensor3<double> out(x.shape());
  for (Index b = 0; b < x.extent(0); ++b) {
    std::vector<Row> tokens, latents, shared;
    for (Index i = 0; i < seq; ++i) {
      Row token;
      for (Index k = 0; k < o.embed_dim; ++k) token.push_back(static_cast<double>(x(b, i, k)));
      latents.push_back(normed(m.kv_a_norm, product(m.kv_a_proj, token, 0, o.kv_lora_rank)));
      shared.push_back(product(m.kv_a_proj, token, o.kv_lora_rank, o.kv_lora_rank + o.rotary_dim));
      turn(o, shared.back().data(), i);
      tokens.push_back(token);
    }
    for (Index i = 0; i < seq; ++i) {
      const Row from =
          o.q_lora_rank == 0
              ? tokens[static_cast<std::size_t>(i)]
              : normed(m.q_a_norm,
                       product(m.q_a_proj, tokens[static_cast<std::size_t>(i)], 0, o.q_lora_rank));
      Row context;
      for (Index h = 0; h < o.num_heads; ++h) {
        Row q = product(m.q_b_proj, from, h * qk_dim, (h + 1) * qk_dim);
        turn(o, q.data() + o.head_dim, i);
        Row weights, sums(static_cast<std::size_t>(o.head_dim_v));
        double total = 0;
        std::vector<Row> values;
        for (std::size_t j = 0; j <= static_cast<std::size_t>(i); ++j) {
          Row k = product(m.kv_b_proj, latents[j], h * kv_dim, (h + 1) * kv_dim);
          values.emplace_back(k.begin() + o.head_dim, k.end());
          k.resize(static_cast<std::size_t>(o.head_dim));
          k.insert(k.end(), shared[j].begin(), shared[j].end());
          double score = 0;
          for (std::size_t e = 0; e < q.size(); ++e) score += q[e] * k[e];
          weights.push_back(
              std::exp(score * o.scale.value_or(1 / std::sqrt(static_cast<double>(qk_dim)))));
          total += weights.back();
        }
        for (std::size_t j = 0; j < weights.size(); ++j) {
          for (std::size_t e = 0; e < sums.size(); ++e) {
            sums[e] += weights[j] / total * values[j][e];
          }
        }
        context.insert(context.end(), sums.begin(), sums.end());
      }
      const Row y = product(m.out_proj, context, 0, o.embed_dim);
      for (Index k = 0; k < o.embed_dim; ++k) out(b, i, k) = y[static_cast<std::size_t>(k)];
    }
  }
  return out;
}

/// Tolerance: five successive sums of at most 64 products, relative to the largest result.
template <class T, class Expected>
void expect_near(const Tensor3<T>& found, const Expected& expected) {
  double largest = 1;
  for (const auto value : expected.elements()) {
    largest = std::max(largest, std::abs(static_cast<double>(value)));
  }
  const double tolerance = 5 * 64 * std::numeric_limits<T>::epsilon() * largest;
  for (Index i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(found.data()[i]), static_cast<double>(expected.data()[i]),
                tolerance)
        << i;
  }
}

template <class T>
void expect_definition(Random& random, attn::Isa isa) {
  const auto module = random_module<LatentAttention<T>>(random, draw_latent(random));
  const Index most = 2 * std::min<Index>(module.max_absorbed_queries(), 20);
  const auto x = random.tensor<T, 3>(
      {random.integer(1, 3), random.integer(1, most), module.options().embed_dim});
  attn::AttentionOptions<T> options{.mask = causal()};
  options.execution.isa = isa;
  expect_near(module(x, options), reference(module, x));
}

TEST(LatentAttention, AgreesWithLoops) {
  for (const attn::Isa isa : available_isas()) {
    for (std::uint64_t n = 0; n < 60; ++n) {
      Random random(n);
      SCOPED_TRACE(random.trace());
      expect_definition<double>(random, isa);
      expect_definition<float>(random, isa);
      if (HasFailure()) return;
    }
  }
}

/// The same latents, in caches of any element: a call of many tokens expands them, calls of one
/// token are absorbed.
TEST(LatentAttention, ExpandedAndAbsorbedCallsAgree) {
  for (std::uint64_t n = 0; n < 60; ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    LatentAttentionOptions drawn = draw_latent(random);
    drawn.kv_lora_rank = drawn.head_dim + random.integer(8, 24);
    auto module = random_module<LatentAttention<float>>(random, drawn);
    if (random.chance(0.5)) module.pack();
    const Index first = random.integer(1, 9),
                seq = first + module.max_absorbed_queries() + random.integer(1, 9);
    const auto x = random.tensor<float, 3>({2, seq, drawn.embed_dim});
    const auto element = random.pick<attn::DType>(
        {attn::DType::F32, attn::DType::BF16, attn::DType::F16, attn::DType::I8});
    auto whole = module.make_cache(2, seq, 0, element),
         steps = module.make_cache(2, seq, 0, element);
    EXPECT_EQ(whole.options().head_dim_v, drawn.kv_lora_rank);
    Tensor3<float> at_once(x.shape()), one_by_one(x.shape());
    const auto call = [&](Index begin, Index end, KvCache<float>& cache, Tensor3<float>& out) {
      module.forward(x.view().slice(1, begin, end), out.view().slice(1, begin, end),
                     {.mask = causal()}, {.cache = &cache});
    };
    call(0, first, whole, at_once);
    call(first, seq, whole, at_once);
    for (Index i = 0; i < seq; ++i) call(i, i + 1, steps, one_by_one);
    expect_near(at_once, one_by_one);
    if (element == attn::DType::F32) expect_near(at_once, reference(module, x));
    if (HasFailure()) break;
  }
}

TEST(LatentAttention, RowCachesGiveTheBitsOfCallsOfTheirOwn) {
  const ThreadExecutor three(3);
  for (std::uint64_t n = 0; n < 20; ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    const auto module = random_module<LatentAttention<float>>(random, draw_latent(random));
    const Index batch = random.integer(1, 5), dim = module.options().embed_dim;
    const Index seq = random.pick<Index>({1, 1, 3, 40});
    std::deque<KvCache<float>> together, alone;
    std::vector<KvCache<float>*> rows;
    for (Index b = 0; b < batch; ++b) {
      const Index length = random.integer(1, 60);
      together.push_back(module.make_cache(1, 120));
      module(random.tensor<float, 3>({1, length, dim}), {.mask = causal()},
             {.cache = &together.back()});
      alone.push_back(together.back());
      rows.push_back(&together.back());
    }
    const auto x = random.tensor<float, 3>({batch, seq, dim});
    attn::AttentionOptions<float> options{.mask = causal()};
    options.execution.executor = &three;
    const auto found = module(x, options, {.row_caches = rows});
    for (Index b = 0; b < batch; ++b) {
      const auto expected = module(x.view().slice(0, b, b + 1), {.mask = causal()},
                                   {.cache = &alone[static_cast<std::size_t>(b)]});
      for (Index i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(found.data()[b * expected.size() + i], expected.data()[i]) << b << " " << i;
      }
    }
  }
}

TEST(LatentAttentionBackward, AgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < 30; ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    auto module = random_module<LatentAttention<double>>(random, draw_latent(random));
    auto x = random.tensor<double, 3>({2, random.integer(1, 6), module.options().embed_dim});
    const auto d = random.tensor<double, 3>(x.shape()),
               residual = random.tensor<double, 3>(x.shape());
    const attn::AttentionOptions<double> options{.mask = causal()};
    attn::LatentAttentionSaved<double> saved, other;
    Tensor3<double> out(x.shape()), d_x(x.shape());
    const auto loss = [&] {
      attn::forward(module, x, out, other, options);
      return weighted_sum(d.elements(), out.elements());
    };
    auto gradients = attn::gradients_of(module);
    attn::forward(module, x, out, saved, options, {.residual = residual});
    auto expected = reference(module, x);
    for (Index i = 0; i < x.size(); ++i) expected.data()[i] += residual.data()[i];
    expect_near(out, expected);
    attn::backward(module, d, saved, d_x, gradients, residual, options);
    for (Index i = 0; i < x.size(); ++i) d_x.data()[i] -= residual.data()[i];
    expect_gradient("x", random, x.elements(), d_x.elements(), loss);
    expect_module_gradients(random, module, gradients, loss);
    if (HasFailure()) break;
  }
}

TEST(LatentAttentionErrors, NameTheOptionOrArgument) {
  const auto error_with = [](const LatentAttentionOptions& options) {
    return error_of<attn::ValueError>([&] { LatentAttention<float> module(options); });
  };
  LatentAttentionOptions o{.embed_dim = 4, .kv_lora_rank = 3, .head_dim = 2, .rotary_dim = 2};
  o.rotary = attn::RotaryOptions{.dim = 4};
  EXPECT_TRUE(contains(error_with(o), "rotary.dim must be even and at most head_dim = 2; found 4"));
  o.rotary = {};
  o.rotary_dim = 0;
  EXPECT_EQ(error_with(o), "[LatentAttention] rotary_dim must lie in 1 .. 2^30; found 0.");
  o.rotary_dim = 2;
  o.q_lora_rank = -1;
  EXPECT_EQ(error_with(o), "[LatentAttention] q_lora_rank must lie in 0 .. 2^30; found -1.");
  o.q_lora_rank = 0;
  LatentAttention<float> module(o);
  const Tensor3<float> x({1, 2, 4}), wrong({1, 2, 5});
  EXPECT_TRUE(contains(error_of<attn::ShapeError>([&] { module(wrong); }),
                       "[LatentAttention] query must have shape"));
  KvCache<float> other({.batch = 1, .capacity = 4, .head_dim = 3});
  EXPECT_TRUE(contains(error_of<attn::ShapeError>([&] { module(x, {}, {.cache = &other}); }),
                       "[LatentAttention] cache must have shape"));
  KvCache<float> cache = module.make_cache(1, 4);
  EXPECT_EQ(error_of<attn::ValueError>([&] { module(x, {}, {.cache = &cache, .append = false}); }),
            "[LatentAttention] append must be true; found false.");
  const attn::Tensor4<float> qv({1, 1, 2, 3});
  EXPECT_EQ(error_of<attn::ValueError>([&] { module(x, {.qv = qv}); }),
            "[LatentAttention] qv must be none: the layer sets it; found one.");
  Tensor3<float> out({1, 2, 4});
  attn::LatentAttentionSaved<float> saved;
  EXPECT_EQ(error_of<attn::ValueError>(
                [&] { attn::forward(module, x, out, saved, {}, {.cache = &cache}); }),
            "[LatentAttention] caches must be none in training; found some.");
}

}  // namespace
}  // namespace attn_test
