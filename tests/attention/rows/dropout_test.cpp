// Dropout: Philox against published vectors, and the dropped weights, bit by bit.
#include <gtest/gtest.h>

#include "attn/attention/sdpa.hpp"

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/random.hpp"
#include "support/references/reference.hpp"
#include "support/thread_executor.hpp"

namespace attn {
namespace {

using Words = std::array<std::uint32_t, 4>;

// From kat_vectors of Random123, philox4x32 10.
TEST(Dropout, TheReferenceIsPhilox) {
  EXPECT_EQ(attn_test::philox({0, 0, 0, 0}, 0),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(attn_test::philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, ~std::uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(attn_test::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Equal scores and one value of 1 per key: the output shows which keys are kept.
TEST(Dropout, DropsWhatTheContractSaysWhateverRunsIt) {
  const attn_test::ThreadExecutor threads(2);
  const SerialExecutor serial;
  for (const index_t q_len : {1, 20, 400}) {
    const index_t kv_len = 300;
    const Tensor4<float> q({2, 2, q_len, 8}), k({2, 1, kv_len, 8});
    Tensor4<float> v({2, 1, kv_len, kv_len});
    for (index_t b = 0; b < 2; ++b) {
      for (index_t j = 0; j < kv_len; ++j) v(b, 0, j, j) = 1;
    }
    attn_test::ReferenceOptions reference;
    reference.dropout = 0.3;
    reference.seed = 0x123456789abcdef;
    for (Isa isa : attn_test::available_isas()) {
      for (const Executor* executor :
           {static_cast<const Executor*>(&serial), static_cast<const Executor*>(&threads)}) {
        const auto y =
            scaled_dot_product_attention(q, k, v,
                                         {.dropout = {reference.dropout, reference.seed},
                                          .execution = {.executor = executor, .isa = isa}});
        for (index_t b = 0; b < 2; ++b) {
          for (index_t h = 0; h < 2; ++h) {
            for (index_t i = 0; i < q_len; ++i) {
              for (index_t j = 0; j < kv_len; ++j) {
                const bool kept = attn_test::is_kept(reference, b, h, i, j);
                ASSERT_EQ(y(b, h, i, j) != 0, kept) << b << ' ' << h << ' ' << i << ' ' << j;
                ASSERT_NEAR(y(b, h, i, j), kept ? 1 / 0.7 / 300 : 0, 1e-8);
              }
            }
          }
        }
      }
    }
  }
}

TEST(Dropout, ProbabilityIsChecked) {
  const Tensor4<float> x({1, 1, 2, 4});
  for (const double p : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(
        attn_test::error_of<ValueError>(
            [&] { scaled_dot_product_attention(x, x, x, {.dropout = {.p = p}}); }),
        "[scaled_dot_product_attention] dropout.p must lie in [0, 1); found " + to_string(p) + ".");
  }
}

}  // namespace
}  // namespace attn
