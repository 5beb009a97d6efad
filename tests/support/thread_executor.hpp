// ThreadExecutor: an executor on std::thread, as a user without OpenMP would write it.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "attn/exec/executor.hpp"

namespace attn_test {

/// Starts threads for each call; a free thread takes the next task.
class ThreadExecutor final : public attn::Executor {
 public:
  explicit ThreadExecutor(int threads) : threads_(threads) {}

  int concurrency() const override { return threads_; }

  void run(attn::index_t count, attn::TaskRef task) const override {
    std::atomic<attn::index_t> next{0};
    std::exception_ptr error;
    std::mutex error_mutex;
    const auto work = [&](int worker) {
      try {
        for (attn::index_t i = next++; i < count; i = next++) task(i, worker);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        error = std::current_exception();
      }
    };
    std::vector<std::thread> threads;
    for (int worker = 1; worker < threads_; ++worker) threads.emplace_back(work, worker);
    work(0);
    for (std::thread& thread : threads) thread.join();
    if (error) std::rethrow_exception(error);
  }

 private:
  int threads_;
};

}  // namespace attn_test
