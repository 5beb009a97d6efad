// linear_attention: every rule against nested loops, in pieces, on threads; errors.
#include "attn/attention/linear_attention.hpp"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/placed.hpp"
#include "support/references/reference.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::Array;
using attn_test::available_isas;
using attn_test::difference;
using attn_test::error_of;
using attn_test::in_order;
using attn_test::Index;
using attn_test::Layout;
using attn_test::max_abs;
using attn_test::Order;
using attn_test::Placed;
using attn_test::Random;
using attn_test::same_bits;
using attn_test::to_array;
using attn_test::twice_naive;
using attn_test::Wider;

template <class T>
struct Operands {
  Array<T> q, k, v, decay, beta,
      state;  ///< the last three may be empty; states are (b, h, key, value)

  template <class W>
  Operands<W> as() const {
    return {.q = q.template as<W>(),
            .k = k.template as<W>(),
            .v = v.template as<W>(),
            .decay = decay.template as<W>(),
            .beta = beta.template as<W>(),
            .state = state.template as<W>()};
  }
};

template <class T>
struct Result {
  Array<T> y, state;
};

/// The docstring's three formulas, element by element.
template <class T>
Result<T> reference(const Operands<T>& in, T scale, Order order = Order::forward) {
  const Index batch = in.q.extent(0), heads = in.q.extent(1), seq = in.q.extent(2),
              dk = in.q.extent(3), kv_heads = in.k.extent(1), dv = in.v.extent(3);
  Result<T> result{Array<T>({batch, heads, seq, dv}), in.state};
  Array<T>& s = result.state;
  if (!s) s = Array<T>({batch, kv_heads, dk, dv});
  for (Index b = 0; b < batch; ++b) {
    for (Index h = 0; h < kv_heads; ++h) {
      for (Index t = 0; t < seq; ++t) {
        for (Index c = 0; c < dv; ++c) {
          T old = 0, value = in.v(b, h, t, c);
          for (Index d = 0; in.decay && d < dk; ++d) {
            s(b, h, d, c) *= std::exp(in.decay(b, h, t, in.decay.extent(3) == 1 ? 0 : d));
          }
          for (Index i = 0; i < dk; ++i) {
            const Index d = in_order(order, i, dk);
            old += in.k(b, h, t, d) * s(b, h, d, c);
          }
          if (in.beta) value = in.beta(b, in.beta.extent(1) == 1 ? 0 : h, t) * (value - old);
          for (Index d = 0; d < dk; ++d) s(b, h, d, c) += in.k(b, h, t, d) * value;
          for (Index m = 0; m < heads / kv_heads; ++m) {
            const Index head = h * (heads / kv_heads) + m;
            T sum = 0;
            for (Index i = 0; i < dk; ++i) {
              const Index d = in_order(order, i, dk);
              sum += in.q(b, head, t, d) * s(b, h, d, c);
            }
            result.y(b, head, t, c) = scale * sum;
          }
        }
      }
    }
  }
  return result;
}

template <class T, int Rank>
TensorView<const T, Rank> view_if(const Array<T>& x) {
  return x ? x.template view<Rank>() : TensorView<const T, Rank>();
}

template <class T>
LinearAttentionOptions<T> options_of(const Operands<T>& in) {
  LinearAttentionOptions<T> options;
  options.decay = view_if<T, 4>(in.decay);
  options.beta = view_if<T, 3>(in.beta);
  options.initial_state = view_if<T, 4>(in.state);
  return options;
}

template <class T>
Operands<T> draw_operands(Random& random, Index dk, Index dv) {
  const Index batch = random.integer(1, 2), kv_heads = random.integer(1, 3),
              group = random.integer(1, 3), seq = random.integer(0, 9);
  // Keys have length about 1: with longer ones the delta rule grows without bound.
  const double unit = 1 / std::sqrt(static_cast<double>(dk));
  Operands<T> in;
  in.q = random.array<T>({batch, kv_heads * group, seq, dk});
  in.k = random.array<T>({batch, kv_heads, seq, dk}, unit);
  in.v = random.array<T>({batch, kv_heads, seq, dv});
  if (random.chance(0.5)) {
    in.decay = random.array<T>({batch, kv_heads, seq, random.chance(0.5) ? 1 : dk});
    for (T& x : in.decay.data) x = -std::abs(x);
  }
  if (random.chance(0.5)) {
    in.beta = Array<T>({batch, random.chance(0.3) ? 1 : kv_heads, seq});
    for (T& x : in.beta.data) x = static_cast<T>(random.uniform());
  }
  if (random.chance(0.5)) in.state = random.array<T>({batch, kv_heads, dk, dv});
  return in;
}

template <class T>
class LinearAttentionTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(LinearAttentionTest, Types);

TYPED_TEST(LinearAttentionTest, EveryRuleInGuardedMemory) {
  using T = TypeParam;
  using W = Wider<T>;
  const std::vector<Index> sizes = {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 97};
  for (std::uint64_t draw = 0; draw < attn_test::draws(100); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const Index dk = random.pick(sizes), dv = random.pick(sizes);
    const auto in = draw_operands<T>(random, dk, dv);
    const bool given = random.chance(0.3);
    const double scale = given ? 0.25 : 1 / std::sqrt(static_cast<double>(dk));

    const auto exact = reference<W>(in.template as<W>(), static_cast<W>(scale));
    const auto bound = [&](auto part, const auto& of) {
      return twice_naive(
          [&](Order order) { return reference(in, static_cast<T>(scale), order).*part; }, of);
    };
    const double y_bound = bound(&Result<T>::y, exact.y),
                 state_bound = bound(&Result<T>::state, exact.state);

    const Placed<T, 4> q(in.q, Layout<4>::any(random)), k(in.k, Layout<4>::any(random)),
        v(in.v, Layout<4>::any(random));
    auto options = options_of(in);
    if (given) options.scale = scale;
    const auto layout = Layout<4>::any(random), state_layout = Layout<4>::any(random);
    for (Isa isa : available_isas()) {
      Placed<T, 4> y(exact.y.template library_shape<4>(), layout),
          state(exact.state.template library_shape<4>(), state_layout);
      options.final_state = state.view();
      linear_attention(q.read(), k.read(), v.read(), y.view(), options, {.isa = isa});
      ASSERT_EQ(difference(y.values(), exact.y, y_bound, isa, "y"), "");
      ASSERT_EQ(difference(state.values(), exact.state, state_bound, isa, "state"), "");
      ASSERT_TRUE(y.gaps_untouched());
      ASSERT_TRUE(state.gaps_untouched());
    }
  }
}

TYPED_TEST(LinearAttentionTest, PiecesGiveTheBitsOfTheWhole) {
  using T = TypeParam;
  for (std::uint64_t draw = 0; draw < attn_test::draws(20); ++draw) {
    Random random(1000 + draw);
    SCOPED_TRACE(random.trace());
    auto in = draw_operands<T>(random, 24, 70);
    const Index seq = in.q.extent(2), cut = random.integer(0, seq);
    for (Isa isa : available_isas()) {
      auto options = options_of(in);
      Tensor4<T> state({in.q.extent(0), in.k.extent(1), 24, 70});
      options.final_state = state;
      const auto whole = linear_attention(in.q.template view<4>(), in.k.template view<4>(),
                                          in.v.template view<4>(), options, {.isa = isa});
      Tensor4<T> pieces(whole.shape()), carried(state.shape());
      if (in.state) carried = Tensor4<T>(view_if<T, 4>(in.state));
      for (const auto& [begin, end] : {std::pair{Index{0}, cut}, std::pair{cut, seq}}) {
        const auto part = [b = begin, e = end](const auto& x) { return x.slice(2, b, e); };
        auto step = options_of(in);
        if (step.decay) step.decay = part(step.decay);
        if (step.beta) step.beta = part(step.beta);
        step.initial_state = carried.view();
        step.final_state = carried.view();
        linear_attention(part(view_if<T, 4>(in.q)), part(view_if<T, 4>(in.k)),
                         part(view_if<T, 4>(in.v)), part(pieces.view()), step, {.isa = isa});
      }
      EXPECT_TRUE(same_bits(to_array(pieces), to_array(whole))) << name(isa);
      EXPECT_TRUE(same_bits(to_array(carried), to_array(state))) << name(isa);
    }
  }
}

TYPED_TEST(LinearAttentionTest, ThreadsDoNotChangeTheBits) {
  using T = TypeParam;
  Random random(5);
  Operands<T> in;
  in.q = random.array<T>({2, 4, 40, 64});
  in.k = random.array<T>({2, 2, 40, 64}, 0.125);
  in.v = random.array<T>({2, 2, 40, 150});
  const attn_test::ThreadExecutor threads(3);
  const SerialExecutor serial;
  const auto run = [&](const Executor& executor) {
    return to_array(linear_attention(in.q.template view<4>(), in.k.template view<4>(),
                                     in.v.template view<4>(), {}, {.executor = &executor}));
  };
  EXPECT_TRUE(same_bits(run(threads), run(serial)));
}

// A decay of -inf clears the state.
TYPED_TEST(LinearAttentionTest, InfiniteDecayForgets) {
  using T = TypeParam;
  Random random(6);
  auto in = draw_operands<T>(random, 8, 9);
  in.q = random.array<T>({1, 1, 3, 8}), in.k = random.array<T>({1, 1, 3, 8});
  in.v = random.array<T>({1, 1, 3, 9}), in.beta = {}, in.state = {};
  in.decay = Array<T>({1, 1, 3, 1}, {0, 0, -std::numeric_limits<T>::infinity()});
  for (Isa isa : available_isas()) {
    const Execution on{.isa = isa};
    const auto y = linear_attention(in.q.template view<4>(), in.k.template view<4>(),
                                    in.v.template view<4>(), options_of(in), on);
    const auto last = [](const Array<T>& x) { return x.template view<4>().slice(2, 2, 3); };
    const auto alone = linear_attention(last(in.q), last(in.k), last(in.v), {}, on);
    EXPECT_TRUE(same_bits(to_array(y.view().slice(2, 2, 3)), to_array(alone))) << name(isa);
  }
}

TEST(LinearAttentionErrors, ShapesAndScale) {
  const Tensor4<float> q({2, 4, 5, 8}), k({2, 2, 5, 8}), v({2, 2, 5, 6}), odd({2, 3, 5, 8}),
      odd_v({2, 3, 5, 6});
  Tensor4<float> y({2, 4, 5, 6}), wrong({2, 4, 5, 7}), state({2, 2, 6, 8});
  y.fill(7);
  EXPECT_EQ(error_of<ShapeError>([&] { linear_attention(q, v, v, y); }),
            "[linear_attention] k must have shape (batch, num_kv_heads, seq, key_dim) = (2, 2, 5, "
            "8); found (2, 2, 5, 6).");
  EXPECT_EQ(error_of<ShapeError>([&] { linear_attention(q, k, odd_v, y); }),
            "[linear_attention] v must have shape (batch, num_kv_heads, seq, value_dim) = (2, 2, "
            "5, 6); found (2, 3, 5, 6).");
  EXPECT_EQ(error_of<ShapeError>([&] { linear_attention(q, k, v, wrong); }),
            "[linear_attention] out must have shape (batch, num_heads, seq, value_dim) = (2, 4, 5, "
            "6); found (2, 4, 5, 7).");
  EXPECT_EQ(error_of<ShapeError>([&] { linear_attention(q, odd, odd_v, y); }),
            "[linear_attention] num_heads and num_kv_heads must divide without remainder; found "
            "(4, 3).");
  EXPECT_EQ(error_of<ShapeError>([&] { linear_attention(q, k, v, y, {.decay = v.view()}); }),
            "[linear_attention] decay must broadcast to (batch, num_kv_heads, seq, key_dim) = (2, "
            "2, 5, 8); found (2, 2, 5, 6).");
  const Tensor3<float> beta({2, 4, 5});
  EXPECT_EQ(error_of<ShapeError>([&] { linear_attention(q, k, v, y, {.beta = beta.view()}); }),
            "[linear_attention] beta must broadcast to (batch, num_kv_heads, seq) = (2, 2, 5); "
            "found (2, 4, 5).");
  EXPECT_EQ(
      error_of<ShapeError>([&] { linear_attention(q, k, v, y, {.final_state = state.view()}); }),
      "[linear_attention] final_state must have shape (batch, num_kv_heads, key_dim, "
      "value_dim) = (2, 2, 8, 6); found (2, 2, 6, 8).");
  EXPECT_EQ(error_of<ShapeError>([&] {
              linear_attention(q, k, v, y, {.initial_state = state.view().transpose(2, 3)});
            }),
            "[linear_attention] initial_state must have innermost stride 1 (these are the "
            "strides); found (96, 48, 1, 8).");
  EXPECT_EQ(error_of<ValueError>([&] {
              linear_attention(q, k, v, y, {.scale = std::numeric_limits<double>::infinity()});
            }),
            "[linear_attention] scale must be finite; found inf.");
  EXPECT_TRUE(all_are(y, 7));
}

}  // namespace
}  // namespace attn
