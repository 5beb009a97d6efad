// Attention's tangent against nested loops; <J v, w> = <v, J^T w> with backward; same bits; NaN.
#include "attn/attention/jvp/sdpa_jvp.hpp"

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>

#include <gtest/gtest.h>

#include "attn/attention/sdpa_backward.hpp"

#include "support/draws/functor_draw.hpp"
#include "support/draws/gather_draw.hpp"
#include "support/draws/jvp_draw.hpp"
#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn_test {
namespace {

template <class T>
JvpRun<T> run_jvp(const AttentionDraw<T>& draw, const ReferenceTangents<T>& tangents,
                  const attn::Execution& execution, const FunctorDraw& functors = {}) {
  const LibraryOptions<T> library(draw.options);
  attn::AttentionOptions<T> options = library.get();
  options.execution = execution;
  std::optional<JvpRun<T>> r;
  functors.apply([&](const auto&... f) { r = call_jvp(draw, tangents, options, f...); });
  return *std::move(r);
}

/// The forward call's y and lse.
template <class T>
JvpRun<T> run_forward(const AttentionDraw<T>& draw, const attn::Execution& execution,
                      const FunctorDraw& functors = {}) {
  const LibraryOptions<T> library(draw.options);
  attn::AttentionOptions<T> options = library.get();
  JvpRun<T> r(draw);
  options.lse = r.lse.template view<3>();
  options.execution = execution;
  functors.apply([&](const auto&... f) {
    attn::scaled_dot_product_attention(draw.q.template view<4>(), draw.k.template view<4>(),
                                       draw.v.template view<4>(), r.y.template view<4>(), options,
                                       f...);
  });
  return r;
}

/// A call whose keys are cut into splits.
AttentionDraw<double> few_queries(Random& random) { return {random, {1, 2, 2, 4500}, 1, 3, 2}; }

/// Every option, in double: within rounding of the largest sum of magnitudes; y and lse have the
/// bits of the forward call.
TEST(SdpaJvp, AgreesWithNestedLoops) {
  for (std::uint64_t n = 0; n < draws(120); ++n) {
    Random random(n);
    auto draw = n % 15 == 0 ? few_queries(random) : AttentionDraw<double>(random, 60000);
    const FunctorDraw functors = random.chance(0.4) ? FunctorDraw(random) : FunctorDraw();
    const auto tangents = draw_tangents(random, draw);
    const attn::Execution execution{.isa = random.pick(available_isas())};
    SCOPED_TRACE(random.trace() + ": " + draw.text() + functors.text());
    const JvpRun<double> got = run_jvp(draw, tangents, execution, functors);
    const JvpRun<double> forward = run_forward(draw, execution, functors);
    EXPECT_TRUE(same_bits(got.y, forward.y));
    EXPECT_TRUE(same_bits(got.lse, forward.lse));
    functors.tell(draw.options);
    const auto exact = reference_jvp(draw.q, draw.k, draw.v, draw.options, tangents);
    const double bound = 1e-12 * (1 + exact.largest);
    EXPECT_EQ(difference(got.d_y, exact.d_y, bound, *execution.isa, "d_y"), "");
    EXPECT_EQ(difference(got.d_lse, exact.d_lse, bound, *execution.isa, "d_lse"), "");
    if (HasFailure()) break;
  }
}

TEST(SdpaJvp, OfListsOfKeysAgreesWithNestedLoops) {
  for (std::uint64_t n = 700; n < 700 + draws(80); ++n) {
    Random random(n);
    const GatherDraw<double> draw(random, 30000);
    const auto tangents = draw_tangents(random, draw);
    const attn::Isa isa = random.pick(available_isas());
    SCOPED_TRACE(random.trace() + ": " + draw.text());
    const LibraryOptions<double> library(draw.options);
    attn::AttentionOptions<double> options = library.get();
    options.execution.isa = isa;
    draw.add_lists(options);
    const JvpRun<double> got = call_jvp(draw, tangents, options);
    const auto exact = reference_jvp(draw.q, draw.k, draw.v, draw.options, tangents);
    const double bound = 1e-12 * (1 + exact.largest);
    EXPECT_EQ(difference(got.d_y, exact.d_y, bound, isa, "d_y"), "");
    EXPECT_EQ(difference(got.d_lse, exact.d_lse, bound, isa, "d_lse"), "");
  }
}

/// Float against nested loops in double: at most twice the error of the same loops in float. With
/// 256 weights between 0 and 1, as in SdpaBackward.
TEST(SdpaJvp, HasAtMostTwiceTheErrorOfTheNaiveFormula) {
  std::size_t compared = 0;
  for (std::uint64_t n = 1000; n < 1000 + draws(40); ++n) {
    Random random(n);
    const auto draw = AttentionDraw<float>(random, 60000);
    const auto tangents =
        ReferenceTangents<float>::draw(random, draw.q, draw.k, draw.v, draw.options);
    SCOPED_TRACE(random.trace() + ": " + draw.text());
    const auto weights = reference_attention(draw.q, draw.k, draw.v, draw.options).weights;
    const auto between = std::ranges::count_if(
        weights.data, [](float weight) { return weight > 1e-3f && weight < 0.999f; });
    if (static_cast<double>(between) * (1 - draw.options.dropout) < 256) continue;
    const auto exact = reference_jvp(draw.q.as<double>(), draw.k.as<double>(), draw.v.as<double>(),
                                     draw.options, tangents.as<double>());
    std::map<Order, ReferenceJvp<float>> naive;
    for (Order order : kOrders) {
      naive[order] = reference_jvp(draw.q, draw.k, draw.v, draw.options, tangents, order);
    }
    const double d_y = twice_naive([&](Order order) { return naive[order].d_y; }, exact.d_y),
                 d_lse = twice_naive([&](Order order) { return naive[order].d_lse; }, exact.d_lse);
    for (attn::Isa isa : available_isas()) {
      const JvpRun<float> got = run_jvp(draw, tangents, {.isa = isa});
      EXPECT_EQ(difference(got.d_y, exact.d_y, d_y, isa, "d_y"), "");
      EXPECT_EQ(difference(got.d_lse, exact.d_lse, d_lse, isa, "d_lse"), "");
      ++compared;
    }
  }
  EXPECT_GT(compared, draws(40) / 20 * available_isas().size());
}

TEST(SdpaJvp, SameBitsOnAnyThreadsAndInAnyBatch) {
  const ThreadExecutor three(3);
  const attn::SerialExecutor one;
  for (std::uint64_t n = 200; n < 200 + draws(24); ++n) {
    Random random(n);
    const auto draw = AttentionDraw<float>(random, 4000000);
    SCOPED_TRACE(random.trace() + ": " + draw.text());
    auto tangents = ReferenceTangents<float>::draw(random, draw.q, draw.k, draw.v, draw.options);
    const auto alone = run_jvp(draw, tangents, {.executor = &one});
    const auto shared = run_jvp(draw, tangents, {.executor = &three});
    const auto forward = run_forward(draw, {.executor = &three});
    EXPECT_TRUE(same_bits(alone.y, forward.y) && same_bits(alone.lse, forward.lse));
    EXPECT_TRUE(same_bits(alone.y, shared.y) && same_bits(alone.lse, shared.lse));
    EXPECT_TRUE(same_bits(alone.d_y, shared.d_y) && same_bits(alone.d_lse, shared.d_lse));
    if (draw.options.dropout > 0) continue;  // depends on the index of the batch row
    const std::vector<Index> last{draw.q.extent(0) - 1};
    const auto rows = [&](auto& x) {
      if (x && x.extent(0) > 1) x = AttentionDraw<float>::pick_rows(x, last);
    };
    rows(tangents.q), rows(tangents.k), rows(tangents.v), rows(tangents.qv);
    rows(tangents.batch_alibi_slopes);
    for (auto& bias : tangents.bias) rows(bias);
    const auto part = run_jvp(draw.with_batch(last), tangents, {.executor = &three});
    EXPECT_TRUE(same_bits(part.d_y, AttentionDraw<float>::pick_rows(alone.d_y, last)));
    EXPECT_TRUE(same_bits(part.d_lse, AttentionDraw<float>::pick_rows(alone.d_lse, last)));
  }
}

/// NaN in keys, values and tangents that a query does not see does not reach it.
TEST(SdpaJvp, NanOfMaskedKeysReachesNoQuery) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (std::uint64_t n = 300; n < 300 + draws(40); ++n) {
    Random random(n);
    auto draw = n % 5 == 0 ? few_queries(random) : AttentionDraw<double>(random, 200000);
    draw.options = {};
    draw.options.causal = true;
    draw.options.offset = ReferenceOptions::Offset::top_left;
    SCOPED_TRACE(random.trace() + ": " + draw.text());
    auto tangents = ReferenceTangents<double>::draw(random, draw.q, draw.k, draw.v, {});
    const auto clean = run_jvp(draw, tangents, {});
    const Index last = std::min(draw.q.extent(2), draw.k.extent(2)) - 1;
    std::vector<Array<double>*> dirty{&draw.k, &draw.v, &tangents.k, &tangents.v};
    if (random.chance(0.5)) dirty.erase(dirty.begin(), dirty.begin() + 2);
    for (Array<double>* x : dirty) {
      for (Index b = 0; b < x->extent(0); ++b) {
        for (Index h = 0; h < x->extent(1); ++h) (*x)(b, h, last, 0) = nan;
      }
    }
    const auto got = run_jvp(draw, tangents, {});
    for (Index b = 0; b < got.y.extent(0); ++b) {
      for (Index h = 0; h < got.y.extent(1); ++h) {
        for (Index x = 0; x < got.y.extent(3); ++x) {
          for (Index i = 0; i < last; ++i) {
            ASSERT_NEAR(got.y(b, h, i, x), clean.y(b, h, i, x), 1e-12) << i;
            ASSERT_NEAR(got.d_y(b, h, i, x), clean.d_y(b, h, i, x), 1e-10) << i;
          }
        }
        EXPECT_TRUE(std::isnan(got.d_y(b, h, last, 0)));
      }
    }
  }
}

/// <J t, w> = <t, J^T w> with functors whose derivatives are not constant, parameters of a
/// score_mod, softcap, dropout, sinks and lse.
TEST(SdpaJvp, IsTheTransposeOfBackward) {
  const auto bends = [](auto score, int, int h, int i, int j, auto slope, auto width) {
    using std::sqrt, std::tanh;
    const auto bent = score * tanh(score * slope + 0.1 * h) + width * width * 0.02 * (i - j);
    return j > i ? score + sqrt(score * 0.0 - 1.0) * slope : bent;  // NaN where masked out
  };
  const auto past = attn::mask_mod([](int, int, int i, int j) { return j <= i; });
  const auto changes = attn::prob_mod([](auto weight, int, int h, int, int j) {
    return weight * weight * (1 + h) + 0.1 * weight * (j % 3);
  });
  for (attn::Isa isa : available_isas()) {
    for (const bool has_prob : {false, true}) {
      Random random(has_prob ? 600 : 601);
      const attn::Shape<4> q_shape{2, 4, 30, 5}, k_shape{2, 2, 300, 5}, v_shape{2, 2, 300, 3},
          out_shape{2, 4, 30, 3};
      const auto q = random.tensor<double, 4>(q_shape), k = random.tensor<double, 4>(k_shape),
                 v = random.tensor<double, 4>(v_shape), t_q = random.tensor<double, 4>(q_shape),
                 t_k = random.tensor<double, 4>(k_shape), t_v = random.tensor<double, 4>(v_shape),
                 w = random.tensor<double, 4>(out_shape);
      const auto w_lse = random.tensor<double, 3>({2, 4, 30});
      const auto slopes = random.tensor<double, 1>({4}), sinks = random.tensor<double, 1>({4}),
                 t_slopes = random.tensor<double, 1>({4}), t_sinks = random.tensor<double, 1>({4}),
                 t_width = random.tensor<double, 1>({1});
      attn::Tensor4<double> out(out_shape), d_out(out_shape), d_q(q_shape), d_k(k_shape),
          d_v(v_shape);
      attn::Tensor3<double> lse({2, 4, 30}), d_lse({2, 4, 30});
      attn::Tensor1<double> d_slopes({4}), d_width({1}), d_sinks({4});
      const attn::AttentionOptions<double> options{.softcap = 2,
                                                   .sinks = sinks,
                                                   .dropout = {.p = 0.2, .seed = 4},
                                                   .lse = lse,
                                                   .execution = {.isa = isa}};
      const auto bent = attn::score_mod(bends, slopes, 0.7);
      const auto dot = [](const auto& a, const auto& b) {
        return std::inner_product(a.elements().begin(), a.elements().end(), b.elements().begin(),
                                  0.0);
      };
      const auto check = [&](const auto&... functors) {
        attn::scaled_dot_product_attention_jvp(q, k, v,
                                               {.q = t_q,
                                                .k = t_k,
                                                .v = t_v,
                                                .sinks = t_sinks,
                                                .score_parameters = {t_slopes, t_width},
                                                .d_lse = d_lse},
                                               out, d_out, options, functors...);
        attn::scaled_dot_product_attention_backward(
            w, q, k, v, out, lse, d_q, d_k, d_v, options,
            {.d_lse = w_lse.view(),
             .d_sinks = d_sinks.view(),
             .d_score_parameters = {d_slopes.view(), d_width.view()}},
            functors...);
      };
      has_prob ? check(bent, past, changes) : check(bent, past);
      const double forward = dot(d_out, w) + dot(d_lse, w_lse);
      const double backward = dot(t_q, d_q) + dot(t_k, d_k) + dot(t_v, d_v) +
                              dot(t_sinks, d_sinks) + dot(t_slopes, d_slopes) +
                              dot(t_width, d_width);
      EXPECT_NEAR(forward, backward, 1e-11 * (1 + std::abs(forward))) << attn::name(isa);
      EXPECT_GT(std::abs(forward), 1e-3);
    }
  }
}

/// Packed sequences have the tangents of separate calls, and pages and lists of keys those of the
/// same keys in order.
TEST(SdpaJvp, TakesPackedSequencesPagesAndLists) {
  Random random(400);
  const std::vector<attn::index_t> q_starts{0, 5, 5, 108}, k_starts{0, 9, 12, 600};
  const attn::Shape<4> q_shape{1, 4, 108, 8}, k_shape{1, 2, 600, 8};
  const auto q = random.tensor<float, 4>(q_shape), t_q = random.tensor<float, 4>(q_shape),
             k = random.tensor<float, 4>(k_shape), t_k = random.tensor<float, 4>(k_shape),
             v = random.tensor<float, 4>(k_shape), t_v = random.tensor<float, 4>(k_shape);
  attn::Tensor4<float> out(q_shape), d_out(q_shape);
  attn::Tensor3<float> lse({1, 4, 108}), d_lse({1, 4, 108});
  const auto same = [](const auto& a, const auto& b) {
    return same_bits(to_array(a), to_array(b));
  };
  attn::AttentionOptions<float> options{.mask = attn::causal(), .lse = lse};
  options.cu_seqlens_q = {q_starts.data(), {4}};
  options.cu_seqlens_k = {k_starts.data(), {4}};
  attn::scaled_dot_product_attention_jvp(q, k, v, {.q = t_q, .k = t_k, .v = t_v, .d_lse = d_lse},
                                         out, d_out, options);
  for (std::size_t s : {0u, 2u}) {
    const auto queries = [&](const auto& x) {
      return const_view(x).slice(2, q_starts[s], q_starts[s + 1]);
    };
    const auto keys = [&](const auto& x) {
      return const_view(x).slice(2, k_starts[s], k_starts[s + 1]);
    };
    attn::Tensor4<float> y(queries(out).shape()), d_y(y.shape());
    attn::scaled_dot_product_attention_jvp(queries(q), keys(k), keys(v),
                                           {.q = queries(t_q), .k = keys(t_k), .v = keys(t_v)}, y,
                                           d_y, {.mask = attn::causal()});
    EXPECT_TRUE(same(queries(out), y)) << s;
    EXPECT_TRUE(same(queries(d_out), d_y)) << s;
  }
  // 25 pages of 24 keys, in reverse order.
  const auto paged = [](const attn::Tensor4<float>& x) {
    attn::Tensor4<float> pages({25, 2, 24, 8});
    for (attn::index_t j = 0; j < 600; ++j) {
      for (attn::index_t h = 0; h < 2; ++h) {
        std::copy_n(x.view().at_index({0, h, j, 0}), 8,
                    pages.view().at_index({24 - j / 24, h, j % 24, 0}));
      }
    }
    return pages;
  };
  attn::Tensor2<attn::index_t> table({1, 25});
  for (attn::index_t n = 0; n < 25; ++n) table(0, n) = 24 - n;
  attn::Tensor4<float> y(q_shape), d_y(q_shape), listed(q_shape), d_listed(q_shape);
  const auto k_pages = paged(k), v_pages = paged(v), tk_pages = paged(t_k), tv_pages = paged(t_v);
  attn::scaled_dot_product_attention_jvp(q, k, v, {.q = t_q, .k = t_k, .v = t_v}, out, d_out);
  attn::scaled_dot_product_attention_jvp(q, k_pages, v_pages,
                                         {.q = t_q, .k = tk_pages, .v = tv_pages}, y, d_y,
                                         {.block_table = table});
  EXPECT_TRUE(same(out, y));
  EXPECT_TRUE(same(d_out, d_y));
  attn::Tensor4<attn::index_t> every({1, 1, 1, 600});
  std::iota(every.elements().begin(), every.elements().end(), attn::index_t{0});
  attn::scaled_dot_product_attention_jvp(q, k, v, {.q = t_q, .k = t_k, .v = t_v}, listed, d_listed,
                                         {.gather = every, .gather_block = 108});
  EXPECT_EQ(difference(to_array(listed), to_array(out), near(out), attn::active_isa()), "");
  EXPECT_EQ(difference(to_array(d_listed), to_array(d_out), near(d_out), attn::active_isa()), "");
}

/// A BlockMask gives the bits of its functor.
TEST(SdpaJvp, TakesBlockMasks) {
  Random random(500);
  const attn::Shape<4> shape{1, 2, 300, 8};
  const auto q = random.tensor<float, 4>(shape), k = random.tensor<float, 4>(shape),
             v = random.tensor<float, 4>(shape), t = random.tensor<float, 4>(shape);
  const auto near_keys =
      attn::mask_mod([](int, int, int i, int j) { return std::abs(i - j) < 50; });
  const attn::BlockMask mask(near_keys, {1, 1, 300, 300});
  attn::Tensor4<float> out(shape), d_out(shape), y(shape), d_y(shape);
  const attn::AttentionTangents<float> tangents{.q = t, .k = t, .v = t};
  attn::scaled_dot_product_attention_jvp(q, k, v, tangents, out, d_out, {}, near_keys);
  attn::scaled_dot_product_attention_jvp(q, k, v, tangents, y, d_y, {}, mask);
  EXPECT_TRUE(same_bits(to_array(out), to_array(y)));
  EXPECT_TRUE(same_bits(to_array(d_out), to_array(d_y)));
}

/// 16-bit tensors: out and d_out are those of the widened tensors, rounded once.
template <class E>
void expect_rounded_tangents(attn::index_t q_len) {
  Random random(800);
  const auto draw = [&](const attn::Shape<4>& shape) {
    return attn::convert<E>(random.tensor<float, 4>(shape));
  };
  const attn::Shape<4> q_shape{2, 4, q_len, 24}, k_shape{2, 2, 70, 24}, v_shape{2, 2, 70, 16};
  const auto q = draw(q_shape), k = draw(k_shape), v = draw(v_shape), t_q = draw(q_shape),
             t_k = draw(k_shape), t_v = draw(v_shape);
  attn::Tensor4<E> out({2, 4, q_len, 16}), d_out(out.shape());
  attn::Tensor4<float> wide_out(out.shape()), wide_d(out.shape());
  const attn::AttentionOptions<float> options{.mask = attn::causal()};
  attn::scaled_dot_product_attention_jvp(q, k, v, {.q = t_q, .k = t_k, .v = t_v}, out, d_out,
                                         options);
  const auto wide = [](const auto& x) { return attn::convert<float>(x); };
  const auto w_q = wide(t_q), w_k = wide(t_k), w_v = wide(t_v);
  attn::scaled_dot_product_attention_jvp(wide(q), wide(k), wide(v), {.q = w_q, .k = w_k, .v = w_v},
                                         wide_out, wide_d, options);
  const auto same = [](const attn::Tensor4<E>& a, const attn::Tensor4<float>& b) {
    const auto rounded = attn::convert<E>(b);
    return std::memcmp(a.data(), rounded.data(), static_cast<std::size_t>(a.size()) * sizeof(E)) ==
           0;
  };
  EXPECT_EQ(difference(to_array(wide_d), to_array(wide(d_out)), 0.01, attn::active_isa()), "");
  // The decode path sums products of 16 bits in an order of its own.
  EXPECT_TRUE(q_len < 9 || (same(out, wide_out) && same(d_out, wide_d)));
  if (attn::multiplies_pairs(attn::active_isa())) return;
  const auto forward = attn::scaled_dot_product_attention(q, k, v, options);
  EXPECT_EQ(
      std::memcmp(out.data(), forward.data(), static_cast<std::size_t>(out.size()) * sizeof(E)), 0);
  EXPECT_GT(std::abs(static_cast<float>(d_out(1, 3, q_len - 1, 5))), 0.0f);
}

TEST(SdpaJvp, RoundsTangentsOf16BitsOnce) {
  for (const attn::index_t q_len : {1, 40}) {
    expect_rounded_tangents<attn::bfloat16>(q_len);
    expect_rounded_tangents<attn::float16>(q_len);
  }
}

/// Float queries on keys and values of 16 bits.
TEST(SdpaJvp, TakesFloatQueriesOn16BitKeys) {
  Random random(810);
  const attn::Shape<4> shape{1, 2, 20, 8};
  const auto q = random.tensor<float, 4>(shape), t_q = random.tensor<float, 4>(shape);
  const auto draw = [&] { return attn::convert<attn::float16>(random.tensor<float, 4>(shape)); };
  const auto k = draw(), v = draw(), t_k = draw(), t_v = draw();
  const auto wide = [](const auto& x) { return attn::convert<float>(x); };
  const auto w_k = wide(t_k), w_v = wide(t_v);
  attn::Tensor4<float> out(shape), d_out(shape), y(shape), d_y(shape);
  attn::scaled_dot_product_attention_jvp(q, k, v, {.q = t_q, .k = t_k, .v = t_v}, out, d_out);
  attn::scaled_dot_product_attention_jvp(q, wide(k), wide(v), {.q = t_q, .k = w_k, .v = w_v}, y,
                                         d_y);
  EXPECT_TRUE(same_bits(to_array(out), to_array(y)));
  EXPECT_TRUE(same_bits(to_array(d_out), to_array(d_y)));
}

TEST(SdpaJvp, ChecksItsArguments) {
  attn::Tensor4<float> q({1, 2, 3, 4}), k({1, 2, 5, 4}), out({1, 2, 3, 4}), d_out(out.shape()),
      weights({1, 2, 3, 5}), narrow({1, 2, 3, 3});
  attn::Tensor1<float> two({2}), three({3});
  using Tangents = attn::AttentionTangents<float>;
  using Options = attn::AttentionOptions<float>;
  const auto call = [&](const Tangents& tangents, const Options& options) {
    attn::scaled_dot_product_attention_jvp(q, k, k, tangents, out, d_out, options);
  };
  const auto shape_error = [&](const Tangents& tangents, const Options& options,
                               std::string_view text) {
    return contains(error_of<attn::ShapeError>([&] { call(tangents, options); }), text);
  };
  const auto value_error = [&](const Tangents& tangents, const Options& options,
                               std::string_view text) {
    return contains(error_of<attn::ValueError>([&] { call(tangents, options); }), text);
  };
  EXPECT_TRUE(shape_error({.q = k}, {}, "tangents.q"));
  EXPECT_TRUE(shape_error({.k = q}, {}, "tangents.k"));
  EXPECT_TRUE(shape_error({.v = q}, {}, "tangents.v"));
  EXPECT_TRUE(shape_error({.sinks = three}, {.sinks = two}, "tangents.sinks"));
  EXPECT_TRUE(shape_error({.bias = {q}}, {.mask = attn::additive_mask(weights)}, "tangents.bias"));
  EXPECT_TRUE(value_error({.sinks = two}, {}, "tangents.sinks must be given only together"));
  EXPECT_TRUE(value_error({.qv = q}, {}, "tangents.qv must be given only together"));
  EXPECT_TRUE(value_error({.bias = {weights}}, {}, "tangents.bias must have one view for each"));
  EXPECT_TRUE(value_error({.score_parameters = {two}}, {}, "tangents.score_parameters"));
  EXPECT_TRUE(value_error({}, {.weights = weights}, "weights must not be given"));
  EXPECT_TRUE(value_error({}, {.scores = weights}, "scores must not be given"));
  EXPECT_TRUE(value_error({}, {.precision = attn::AttentionPrecision::int8}, "precision"));
  EXPECT_TRUE(contains(error_of<attn::ShapeError>([&] {
                         attn::scaled_dot_product_attention_jvp(q, k, k, {.q = q}, out, narrow);
                       }),
                       "d_out"));
  EXPECT_TRUE(all_are(out, 0.0f) && all_are(d_out, 0.0f));
}

}  // namespace
}  // namespace attn_test
