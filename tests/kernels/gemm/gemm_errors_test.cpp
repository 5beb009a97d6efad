// gemm with invalid input: the names in its messages; nothing is written.
#include <gtest/gtest.h>

#include "attn/kernels/gemm/gemm.hpp"

#include "support/array.hpp"
#include "support/error_of.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::error_of;

/// The message of the ShapeError that f(c) throws; fails if f changed c.
template <class F>
std::string refused(const Shape<2>& shape, F f) {
  Tensor2<float> c(shape);
  c.fill(7);
  const std::string text = error_of<ShapeError>([&] { f(c); });
  EXPECT_TRUE(all_are(c, 7));
  return text;
}

const Tensor2<float> kA({2, 3}), kB({3, 4});

TEST(GemmErrors, Extents) {
  EXPECT_EQ(refused({2, 4},
                    [](auto& c) {
                      gemm(kA, Tensor2<float>({5, 4}), c);
                    }),
            "[gemm] b must have shape (3, 4); found (5, 4).");
  EXPECT_EQ(refused({2, 5}, [](auto& c) { gemm(kA, kB, c); }),
            "[gemm] c must have shape (2, 4); found (2, 5).");
  EXPECT_EQ(refused({4, 2}, [](auto& c) { gemm(kA, kB, c); }),
            "[gemm] c must have shape (2, 4); found (4, 2).");
}

TEST(GemmErrors, Epilogue) {
  const Tensor1<float> bias({3});
  EXPECT_EQ(refused({2, 4}, [&](auto& c) { gemm(kA, kB, c, {.bias = bias}); }),
            "[gemm] bias must be contiguous with shape (4); found (3).");
  const Tensor1<float> wide({8});
  const TensorView1<const float> strided(wide.data(), {4}, {2});
  EXPECT_NE(refused({2, 4}, [&](auto& c) { gemm(kA, kB, c, {.bias = strided}); }), "");
  const Tensor2<float> residual({2, 3});
  EXPECT_EQ(refused({2, 4}, [&](auto& c) { gemm(kA, kB, c, {.beta = 1, .residual = residual}); }),
            "[gemm] residual must have shape (2, 4); found (2, 3).");
  EXPECT_EQ(refused({2, 4},
                    [&](auto& c) {
                      const TensorView2<float> view(c);
                      const TensorView2<const float> rows(view.data(), {2, 4}, {0, 1});
                      gemm(kA, kB, c, {.beta = 1, .residual = rows});
                    }),
            "[gemm] residual must have c's shape (2, 4) and strides (4, 1), if it begins with c; "
            "found shape (2, 4) and strides (0, 1).");
}

TEST(GemmErrors, PackedWeights) {
  const PackedWeights<float> packed(kB);
  EXPECT_EQ(refused({2, 4},
                    [&](auto& c) {
                      gemm(Tensor2<float>({2, 5}), packed, c);
                    }),
            "[gemm] a must have shape (2, 3); found (2, 5).");
  EXPECT_EQ(refused({2, 3}, [&](auto& c) { gemm(kA, packed, c); }),
            "[gemm] c must have shape (2, 4); found (2, 3).");
}

TEST(GemmErrors, Batches) {
  Tensor3<float> c({3, 2, 4});
  c.fill(7);
  EXPECT_EQ(error_of<ShapeError>([&] {
              batched_gemm(Tensor3<float>({2, 2, 3}), Tensor3<float>({3, 3, 4}), c);
            }),
            "[batched_gemm] a must have batch 1 or 3; found 2.");
  EXPECT_EQ(error_of<ShapeError>([&] {
              batched_gemm(Tensor3<float>({3, 2, 3}), Tensor3<float>({2, 3, 4}), c);
            }),
            "[batched_gemm] b must have batch 1 or 3; found 2.");
  const Tensor3<float> a({3, 2, 3}), b({3, 3, 4}), two({2, 2, 4});
  EXPECT_EQ(error_of<ShapeError>([&] {
              batched_gemm(a, Tensor3<float>({3, 5, 4}), c);
            }),
            "[batched_gemm] b must have shape (3, 3, 4); found (3, 5, 4).");
  EXPECT_EQ(error_of<ShapeError>([&] { batched_gemm(a, b, c, {.beta = 1, .residual = two}); }),
            "[batched_gemm] residual must have shape (3, 2, 4); found (2, 2, 4).");
  EXPECT_EQ(error_of<ShapeError>(
                [&] { batched_gemm(a, b, c, {.beta = 1, .residual = c.view().slice(0, 0, 1)}); }),
            "[batched_gemm] residual must have c's shape (3, 2, 4) and strides (8, 4, 1), if it "
            "begins with c; found shape (1, 2, 4) and strides (8, 4, 1).");
  EXPECT_TRUE(all_are(c, 7));
}

}  // namespace
}  // namespace attn
