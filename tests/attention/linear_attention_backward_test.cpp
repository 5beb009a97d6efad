// linear_attention_backward: every rule against central differences, on threads; errors.
#include "attn/attention/linear_attention_backward.hpp"

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/gradient_check.hpp"
#include "support/isas.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn_test {
namespace {

using attn::Isa, attn::LinearAttentionOptions, attn::Tensor3, attn::Tensor4;

/// Tensors of a call, or their gradients; those of options may be empty.
template <class T>
struct LinearTensors {
  Tensor4<T> q, k, v, decay, initial, out, final_state;
  Tensor3<T> beta;

  /// As another element type.
  template <class U>
  LinearTensors<U> as() const {
    const auto cast = []<int Rank>(const attn::Tensor<T, Rank>& x) {
      attn::Tensor<U, Rank> result(x.shape());
      for (Index i = 0; i < x.size(); ++i) result.data()[i] = static_cast<U>(x.data()[i]);
      return result;
    };
    return {.q = cast(q),
            .k = cast(k),
            .v = cast(v),
            .decay = cast(decay),
            .initial = cast(initial),
            .out = cast(out),
            .final_state = cast(final_state),
            .beta = cast(beta)};
  }
};

/// Calls f(name, tensor) for each input, or gradient of one.
template <class Tensors, class F>
void each_input(Tensors& x, const F& f) {
  f("q", x.q), f("k", x.k), f("v", x.v), f("decay", x.decay), f("beta", x.beta);
  f("initial_state", x.initial);
}

/// Inputs, and in `out` and `final_state` the gradients of these outputs. Keys have length about 1,
/// so that the delta rule does not grow.
LinearTensors<float> draw_linear(Random& random, Index batch, Index kv_heads, Index seq) {
  const auto one_of = [&](Index n) { return random.chance(0.3) ? 1 : n; };
  const Index heads = kv_heads * random.integer(1, 3), dk = random.integer(1, 9),
              dv = random.pick(std::vector<Index>{1, 3, 8, 17, 35});
  LinearTensors<float> x;
  x.q = random.tensor<float, 4>({batch, heads, seq, dk});
  x.k = random.tensor<float, 4>({batch, kv_heads, seq, dk});
  for (float& one : x.k.elements()) one /= std::sqrt(static_cast<float>(dk));
  x.v = random.tensor<float, 4>({batch, kv_heads, seq, dv});
  x.out = random.tensor<float, 4>({batch, heads, seq, dv});
  if (random.chance(0.7)) {
    x.decay = random.tensor<float, 4>({one_of(batch), one_of(kv_heads), one_of(seq), one_of(dk)});
    for (float& one : x.decay.elements()) one = -std::abs(one);
  }
  if (random.chance(0.7)) {
    x.beta = Tensor3<float>({one_of(batch), one_of(kv_heads), one_of(seq)});
    for (float& one : x.beta.elements()) one = static_cast<float>(random.uniform());
  }
  if (random.chance(0.5)) x.initial = random.tensor<float, 4>({batch, kv_heads, dk, dv});
  if (random.chance(0.5)) x.final_state = random.tensor<float, 4>({batch, kv_heads, dk, dv});
  return x;
}

template <class T>
LinearAttentionOptions<T> options_of(const LinearTensors<T>& x) {
  LinearAttentionOptions<T> options{.scale = 0.75};
  if (x.decay.size() > 0) options.decay = x.decay.view();
  if (x.beta.size() > 0) options.beta = x.beta.view();
  if (x.initial.size() > 0) options.initial_state = x.initial.view();
  return options;
}

/// Gradients of decay, beta and the initial state begin at 1, since they are added to.
template <class T>
LinearTensors<T> gradients_of_linear(const LinearTensors<T>& x, const attn::Execution& execution) {
  LinearTensors<T> d = x;
  each_input(d, [](std::string_view, auto& gradient) { gradient.fill(1); });
  attn::LinearAttentionBackwardCall<T> call;
  if (x.final_state.size() > 0) call.d_final_state = x.final_state.view();
  if (d.decay.size() > 0) call.d_decay = d.decay.view();
  if (d.beta.size() > 0) call.d_beta = d.beta.view();
  if (d.initial.size() > 0) call.d_initial_state = d.initial.view();
  attn::linear_attention_backward(x.out, x.q, x.k, x.v, d.q, d.k, d.v, options_of(x), call,
                                  execution);
  const auto without_one = [](auto& gradient) {
    for (T& one : gradient.elements()) one -= 1;
  };
  without_one(d.decay), without_one(d.beta), without_one(d.initial);
  return d;
}

TEST(LinearAttentionBackward, AgreesWithCentralDifferences) {
  for (std::uint64_t n = 0; n < draws(40); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    auto x = draw_linear(random, random.integer(1, 2), random.integer(1, 2), random.integer(0, 11))
                 .as<double>();
    const auto loss = [&] {
      auto options = options_of(x);
      Tensor4<double> last(x.final_state.shape());
      if (last.size() > 0) options.final_state = last.view();
      const auto out = attn::linear_attention(x.q, x.k, x.v, options);
      return weighted_sum(x.out.elements(), out.elements()) +
             weighted_sum(x.final_state.elements(), last.elements());
    };
    const auto gradients = gradients_of_linear(x, {});
    std::vector<std::span<const double>> found;
    each_input(gradients, [&](std::string_view, const auto& d) { found.push_back(d.elements()); });
    std::size_t at = 0;
    each_input(x, [&](std::string_view name, auto& input) {
      expect_gradient(std::string(name), random, input.elements(), found[at++], loss);
    });
    if (HasFailure()) return;
  }
}

/// Tolerance: gradients are sums over at most 35 columns and 60 tokens, of products of a few sums
/// over 9 rows.
TEST(LinearAttentionBackward, FloatOnEverySetAgreesWithDouble) {
  for (std::uint64_t n = 0; n < draws(20); ++n) {
    Random random(100 + n);
    SCOPED_TRACE(random.trace());
    const auto x = draw_linear(random, 1, random.integer(1, 2), random.integer(1, 60));
    const auto exact = gradients_of_linear(x.as<double>(), {});
    for (const Isa isa : available_isas()) {
      const auto found = gradients_of_linear(x, {.isa = isa});
      expect_within(500, found.q, exact.q);
      expect_within(500, found.k, exact.k);
      expect_within(500, found.v, exact.v);
      expect_within(500, found.decay, exact.decay);
      expect_within(500, found.beta, exact.beta);
      expect_within(500, found.initial, exact.initial);
      if (HasFailure()) return;
    }
  }
}

TEST(LinearAttentionBackward, ThreadsDoNotChangeTheBits) {
  Random random(1);
  const ThreadExecutor threads(3);
  const attn::SerialExecutor serial;
  for (int n = 0; n < 3; ++n) {
    const auto x = draw_linear(random, 3, 3, 400);
    const auto some = gradients_of_linear(x, {.executor = &threads});
    auto one = gradients_of_linear(x, {.executor = &serial});
    std::vector<std::span<const float>> found;
    each_input(some, [&](std::string_view, const auto& d) { found.push_back(d.elements()); });
    std::size_t at = 0;
    each_input(one, [&](std::string_view name, auto& d) {
      EXPECT_TRUE(std::ranges::equal(d.elements(), found[at++])) << name;
    });
  }
}

/// A decay of -inf clears the state: tokens before it have the gradients of a call of their own.
TEST(LinearAttentionBackward, InfiniteDecayForgets) {
  Random random(2);
  auto x = draw_linear(random, 1, 1, 6);
  x.beta = {}, x.initial = {}, x.final_state = {};
  x.decay = Tensor4<float>({1, 1, 6, 1});
  x.decay(0, 0, 4, 0) = -std::numeric_limits<float>::infinity();
  const auto d = gradients_of_linear(x, {});
  const auto first = [](const Tensor4<float>& of) {
    return Tensor4<float>(attn::const_view(of).slice(2, 0, 4));
  };
  LinearTensors<float> before;
  before.q = first(x.q), before.k = first(x.k), before.v = first(x.v), before.out = first(x.out);
  const auto alone = gradients_of_linear(before, {});
  EXPECT_TRUE(std::ranges::equal(first(d.k).elements(), alone.k.elements()));
  EXPECT_TRUE(std::ranges::equal(first(d.v).elements(), alone.v.elements()));
  EXPECT_EQ(d.decay(0, 0, 4, 0), 0);
}

TEST(LinearAttentionBackward, RefusesWhatDoesNotFit) {
  const Tensor4<float> q({2, 4, 5, 8}), k({2, 2, 5, 8}), v({2, 2, 5, 6}), d_out({2, 4, 5, 6});
  Tensor4<float> d_q(q.shape()), d_k(k.shape()), d_v(v.shape()), wrong({2, 4, 5, 7});
  Tensor3<float> beta({2, 2, 5}), one({1, 1, 1});
  const auto error = [&]<class Error>(Error*, const auto& d, auto& to_q, const auto& options,
                                      const auto& call) {
    return error_of<Error>(
        [&] { attn::linear_attention_backward(d, q, k, v, to_q, d_k, d_v, options, call); });
  };
  using Options = LinearAttentionOptions<float>;
  using Call = attn::LinearAttentionBackwardCall<float>;
  attn::ShapeError* const shape = nullptr;
  attn::ValueError* const value = nullptr;
  EXPECT_EQ(error(shape, wrong, d_q, Options{}, Call{}),
            "[linear_attention_backward] d_out must have shape (2, 4, 5, 6); found (2, 4, 5, 7).");
  EXPECT_EQ(error(shape, d_out, wrong, Options{}, Call{}),
            "[linear_attention_backward] d_q must have shape (2, 4, 5, 8); found (2, 4, 5, 7).");
  EXPECT_EQ(error(value, d_out, d_q, Options{}, Call{.d_beta = beta.view()}),
            "[linear_attention_backward] d_beta must be given only together with its option; found "
            "alone.");
  EXPECT_EQ(error(shape, d_out, d_q, Options{.beta = one.view()}, Call{.d_beta = beta.view()}),
            "[linear_attention_backward] d_beta must have shape (1, 1, 1); found (2, 2, 5).");
  EXPECT_EQ(error(shape, d_out, d_q, Options{.beta = wrong.view().select(3, 0)}, Call{}),
            "[linear_attention_backward] beta must broadcast to (batch, num_kv_heads, seq) = (2, "
            "2, 5); found (2, 4, 5).");
  EXPECT_EQ(error(shape, d_out, d_q, Options{}, Call{.d_final_state = k.view()}),
            "[linear_attention_backward] d_final_state must have shape (2, 2, 8, 6); found (2, 2, "
            "5, 8).");
  Tensor4<float> state({2, 2, 8, 6});
  EXPECT_EQ(error(value, d_out, d_q,
                  Options{.initial_state = state.view(), .final_state = state.view()}, Call{}),
            "[linear_attention_backward] options.initial_state must be the state before forward, "
            "which wrote final_state over it; found final_state.");
}

}  // namespace
}  // namespace attn_test
