// Steady state: a call like one before, into memory of the caller's, allocates nothing.
//
// Counts by replacing operator new, which a sanitizer does itself: there these tests are skipped.
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "attn/layers/encoder_layer.hpp"

#include "support/isas.hpp"
#include "support/random.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ATTN_TEST_COUNTS_NEW 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ATTN_TEST_COUNTS_NEW 0
#endif
#endif
#if !defined(ATTN_TEST_COUNTS_NEW)
#define ATTN_TEST_COUNTS_NEW 1
#endif

namespace {

thread_local long allocations = 0;

#if ATTN_TEST_COUNTS_NEW
void* counted(std::size_t size, std::size_t alignment) {
  ++allocations;
  void* p = nullptr;
  if (::posix_memalign(&p, alignment, size > 0 ? size : 1) != 0) throw std::bad_alloc();
  return p;
}
#endif

}  // namespace

#if ATTN_TEST_COUNTS_NEW
void* operator new(std::size_t size) { return counted(size, alignof(std::max_align_t)); }
void* operator new[](std::size_t size) { return counted(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
#endif

namespace attn {
namespace {

/// Runs call() until its memory has grown, then once more, counted.
template <class F>
long allocations_of(F call) {
  call();
  call();
  const long before = allocations;
  call();
  return allocations - before;
}

class Allocation : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ATTN_TEST_COUNTS_NEW) GTEST_SKIP() << "under a sanitizer";
  }
  SerialExecutor serial;
  Workspace workspace;
};

TEST_F(Allocation, IsCounted) {
  EXPECT_EQ(allocations_of([] { Tensor1<float> x({3}); }), 1);
}

TEST_F(Allocation, NoneInAttention) {
  attn_test::Random random(1);
  const auto x = random.tensor<float, 4>({2, 4, 70, 32});
  const Tensor4<bool> keep({2, 1, 1, 70});
  Tensor4<float> y(x.shape()), weights({2, 4, 70, 70});
  for (Isa isa : attn_test::available_isas()) {
    const Execution on{.executor = &serial, .workspace = &workspace, .isa = isa};
    EXPECT_EQ(allocations_of([&] {
                scaled_dot_product_attention(
                    x, x, x, y,
                    {.mask = causal() & keep_mask(keep), .weights = weights, .execution = on});
              }),
              0)
        << name(isa);
  }
}

TEST_F(Allocation, NoneInLayers) {
  attn_test::Random random(2);
  const auto x = random.tensor<float, 3>({2, 30, 48});
  Tensor3<float> y(x.shape()), average({2, 30, 30});
  for (Isa isa : attn_test::available_isas()) {
    const Execution on{.executor = &serial, .workspace = &workspace, .isa = isa};
    const MultiHeadAttention<float> module({.embed_dim = 48, .num_heads = 4});
    EXPECT_EQ(allocations_of([&] {
                module.forward(x, x, x, y,
                               {.mask = causal(), .average_weights = average, .execution = on});
              }),
              0)
        << name(isa);
    for (const bool norm_first : {false, true}) {
      const EncoderLayer<float> layer(
          {.d_model = 48, .nhead = 4, .dim_feedforward = 96, .norm_first = norm_first});
      EXPECT_EQ(allocations_of([&] { layer.forward(x, y, {.execution = on}); }), 0) << name(isa);
    }
  }
}

TEST_F(Allocation, NoneWithTheDefaultWorkspace) {
  attn_test::Random random(3);
  const auto a = random.tensor<float, 2>({33, 200}), b = random.tensor<float, 2>({200, 70});
  const auto q = random.tensor<float, 4>({1, 2, 5, 16});
  Tensor2<float> c({33, 70});
  Tensor4<float> y(q.shape());
  EXPECT_EQ(allocations_of([&] { gemm(a, b, c); }), 0);
  EXPECT_EQ(allocations_of([&] { scaled_dot_product_attention(q, q, q, y); }), 0);
}

}  // namespace
}  // namespace attn
