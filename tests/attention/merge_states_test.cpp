// merge_states: attention over two parts of the keys, merged, against attention over all keys.
#include "attn/attention/merge_states.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "attn/attention/sdpa.hpp"

#include "support/draws/library_options.hpp"
#include "support/error_of.hpp"
#include "support/placed.hpp"
#include "support/random.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::Array;
using attn_test::attention_difference;
using attn_test::error_of;
using attn_test::Index;
using attn_test::Layout;
using attn_test::LibraryOptions;
using attn_test::Placed;
using attn_test::Random;
using attn_test::ReferenceOptions;
using attn_test::ReferenceResult;
using attn_test::same_bits;
using attn_test::to_array;

template <class T>
class MergeStatesTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(MergeStatesTest, Types);

template <class T>
constexpr T kInf = std::numeric_limits<T>::infinity();

/// Attention over keys [begin, end), with each query at its position among all keys.
template <class T>
MergedStates<T> attend_part(const Array<T>& q, const Array<T>& k, const Array<T>& v,
                            ReferenceOptions options, index_t begin, index_t end) {
  options.offset = ReferenceOptions::Offset::fixed;
  options.fixed_offset = k.extent(2) - q.extent(2) - begin;
  if (begin > 0) options.sinks.clear();
  const LibraryOptions<T> library(options);
  AttentionOptions<T> given = library.get();
  MergedStates<T> part;
  part.lse = Tensor3<T>({q.extent(0), q.extent(1), q.extent(2)});
  given.lse = part.lse;
  part.out =
      scaled_dot_product_attention(q.template view<4>(), k.template view<4>().slice(2, begin, end),
                                   v.template view<4>().slice(2, begin, end), given);
  return part;
}

TYPED_TEST(MergeStatesTest, TwoPartsOfTheKeysAreTheWhole) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const Index q_len = random.integer(1, 40), kv_len = random.integer(2, 150),
                cut = random.integer(1, kv_len - 1);
    const auto q = random.array<T>({2, 4, q_len, 16}, random.pick<double>({1, 4}));
    const auto k = random.array<T>({2, 2, kv_len, 16}), v = random.array<T>({2, 2, kv_len, 9});
    ReferenceOptions options;  // may mask out one part, or both, for a query
    options.causal = random.chance(0.5);
    if (random.chance(0.5)) options.left = random.integer(0, kv_len);
    if (random.chance(0.3)) {
      for (int h = 0; h < 4; ++h)
        options.sinks.push_back(static_cast<double>(static_cast<T>(random.normal())));
    }
    const auto a = attend_part(q, k, v, options, 0, cut),
               b = attend_part(q, k, v, options, cut, kv_len);
    const auto merged = merge_states(a.out, a.lse, b.out, b.lse);
    const ReferenceResult<T> got{to_array(merged.out), {}, to_array(merged.lse)};
    EXPECT_EQ(attention_difference<T>(got, q, k, v, options, active_isa()), "");
  }
}

TYPED_TEST(MergeStatesTest, AnyStridesThreadsAndInputsAsOutputs) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < 10; ++draw) {
    Random random(100 + draw);
    SCOPED_TRACE(random.trace());
    const Index q_len = draw == 0 ? 3000 : 7;  // 3000 queries use several threads
    const Shape<4> shape{2, 3, q_len, 11};
    const auto out_a = random.array<T>({2, 3, q_len, 11}),
               out_b = random.array<T>({2, 3, q_len, 11});
    const auto lse_a = random.array<T>({2, 3, q_len}), lse_b = random.array<T>({2, 3, q_len});
    const auto merged = merge_states(out_a.template view<4>(), lse_a.template view<3>(),
                                     out_b.template view<4>(), lse_b.template view<3>());
    const Placed<T, 4> a(out_a, Layout<4>::any(random, false)),
        b(out_b, Layout<4>::any(random, false)), to(shape, Layout<4>::any(random, false));
    const Placed<T, 3> la(lse_a, Layout<3>::any(random, false)),
        lb(lse_b, Layout<3>::any(random, false)),
        log_to({2, 3, q_len}, Layout<3>::any(random, false));
    const attn_test::ThreadExecutor threads(3);
    const auto check = [&](const auto& out, const auto& lse) {
      merge_states(a.view(), la.view(), b.view(), lb.view(), out.view(), lse.view(),
                   {.executor = &threads});
      EXPECT_TRUE(same_bits(out.values(), to_array(merged.out)) && out.gaps_untouched());
      EXPECT_TRUE(same_bits(lse.values(), to_array(merged.lse)) && lse.gaps_untouched());
    };
    check(to, log_to);
    if (draw % 2 == 0) {
      check(a, la);
    } else {
      check(b, lb);
    }
  }
}

TYPED_TEST(MergeStatesTest, ASideThatSawNoKeyLeavesNoTrace) {
  using T = TypeParam;
  constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();
  const Tensor4<T> some({1, 1, 3, 2}, {1, 2, 3, 4, kNaN, kNaN}),
      nothing({1, 1, 3, 2}, {kNaN, kNaN, 0, 0, 0, 0});
  const Tensor3<T> lse_some({1, 1, 3}, {-5, T(1e4), -kInf<T>}),
      lse_nothing({1, 1, 3}, {-kInf<T>, -kInf<T>, -kInf<T>});
  const std::vector<T> expected = {1, 2, 3, 4, 0, 0}, expected_lse = {-5, T(1e4), -kInf<T>};
  const auto ab = merge_states(some, lse_some, nothing, lse_nothing);
  const auto ba = merge_states(nothing, lse_nothing, some, lse_some);
  EXPECT_EQ(to_array(ab.out).data, expected);
  EXPECT_EQ(to_array(ba.out).data, expected);
  EXPECT_EQ(to_array(ab.lse).data, expected_lse);
  EXPECT_EQ(to_array(ba.lse).data, expected_lse);
}

TEST(MergeStatesErrors, NameTheArgument) {
  const Tensor4<float> x({2, 3, 4, 5}), other({2, 3, 4, 6});
  const Tensor3<float> lse({2, 3, 4}), other_lse({2, 3, 5});
  Tensor4<float> out(x.shape()), other_out(other.shape());
  Tensor3<float> to(lse.shape()), other_to(other_lse.shape());
  out.fill(7);
  to.fill(7);
  const auto error = [&](const auto& a, const auto& la, const auto& b, const auto& lb, auto& o,
                         auto& l) {
    return error_of<ShapeError>([&] { merge_states(a, la, b, lb, o, l); });
  };
  EXPECT_EQ(error(x, lse, other, lse, out, to),
            "[merge_states] out_b must have shape (batch, num_heads, q_len, head_dim_v) = (2, 3, "
            "4, 5); found (2, 3, 4, 6).");
  EXPECT_EQ(error(x, other_lse, x, lse, out, to),
            "[merge_states] lse_a must have shape (batch, num_heads, q_len) = (2, 3, 4); found (2, "
            "3, 5).");
  EXPECT_TRUE(attn_test::contains(error(x, lse, x, other_lse, out, to), "] lse_b must"));
  EXPECT_TRUE(attn_test::contains(error(x, lse, x, lse, other_out, to), "] out must"));
  EXPECT_TRUE(attn_test::contains(error(x, lse, x, lse, out, other_to), "] lse must"));
  EXPECT_TRUE(all_are(out, 7) && all_are(to, 7));
}

}  // namespace
}  // namespace attn
