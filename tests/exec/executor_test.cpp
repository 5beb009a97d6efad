// Executors: every task runs once, workers are in range and not shared by simultaneous tasks, also
// nested.
#include "attn/exec/executor.hpp"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "attn/attention/sdpa_backward.hpp"
#include "attn/kernels/gemm/gemm.hpp"
#include "attn/kernels/rows/softmax.hpp"

#include "support/error_of.hpp"
#include "support/thread_executor.hpp"

namespace attn {
namespace {

using attn_test::ThreadExecutor;

std::vector<std::unique_ptr<Executor>> executors() {
  std::vector<std::unique_ptr<Executor>> all;
  all.push_back(std::make_unique<SerialExecutor>());
  for (int threads : {1, 2, 5}) {
    all.push_back(std::make_unique<ThreadExecutor>(threads));
#if defined(_OPENMP)
    all.push_back(std::make_unique<OpenMPExecutor>(threads));
#endif
  }
#if defined(_OPENMP)
  all.push_back(std::make_unique<OpenMPExecutor>());
#endif
  return all;
}

TEST(Executor, RunsEveryTaskOnceAndNoTwoOnOneWorker) {
  for (const auto& executor : executors()) {
    for (index_t count : {0, 1, 2, 3, 100}) {
      const int workers = executor->concurrency();
      ASSERT_GE(workers, 1);
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      std::vector<std::atomic<int>> busy(static_cast<std::size_t>(workers));
      std::atomic<int> shared{0}, out_of_range{0};
      executor->run(count, [&](index_t task, int worker) {
        if (worker < 0 || worker >= workers) {
          ++out_of_range;
          return;
        }
        if (busy[static_cast<std::size_t>(worker)]++ != 0) ++shared;
        ++runs[static_cast<std::size_t>(task)];
        --busy[static_cast<std::size_t>(worker)];
      });
      EXPECT_EQ(out_of_range, 0);
      EXPECT_EQ(shared, 0);
      for (const auto& n : runs) EXPECT_EQ(n, 1);
    }
  }
}

TEST(Executor, RunsInsideItself) {
  for (const auto& executor : executors()) {
    std::atomic<int> inner{0};
    executor->run(3, [&](index_t, int) {
      const int workers = executor->concurrency();
      executor->run(4, [&](index_t, int worker) { inner += worker < workers ? 1 : 1000; });
    });
    EXPECT_EQ(inner, 12);
  }
}

#if defined(_OPENMP)
TEST(Executor, OpenMPRunsSeriallyWithinAParallelRegion) {
  std::atomic<int> wrong{0}, runs{0};
#pragma omp parallel num_threads(2)
  {
    const OpenMPExecutor executor(4);
    if (omp_get_num_threads() > 1 && executor.concurrency() != 1) ++wrong;
    executor.run(3, [&](index_t, int worker) {
      ++runs;
      if (worker != 0) ++wrong;
    });
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(runs % 3, 0);
}
#endif

TEST(Executor, DefaultIsOneObject) {
  EXPECT_EQ(&default_executor(), &default_executor());
  EXPECT_GE(default_executor().concurrency(), 1);
}

TEST(Executor, ReferencesAFunctorWithoutCopyingIt) {
  struct Counter {
    int runs = 0;
    void operator()(index_t, int) { ++runs; }
  } counter;
  SerialExecutor().run(5, counter);
  EXPECT_EQ(counter.runs, 5);
  static_assert(std::is_trivially_copyable_v<TaskRef>);
}

/// attn's executors pass on the exceptions of tasks; a user's executor may.
TEST(Executor, ErrorsOfTasksArrive) {
  for (const auto& executor : executors()) {
    EXPECT_THROW(executor->run(10,
                               [](index_t task, int) {
                                 if (task == 4 || task == 5) throw std::runtime_error("4");
                               }),
                 std::runtime_error);
  }
}

/// Runs serially, whatever number of threads it reports.
class Claims final : public Executor {
 public:
  explicit Claims(int threads) : threads_(threads) {}
  int concurrency() const override { return threads_; }
  void run(index_t count, TaskRef task) const override { SerialExecutor().run(count, task); }

 private:
  int threads_;
};

TEST(ExecutorErrors, WithoutThreads) {
  Tensor2<float> a({128, 128}), c({128, 128});
  Tensor4<float> q({1, 2, 128, 64}), out({1, 2, 128, 64});
  Tensor3<float> lse({1, 2, 128});
  Tensor2<float> rows({1024, 256}), results({1024, 256});
  for (const int threads : {0, -1, std::numeric_limits<int>::min()}) {
    const Claims executor(threads);
    const Execution execution{.executor = &executor};
    const std::string expected =
        "[Executor] concurrency() must be at least 1; found " + std::to_string(threads) + ".";
    EXPECT_EQ(attn_test::error_of<ValueError>([&] { gemm(a, a, c, {}, {.executor = &executor}); }),
              expected);
    EXPECT_EQ(attn_test::error_of<ValueError>(
                  [&] { scaled_dot_product_attention(q, q, q, out, {.execution = execution}); }),
              expected);
    EXPECT_EQ(attn_test::error_of<ValueError>([&] {
                scaled_dot_product_attention_backward(out, q, q, q, out, lse, out, out, out,
                                                      {.execution = execution});
              }),
              expected);
    EXPECT_EQ(attn_test::error_of<ValueError>([&] { softmax(rows, results, execution); }),
              expected);
  }
}

#if defined(_OPENMP)
TEST(ExecutorErrors, OpenMPThreadsAreNotNegative) {
  EXPECT_EQ(attn_test::error_of<ValueError>([] { const OpenMPExecutor executor(-1); }),
            "[OpenMPExecutor] threads must be at least 0; found -1.");
}
#endif

/// A multiple of the number of threads does not overflow.
TEST(Executor, AsManyThreadsAsCanBeCounted) {
  const Claims executor(std::numeric_limits<int>::max());
  Tensor2<float> a({400, 64}), b({64, 96}), c({400, 96});
  a.fill(2);
  b.fill(3);
  const PackedWeights<float> packed(b.view());  // workers need no memory for these
  gemm(a, packed, c, {}, {.executor = &executor});
  for (const float x : c.elements()) ASSERT_EQ(x, 384);
  const Tensor4<float> q({1, 2, 128, 64});
  Tensor4<float> out({1, 2, 128, 64});
  const auto bytes = [&](const Executor& of) {
    return workspace_bytes(q, q, q, out, {.execution = {.executor = &of}});
  };
  EXPECT_GT(bytes(executor) / 1000, bytes(Claims(1)));
}

}  // namespace
}  // namespace attn
