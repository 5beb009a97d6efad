// ShortConvolution against loops in double, its states and gradients.
#include <gtest/gtest.h>

#include "attn/layers/recurrent/short_convolution_backward.hpp"

#include "layers/recurrent/recurrent_cases.hpp"
#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/models/module_gradients.hpp"
#include "support/models/parameters.hpp"
#include "support/tolerance.hpp"

namespace attn_test {
namespace {

using attn::KvCache, attn::ShortConvolution, attn::ShortConvolutionOptions, attn::Tensor3;

ShortConvolutionOptions draw_convolution(Random& random) {
  return {
      .d_model = random.integer(1, 20), .width = random.integer(2, 5), .bias = random.chance(0.5)};
}

/// The definition: sums over the tokens before, of which those before the first are 0.
template <class T>
Tensor3<double> short_convolution_reference(const ShortConvolution<T>& m, const Tensor3<T>& x) {
  const Index dim = m.options().d_model, width = m.options().width;
  const auto product = [](const attn::Linear<T>& layer, Index i, const auto& value) {
    double sum = layer.bias ? static_cast<double>(layer.bias(i)) : 0;
    for (Index k = 0; k < layer.weight.extent(1); ++k) {
      sum += static_cast<double>(layer.weight(i, k)) * static_cast<double>(value(k));
    }
    return sum;
  };
  Tensor3<double> out(x.shape());
  for (Index b = 0; b < x.extent(0); ++b) {
    const auto part = [&](Index t, Index i) {
      return product(m.in_proj, i, [&](Index k) { return x(b, t, k); });
    };
    for (Index t = 0; t < x.extent(1); ++t) {
      std::vector<double> gated;
      for (Index c = 0; c < dim; ++c) {
        double sum = m.convolution.bias ? static_cast<double>(m.convolution.bias(c)) : 0;
        for (Index ago = 0; ago < width && ago <= t; ++ago) {
          sum += static_cast<double>(m.convolution.weight(c, 0, width - 1 - ago)) *
                 part(t - ago, c) * part(t - ago, 2 * dim + c);
        }
        gated.push_back(part(t, dim + c) * sum);
      }
      for (Index i = 0; i < dim; ++i) {
        out(b, t, i) =
            product(m.out_proj, i, [&](Index k) { return gated[static_cast<std::size_t>(k)]; });
      }
    }
  }
  return out;
}

/// Tolerance: sums of at most 20 and 5 products, three of them multiplied with each other, whose
/// factors are at most about 10.
template <class T>
void expect_convolution(Random& random, attn::Isa isa) {
  auto module = random_module<ShortConvolution<T>>(random, draw_convolution(random));
  if (random.chance(0.5)) module.pack();
  const auto x =
      random.tensor<T, 3>({random.integer(1, 3), random.integer(0, 9), module.options().d_model});
  expect_within(1000, module(x, {}, {.isa = isa}), short_convolution_reference(module, x));
}

TEST(ShortConvolution, AgreesWithLoops) {
  for (const attn::Isa isa : available_isas()) {
    for (std::uint64_t n = 0; n < draws(60); ++n) {
      Random random(n);
      SCOPED_TRACE(random.trace());
      expect_convolution<double>(random, isa);
      expect_convolution<float>(random, isa);
      if (HasFailure()) return;
    }
  }
}

/// Calls of any number of tokens, with rows reordered in between, have the bits of one call.
TEST(ShortConvolution, CallsWithAStateHaveTheBitsOfOneCall) {
  for (std::uint64_t n = 0; n < draws(60); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    const auto module = random_module<ShortConvolution<float>>(random, draw_convolution(random));
    const Index seq = random.integer(1, 12), dim = module.options().d_model;
    auto x = random.tensor<float, 3>({2, seq, dim});
    auto cache = module.make_cache(2, seq);
    Tensor3<float> pieces(x.shape());
    const Index turned = random.integer(0, seq);  // from here on, both rows continue row 1
    for (Index begin = 0; begin < seq;) {
      if (begin == turned) {
        attn::Tensor1<Index> rows({2}, {1, 1});
        cache.reorder(rows);
        copy(attn::const_view(x).slice(0, 1, 2).slice(1, 0, begin),
             x.view().slice(0, 0, 1).slice(1, 0, begin));
        copy(attn::const_view(pieces).slice(0, 1, 2).slice(1, 0, begin),
             pieces.view().slice(0, 0, 1).slice(1, 0, begin));
      }
      const Index last = begin < turned ? turned : seq;
      const Index end = random.integer(begin + 1, last);
      if (random.chance(0.3)) {  // taken back
        module(random.tensor<float, 3>({2, end - begin, dim}), {.cache = &cache});
        EXPECT_TRUE(cache.can_truncate_to(begin));
        cache.truncate_to(begin);
      }
      module.forward(attn::const_view(x).slice(1, begin, end), pieces.view().slice(1, begin, end),
                     {.cache = &cache});
      begin = end;
    }
    EXPECT_EQ(cache.length(), seq);
    const auto whole = module(x);
    for (Index i = 0; i < x.size(); ++i) ASSERT_EQ(pieces.data()[i], whole.data()[i]) << i;
  }
}

TEST(ShortConvolution, RowCachesAndThreadsGiveTheBitsOfCallsOfTheirOwn) {
  for (std::uint64_t n = 0; n < draws(20); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    auto drawn = draw_convolution(random);
    if (n == 0) drawn.d_model = 150;  // work for several threads
    const auto module = random_module<ShortConvolution<float>>(random, drawn);
    const Index batch = random.integer(1, 4), seq = n == 0 ? 60 : random.integer(1, 4);
    expect_bits_of_rows_alone(random, module, batch, seq);
  }
}

TEST(ShortConvolution, KeepsTwoStates) {
  Random random(1);
  const auto module = random_module<ShortConvolution<float>>(
      random, ShortConvolutionOptions{.d_model = 3, .width = 3});
  auto cache = module.make_cache(1, 8);
  const auto x = random.tensor<float, 3>({1, 2, 3});
  for (int step = 0; step < 3; ++step) module(x, {.cache = &cache});
  EXPECT_FALSE(cache.can_truncate_to(5));
  EXPECT_FALSE(cache.can_truncate_to(2));
  EXPECT_TRUE(cache.can_truncate_to(4));
  EXPECT_TRUE(cache.can_truncate_to(0));
  EXPECT_TRUE(contains(error_of<attn::ValueError>([&] { cache.truncate_to(5); }),
                       "must be those of a state that a recurrent layer keeps"));
  EXPECT_EQ(cache.length(), 6);
  // No room: nothing changes.
  const std::vector<float> before(cache.state().data(),
                                  cache.state().data() + cache.state().size());
  EXPECT_TRUE(contains(error_of<attn::ValueError>([&] {
                         module(random.tensor<float, 3>({1, 3, 3}), {.cache = &cache});
                       }),
                       "[KvCache::advance] n, beside the 6 kept in a capacity of 8, must lie in"));
  EXPECT_TRUE(std::equal(before.begin(), before.end(), cache.state().data()));
  cache.clear();
  EXPECT_EQ(cache.length(), 0);
  const auto found = module(x, {.cache = &cache}), expected = module(x);
  EXPECT_TRUE(std::equal(found.data(), found.data() + found.size(), expected.data()));
}

TEST(ShortConvolution, CallsThatFailAndCallsWithoutTokensChangeNoState) {
  Random random(2);
  const auto module = random_module<ShortConvolution<float>>(
      random, ShortConvolutionOptions{.d_model = 3, .width = 3});
  auto cache = module.make_cache(1, 20), alone = module.make_cache(1, 20);
  const auto expect_same = [&] {
    for (Index length = 0; length <= alone.length(); ++length) {
      EXPECT_EQ(cache.can_truncate_to(length), alone.can_truncate_to(length)) << length;
    }
    auto one = cache, other = alone;
    ASSERT_EQ(one.length(), other.length());
    for (int back = 0; back < 2; ++back) {
      EXPECT_TRUE(
          std::ranges::equal(std::span(one.state().data(), 6), std::span(other.state().data(), 6)));
      if (back == 1 || !other.can_truncate_to(other.length() - 2)) return;
      one.truncate_to(one.length() - 2);
      other.truncate_to(other.length() - 2);
    }
  };
  for (int step = 0; step < 12; ++step) {
    const auto x = random.tensor<float, 3>({1, 2, 3});
    if (step == 4) {  // the state before is none
      for (KvCache<float>* one : {&cache, &alone}) one->truncate_to(6);
    } else if (step == 7) {
      for (KvCache<float>* one : {&cache, &alone}) one->clear();
    } else {
      for (KvCache<float>* one : {&cache, &alone}) module(x, {.cache = one});
    }
    for (int call = 0; call < 2; ++call) {
      module(Tensor3<float>({1, 0, 3}), {.cache = &cache});
      cache.advance(0);
      expect_same();
      const attn::detail::CacheGuard guard(&cache);  // as of a stack whose next layer fails
      module(x, {.cache = &cache});
    }
    expect_same();
  }
}

TEST(ShortConvolution, RefusesWhatDoesNotFit) {
  const auto value = [](const auto& f) { return error_of<attn::ValueError>(f); };
  const auto shape = [](const auto& f) { return error_of<attn::ShapeError>(f); };
  EXPECT_TRUE(contains(value([] { ShortConvolution<float>({.d_model = 3, .width = 1}); }),
                       "[ShortConvolution] width must be at least 2; found 1"));
  EXPECT_TRUE(contains(value([] { ShortConvolution<float>({.d_model = 0}); }), "d_model must"));
  const ShortConvolution<float> module({.d_model = 3});
  const Tensor3<float> x({2, 1, 3});
  EXPECT_TRUE(contains(shape([&] { module(Tensor3<float>({2, 1, 4})); }), "[ShortConvolution] x"));
  EXPECT_TRUE(contains(value([&] { (void)module.make_cache(1, 8, 4); }), "window, with a state,"));
  // States of bfloat16 layers are float: this size would overflow.
  EXPECT_TRUE(contains(
      value([] { KvCache<attn::bfloat16>({.capacity = 1, .state_size = Index{1} << 60}); }),
      "state_size must lie in 1 .. 1152921504606846975"));
  KvCache<float> keys({.batch = 2, .capacity = 4, .head_dim = 3}), other = module.make_cache(1, 4);
  EXPECT_TRUE(contains(value([&] { keys.advance(1); }), "state_size must be positive; found 0"));
  EXPECT_TRUE(contains(value([&] { (void)other.extend(1); }), "state_size must be 0; found 6"));
  EXPECT_TRUE(contains(shape([&] { module(x, {.cache = &keys}); }), "(batch, state_size)"));
  EXPECT_TRUE(contains(shape([&] { module(x, {.cache = &other}); }), "(batch, state_size)"));
  std::vector<KvCache<float>*> rows = {&other, &other};
  EXPECT_TRUE(contains(value([&] { module(x, {.row_caches = rows}); }), "a repeated or null one"));
  EXPECT_TRUE(contains(value([&] { module(x, {.cache = &other, .append = false}); }), "append"));
}

TEST(ShortConvolutionBackward, AgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < draws(20); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    auto module = random_module<ShortConvolution<double>>(random, draw_convolution(random));
    expect_gradients<attn::ShortConvolutionSaved<double>>(
        random, "ShortConvolution", module, short_convolution_reference<double>, 1000);
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace attn_test
