// GatedDelta against loops in double, its states and gradients.
#include <gtest/gtest.h>

#include "attn/layers/recurrent/gated_delta_backward.hpp"

#include "layers/recurrent/recurrent_cases.hpp"
#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/models/module_gradients.hpp"
#include "support/models/parameters.hpp"
#include "support/tolerance.hpp"

namespace attn_test {
namespace {

using attn::GatedDelta, attn::GatedDeltaOptions, attn::KvCache, attn::Tensor3;

GatedDeltaOptions draw_delta(Random& random) {
  GatedDeltaOptions o;
  o.d_model = random.integer(1, 16);
  o.num_key_heads = random.integer(1, 3);
  o.num_value_heads = o.num_key_heads * random.integer(1, 3);
  o.key_dim = random.integer(1, 9);
  o.value_dim = random.integer(1, 20);
  o.width = random.integer(2, 5);
  o.norm_eps = 1e-3;
  return o;
}

using DeltaRow = std::vector<double>;

/// The definition, head by head and token by token.
template <class T>
Tensor3<double> gated_delta_reference(const GatedDelta<T>& m, const Tensor3<T>& x) {
  const GatedDeltaOptions& o = m.options();
  const Index seq = x.extent(1), members = o.num_value_heads / o.num_key_heads,
              by_head = 2 * o.key_dim + 2 * members * o.value_dim;
  const auto product = [](const attn::Linear<T>& layer, Index i, const auto& value) {
    double sum = 0;
    for (Index k = 0; k < layer.weight.extent(1); ++k) {
      sum += static_cast<double>(layer.weight(i, k)) * value(k);
    }
    return sum;
  };
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  Tensor3<double> out(x.shape());
  for (Index b = 0; b < x.extent(0); ++b) {
    const auto of_token = [&](Index t) {
      return [&x, b, t](Index k) { return static_cast<double>(x(b, t, k)); };
    };
    // Rows [row, row + n) of in_proj_qkvz after the convolution, whose channels begin at `channel`.
    const auto convolved = [&](Index t, Index row, Index channel, Index n) {
      DeltaRow result;
      for (Index i = 0; i < n; ++i) {
        double sum = 0;
        for (Index ago = 0; ago < o.width && ago <= t; ++ago) {
          sum += static_cast<double>(m.convolution.weight(channel + i, 0, o.width - 1 - ago)) *
                 product(m.in_proj_qkvz, row + i, of_token(t - ago));
        }
        result.push_back(sum * sigmoid(sum));
      }
      return result;
    };
    const auto of_length_one = [](DeltaRow v) {
      double squares = 1e-6;
      for (const double one : v) squares += one * one;
      for (double& one : v) one /= std::sqrt(squares);
      return v;
    };
    std::vector<DeltaRow> normed(static_cast<std::size_t>(seq));
    for (Index h = 0; h < o.num_value_heads; ++h) {
      const Index key_head = h / members, member = h % members, row = key_head * by_head;
      std::vector<DeltaRow> state(static_cast<std::size_t>(o.key_dim),
                                  DeltaRow(static_cast<std::size_t>(o.value_dim)));
      for (Index t = 0; t < seq; ++t) {
        const DeltaRow q = of_length_one(convolved(t, row, key_head * o.key_dim, o.key_dim)),
                       k = of_length_one(convolved(t, row + o.key_dim,
                                                   (o.num_key_heads + key_head) * o.key_dim,
                                                   o.key_dim)),
                       v = convolved(t, row + 2 * o.key_dim + member * o.value_dim,
                                     2 * o.num_key_heads * o.key_dim + h * o.value_dim,
                                     o.value_dim);
        const Index of_b = key_head * 2 * members + member;
        const double beta = sigmoid(product(m.in_proj_ba, of_b, of_token(t)));
        const double a =
            product(m.in_proj_ba, of_b + members, of_token(t)) + static_cast<double>(m.dt_bias(h));
        const double keep =
            std::exp(-std::exp(static_cast<double>(m.a_log(h))) * std::log1p(std::exp(a)));
        DeltaRow result;
        for (std::size_t e = 0; e < v.size(); ++e) {
          double stored = 0, read = 0;
          for (std::size_t d = 0; d < k.size(); ++d) stored += (state[d][e] *= keep) * k[d];
          for (std::size_t d = 0; d < k.size(); ++d) {
            state[d][e] += k[d] * beta * (v[e] - stored);
            read += state[d][e] * q[d];
          }
          result.push_back(read / std::sqrt(static_cast<double>(o.key_dim)));
        }
        double squares = 0;
        for (const double one : result) squares += one * one;
        for (Index e = 0; e < o.value_dim; ++e) {
          const double z =
              product(m.in_proj_qkvz, row + 2 * o.key_dim + (members + member) * o.value_dim + e,
                      of_token(t));
          normed[static_cast<std::size_t>(t)].push_back(
              result[static_cast<std::size_t>(e)] /
              std::sqrt(squares / static_cast<double>(o.value_dim) + o.norm_eps) *
              static_cast<double>(m.norm.weight(e)) * z * sigmoid(z));
        }
      }
    }
    for (Index t = 0; t < seq; ++t) {
      for (Index i = 0; i < o.d_model; ++i) {
        out(b, t, i) = product(m.out_proj, i, [&](Index k) {
          return normed[static_cast<std::size_t>(t)][static_cast<std::size_t>(k)];
        });
      }
    }
  }
  return out;
}

/// Tolerance: the norm divides by at least sqrt(1e-3), so that errors of the sums before it, of at
/// most 20 products each, grow up to 32 times.
template <class T>
void expect_delta_rule(Random& random, attn::Isa isa) {
  auto module = random_module<GatedDelta<T>>(random, draw_delta(random));
  if (random.chance(0.5)) module.pack();
  const auto x =
      random.tensor<T, 3>({random.integer(1, 2), random.integer(0, 8), module.options().d_model});
  expect_within(32 * 100, module(x, {}, {.isa = isa}), gated_delta_reference(module, x));
}

TEST(GatedDelta, AgreesWithLoops) {
  for (const attn::Isa isa : available_isas()) {
    for (std::uint64_t n = 0; n < draws(60); ++n) {
      Random random(n);
      SCOPED_TRACE(random.trace());
      expect_delta_rule<double>(random, isa);
      expect_delta_rule<float>(random, isa);
      if (HasFailure()) return;
    }
  }
}

/// Calls of any number of tokens, some of them taken back, have the bits of one call.
TEST(GatedDelta, CallsWithAStateHaveTheBitsOfOneCall) {
  for (std::uint64_t n = 0; n < draws(40); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    const auto module = random_module<GatedDelta<float>>(random, draw_delta(random));
    const Index seq = random.integer(1, 12), dim = module.options().d_model;
    const auto x = random.tensor<float, 3>({2, seq, dim});
    auto cache = module.make_cache(2, seq);
    Tensor3<float> pieces(x.shape());
    for (Index begin = 0, end = 0; begin < seq; begin = end) {
      end = random.integer(begin + 1, seq);
      if (random.chance(0.3)) {
        module(random.tensor<float, 3>({2, end - begin, dim}), {.cache = &cache});
        cache.truncate_to(begin);
      }
      module.forward(attn::const_view(x).slice(1, begin, end), pieces.view().slice(1, begin, end),
                     {.cache = &cache});
    }
    const auto whole = module(x);
    for (Index i = 0; i < x.size(); ++i) ASSERT_EQ(pieces.data()[i], whole.data()[i]) << i;
  }
}

TEST(GatedDelta, DecayIsOfTheSoftplusInBothTypes) {
  const auto expect = []<class T>(T x) {
    const Tensor3<T> ba({1, 1, 2}, {T{0}, x});
    const attn::Tensor1<T> zero({1});
    Tensor3<T> beta({1, 1, 1}), decay({1, 1, 1});
    attn::detail::delta_rates<T>({.d_model = 1}, attn::const_view(ba), attn::const_view(zero),
                                 attn::const_view(zero), beta.view(), decay.view());
    const long double exact = std::log1p(std::exp(static_cast<long double>(x)));
    EXPECT_NEAR(static_cast<double>(-decay(0, 0, 0) / exact), 1,
                4 * static_cast<double>(std::numeric_limits<T>::epsilon()))
        << x;
  };
  for (const double x : {-700.0, -80.0, -20.0, -1.0, 0.0, 1.0, 19.9, 20.0, 20.1, 30.0, 700.0}) {
    expect(x);
    if (std::abs(x) < 81) expect(static_cast<float>(x));
  }
}

TEST(GatedDelta, RowCachesAndThreadsGiveTheBitsOfCallsOfTheirOwn) {
  for (std::uint64_t n = 0; n < draws(20); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    auto drawn = draw_delta(random);
    if (n == 0) drawn.value_dim = 64;  // work for several threads
    const auto module = random_module<GatedDelta<float>>(random, drawn);
    const Index batch = random.integer(1, 4), seq = n == 0 ? 60 : random.integer(1, 4);
    expect_bits_of_rows_alone(random, module, batch, seq);
  }
}

TEST(GatedDelta, RefusesWhatDoesNotFit) {
  const auto error = [](const GatedDeltaOptions& options) {
    return error_of<attn::ValueError>([&] { GatedDelta<float> module(options); });
  };
  EXPECT_EQ(error({.d_model = 0}), "[GatedDelta] d_model must lie in 1 .. 2^20; found 0.");
  EXPECT_TRUE(contains(error({.d_model = 2, .width = 1}), "width must lie in 2 .. 2^20; found 1"));
  EXPECT_TRUE(contains(error({.d_model = 2, .num_key_heads = 2, .num_value_heads = 3}),
                       "num_value_heads must be a multiple of num_key_heads = 2; found 3"));
}

TEST(GatedDeltaBackward, AgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < draws(30); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    auto module = random_module<GatedDelta<double>>(random, draw_delta(random));
    expect_gradients<attn::GatedDeltaSaved<double>>(random, "GatedDelta", module,
                                                    gated_delta_reference<double>, 32 * 100);
    if (HasFailure()) break;
  }
}

TEST(GatedDeltaBackward, ThreadsGiveTheBitsAndFrozenParametersNoGradient) {
  Random random(3);
  GatedDeltaOptions drawn = draw_delta(random);
  drawn.value_dim = 64, drawn.d_model = 30;
  const auto module = random_module<GatedDelta<float>>(random, drawn);
  const auto x = random.tensor<float, 3>({3, 70, 30}), d = random.tensor<float, 3>(x.shape());
  const ThreadExecutor three(3);
  const attn::SerialExecutor serial;
  const auto run = [&](const attn::Executor& executor, auto& gradients) {
    attn::GatedDeltaSaved<float> saved;
    Tensor3<float> out(x.shape()), d_x(x.shape());
    attn::forward(module, x, out, saved, {}, {.executor = &executor});
    attn::backward(module, d, saved, d_x, gradients, {}, {.executor = &executor});
    return d_x;
  };
  auto some = attn::gradients_of(module), one = attn::gradients_of(module);
  auto none = attn::gradients_of(module, [](std::string_view) { return false; });
  const auto expected = run(serial, one);
  EXPECT_TRUE(std::ranges::equal(run(three, some).elements(), expected.elements()));
  EXPECT_TRUE(std::ranges::equal(run(three, none).elements(), expected.elements()));
  std::vector<float> found, of_one;
  const auto collect = [](auto& gradients, std::vector<float>& to) {
    gradients.visit_parameters([&](std::string_view, const auto& view) {
      to.insert(to.end(), view.data(), view.data() + view.size());
    });
  };
  collect(some, found), collect(one, of_one), collect(none, of_one);
  EXPECT_EQ(found, of_one);
}

}  // namespace
}  // namespace attn_test
