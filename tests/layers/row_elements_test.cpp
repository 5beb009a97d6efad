// Row operations on bfloat16 and float16: the bits of float, rounded once.
#include <deque>

#include <gtest/gtest.h>

#include "attn/kernels/rows/activation.hpp"
#include "attn/kernels/rows/norm.hpp"
#include "attn/kernels/rows/softmax.hpp"
#include "attn/layers/attention/rotary.hpp"
#include "attn/layers/embedding/embedding.hpp"
#include "attn/layers/linear.hpp"
#include "attn/layers/norm.hpp"

#include "support/isas.hpp"
#include "support/placed.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn {
namespace {

using attn_test::Array;
using attn_test::available_isas;
using attn_test::Index;
using attn_test::Layout;
using attn_test::Placed;
using attn_test::Random;
using attn_test::same_bits;
using attn_test::ThreadExecutor;
using attn_test::to_array;

template <class E>
class RowElementsTest : public ::testing::Test {};
using SmallTypes = ::testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(RowElementsTest, SmallTypes);

/// Shapes of few and many rows, longer than one range of rows and than one row's share of it.
const std::vector<Shape<3>> kShapes = {{1, 1, 1},     {2, 3, 17}, {3, 70, 130},
                                       {1, 2, 20000}, {0, 3, 5},  {2, 3, 0}};

/// run(x.., out, execution) with `count` tensors gives the rounded float result on E: out of place,
/// in place, on threads.
template <class E, int kCount, class Run>
void expect_floats_rounded(std::uint64_t seed, Run run) {
  const ThreadExecutor threads(3);
  for (const Shape<3>& shape : kShapes) {
    Random random(seed);
    std::deque<Placed<E, 3>> x;
    std::vector<Array<float>> floats;
    for (int i = 0; i < kCount; ++i) {
      const Array<E> values = random.array<float>({shape[0], shape[1], shape[2]}).template as<E>();
      floats.push_back(values.template as<float>());
      x.emplace_back(values, Layout<3>::any(random));
    }
    for (Isa isa : available_isas()) {
      SCOPED_TRACE(random.trace() + ", " + to_string(shape) + ", " + std::string(name(isa)));
      Array<float> expected({shape[0], shape[1], shape[2]});
      Placed<E, 3> out(expected.template as<E>(), Layout<3>::any(random));
      if constexpr (kCount == 1) {
        run(floats[0].view<3>(), expected.view<3>(), Execution{.isa = isa});
        run(x[0].read(), out.view(), Execution{.executor = &threads, .isa = isa});
      } else {
        run(floats[0].view<3>(), floats[1].view<3>(), expected.view<3>(), Execution{.isa = isa});
        run(x[0].read(), x[1].read(), out.view(), Execution{.executor = &threads, .isa = isa});
      }
      ASSERT_TRUE(same_bits(out.values(), expected.template as<E>()));
      ASSERT_TRUE(out.gaps_untouched());
      Array<E> again = floats[0].template as<E>();
      if constexpr (kCount == 1) {
        run(again.template view<3>(), again.template view<3>(), Execution{.isa = isa});
      } else {
        run(again.template view<3>(), x[1].read(), again.template view<3>(), Execution{.isa = isa});
      }
      ASSERT_TRUE(same_bits(again, expected.template as<E>()));
    }
  }
}

TYPED_TEST(RowElementsTest, Softmax) {
  expect_floats_rounded<TypeParam, 1>(
      1, [](const auto& x, const auto& out, const Execution& on) { softmax(x, out, on); });
  expect_floats_rounded<TypeParam, 1>(
      2, [](const auto& x, const auto& out, const Execution& on) { log_softmax(x, out, on); });
}

TYPED_TEST(RowElementsTest, LogSumExpIsOfFloat) {
  Random random(3);
  const auto x = random.array<float>({2, 70, 400}).template as<TypeParam>();
  const Array<float> floats = x.template as<float>();
  for (Isa isa : available_isas()) {
    const Tensor2<float> found = log_sum_exp(x.template view<3>(), {.isa = isa});
    EXPECT_TRUE(same_bits(to_array(found), to_array(log_sum_exp(floats.view<3>(), {.isa = isa}))));
  }
}

TYPED_TEST(RowElementsTest, Activations) {
  for (Activation activation : {Activation::none, Activation::relu, Activation::gelu,
                                Activation::gelu_tanh, Activation::silu}) {
    expect_floats_rounded<TypeParam, 1>(4,
                                        [&](const auto& x, const auto& out, const Execution& on) {
                                          activate(activation, x, out, on);
                                        });
    expect_floats_rounded<TypeParam, 2>(
        5, [&](const auto& a, const auto& b, const auto& out, const Execution& on) {
          for (Index i = 0; i < a.extent(0); ++i) {
            glu(activation, a.select(0, i), b.select(0, i), out.select(0, i), on);
          }
        });
  }
  expect_floats_rounded<TypeParam, 1>(
      6, [](const auto& x, const auto& out, const Execution& on) { swish(x, out, 1.7, on); });
  expect_floats_rounded<TypeParam, 2>(7, [](const auto& a, const auto& b, const auto& out,
                                            const Execution& on) { swiglu(a, b, out, 1.7, on); });
}

TYPED_TEST(RowElementsTest, Norms) {
  using E = TypeParam;
  const auto run = [](const auto& x, const auto& out, const Execution& on) {
    using T = scalar_t<decltype(x)>;
    Tensor1<T> weight({x.extent(2)}), bias({x.extent(2)});
    for (Index i = 0; i < x.extent(2); ++i) {
      weight(i) = T(float{E(1 + 0.01f * static_cast<float>(i % 9))});
      bias(i) = T(float{E(0.1f * static_cast<float>(i % 5))});
    }
    layer_norm(x, weight, bias, 1e-5, out, on);
  };
  expect_floats_rounded<E, 1>(8, run);
  expect_floats_rounded<E, 1>(9, [](const auto& x, const auto& out, const Execution& on) {
    rms_norm(x, {}, 1e-6, out, on);
  });
}

TYPED_TEST(RowElementsTest, Rotary) {
  using E = TypeParam;
  Random random(10);
  const RotaryTable<float> table({.dim = 20, .max_positions = 400});
  Tensor2<index_t> positions({2, 300});
  for (Index i = 0; i < positions.size(); ++i) positions.data()[i] = i * 7 % 400;
  const Placed<E, 4> x(random.array<float>({2, 3, 300, 33}).template as<E>(),
                       Layout<4>::any(random));
  const Array<float> floats = x.values().template as<float>();
  for (RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved}) {
    for (Isa isa : available_isas()) {
      const Tensor4<E> found =
          rotary_embedding(x.read(), table.cos, table.sin, positions, pairs, {.isa = isa});
      const Tensor4<float> expected =
          rotary_embedding(floats.view<4>(), table.cos, table.sin, positions, pairs, {.isa = isa});
      EXPECT_TRUE(same_bits(to_array(found), to_array(expected).template as<E>())) << name(isa);
    }
  }
}

TYPED_TEST(RowElementsTest, LayersOfSuchWeights) {
  using E = TypeParam;
  Random random(11);
  const auto x = random.array<float>({2, 5, 40}).template as<E>();
  Linear<E> linear(40, 24);
  LayerNorm<E> norm(24);
  Embedding<E> embedding(9, 40);
  for (Tensor2<E>* weight : {&linear.weight, &embedding.weight}) {
    for (Index i = 0; i < weight->size(); ++i) weight->data()[i] = E(0.1 * random.normal());
  }
  const auto exact = attn_test::reference_matmul(
      Array<double>({10, 40}, x.template as<double>().data),
      to_array(linear.weight.view().transpose(0, 1)).template as<double>());
  const auto plain = linear(x.template view<3>());
  linear.pack();
  EXPECT_TRUE(same_bits(to_array(plain), to_array(linear(x.template view<3>()))));
  for (Index i = 0; i < exact.size(); ++i) {
    const double expected = exact.data[static_cast<std::size_t>(i)];
    EXPECT_NEAR(double{float{plain.data()[i]}}, expected,
                1e-5 + std::abs(expected) * double{std::numeric_limits<E>::epsilon()});
  }
  const Tensor3<E> normal = norm(plain);
  Tensor3<float> floats = convert<float>(plain);
  EXPECT_TRUE(same_bits(to_array(normal), to_array(convert<E>(layer_norm(floats)))));
  const Tensor2<index_t> ids({1, 2}, {8, 3});
  const auto rows = embedding(ids);
  for (Index i = 0; i < 40; ++i) {
    EXPECT_EQ(rows(0, 0, i).bits(), embedding.weight(8, i).bits());
    EXPECT_EQ(rows(0, 1, i).bits(), embedding.weight(3, i).bits());
  }
}

}  // namespace
}  // namespace attn
