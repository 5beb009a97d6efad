// The scores that attention returns at each of its stages, against nested loops.
#include <gtest/gtest.h>

#include "attn/attention/sdpa.hpp"

#include "support/draws/attention_draw.hpp"
#include "support/isas.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::AttentionDraw;
using attn_test::available_isas;
using attn_test::difference;
using attn_test::in_order;
using attn_test::Index;
using attn_test::LibraryOptions;
using attn_test::Order;
using attn_test::Random;
using attn_test::Wider;

template <class T>
class SdpaScoresTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(SdpaScoresTest, Types);

/// Scores at a stage by nested loops in W.
template <class W, class T>
Array<W> reference_scores(const AttentionDraw<T>& call, ScoreStage stage,
                          Order order = Order::forward) {
  const auto [batch, heads, q_len, kv_len] = call.scores();
  const Index group = heads / call.k.extent(1), dim = call.q.extent(3);
  const auto& options = call.options;
  const Index of_values = options.qv ? call.v.extent(3) : 0;
  const W scale = static_cast<W>(
      static_cast<T>(options.scale.value_or(1 / std::sqrt(static_cast<double>(dim + of_values)))));
  Array<W> scores({batch, heads, q_len, kv_len});
  for (Index b = 0; b < batch; ++b) {
    const Index keys = reference_keys(options, b, kv_len);
    const Index offset = reference_offset(options, b, q_len, kv_len);
    for (Index h = 0; h < heads; ++h) {
      for (Index i = 0; i < q_len; ++i) {
        for (Index j = 0; j < kv_len; ++j) {
          W& score = scores(b, h, i, j);
          score = -std::numeric_limits<W>::infinity();
          if (j >= keys) continue;
          const auto bias = attn_test::reference_bias<W>(options, b, h, i, j, i + offset);
          if (stage == ScoreStage::masked && !bias) continue;
          W sum = 0;
          for (Index n = 0; n < dim; ++n) {
            const Index x = in_order(order, n, dim);
            sum += static_cast<W>(call.q(b, h, i, x)) * static_cast<W>(call.k(b, h / group, j, x));
          }
          for (Index n = 0; n < of_values; ++n) {
            const Index x = in_order(order, n, of_values);
            sum +=
                static_cast<W>(options.qv(b, h, i, x)) * static_cast<W>(call.v(b, h / group, j, x));
          }
          score = sum * scale;
          const W cap = static_cast<W>(options.softcap);
          if (stage != ScoreStage::scaled && cap > 0) score = cap * std::tanh(score / cap);
          if (stage == ScoreStage::masked) score += *bias;
        }
      }
    }
  }
  return scores;
}

TYPED_TEST(SdpaScoresTest, RandomCalls) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(100); ++draw) {
    Random random(draw);
    const AttentionDraw<T> call(random);
    const auto stage =
        random.pick<ScoreStage>({ScoreStage::scaled, ScoreStage::softcapped, ScoreStage::masked});
    SCOPED_TRACE(random.trace() + ": " + call.text() + ", stage " +
                 std::to_string(static_cast<int>(stage)));
    const auto expected = reference_scores<Wider<T>>(call, stage);
    const double bound = attn_test::twice_naive(
        [&](Order order) { return reference_scores<T>(call, stage, order); }, expected);
    const LibraryOptions<T> library(call.options);
    const auto q = call.q.template view<4>(), k = call.k.template view<4>(),
               v = call.v.template view<4>();
    for (Isa isa : available_isas()) {
      Array<T> scores(expected.shape);
      AttentionOptions<T> options = library.get();
      options.scores = scores.template view<4>();
      options.score_stage = stage;
      options.execution.isa = isa;
      const auto y = scaled_dot_product_attention(q, k, v, options);
      ASSERT_EQ(difference(scores, expected, bound, isa, "scores"), "");
      options.scores = {};
      const auto y_alone = scaled_dot_product_attention(q, k, v, options);
      ASSERT_TRUE(same_bits(attn_test::to_array(y), attn_test::to_array(y_alone)));
    }
  }
}

/// lse of a single key is its score: with softcap within 1.5 ULP (1.7 without FMA) of cap tanh(s /
/// cap). The worst results are near a power of two, around a score of cap, where two formulas meet.
TYPED_TEST(SdpaScoresTest, SoftcapIsWithinItsBound) {
  using T = TypeParam;
  constexpr Index kRows = 4000;
  const T caps[] = {T(50), T(30), T(20), T(1.5), T(1.29238), T(1.33), T(41.9)};
  const T spans[] = {T(0.3), T(1.05), T(1.2), T(4), T(25)};
  for (Isa isa : available_isas()) {
    for (T cap : caps) {
      for (T span : spans) {
        Tensor4<T> q({1, 1, kRows, 1}), key({1, 1, 1, 1}), out({1, 1, kRows, 1});
        key(0, 0, 0, 0) = T{1};
        for (Index i = 0; i < kRows; ++i) {
          q(0, 0, i, 0) = static_cast<T>(2 * i + 1 - kRows) / T{kRows} * span * cap;
        }
        Tensor3<T> lse({1, 1, kRows});
        AttentionOptions<T> options{.scale = 1, .softcap = static_cast<double>(cap)};
        options.lse = lse;
        options.execution.isa = isa;
        scaled_dot_product_attention(q, key, key, out, options);
        for (Index i = 0; i < kRows; ++i) {
          const auto wide = static_cast<long double>(cap);
          const long double exact =
              wide * std::tanh(static_cast<long double>(q(0, 0, i, 0)) / wide);
          const T near = std::abs(static_cast<T>(exact));
          const long double ulp = std::nextafter(near, std::numeric_limits<T>::infinity()) - near;
          ASSERT_LE(std::abs(static_cast<long double>(lse(0, 0, i)) - exact) / ulp,
                    isa == Isa::scalar && cap < T(30) ? 1.7L : 1.5L)
              << "of " << q(0, 0, i, 0) << " capped by " << cap << " on " << name(isa);
        }
      }
    }
  }
}

}  // namespace
}  // namespace attn
