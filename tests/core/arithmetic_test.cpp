// Arithmetic with broadcasting against loops over all elements, random shapes and strides.
#include "attn/core/arithmetic.hpp"

#include <gtest/gtest.h>

#include "support/array.hpp"
#include "support/error_of.hpp"
#include "support/random.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;
using attn_test::to_array;

template <class T>
void broadcasts() {
  for (std::uint64_t draw = 0; draw < 60; ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const Shape<3> shape{random.integer(0, 4), random.integer(1, 5), random.integer(1, 19)};
    const auto extent = [&](index_t n) { return random.chance(0.3) ? index_t{1} : n; };
    const auto a = random.tensor<T, 3>({extent(shape[0]), extent(shape[1]), extent(shape[2])});
    const auto b = random.tensor<T, 2>({extent(shape[2]), extent(shape[1])});
    const auto factor = static_cast<Accumulator<T>>(random.normal());
    Tensor3<T> sum(shape), product({shape[2], shape[0], shape[1]}), multiple(shape);
    add(a, b.transpose(0, 1), sum);
    multiply(a, b.transpose(0, 1), product.permute({1, 2, 0}));
    scale(a, factor, multiple);
    Tensor3<T> less(shape);
    add(a, b.transpose(0, 1), less, -factor);
    const Tensor3<T> new_sum = add(a, b.transpose(0, 1)),
                     new_less = add(a, b.transpose(0, 1), -factor);
    const Tensor3<T> new_product = multiply(b.transpose(0, 1), a), new_multiple = scale(a, factor);
    const auto at = [](index_t i, index_t n) { return n == 1 ? 0 : i; };
    for (index_t i = 0; i < shape[0]; ++i) {
      for (index_t j = 0; j < shape[1]; ++j) {
        for (index_t k = 0; k < shape[2]; ++k) {
          const T x = a(at(i, a.extent(0)), at(j, a.extent(1)), at(k, a.extent(2)));
          const T y = b(at(k, b.extent(0)), at(j, b.extent(1)));
          EXPECT_EQ(sum(i, j, k), static_cast<T>(x + y));
          EXPECT_EQ(product(k, i, j), static_cast<T>(x * y));
          EXPECT_EQ(multiple(i, j, k), static_cast<T>(factor * x));
          EXPECT_EQ(less(i, j, k), static_cast<T>(x + -factor * y));
          // A tensor of the broadcast shape, which may be smaller than `shape`.
          const auto part = [&](const Tensor3<T>& z) {
            return z(at(i, z.extent(0)), at(j, z.extent(1)), at(k, z.extent(2)));
          };
          EXPECT_EQ(part(new_sum), sum(i, j, k));
          EXPECT_EQ(part(new_less), less(i, j, k));
          EXPECT_EQ(part(new_product), product(k, i, j));
          EXPECT_EQ(part(new_multiple), multiple(i, j, k));
        }
      }
    }
  }
}

TEST(Arithmetic, BroadcastsAsNumpy) {
  broadcasts<float>();
  broadcasts<double>();
  broadcasts<bfloat16>();
}

TEST(Arithmetic, InPlace) {
  Tensor1<int> x({3}, {1, 2, 3});
  add(x, x, x);
  multiply(x, Tensor1<int>({1}, {5}), x);
  scale(x, 2, x);
  EXPECT_EQ(to_array(x).data, (std::vector<int>{20, 40, 60}));
}

TEST(Arithmetic, IntoANewTensorOfTheCommonShape) {
  const Tensor2<float> column({2, 1}, {1, 2});
  const Tensor1<float> row({3}, {10, 20, 30});
  EXPECT_EQ(to_array(add(column, row)).data, (std::vector<float>{11, 21, 31, 12, 22, 32}));
  EXPECT_EQ(to_array(add(row, column, 2)).data, (std::vector<float>{12, 22, 32, 14, 24, 34}));
  EXPECT_EQ(multiply(column, row).shape(), (Shape<2>{2, 3}));
  EXPECT_EQ(add(Tensor2<float>({0, 3}), row).shape(), (Shape<2>{0, 3}));
  EXPECT_EQ(scale(row, -1)(2), -30);
  EXPECT_EQ(error_of<ShapeError>([&] {
              add(row, Tensor2<float>({2, 4}));
            }),
            "[add] b must broadcast to (2, 3); found (2, 4).");
  EXPECT_EQ(error_of<ShapeError>([&] { multiply(Tensor1<float>({0}), row); }),
            "[multiply] b must broadcast to (0); found (3).");
}

TEST(ArithmeticErrors, ShapesThatDoNotBroadcast) {
  Tensor2<float> out({2, 3});
  out.fill(7);
  const Tensor1<float> two({2}, {1, 2});
  EXPECT_EQ(error_of<ShapeError>([&] { add(out, two, out); }),
            "[add] b must broadcast to (2, 3); found (2).");
  EXPECT_TRUE(contains(error_of<ShapeError>([&] {
                         multiply(Tensor2<float>({3, 3}), out, out);
                       }),
                       "[multiply] a must broadcast to (2, 3); found (3, 3)."));
  // The output is not broadcast.
  Tensor2<float> small({1, 3});
  EXPECT_THROW(add(out, out, small), ShapeError);
  EXPECT_EQ(to_array(out).data, std::vector<float>(6, 7));
}

}  // namespace
}  // namespace attn
