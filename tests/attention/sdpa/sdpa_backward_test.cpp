// Backward of attention against central differences and double; same bits; masked NaN.
#include "attn/attention/sdpa_backward.hpp"

#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "support/draws/attention_draw.hpp"
#include "support/error_of.hpp"
#include "support/gradient_check.hpp"
#include "support/isas.hpp"
#include "support/references/reference_backward.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn_test {
namespace {

template <class T>
struct Gradients {
  Array<T> y, lse, d_q, d_k, d_v, d_sinks, d_slopes, d_batch_slopes, d_relative, d_qv;
  std::vector<Array<T>> d_bias;
};

/// Runs forward, then backward from d_y and d_lse (empty: none).
template <class T>
Gradients<T> run(const AttentionDraw<T>& draw, const Array<T>& d_y, const Array<T>& d_lse,
                 const attn::Execution& execution = {}) {
  const auto [batch, heads, q_len, kv_len] = draw.scores();
  Gradients<T> g;
  g.y = Array<T>({batch, heads, q_len, draw.v.extent(3)});
  g.lse = Array<T>({batch, heads, q_len});
  g.d_q = Array<T>(draw.q.shape), g.d_k = Array<T>(draw.k.shape), g.d_v = Array<T>(draw.v.shape);
  const LibraryOptions<T> library(draw.options);
  attn::AttentionOptions<T> options = library.get();
  options.lse = g.lse.template view<3>();
  options.execution = execution;
  const auto q = draw.q.template view<4>(), k = draw.k.template view<4>(),
             v = draw.v.template view<4>();
  attn::scaled_dot_product_attention(q, k, v, g.y.template view<4>(), options);
  attn::AttentionBackwardCall<T> call;
  if (d_lse) call.d_lse = d_lse.template view<3>();
  std::size_t part = 0;
  for (const auto& mask : draw.options.masks) {
    if (mask.kind == ReferenceOptions::Mask::Kind::add) g.d_bias.emplace_back(mask.values.shape);
  }
  for (Array<T>& d_bias : g.d_bias) call.d_bias[part++] = d_bias.template view<4>();
  if (!draw.options.sinks.empty()) {
    g.d_sinks = Array<T>({heads});
    call.d_sinks = g.d_sinks.template view<1>();
  }
  if (!draw.options.alibi_slopes.empty()) {
    g.d_slopes = Array<T>({heads});
    call.d_alibi_slopes = g.d_slopes.template view<1>();
  }
  if (draw.options.batch_alibi_slopes) {
    g.d_batch_slopes = Array<T>({batch, heads});
    call.d_batch_alibi_slopes = g.d_batch_slopes.template view<2>();
  }
  if (draw.options.relative_bias) {
    g.d_relative = Array<T>(draw.options.relative_bias.shape);
    call.d_relative_bias = g.d_relative.template view<2>();
  }
  if (draw.options.qv) {
    g.d_qv = Array<T>(draw.options.qv.shape);
    call.d_qv = g.d_qv.template view<4>();
  }
  attn::scaled_dot_product_attention_backward(
      d_y.template view<4>(), q, k, v, g.y.template view<4>(), g.lse.template view<3>(),
      g.d_q.template view<4>(), g.d_k.template view<4>(), g.d_v.template view<4>(), options, call);
  return g;
}

template <class T>
std::vector<std::pair<std::string, const Array<T>*>> all_of(const Gradients<T>& g) {
  std::vector<std::pair<std::string, const Array<T>*>> all{
      {"d_q", &g.d_q},           {"d_k", &g.d_k},
      {"d_v", &g.d_v},           {"d_sinks", &g.d_sinks},
      {"d_slopes", &g.d_slopes}, {"d_relative", &g.d_relative},
      {"d_qv", &g.d_qv},         {"d_slopes", &g.d_batch_slopes}};
  for (const Array<T>& d_bias : g.d_bias) all.emplace_back("d_bias", &d_bias);
  return all;
}

TEST(SdpaBackward, AgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < attn_test::draws(60); ++n) {
    Random random(n);
    auto draw = AttentionDraw<double>(random, 60000);
    SCOPED_TRACE(random.trace() + ": " + draw.text());
    const attn::Execution execution{.isa = random.pick(available_isas())};
    const auto [batch, heads, q_len, kv_len] = draw.scores();
    const auto d_y = random.array<double>({batch, heads, q_len, draw.v.extent(3)});
    const auto d_lse =
        random.chance(0.5) ? random.array<double>({batch, heads, q_len}) : Array<double>();
    const Gradients<double> g = run(draw, d_y, d_lse, execution);
    const auto loss = [&] {
      const Gradients<double> at = run(draw, d_y, d_lse, execution);
      double sum = weighted_sum(d_y.data, at.y.data);
      for (std::size_t i = 0; i < d_lse.data.size(); ++i) {
        if (std::isfinite(at.lse.data[i])) sum += d_lse.data[i] * at.lse.data[i];
      }
      return sum;
    };
    expect_gradient("q", random, draw.q.data, g.d_q.data, loss);
    expect_gradient("k", random, draw.k.data, g.d_k.data, loss);
    expect_gradient("v", random, draw.v.data, g.d_v.data, loss);
    if (g.d_sinks) expect_gradient("sinks", random, draw.options.sinks, g.d_sinks.data, loss);
    if (g.d_slopes) {
      expect_gradient("slopes", random, draw.options.alibi_slopes, g.d_slopes.data, loss);
    }
    if (g.d_batch_slopes) {
      expect_gradient("slopes of batch rows", random, draw.options.batch_alibi_slopes.data,
                      g.d_batch_slopes.data, loss);
    }
    if (g.d_relative) {
      expect_gradient("relative bias", random, draw.options.relative_bias.data, g.d_relative.data,
                      loss);
    }
    if (g.d_qv) expect_gradient("qv", random, draw.options.qv.data, g.d_qv.data, loss);
    std::size_t part = 0;
    for (auto& mask : draw.options.masks) {
      if (mask.kind != ReferenceOptions::Mask::Kind::add) continue;
      expect_gradient("bias", random, mask.values.data, g.d_bias.at(part++).data, loss);
    }
    if (HasFailure()) break;
  }
}

/// The gradients of a run by the names of reference_backward().
template <class T>
std::map<std::string, const Array<T>*> by_name(const Gradients<T>& g) {
  std::map<std::string, const Array<T>*> result{
      {"d_q", &g.d_q},           {"d_k", &g.d_k},
      {"d_v", &g.d_v},           {"d_sinks", &g.d_sinks},
      {"d_slopes", &g.d_slopes}, {"d_batch_slopes", &g.d_batch_slopes},
      {"d_qv", &g.d_qv},         {"d_relative", &g.d_relative}};
  for (std::size_t n = 0; n < g.d_bias.size(); ++n) {
    result["d_bias" + std::to_string(n)] = &g.d_bias[n];
  }
  return result;
}

/// Float against nested loops in double: at most twice the error of the same loops in float. With
/// 256 weights between 0 and 1: with few weights, or a query with one key, terms cancel, and too
/// few rounding errors remain to find their maximum.
TEST(SdpaBackward, HasAtMostTwiceTheErrorOfTheNaiveFormula) {
  std::size_t compared = 0;
  for (std::uint64_t n = 100; n < 100 + attn_test::draws(60); ++n) {
    Random random(n);
    const auto draw = AttentionDraw<float>(random, 60000);
    SCOPED_TRACE(random.trace() + ": " + draw.text());
    const auto [batch, heads, q_len, kv_len] = draw.scores();
    const auto weights = reference_attention(draw.q, draw.k, draw.v, draw.options).weights;
    const auto between = std::ranges::count_if(
        weights.data, [](float weight) { return weight > 1e-3f && weight < 0.999f; });
    if (static_cast<double>(between) * (1 - draw.options.dropout) < 256) continue;
    const auto d_y = random.array<float>({batch, heads, q_len, draw.v.extent(3)});
    const auto d_lse =
        random.chance(0.5) ? random.array<float>({batch, heads, q_len}) : Array<float>();
    const auto exact =
        reference_backward(draw.q.as<double>(), draw.k.as<double>(), draw.v.as<double>(),
                           draw.options, d_y.as<double>(), d_lse.as<double>());
    std::map<Order, std::map<std::string, Array<float>>> naive;
    for (Order order : kOrders) {
      naive[order] = reference_backward(draw.q, draw.k, draw.v, draw.options, d_y, d_lse, order);
    }
    for (attn::Isa isa : available_isas()) {
      const Gradients<float> got = run(draw, d_y, d_lse, {.isa = isa});
      const auto found = by_name(got);
      for (const auto& [name, expected] : exact) {
        const double bound =
            twice_naive([&, of = name](Order order) { return naive[order].at(of); }, expected);
        EXPECT_EQ(difference(*found.at(name), expected, bound, isa, name), "");
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, attn_test::draws(60) / 2 * available_isas().size());
}

TEST(SdpaBackward, SameBitsOnAnyThreadsAndInAnyBatch) {
  const ThreadExecutor three(3);
  const attn::SerialExecutor one;
  for (std::uint64_t n = 200; n < 200 + attn_test::draws(30); ++n) {
    Random random(n);
    const auto draw = AttentionDraw<float>(random, 4000000);
    SCOPED_TRACE(random.trace() + ": " + draw.text());
    const auto [batch, heads, q_len, kv_len] = draw.scores();
    const auto d_y = random.array<float>({batch, heads, q_len, draw.v.extent(3)});
    const auto alone = run(draw, d_y, {}, {.executor = &one});
    const auto shared = run(draw, d_y, {}, {.executor = &three});
    const auto a = all_of(alone), b = all_of(shared);
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(same_bits(*a[i].second, *b[i].second)) << a[i].first;
    }
    if (draw.options.dropout > 0) continue;  // depends on the index of the batch row
    const std::vector<Index> last{batch - 1};
    const auto part = run(draw.with_batch(last), AttentionDraw<float>::pick_rows(d_y, last), {},
                          {.executor = &three});
    if (part.d_batch_slopes) {
      EXPECT_TRUE(same_bits(part.d_batch_slopes,
                            AttentionDraw<float>::pick_rows(alone.d_batch_slopes, last)));
    }
    EXPECT_TRUE(same_bits(part.d_q, AttentionDraw<float>::pick_rows(alone.d_q, last)));
    EXPECT_TRUE(same_bits(part.d_k, AttentionDraw<float>::pick_rows(alone.d_k, last)));
    EXPECT_TRUE(same_bits(part.d_v, AttentionDraw<float>::pick_rows(alone.d_v, last)));
  }
}

TEST(SdpaBackward, NanOfMaskedKeysReachesNoGradient) {
  for (std::uint64_t n = 300; n < 300 + attn_test::draws(20); ++n) {
    Random random(n);
    AttentionDraw<double> draw(random, 200000);
    const auto [batch, heads, q_len, kv_len] = draw.scores();
    draw.options = {};
    draw.options.causal = true;
    draw.options.offset = ReferenceOptions::Offset::top_left;
    SCOPED_TRACE(random.trace() + ": " + draw.text());
    const auto d_y = random.array<double>({batch, heads, q_len, draw.v.extent(3)});
    const auto clean = run(draw, d_y, {});
    const Index last = std::min(q_len, kv_len) - 1;  // kept for query `last` and later ones
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const Index kv_heads = draw.k.extent(1);
    for (Index b = 0; b < batch; ++b) {
      for (Index h = 0; h < kv_heads; ++h) draw.k(b, h, last, 0) = draw.v(b, h, last, 0) = nan;
    }
    const auto dirty = run(draw, d_y, {});
    for (Index b = 0; b < batch; ++b) {
      for (Index h = 0; h < heads; ++h) {
        for (Index i = 0; i < last; ++i) {
          for (Index x = 0; x < draw.q.extent(3); ++x) {
            ASSERT_NEAR(dirty.d_q(b, h, i, x), clean.d_q(b, h, i, x), 1e-12) << i;
          }
        }
        EXPECT_TRUE(std::isnan(dirty.d_q(b, h, last, 0)));
      }
    }
  }
}

/// NaN in keys and values that are masked out for every query, in every way: gradients do not
/// change, and those of the masked keys are 0.
TEST(SdpaBackward, NanOfKeysThatNobodySeesChangesNothing) {
  using Mask = ReferenceOptions::Mask;
  for (std::uint64_t n = 0; n < attn_test::draws(60); ++n) {
    Random random(n);
    AttentionDraw<float> draw(random, 200000);
    const auto [batch, heads, q_len, kv_len] = draw.scores();
    if (kv_len < 2) continue;
    draw.options = {};
    const Index first_masked = random.integer(1, kv_len - 1);  // masked from here on
    const std::size_t way = static_cast<std::size_t>(n % 5);
    Array<double> values({1, 1, 1, kv_len});
    for (Index j = 0; j < kv_len; ++j) {
      const bool masks = j >= first_masked;
      values(0, 0, 0, j) = way == 1 ? !masks : way == 2 ? masks : masks ? -INFINITY : 0.1;
    }
    if (way == 0) draw.options.key_lengths.assign(static_cast<std::size_t>(batch), first_masked);
    if (way == 1) draw.options.masks = {{Mask::Kind::keep, values}};
    if (way == 2) draw.options.masks = {{Mask::Kind::drop, values}};
    if (way == 3) draw.options.masks = {{Mask::Kind::add, values}};
    if (way == 4) {  // a window before it
      draw.options.right = 0;
      draw.options.offset = ReferenceOptions::Offset::fixed;
      draw.options.fixed_offset = first_masked - q_len;
    }
    SCOPED_TRACE(random.trace() + ": " + draw.text());
    const auto d_y = random.array<float>({batch, heads, q_len, draw.v.extent(3)});
    for (attn::Isa isa : available_isas()) {
      const auto clean = run(draw, d_y, {}, {.isa = isa});
      AttentionDraw<float> dirty = draw;
      for (Index b = 0; b < batch; ++b) {
        for (Index h = 0; h < draw.k.extent(1); ++h) {
          for (Index j = first_masked; j < kv_len; ++j)
            dirty.k(b, h, j, 0) = dirty.v(b, h, j, 0) = NAN;
        }
      }
      const auto got = run(dirty, d_y, {}, {.isa = isa});
      const auto a = all_of(clean), b = all_of(got);
      for (std::size_t i = 0; i < a.size(); ++i) {
        // If something is not finite, products are summed pair by pair, in another order; with one
        // key per query, score gradients are only rounding errors.
        const double bound = near(*a[i].second) + 1e-4;
        EXPECT_EQ(difference(*b[i].second, *a[i].second, bound, isa, a[i].first), "");
      }
      for (Index h = 0; h < draw.k.extent(1); ++h) {
        for (Index x = 0; x < draw.k.extent(3); ++x)
          EXPECT_EQ(got.d_k(0, h, first_masked, x), 0.0f);
        for (Index x = 0; x < draw.v.extent(3); ++x)
          EXPECT_EQ(got.d_v(0, h, first_masked, x), 0.0f);
      }
    }
  }
}

/// Packed sequences have the gradients of separate calls.
TEST(SdpaBackward, TakesPackedSequences) {
  Random random(400);
  const std::vector<attn::index_t> q_starts{0, 5, 5, 108, 140}, k_starts{0, 9, 12, 100, 1400};
  const attn::Shape<4> q_shape{1, 4, 140, 8}, k_shape{1, 2, 1400, 8}, v_shape{1, 2, 1400, 24},
      out_shape{1, 4, 140, 24};
  const auto q = random.tensor<float, 4>(q_shape), k = random.tensor<float, 4>(k_shape),
             v = random.tensor<float, 4>(v_shape), d_out = random.tensor<float, 4>(out_shape);
  attn::Tensor4<float> out(out_shape), d_q(q_shape), d_k(k_shape), d_v(v_shape);
  attn::Tensor3<float> lse({1, 4, 140});
  attn::AttentionOptions<float> options{.mask = attn::causal(), .lse = lse.view()};
  options.cu_seqlens_q = {q_starts.data(), {5}};
  options.cu_seqlens_k = {k_starts.data(), {5}};
  attn::scaled_dot_product_attention(q, k, v, out, options);
  attn::scaled_dot_product_attention_backward(d_out, q, k, v, out, lse.view(), d_q, d_k, d_v,
                                              options);
  for (std::size_t s = 0; s < 4; ++s) {
    const auto queries = [&](const auto& x) {
      return const_view(x).slice(2, q_starts[s], q_starts[s + 1]);
    };
    const auto keys = [&](const auto& x) {
      return const_view(x).slice(2, k_starts[s], k_starts[s + 1]);
    };
    if (queries(q).size() == 0) continue;
    attn::Tensor4<float> y(queries(out).shape()), dq(queries(q).shape()), dk(keys(k).shape()),
        dv(keys(v).shape());
    attn::Tensor3<float> row_lse({1, 4, y.extent(2)});
    const attn::AttentionOptions<float> one{.mask = attn::causal(), .lse = row_lse.view()};
    attn::scaled_dot_product_attention(queries(q), keys(k), keys(v), y, one);
    attn::scaled_dot_product_attention_backward(queries(d_out), queries(q), keys(k), keys(v), y,
                                                row_lse.view(), dq, dk, dv, one);
    const auto same = [](const auto& a, const auto& b) {
      const attn::Tensor4<float> x(a);
      return std::equal(x.elements().begin(), x.elements().end(), b.elements().begin());
    };
    EXPECT_TRUE(same(queries(d_q), dq)) << s;
    EXPECT_TRUE(same(keys(d_k), dk)) << s;
    EXPECT_TRUE(same(keys(d_v), dv)) << s;
  }
  for (attn::index_t h = 0; h < 2; ++h) EXPECT_EQ(d_k(0, h, 10, 0), 0.0f);  // keys without queries
}

/// A score_mod for any score type that is not linear and whose derivative is NaN for masked keys;
/// with softcap after it, a mask functor, and split keys.
TEST(SdpaBackward, PassesThroughAScoreMod) {
  const auto bends = attn::score_mod([](auto score, int, int h, int i, int j) {
    using std::sqrt, std::tanh;
    const auto bent = score * tanh(score * 0.3 + 0.1 * h) + 0.05 * (i - j);
    return j > i ? score + sqrt(score * 0.0 - 1.0) : bent;
  });
  const auto past = attn::mask_mod([](int, int, int i, int j) { return j <= i; });
  for (attn::Isa isa : available_isas()) {
    Random random(500);
    auto q = random.tensor<double, 4>({1, 4, 30, 5}), k = random.tensor<double, 4>({1, 2, 1100, 5}),
         v = random.tensor<double, 4>({1, 2, 1100, 3});
    const auto d = random.tensor<double, 4>({1, 4, 30, 3});
    attn::Tensor4<double> out(d.shape()), d_q(q.shape()), d_k(k.shape()), d_v(v.shape());
    attn::Tensor3<double> lse({1, 4, 30});
    const attn::AttentionOptions<double> options{
        .softcap = 2, .lse = lse.view(), .execution = {.isa = isa}};
    const auto loss = [&] {
      attn::scaled_dot_product_attention(q, k, v, out, options, bends, past);
      return weighted_sum(d.elements(), out.elements());
    };
    loss();
    attn::scaled_dot_product_attention_backward(d, q, k, v, out, lse.view(), d_q, d_k, d_v, options,
                                                {}, bends, past);
    expect_gradient("q", random, q.elements(), d_q.elements(), loss);
    expect_gradient("k", random, k.elements(), d_k.elements(), loss);
    expect_gradient("v", random, v.elements(), d_v.elements(), loss);
  }
}

/// Parameters of a functor, per call and per head, with softcap after it, masked keys whose
/// derivatives are NaN, and split keys; same bits on any number of threads.
TEST(SdpaBackward, GivesScoreParametersTheirGradients) {
  const auto bends = [](auto score, int, int h, int i, int j, auto slope, auto offset, auto width) {
    using std::sqrt, std::tanh;
    const auto bent =
        score * tanh(score * slope + 0.1 * h) + offset * 0.02 * (i - j) + width * width;
    return j > i ? score + sqrt(score * 0.0 - 1.0) * slope : bent;
  };
  const auto past = attn::mask_mod([](int, int, int i, int j) { return j <= i; });
  const ThreadExecutor three(3);
  for (attn::Isa isa : available_isas()) {
    Random random(700);
    auto q = random.tensor<double, 4>({2, 4, 30, 5}), k = random.tensor<double, 4>({2, 2, 1100, 5}),
         v = random.tensor<double, 4>({2, 2, 1100, 3});
    auto slopes = random.tensor<double, 1>({4});
    std::vector<double> numbers{0.3, 0.7};
    const auto d = random.tensor<double, 4>({2, 4, 30, 3});
    attn::Tensor4<double> out(d.shape()), d_q(q.shape()), d_k(k.shape()), d_v(v.shape());
    attn::Tensor3<double> lse({2, 4, 30});
    attn::AttentionOptions<double> options{
        .softcap = 2, .lse = lse.view(), .execution = {.isa = isa}};
    const auto loss = [&] {
      const auto mod = attn::score_mod(bends, slopes, numbers[0], numbers[1]);
      attn::scaled_dot_product_attention(q, k, v, out, options, mod, past);
      return weighted_sum(d.elements(), out.elements());
    };
    loss();
    std::vector<double> first;
    const attn::SerialExecutor one;
    for (const attn::Executor* executor :
         {static_cast<const attn::Executor*>(&one), static_cast<const attn::Executor*>(&three)}) {
      options.execution.executor = executor;
      attn::Tensor1<double> d_slopes({4}), d_offset({1}), d_width({1});
      attn::scaled_dot_product_attention_backward(
          d, q, k, v, out, lse.view(), d_q, d_k, d_v, options,
          {.d_score_parameters = {d_slopes.view(), d_offset.view(), d_width.view()}},
          attn::score_mod(bends, slopes, numbers[0], numbers[1]), past);
      std::vector<double> found(d_slopes.elements().begin(), d_slopes.elements().end());
      found.insert(found.end(), {d_offset(0), d_width(0)});
      if (first.empty()) first = found;
      EXPECT_EQ(found, first);
    }
    attn::Tensor1<double> d_slopes({4}), d_width({1});
    attn::scaled_dot_product_attention_backward(
        d, q, k, v, out, lse.view(), d_q, d_k, d_v, options, {},
        attn::score_mod(bends, attn::with_gradient(slopes, d_slopes), numbers[0],
                        attn::with_gradient(numbers[1], d_width)),
        past);
    EXPECT_TRUE(std::equal(first.begin(), first.begin() + 4, d_slopes.elements().begin()));
    EXPECT_EQ(d_width(0), first[5]);
    expect_gradient("slopes", random, slopes.elements(), std::span(first).first(4), loss);
    expect_gradient("numbers", random, numbers, std::span(first).last(2), loss);
    expect_gradient("q", random, q.elements(), d_q.elements(), loss);
    expect_gradient("k", random, k.elements(), d_k.elements(), loss);
  }
}

/// 16-bit tensors: the bits of float gradients on the widened tensors, rounded.
template <class E>
void expect_rounded_gradients() {
  Random random(800);
  const auto draw = [&](const attn::Shape<4>& shape) {
    return attn::convert<E>(random.tensor<float, 4>(shape));
  };
  const auto q = draw({2, 4, 40, 24}), k = draw({2, 2, 70, 24}), v = draw({2, 2, 70, 16}),
             d = draw({2, 4, 40, 16});
  attn::Tensor4<E> out(d.shape()), d_q(q.shape()), d_k(k.shape()), d_v(v.shape());
  attn::Tensor3<float> lse({2, 4, 40});
  const attn::AttentionOptions<float> options{.mask = attn::causal(), .lse = lse.view()};
  attn::scaled_dot_product_attention(q, k, v, out, options);
  attn::scaled_dot_product_attention_backward(d, q, k, v, out, lse.view(), d_q, d_k, d_v, options);
  const auto wide = [](const auto& x) { return attn::convert<float>(x); };
  attn::Tensor4<float> w_q(q.shape()), w_k(k.shape()), w_v(v.shape());
  attn::scaled_dot_product_attention_backward(wide(d), wide(q), wide(k), wide(v), wide(out),
                                              lse.view(), w_q, w_k, w_v, options);
  const auto same = [](const attn::Tensor4<E>& a, const attn::Tensor4<float>& b) {
    const auto rounded = attn::convert<E>(b);
    return std::memcmp(a.data(), rounded.data(), static_cast<std::size_t>(a.size()) * sizeof(E)) ==
           0;
  };
  EXPECT_TRUE(same(d_q, w_q));
  EXPECT_TRUE(same(d_k, w_k));
  EXPECT_TRUE(same(d_v, w_v));
  EXPECT_GT(std::abs(static_cast<float>(d_q(1, 3, 39, 5))), 0.0f);
}

TEST(SdpaBackward, RoundsGradientsOf16BitsOnce) {
  expect_rounded_gradients<attn::bfloat16>();
  expect_rounded_gradients<attn::float16>();
}

/// A functor that changes weights after softmax, with dropout after it, grouped heads, sinks and
/// d_lse.
TEST(SdpaBackward, PassesThroughAProbMod) {
  const auto changes = attn::prob_mod([](auto weight, int, int h, int, int j) {
    return weight * weight * (1 + h) + 0.1 * weight * (j % 3);
  });
  for (attn::Isa isa : available_isas()) {
    Random random(600);
    auto q = random.tensor<double, 4>({2, 4, 13, 5}), k = random.tensor<double, 4>({2, 2, 150, 5}),
         v = random.tensor<double, 4>({2, 2, 150, 7});
    auto sinks = random.tensor<double, 1>({4});
    const auto d = random.tensor<double, 4>({2, 4, 13, 7});
    const auto d_lse = random.tensor<double, 3>({2, 4, 13});
    attn::Tensor4<double> out(d.shape()), d_q(q.shape()), d_k(k.shape()), d_v(v.shape());
    attn::Tensor3<double> lse({2, 4, 13});
    attn::Tensor1<double> d_sinks({4});
    attn::AttentionOptions<double> options{.mask = attn::causal(),
                                           .sinks = sinks.view(),
                                           .dropout = {.p = 0.2, .seed = 4},
                                           .lse = lse.view(),
                                           .execution = {.isa = isa}};
    const auto loss = [&] {
      attn::scaled_dot_product_attention(q, k, v, out, options, changes);
      return weighted_sum(d.elements(), out.elements()) +
             weighted_sum(d_lse.elements(), lse.elements());
    };
    loss();
    attn::scaled_dot_product_attention_backward(d, q, k, v, out, lse.view(), d_q, d_k, d_v, options,
                                                {.d_lse = d_lse.view(), .d_sinks = d_sinks.view()},
                                                changes);
    expect_gradient("q", random, q.elements(), d_q.elements(), loss);
    expect_gradient("k", random, k.elements(), d_k.elements(), loss);
    expect_gradient("v", random, v.elements(), d_v.elements(), loss);
    expect_gradient("sinks", random, sinks.elements(), d_sinks.elements(), loss);
  }
}

TEST(SdpaBackward, ChecksItsArguments) {
  attn::Tensor4<float> q({1, 2, 3, 4}), k({1, 2, 5, 4}), out({1, 2, 3, 4}), narrow({1, 2, 3, 3});
  attn::Tensor3<float> lse({1, 2, 3});
  attn::Tensor1<float> sinks({2});
  EXPECT_THROW(
      attn::scaled_dot_product_attention_backward(out, q, k, k, out, lse.view(), narrow, k, k),
      attn::ShapeError);
  EXPECT_THROW(
      attn::scaled_dot_product_attention_backward(narrow, q, k, k, out, lse.view(), q, k, k),
      attn::ShapeError);
  EXPECT_THROW(attn::scaled_dot_product_attention_backward(out, q, k, k, out, lse.view(), q, k, k,
                                                           {}, {.d_sinks = sinks.view()}),
               attn::ValueError);
  attn::Tensor4<float> weights({1, 2, 3, 5});
  attn::AttentionOptions<float> shows_weights, shows_scores;
  shows_weights.weights = weights;
  shows_scores.scores = weights;
  for (const auto& options : {shows_weights, shows_scores}) {
    EXPECT_TRUE(contains(error_of<attn::ValueError>([&] {
                           attn::scaled_dot_product_attention_backward(out, q, k, k, out, lse, q, k,
                                                                       k, options);
                         }),
                         "it has no gradient"));
  }
  const auto mod = attn::score_mod(
      [](auto score, int, int, int, int, auto factor) { return score * factor; }, sinks);
  EXPECT_THROW(attn::scaled_dot_product_attention_backward(
                   out, q, k, k, out, lse.view(), q, k, k, {},
                   {.d_score_parameters = {sinks.view(), sinks.view()}}, mod),
               attn::ValueError);
  attn::Tensor2<float> slopes({1, 2});
  EXPECT_THROW(attn::scaled_dot_product_attention_backward(out, q, k, k, out, lse.view(), q, k, k,
                                                           {.alibi_slopes = sinks.view()},
                                                           {.d_batch_alibi_slopes = slopes.view()}),
               attn::ValueError);
  attn::Tensor1<float> one({1}), three({3});
  EXPECT_THROW(
      attn::scaled_dot_product_attention_backward(out, q, k, k, out, lse.view(), q, k, k, {},
                                                  {.d_score_parameters = {one.view()}}, mod),
      attn::ShapeError);
  EXPECT_THROW(
      attn::scaled_dot_product_attention(
          q, k, k, out, {},
          attn::score_mod([](auto s, int, int, int, int, auto x) { return s * x; }, three)),
      attn::ShapeError);
}

}  // namespace
}  // namespace attn_test
