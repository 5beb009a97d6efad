// Masked keys and values change no bit, and keys that no query attends to are never read.
#include <tuple>

#include <gtest/gtest.h>

#include "attn/attention/extend_mask.hpp"
#include "attn/attention/sdpa.hpp"

#include "support/draws/attention_draw.hpp"
#include "support/isas.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::AttentionDraw;
using attn_test::available_isas;
using attn_test::Index;
using attn_test::PageGuarded;
using attn_test::Random;
using attn_test::reference_keys;
using attn_test::reference_offset;
using attn_test::ReferenceOptions;
using attn_test::ReferenceResult;
using attn_test::run_library;
using attn_test::same_bits;
using attn_test::to_array;

template <class T>
class SdpaMaskedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(SdpaMaskedTest, Types);

template <class T>
bool sees(const AttentionDraw<T>& call, Index b, Index h, Index i, Index j) {
  const Index offset = reference_offset(call.options, b, call.q.extent(2), call.k.extent(2));
  return attn_test::reference_bias<T>(call.options, b, h, i, j, i + offset).has_value();
}

/// Rows of (batch, heads, q_len, n) for which agree(b, h, i) holds must have the same bits.
template <class T, class F>
std::string differing_row(const Array<T>& a, const Array<T>& b, F must_agree) {
  const Index n = a.shape.size() == 4 ? a.extent(3) : 1;
  for (Index row = 0; row < a.size() / n; ++row) {
    const Index i = row % a.extent(2), h = row / a.extent(2) % a.extent(1),
                batch = row / a.extent(2) / a.extent(1);
    if (!must_agree(batch, h, i)) continue;
    const auto at = static_cast<std::size_t>(row * n);
    if (std::memcmp(&a.data[at], &b.data[at], static_cast<std::size_t>(n) * sizeof(T)) != 0) {
      return "row " + std::to_string(batch) + ", " + std::to_string(h) + ", " + std::to_string(i) +
             " begins " + std::to_string(a.data[at]) + ", expected " + std::to_string(b.data[at]);
    }
  }
  return "";
}

/// Poisons keys, values or both at random positions, which some queries or none may attend to;
/// queries for which a position is masked out must keep their bits. Returns the number of poisoned
/// positions.
template <class T, class Wanted>
int poison_random_calls(Wanted wanted) {
  constexpr T inf = std::numeric_limits<T>::infinity();
  constexpr T nan = std::numeric_limits<T>::quiet_NaN();
  int positions = 0;
  for (std::uint64_t draw = 0; draw < attn_test::draws(250); ++draw) {
    Random random(draw);
    AttentionDraw<T> call(random, 150000);
    call.options.mean_of_masked_row = false;  // a mean takes all keys
    if (!wanted(call.options)) continue;
    SCOPED_TRACE(random.trace() + ": " + call.text());
    const auto [batch, heads, q_len, kv_len] = call.scores();
    const Index kv_heads = call.k.extent(1), group = heads / kv_heads;
    const T poison = random.pick<T>({nan, inf, -inf});
    const bool keys_too = random.chance(0.5), values_too = !keys_too || random.chance(0.5);

    AttentionDraw<T> poisoned = call;
    Array<double> sees_poison({batch, heads, q_len});
    for (Index b = 0; b < batch; ++b) {
      for (Index kv = 0; kv < kv_heads; ++kv) {
        for (Index j = 0; j < kv_len; ++j) {
          std::vector<std::pair<Index, Index>> seen_by;
          for (Index h = kv * group; h < (kv + 1) * group; ++h) {
            for (Index i = 0; i < q_len; ++i) {
              if (sees(call, b, h, i, j)) seen_by.emplace_back(h, i);
            }
          }
          const bool masked = seen_by.empty();
          if (!random.chance(masked ? 0.7 : 0.02)) continue;
          for (Index x = 0; keys_too && x < call.k.extent(3); ++x) poisoned.k(b, kv, j, x) = poison;
          for (Index x = 0; values_too && x < call.v.extent(3); ++x) {
            poisoned.v(b, kv, j, x) = poison;
          }
          for (auto [h, i] : seen_by) sees_poison(b, h, i) = 1;
          ++positions;
        }
      }
    }
    const auto blind = [&](Index b, Index h, Index i) { return sees_poison(b, h, i) == 0; };
    for (Isa isa : available_isas()) {
      SCOPED_TRACE(name(isa));
      const auto clean = run_library(call, {.isa = isa});
      const auto got = run_library(poisoned, {.isa = isa});
      EXPECT_EQ(differing_row(got.y, clean.y, blind), "");
      EXPECT_EQ(differing_row(got.weights, clean.weights, blind), "");
      EXPECT_EQ(differing_row(got.lse, clean.lse, blind), "");
      if (::testing::Test::HasFailure()) return positions;
    }
  }
  return positions;
}

bool adds(const ReferenceOptions& options) {
  return std::any_of(options.masks.begin(), options.masks.end(), [](const auto& mask) {
    return mask.kind == ReferenceOptions::Mask::Kind::add;
  });
}

TYPED_TEST(SdpaMaskedTest, PoisonChangesNoBitOfQueriesThatDoNotSeeIt) {
  const auto wanted = [](const ReferenceOptions& options) { return !adds(options); };
  EXPECT_GT(poison_random_calls<TypeParam>(wanted), 100);
}

TYPED_TEST(SdpaMaskedTest, AnAdditiveMaskMasksAsWell) {
  EXPECT_GT(poison_random_calls<TypeParam>(adds), 100);
}

TYPED_TEST(SdpaMaskedTest, VisibleNaNReachesTheOutput) {
  using T = TypeParam;
  Random random(1);
  for (Isa isa : available_isas()) {
    for (const bool in_key : {true, false}) {
      auto q = random.tensor<T, 4>({1, 1, 40, 16}), k = random.tensor<T, 4>({1, 1, 40, 16}),
           v = random.tensor<T, 4>({1, 1, 40, 16});
      (in_key ? k : v)(0, 0, 20, 3) = std::numeric_limits<T>::quiet_NaN();
      const auto y =
          scaled_dot_product_attention(q, k, v, {.mask = causal(), .execution = {.isa = isa}});
      for (Index i = 0; i < 40; ++i) {
        EXPECT_EQ(std::isnan(y(0, 0, i, 3)), i >= 20) << name(isa) << i;
        EXPECT_EQ(std::isnan(y(0, 0, i, 4)), i >= 20 && in_key) << name(isa) << i;
      }
    }
  }
}

/// Keys and values of one batch row and head, of which only [begin, end) is readable memory.
template <class T>
class PartlyMapped {
 public:
  PartlyMapped(const Array<T>& x, Index begin, Index end)
      : after_(rows(x, begin, end)),
        before_(rows(x, begin, end), PageGuarded<T>::Side::before_start),
        begin_(begin),
        kv_len_(x.extent(2)),
        dim_(x.extent(3)) {}

  /// Memory before (or after) the readable part is protected.
  TensorView4<const T> view(bool guard_after) const {
    const T* first = guard_after ? after_.data() : before_.data();
    return {first - begin_ * dim_, {1, 1, kv_len_, dim_}};
  }

 private:
  static Array<T> rows(const Array<T>& x, Index begin, Index end) {
    return to_array(x.template view<4>().slice(2, begin, end));
  }

  PageGuarded<T> after_, before_;
  Index begin_, kv_len_, dim_;
};

/// Runs the call with only keys [begin, end) readable; the bits must be those of the call with all
/// keys.
template <class T>
void expect_unread(const AttentionDraw<T>& call, Index begin, Index end) {
  const PartlyMapped<T> k(call.k, begin, end), v(call.v, begin, end);
  for (Isa isa : available_isas()) {
    const auto whole = run_library(call, {.isa = isa});
    for (const bool guard_after : {true, false}) {
      ReferenceResult<T> part = whole;
      const attn_test::LibraryOptions<T> library(call.options);
      AttentionOptions<T> options = library.get();
      options.weights = part.weights.template view<4>();
      options.lse = part.lse.template view<3>();
      options.execution.isa = isa;
      scaled_dot_product_attention(call.q.template view<4>(), k.view(guard_after),
                                   v.view(guard_after), part.y.template view<4>(), options);
      EXPECT_TRUE(same_bits(part, whole)) << name(isa);
      // Again without weights, which another pass computes.
      options.weights = {};
      scaled_dot_product_attention(call.q.template view<4>(), k.view(guard_after),
                                   v.view(guard_after), part.y.template view<4>(), options);
      EXPECT_TRUE(same_bits(part.y, whole.y)) << name(isa);
    }
  }
}

template <class T>
AttentionDraw<T> one_head(Random& random, Index q_len, Index kv_len, Index dim) {
  AttentionDraw<T> call(random, 100);
  call.options = {};
  call.q = random.array<T>({1, 1, q_len, dim});
  call.k = random.array<T>({1, 1, kv_len, dim});
  call.v = random.array<T>({1, 1, kv_len, dim});
  return call;
}

TYPED_TEST(SdpaMaskedTest, KeysBeyondTheLengthsAreNeverRead) {
  using T = TypeParam;
  Random random(2);
  for (Index q_len : {1, 5, 33}) {
    for (Index length : {0, 1, 7, 16, 63, 64, 65, 255, 256, 257, 599}) {
      for (const bool mean : {false, true}) {
        auto call = one_head<T>(random, q_len, 600, 17);
        call.options.key_lengths = {length};
        call.options.mean_of_masked_row = mean;
        SCOPED_TRACE(call.text());
        expect_unread(call, 0, length);
      }
    }
  }
}

TYPED_TEST(SdpaMaskedTest, KeysOutsideEveryWindowAreNeverRead) {
  using T = TypeParam;
  Random random(3);
  for (Index q_len : {1, 5, 33}) {
    for (Index at : {0, 3, 64, 250, 300}) {
      for (Index left : {0, 2, 17, 70}) {
        auto call = one_head<T>(random, q_len, 400, 24);
        call.options.offset = ReferenceOptions::Offset::fixed;
        call.options.fixed_offset = at;
        call.options.left = left;
        call.options.right = 5;
        SCOPED_TRACE(call.text());
        expect_unread(call, std::max<Index>(at - left, 0), std::min<Index>(at + q_len + 5, 400));
      }
    }
  }
}

TYPED_TEST(SdpaMaskedTest, KeysAfterTheLastCausalQueryAreNeverRead) {
  using T = TypeParam;
  Random random(4);
  for (Index q_len : {1, 5, 33, 65}) {
    auto call = one_head<T>(random, q_len, 300, 16);
    call.options.causal = true;
    call.options.offset = ReferenceOptions::Offset::top_left;
    expect_unread(call, 0, q_len);
  }
}

/// Values of both signs and many sizes: a different order of sums changes the bits.
TYPED_TEST(SdpaMaskedTest, PoisonChangesNoBitOfFewRows) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const Index q_len = random.integer(2, 5), kv_len = q_len + random.integer(0, 700);
    const auto q = random.tensor<T, 4>({1, 1, q_len, 8}),
               k = random.tensor<T, 4>({1, 1, kv_len, 8});
    auto v = random.tensor<T, 4>({1, 1, kv_len, 5});
    for (Index j = 0; j < kv_len; ++j) {
      for (Index x = 0; x < 5; ++x)
        v(0, 0, j, x) *= std::exp2(static_cast<T>(random.integer(0, 30)));
    }
    const Index masked_from =
        kv_len - random.integer(1, q_len - 1);  // kept for some queries, not for the last
    for (Isa isa : available_isas()) {
      const AttentionOptions<T> options{.mask = causal(), .execution = {.isa = isa}};
      const auto clean = scaled_dot_product_attention(q, k, v, options);
      auto poisoned = v;
      for (Index j = masked_from; j < kv_len; ++j) {
        poisoned(0, 0, j, 3) = std::numeric_limits<T>::quiet_NaN();
      }
      const auto got = scaled_dot_product_attention(q, k, poisoned, options);
      for (Index i = 0; i < masked_from - (kv_len - q_len); ++i) {
        for (Index x = 0; x < 5; ++x) {
          EXPECT_EQ(got(0, 0, i, x), clean(0, 0, i, x)) << name(isa) << " " << i << " " << x;
        }
      }
    }
  }
}

TYPED_TEST(SdpaMaskedTest, PoisonChangesNoBitWhereKeysAreSplit) {
  using T = TypeParam;
  Random random(5);
  for (Isa isa : available_isas()) {
    const auto q = random.tensor<T, 4>({1, 2, 2, 24}), k = random.tensor<T, 4>({1, 1, 5000, 24});
    auto v = random.tensor<T, 4>({1, 1, 5000, 24});
    Tensor1<bool> kept({5000});
    kept.fill(true);
    for (const index_t j : {7, 2100, 4999}) kept(j) = false;
    Tensor4<T> weights({1, 2, 2, 5000}), poisoned_weights({1, 2, 2, 5000});
    Tensor3<T> lse({1, 2, 2}), poisoned_lse({1, 2, 2});
    AttentionOptions<T> options{.mask = keep_mask(kept), .execution = {.isa = isa}};
    options.weights = weights;
    options.lse = lse;
    const auto clean = scaled_dot_product_attention(q, k, v, options);
    for (const index_t j : {7, 2100, 4999}) {
      v(0, 0, j, 3) = std::numeric_limits<T>::quiet_NaN();
    }
    options.weights = poisoned_weights;
    options.lse = poisoned_lse;
    const auto poisoned = scaled_dot_product_attention(q, k, v, options);
    EXPECT_EQ(to_array(poisoned).data, to_array(clean).data) << name(isa);
    EXPECT_EQ(to_array(poisoned_weights).data, to_array(weights).data) << name(isa);
    EXPECT_EQ(to_array(poisoned_lse).data, to_array(lse).data) << name(isa);
  }
}

TYPED_TEST(SdpaMaskedTest, InfiniteBiasesAndScoresMaskOutKeys) {
  using T = TypeParam;
  constexpr T inf = std::numeric_limits<T>::infinity();
  for (Isa isa : available_isas()) {
    Tensor4<T> q({1, 1, 2, 4}), k({1, 1, 2, 4}), v({1, 1, 2, 4});
    v.fill(3);
    v(0, 0, 1, 2) = std::numeric_limits<T>::quiet_NaN();
    const Tensor2<T> bias({1, 3}, {0, 0, -inf});
    const AttentionOptions<T> plain{.execution = {.isa = isa}};
    AttentionOptions<T> biased = plain;
    biased.relative_bias = bias;
    const auto later = score_mod([](T s, int, int, int i, int j) { return j > i ? -inf : s; });
    for (const auto& y : {scaled_dot_product_attention(q, k, v, biased),
                          scaled_dot_product_attention(q, k, v, plain, later)}) {
      EXPECT_EQ(y(0, 0, 0, 2), 3) << name(isa);
      EXPECT_TRUE(std::isnan(y(0, 0, 1, 2))) << name(isa);
    }
  }
}

/// A key that one bias masks out stays masked out, whatever other biases hold, in any order.
TYPED_TEST(SdpaMaskedTest, BiasesOfMaskedKeysMayBeNaN) {
  using T = TypeParam;
  Random random(5);
  const auto q = random.tensor<T, 4>({1, 2, 20, 8}), k = random.tensor<T, 4>({1, 2, 20, 8});
  Tensor2<T> masks({20, 20}), odd({20, 20}), columns({20, 20});
  for (index_t i = 0; i < 20; ++i) {
    masks(i, 3) = -std::numeric_limits<T>::infinity();
    odd(i, 3) = std::numeric_limits<T>::quiet_NaN();
    columns(3, i) = std::numeric_limits<T>::quiet_NaN();
  }
  const auto turned = columns.view().transpose(0, 1);
  for (Isa isa : available_isas()) {
    const auto data = [&](const Mask& mask) {
      return to_array(
                 scaled_dot_product_attention(q, k, k, {.mask = mask, .execution = {.isa = isa}}))
          .data;
    };
    const auto expected = data(additive_mask(masks));
    EXPECT_EQ(data(additive_mask(masks) & additive_mask(odd)), expected) << name(isa);
    EXPECT_EQ(data(additive_mask(odd) & additive_mask(masks)), expected) << name(isa);
    EXPECT_EQ(data(additive_mask(masks) & additive_mask(turned)), expected) << name(isa);
    EXPECT_EQ(data(additive_mask(turned) & additive_mask(masks)), expected) << name(isa);
    Tensor4<T> bias({1, 2, 20, 21});
    extend_mask(additive_mask(odd) & additive_mask(masks), bottom_right, 1, bias.view());
    EXPECT_EQ(bias(0, 1, 4, 3), -std::numeric_limits<T>::infinity());
  }
}

/// A score of -inf does not mask out its key: a NaN value reaches the output through its weight of
/// 0.
TYPED_TEST(SdpaMaskedTest, NaNValuesOfInfiniteProductsReachTheOutput) {
  using T = TypeParam;
  constexpr T inf = std::numeric_limits<T>::infinity();
  const T large = std::sqrt(std::numeric_limits<T>::max()) * 2;
  for (const auto& [q_len, kv_len, at] : {std::tuple<Index, Index, Index>{1, 3, 1},
                                          {1, 600, 599},
                                          {1, 5000, 100},
                                          {1, 5000, 4999},
                                          {3, 2100, 5},
                                          {40, 30, 7},
                                          {40, 700, 650}}) {
    Tensor4<T> q({1, 2, q_len, 2}), k({1, 2, kv_len, 2}), v({1, 2, kv_len, 3});
    for (index_t h = 0; h < 2; ++h) {
      for (index_t i = 0; i < q_len; ++i) q(0, h, i, 0) = large;
      k(0, h, at, 0) = -large;
      v(0, h, at, 1) = std::numeric_limits<T>::quiet_NaN();
    }
    Tensor1<bool> keep({kv_len}), drop({kv_len});
    keep.fill(true);
    const Tensor1<T> bias({kv_len});
    const Tensor2<T> distances({2, 3}), bias_that_masks({2, 1}, {-inf, 0});
    const Tensor1<index_t> lengths({1}, {kv_len});
    for (Isa isa : available_isas()) {
      SCOPED_TRACE(std::string(name(isa)) + ", " + std::to_string(q_len) + " x " +
                   std::to_string(kv_len) + ", key " + std::to_string(at));
      const auto is_nan = [&](AttentionOptions<T> options, const auto&... functors) {
        options.execution.isa = isa;
        const auto y = scaled_dot_product_attention(q, k, v, options, functors...);
        for (index_t i = 0; i < y.extent(2); ++i) {
          if (!std::isnan(y(0, 1, i, 1)) || y(0, 1, i, 0) != 0) return false;
        }
        return true;
      };
      EXPECT_TRUE(is_nan({}));
      EXPECT_TRUE(is_nan({.mask = keep_mask(keep)}));
      EXPECT_TRUE(is_nan({.mask = drop_mask(drop)}));
      EXPECT_TRUE(is_nan({.mask = additive_mask(bias)}));
      EXPECT_TRUE(is_nan({.mask = key_lengths(lengths)}));
      EXPECT_TRUE(is_nan({.mask = sliding_window(kv_len + q_len, kv_len + q_len)}));
      EXPECT_TRUE(is_nan({.relative_bias = distances}));
      EXPECT_TRUE(is_nan({.relative_bias = bias_that_masks}));
      EXPECT_TRUE(is_nan({}, mask_mod([](int, int, int, int) { return true; })));
      EXPECT_TRUE(is_nan({}, score_mod([](T s, int, int, int, int) { return s; })));
      // Keys that a mask masks out stay masked out.
      drop(at) = true;
      EXPECT_FALSE(is_nan({.mask = drop_mask(drop)}));
      drop(at) = false;
    }
  }
}

TYPED_TEST(SdpaMaskedTest, VisibleNaNReachesTheOutputWhereKeysAreSplit) {
  using T = TypeParam;
  for (Isa isa : available_isas()) {
    for (const index_t nan_begin : {0, 2048}) {
      Tensor4<T> q({1, 1, 1, 4}), k({1, 1, 4096, 4}), v({1, 1, 4096, 4});
      q.fill(1);
      for (index_t j = nan_begin; j < nan_begin + 2048; ++j) {
        k(0, 0, j, 0) = std::numeric_limits<T>::quiet_NaN();
      }
      const Tensor1<T> sinks({1}, {0});
      for (const bool has_sink : {false, true}) {
        AttentionOptions<T> options{.execution = {.isa = isa}};
        if (has_sink) options.sinks = sinks;
        EXPECT_TRUE(std::isnan(scaled_dot_product_attention(q, k, v, options)(0, 0, 0, 0)))
            << name(isa) << nan_begin;
      }
    }
  }
}

}  // namespace
}  // namespace attn
