// score_mod, mask_mod, prob_mod: equal to the same call by options, in every combination.
#include "attn/attention/functors.hpp"

#include <cmath>
#include <stdexcept>

#include <gtest/gtest.h>

#include "attn/attention/sdpa.hpp"

#include "support/isas.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::Random;

template <class T>
double largest_difference(const Tensor4<T>& a, const Tensor4<T>& b) {
  double worst = 0;
  for (index_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a.data()[i] - b.data()[i]));
    if (!(d <= worst)) worst = d;
  }
  return worst;
}

/// Inputs of a call with grouped heads, with few and with many queries.
template <class T>
struct Inputs {
  Tensor4<T> q, k, v;

  explicit Inputs(index_t q_len, index_t kv_len = 300) {
    Random random(static_cast<std::uint64_t>(q_len));
    q = random.tensor<T, 4>({2, 4, q_len, 24});
    k = random.tensor<T, 4>({2, 2, kv_len, 24});
    v = random.tensor<T, 4>({2, 2, kv_len, 17});
  }
};

template <class T>
class FunctorsTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(FunctorsTest, Types);

// Tolerance: weights are at most 1 and values are 1 to 6 in size; a few roundings of these.
template <class T>
constexpr double kTolerance = 64 * std::numeric_limits<T>::epsilon();

TYPED_TEST(FunctorsTest, ScoreModAsAlibiAndSoftcap) {
  using T = TypeParam;
  for (const index_t q_len : {1, 3, 150}) {
    const Inputs<T> in(q_len);
    const Tensor1<T> slopes({4}, {T(0.5), T(0.25), T(0.125), T(0.0625)});
    for (Isa isa : available_isas()) {
      const Execution on{.isa = isa};
      const auto alibi = scaled_dot_product_attention(
          in.q, in.k, in.v, {.offset = top_left, .alibi_slopes = slopes, .execution = on});
      const auto by_hand = scaled_dot_product_attention(
          in.q, in.k, in.v, {.execution = on}, score_mod([&](T s, int, int h, int i, int j) {
            return s - slopes(h) * static_cast<T>(std::abs(i - j));
          }));
      EXPECT_LE(largest_difference(alibi, by_hand), kTolerance<T>) << name(isa) << ' ' << q_len;
      const auto capped =
          scaled_dot_product_attention(in.q, in.k, in.v, {.softcap = 3, .execution = on});
      const auto tanh_by_hand = scaled_dot_product_attention(
          in.q, in.k, in.v, {.execution = on},
          score_mod([](T s, int, int, int, int) { return 3 * std::tanh(s / 3); }));
      EXPECT_LE(largest_difference(capped, tanh_by_hand), kTolerance<T>) << name(isa);
    }
  }
}

/// Keeps keys of the same document of `size` tokens.
struct SameDocument {
  int size;

  bool operator()(int, int, int i, int j) const { return i / size == j / size; }
  Visibility classify(index_t, index_t, IndexRange queries, IndexRange keys) const {
    const index_t q0 = queries.begin / size, q1 = (queries.end - 1) / size;
    const index_t k0 = keys.begin / size, k1 = (keys.end - 1) / size;
    if (q1 < k0 || k1 < q0) return Visibility::empty;
    return q0 == q1 && k0 == k1 ? Visibility::full : Visibility::partial;
  }
};

TYPED_TEST(FunctorsTest, MaskModAsCausalAndKeep) {
  using T = TypeParam;
  for (const index_t q_len : {1, 3, 150}) {
    const Inputs<T> in(q_len);
    for (Isa isa : available_isas()) {
      const Execution on{.isa = isa};
      const auto causal_form = scaled_dot_product_attention(
          in.q, in.k, in.v, {.mask = causal(), .offset = top_left, .execution = on});
      const auto by_hand =
          scaled_dot_product_attention(in.q, in.k, in.v, {.execution = on},
                                       mask_mod([](int, int, int i, int j) { return j <= i; }));
      EXPECT_LE(largest_difference(causal_form, by_hand), kTolerance<T>) << name(isa);
      Tensor4<bool> odd({1, 4, 1, 300});
      for (index_t h = 0; h < 4; ++h) {
        for (index_t j = 0; j < 300; ++j) odd(0, h, 0, j) = (j + h) % 2 == 1;
      }
      const auto kept =
          scaled_dot_product_attention(in.q, in.k, in.v, {.mask = keep_mask(odd), .execution = on});
      const auto functor = scaled_dot_product_attention(
          in.q, in.k, in.v, {.execution = on},
          mask_mod([](int, int h, int, int j) { return (j + h) % 2 == 1; }));
      EXPECT_EQ(largest_difference(kept, functor), 0) << name(isa);
    }
  }
}

TYPED_TEST(FunctorsTest, ClassifySkipsAndChangesNothing) {
  using T = TypeParam;
  for (const index_t size : {1, 7, 64, 100, 1000}) {
    const Inputs<T> in(700, 700);
    const SameDocument document{static_cast<int>(size)};
    const auto plain = [&](auto... i) { return document(i...); };
    for (Isa isa : available_isas()) {
      const Execution on{.isa = isa};
      const auto a =
          scaled_dot_product_attention(in.q, in.k, in.v, {.execution = on}, mask_mod(document));
      const auto b =
          scaled_dot_product_attention(in.q, in.k, in.v, {.execution = on}, mask_mod(plain));
      EXPECT_LE(largest_difference(a, b), kTolerance<T>) << name(isa) << ' ' << size;
    }
  }
  // Empty blocks are not read.
  Inputs<T> in(128, 128);
  const auto clean = scaled_dot_product_attention(in.q, in.k, in.v, {}, mask_mod(SameDocument{64}));
  for (index_t x = 0; x < 17; ++x) in.v(0, 0, 100, x) = std::numeric_limits<T>::quiet_NaN();
  const auto odd = scaled_dot_product_attention(in.q, in.k, in.v, {}, mask_mod(SameDocument{64}));
  for (index_t i = 0; i < 64; ++i) {
    for (index_t x = 0; x < 17; ++x) EXPECT_EQ(clean(0, 0, i, x), odd(0, 0, i, x));
  }
}

/// With one mask that does not classify: & skips blocks that are empty for the other, | takes
/// blocks that are full for the other.
TEST(Functors, OneOfTwoClassifies) {
  Inputs<float> in(128, 128);
  const auto even = [](int, int, int, int j) { return j % 2 == 0; };
  const auto both = mask_mod(SameDocument{64}) & mask_mod(even);
  const auto either = mask_mod(even) | mask_mod(SameDocument{64});
  const auto pairs = [](const auto& mask) {
    return mask_mod([f = mask.f](int b, int h, int i, int j) { return f(b, h, i, j); });
  };
  const auto attend = [&](const auto& mask) {
    return scaled_dot_product_attention(in.q, in.k, in.v, {}, mask);
  };
  EXPECT_LE(largest_difference(attend(both), attend(pairs(both))), kTolerance<float>);
  EXPECT_LE(largest_difference(attend(either), attend(pairs(either))), kTolerance<float>);

  const IndexRange low{0, 64}, high{64, 128};
  EXPECT_EQ(both.f.classify(0, 0, low, high), Visibility::empty);
  EXPECT_EQ(both.f.classify(0, 0, low, low), Visibility::partial);
  EXPECT_EQ(either.f.classify(0, 0, low, high), Visibility::partial);
  EXPECT_EQ(either.f.classify(0, 0, high, high), Visibility::full);
}

TYPED_TEST(FunctorsTest, MasksCombine) {
  using T = TypeParam;
  const Inputs<T> in(150);
  const auto near = mask_mod([](int, int, int i, int j) { return std::abs(i - j) < 20; });
  const auto first = mask_mod([](int, int, int, int j) { return j < 5; });
  const auto both = scaled_dot_product_attention(in.q, in.k, in.v, {}, near & first);
  const auto either = scaled_dot_product_attention(in.q, in.k, in.v, {}, near | first);
  const auto both_by_hand = scaled_dot_product_attention(
      in.q, in.k, in.v, {},
      mask_mod([](int, int, int i, int j) { return std::abs(i - j) < 20 && j < 5; }));
  const auto either_by_hand = scaled_dot_product_attention(
      in.q, in.k, in.v, {},
      mask_mod([](int, int, int i, int j) { return std::abs(i - j) < 20 || j < 5; }));
  EXPECT_EQ(largest_difference(both, both_by_hand), 0);
  EXPECT_EQ(largest_difference(either, either_by_hand), 0);
  const auto documents = mask_mod(SameDocument{30}) | mask_mod(SameDocument{50});
  const auto by_hand = scaled_dot_product_attention(
      in.q, in.k, in.v, {},
      mask_mod([](int, int, int i, int j) { return i / 30 == j / 30 || i / 50 == j / 50; }));
  EXPECT_LE(
      largest_difference(scaled_dot_product_attention(in.q, in.k, in.v, {}, documents), by_hand),
      kTolerance<T>);
}

TYPED_TEST(FunctorsTest, ProbModActsOnFinalWeights) {
  using T = TypeParam;
  for (const index_t q_len : {1, 3, 150}) {
    const Inputs<T> in(q_len);
    for (Isa isa : available_isas()) {
      Tensor4<T> weights({2, 4, q_len, 300});
      AttentionOptions<T> options{.mask = causal(), .weights = weights, .execution = {.isa = isa}};
      const auto square = [](T p, int, int, int, int) { return p * p; };
      const auto y = scaled_dot_product_attention(in.q, in.k, in.v, options, prob_mod(square));
      double worst = 0;
      for (index_t b = 0; b < 2; ++b) {
        for (index_t h = 0; h < 4; ++h) {
          for (index_t i = 0; i < q_len; ++i) {
            for (index_t x = 0; x < 17; ++x) {
              double sum = 0;
              for (index_t j = 0; j < 300; ++j) {
                const double p = static_cast<double>(weights(b, h, i, j));
                sum += p * p * static_cast<double>(in.v(b, h / 2, j, x));
              }
              worst = std::max(worst, std::abs(sum - static_cast<double>(y(b, h, i, x))));
            }
          }
        }
      }
      EXPECT_LE(worst, kTolerance<T>) << name(isa) << ' ' << q_len;
    }
  }
}

/// Errors of functors reach the caller, also from threads, and memory is freed.
TEST(Functors, ErrorsArrive) {
  const Tensor4<float> q({4, 4, 128, 32});
  for (const index_t bad : {1, 77, 127}) {
    EXPECT_THROW(
        scaled_dot_product_attention(q, q, q, {}, score_mod([bad](float s, int, int, int i, int) {
                                       if (i == bad) throw std::runtime_error("bad");
                                       return s;
                                     })),
        std::runtime_error);
  }
  const auto y = scaled_dot_product_attention(q, q, q);
  EXPECT_EQ(y(3, 3, 127, 31), 0);
}

/// Only masks are asked to classify blocks.
TEST(Functors, ClassifyIsOfMasksAlone) {
  struct Twice {
    float by = 2;
    float operator()(float s, int, int, int, int) const { return by * s; }
    Visibility classify(index_t, index_t, IndexRange, IndexRange) const {
      return by == 2 ? Visibility::empty : Visibility::full;
    }
  };
  const Inputs<float> in(9);
  const auto y = scaled_dot_product_attention(in.q, in.k, in.v, {}, score_mod(Twice{}));
  const auto same = scaled_dot_product_attention(in.q, in.k, in.v, {.scale = 2 / std::sqrt(24.0)});
  EXPECT_LE(largest_difference(y, same), kTolerance<float>);
}

TEST(Functors, AllThreeWithOptionsBesideThem) {
  const Inputs<float> in(40);
  const auto y = scaled_dot_product_attention(
      in.q, in.k, in.v, {.mask = sliding_window(100, 100), .softcap = 10},
      prob_mod([](float p, int, int, int, int) { return p; }),
      mask_mod([](int, int, int, int j) { return j >= 200; }),
      score_mod([](float s, int, int, int, int) { return 2 * s; }));
  const auto same = scaled_dot_product_attention(
      in.q, in.k, in.v,
      {.mask = sliding_window(100, 100), .scale = 2 / std::sqrt(24.0), .softcap = 10},
      mask_mod([](int, int, int, int j) { return j >= 200; }));
  EXPECT_LE(largest_difference(y, same), kTolerance<float>);
}

}  // namespace
}  // namespace attn
