// Tangents of attention's gradients against central differences; symmetry; same bits; refusals.
#include "attn/attention/jvp/sdpa_backward_jvp.hpp"

#include <gtest/gtest.h>

#include "attn/attention/sequence_masks.hpp"

#include "support/error_of.hpp"
#include "support/tangent_check.hpp"
#include "support/thread_executor.hpp"

namespace attn_test {
namespace {

using attn::index_t;
template <class T>
using Tensor = attn::Tensor4<T>;

/// Inputs of a call, and what forward and backward make of them.
template <class T>
struct HessianCall {
  Tensor<T> q, k, v, d_out;

  HessianCall(Random& random, const attn::Shape<4>& queries, const attn::Shape<4>& keys, index_t dv)
      : q(random.tensor<T, 4>(queries)),
        k(random.tensor<T, 4>(keys)),
        v(random.tensor<T, 4>({keys[0], keys[1], keys[2], dv})),
        d_out(random.tensor<T, 4>({queries[0], queries[1], queries[2], dv})) {}
};

/// d_q, d_k and d_v after one another.
template <class T>
attn::Tensor1<T> joined(const Tensor<T>& q, const Tensor<T>& k, const Tensor<T>& v) {
  attn::Tensor1<T> all({q.size() + k.size() + v.size()});
  std::copy_n(q.data(), q.size(), all.data());
  std::copy_n(k.data(), k.size(), all.data() + q.size());
  std::copy_n(v.data(), v.size(), all.data() + q.size() + k.size());
  return all;
}

template <class T, class... Functors>
attn::Tensor1<T> gradients(const HessianCall<T>& at, attn::AttentionOptions<T> options,
                           const Functors&... functors) {
  attn::Tensor3<T> lse({at.q.extent(0), at.q.extent(1), at.q.extent(2)});
  options.lse = lse.view();
  const Tensor<T> out = attn::scaled_dot_product_attention(at.q, at.k, at.v, options, functors...);
  Tensor<T> d_q(at.q.shape()), d_k(at.k.shape()), d_v(at.v.shape());
  attn::scaled_dot_product_attention_backward(at.d_out, at.q, at.k, at.v, out, lse.view(), d_q, d_k,
                                              d_v, options, {}, functors...);
  return joined(d_q, d_k, d_v);
}

/// The gradients and their tangents.
template <class T, class... Functors>
std::array<attn::Tensor1<T>, 2> gradient_tangents(const HessianCall<T>& at,
                                                  const HessianCall<T>& along,
                                                  attn::AttentionOptions<T> options,
                                                  const Functors&... functors) {
  attn::Tensor3<T> lse({at.q.extent(0), at.q.extent(1), at.q.extent(2)}), d_lse(lse.shape());
  options.lse = lse.view();
  Tensor<T> out(at.d_out.shape()), d_of_out(out.shape());
  attn::scaled_dot_product_attention_jvp(
      at.q, at.k, at.v, {.q = along.q, .k = along.k, .v = along.v, .d_lse = d_lse.view()}, out,
      d_of_out, options, functors...);
  Tensor<T> d_q(at.q.shape()), d_k(at.k.shape()), d_v(at.v.shape()), t_q(d_q), t_k(d_k), t_v(d_v);
  attn::scaled_dot_product_attention_backward_jvp(
      {at.d_out, along.d_out}, {at.q, along.q}, {at.k, along.k}, {at.v, along.v}, {out, d_of_out},
      {lse, d_lse}, attn::DualView<T, 4>{d_q, t_q}, {d_k, t_k}, {d_v, t_v}, options, functors...);
  return {joined(d_q, d_k, d_v), joined(t_q, t_k, t_v)};
}

template <class T>
Direction direction_of(HessianCall<T>& at, const HessianCall<T>& along) {
  Direction direction;
  direction.add(at.q, along.q), direction.add(at.k, along.k), direction.add(at.v, along.v);
  direction.add(at.d_out, along.d_out);
  return direction;
}

TEST(AttentionHessian, AgreesWithCentralDifferencesOfBackward) {
  for (std::uint64_t n = 0; n < draws(40); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    const index_t batch = random.integer(1, 2), kv_heads = random.integer(1, 2),
                  heads = kv_heads * random.integer(1, 3);
    // More than a block of rows or keys, now and then.
    const index_t q_len = random.chance(0.2) ? random.integer(90, 110) : random.integer(1, 20),
                  kv_len = random.chance(0.2) ? random.integer(250, 280) : random.integer(1, 40),
                  d = random.integer(1, 9), dv = random.integer(1, 9);
    const attn::Shape<4> queries{batch, heads, q_len, d}, keys{batch, kv_heads, kv_len, d};
    HessianCall<double> at(random, queries, keys, dv), along(random, queries, keys, dv);
    attn::AttentionOptions<double> options;
    const auto bias = random.tensor<double, 4>({1, heads, q_len, kv_len});
    const auto sinks = random.tensor<double, 1>({heads}),
               slopes = random.tensor<double, 1>({heads});
    attn::Tensor1<index_t> lengths({batch});
    for (index_t& length : lengths.elements()) length = random.integer(0, kv_len);
    if (random.chance(0.4)) options.mask = options.mask & attn::causal();
    if (random.chance(0.3))
      options.mask = options.mask & attn::sliding_window(random.integer(0, 9), 2);
    if (random.chance(0.3)) options.mask = options.mask & attn::key_lengths(lengths.view());
    if (random.chance(0.3)) options.mask = options.mask & attn::additive_mask(bias.view());
    if (random.chance(0.3)) options.sinks = sinks.view();
    if (random.chance(0.3)) options.alibi_slopes = slopes.view();
    if (random.chance(0.3)) options.scale = 0.7;
    if (random.chance(0.3)) options.softcap = random.pick<double>({0.5, 2, 30});
    const auto check = [&](const auto&... functors) {
      const auto [gradient, tangent] = gradient_tangents(at, along, options, functors...);
      const auto expected = gradients(at, options, functors...);
      for (index_t i = 0; i < gradient.size(); ++i) {
        ASSERT_NEAR(expected(i), gradient(i), 1e-11 * (1 + std::abs(expected(i)))) << i;
      }
      const auto run = [&] { return gradients(at, options, functors...); };
      double size = 0;
      for (const double x : tangent.elements()) size = std::max(size, std::abs(x));
      if (size > 0) expect_tangent(direction_of(at, along), run, tangent);
    };
    if (random.chance(0.3)) {
      check(
          attn::mask_mod([](index_t, index_t, index_t i, index_t j) { return (i + j) % 3 != 0; }));
    } else {
      check();
    }
    if (::testing::Test::HasFailure()) break;
  }
}

TEST(AttentionHessian, TakesPackedSequences) {
  Random random(6);
  const attn::Shape<4> queries{1, 4, 40, 5}, keys{1, 2, 170, 5};
  HessianCall<double> at(random, queries, keys, 3), along(random, queries, keys, 3);
  attn::Tensor1<index_t> of_q({4}), of_k({4});
  of_q(1) = 10, of_q(2) = 10, of_q(3) = 40;  // one sequence has no queries
  of_k(1) = 12, of_k(2) = 20, of_k(3) = 170;
  attn::AttentionOptions<double> options{.mask = attn::causal()};
  options.cu_seqlens_q = of_q.view(), options.cu_seqlens_k = of_k.view();
  const auto [gradient, tangent] = gradient_tangents(at, along, options);
  const auto expected = gradients(at, options);
  for (index_t i = 0; i < gradient.size(); ++i) {
    ASSERT_NEAR(expected(i), gradient(i), 1e-11 * (1 + std::abs(expected(i)))) << i;
  }
  expect_tangent(
      direction_of(at, along), [&] { return gradients(at, options); }, tangent);
}

/// With d_out constant, the tangents are the Hessian of <d_out, out> times the direction.
TEST(AttentionHessian, IsSymmetric) {
  Random random(3);
  const attn::Shape<4> queries{2, 4, 30, 8}, keys{2, 2, 50, 8};
  const HessianCall<double> at(random, queries, keys, 6);
  HessianCall<double> u(random, queries, keys, 6), w(random, queries, keys, 6);
  u.d_out.fill(0), w.d_out.fill(0);
  const attn::AttentionOptions<double> options{.mask = attn::causal(), .softcap = 1};
  const double one = dot(joined(u.q, u.k, u.v), gradient_tangents(at, w, options)[1]),
               other = dot(joined(w.q, w.k, w.v), gradient_tangents(at, u, options)[1]);
  EXPECT_NEAR(one, other, 1e-10 * (1 + std::abs(one)));
  EXPECT_GT(std::abs(one), 1e-3);
}

TEST(AttentionHessian, SameBitsOnAnyThreads) {
  Random random(4);
  const attn::Shape<4> queries{2, 4, 120, 16}, keys{2, 2, 300, 16};
  const HessianCall<float> at(random, queries, keys, 16), along(random, queries, keys, 16);
  const ThreadExecutor three(3);
  const attn::SerialExecutor one;
  attn::AttentionOptions<float> options{.mask = attn::causal()};
  options.execution.executor = &one;
  const auto alone = gradient_tangents(at, along, options);
  options.execution.executor = &three;
  const auto shared = gradient_tangents(at, along, options);
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}}) {
    EXPECT_TRUE(std::ranges::equal(alone[n].elements(), shared[n].elements()));
  }
}

TEST(AttentionHessian, RefusesWhatHasNoSecondDerivative) {
  Random random(5);
  const HessianCall<double> at(random, {1, 1, 2, 4}, {1, 1, 3, 4}, 4);
  const auto refused = [&](const attn::AttentionOptions<double>& options, const auto&... functors) {
    return error_of<attn::ValueError>(
        [&] { (void)gradient_tangents(at, at, options, functors...); });
  };
  EXPECT_TRUE(contains(refused({.dropout = {.p = 0.5}}),
                       "[scaled_dot_product_attention_backward_jvp] dropout must not be given"));
  EXPECT_TRUE(contains(refused({.masked_row = attn::MaskedRow::mean}), "masked_row must not"));
  const auto twice = [](auto s, index_t, index_t, index_t, index_t) { return 2.0 * s; };
  EXPECT_TRUE(contains(refused({}, attn::score_mod(twice)), "score_mod must not be given"));
  const HessianCall<double> other(random, {1, 1, 2, 4}, {1, 1, 4, 4}, 4);
  const attn::Tensor3<double> lse({1, 1, 2});
  Tensor<double> d_q(at.q.shape()), d_k(at.k.shape()), d_v(at.v.shape());
  EXPECT_TRUE(contains(error_of<attn::ShapeError>([&] {
                         attn::scaled_dot_product_attention_backward_jvp(
                             {at.d_out, at.d_out}, {at.q, at.q}, {at.k, other.k}, {at.v, at.v},
                             {at.d_out, at.d_out}, {lse, lse}, attn::DualView<double, 4>{d_q, d_q},
                             {d_k, d_k}, {d_v, d_v});
                       }),
                       "tangent of k"));
}

}  // namespace
}  // namespace attn_test
