// Executors: run the independent tasks of a call on one thread, OpenMP or your thread pool.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <exception>
#include <string>
#include <type_traits>

#include "attn/core/shape.hpp"

#if defined(_OPENMP)
#include <omp.h>
// g++ links libgomp, which does not notice fork(): a child waits forever for the parent's threads.
// Clang links libomp, which starts new threads in a child.
#if !defined(__clang__) && __has_include(<sys/wait.h>)
#define ATTN_WATCH_FORK 1
#include <pthread.h>
#include <sys/stat.h>
#endif
#endif

ATTN_NAMESPACE_BEGIN

/// A reference to a callable void(task, worker), valid while the callable exists; never allocates.
class TaskRef {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, TaskRef>)
  TaskRef(F&& f)  // NOLINT(bugprone-forwarding-reference-overload)
      : object_(const_cast<void*>(static_cast<const void*>(__builtin_addressof(f)))),
        call_([](void* object, index_t task, int worker) {
          (*static_cast<std::remove_reference_t<F>*>(object))(task, worker);
        }) {}

  void operator()(index_t task, int worker) const { call_(object_, task, worker); }

 private:
  void* object_;
  void (*call_)(void*, index_t, int);
};

/// Runs tasks 0 .. count - 1, each once, in any order and on any thread, and returns when all are
/// done. `worker` is in [0, concurrency()) and differs between tasks that run at the same time: it
/// selects their scratch memory. Results depend on neither order nor worker. If a task throws, for
/// example in a functor, run() throws. concurrency() must be at least 1; otherwise calls with
/// enough work for threads throw ValueError.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual int concurrency() const = 0;
  virtual void run(index_t count, TaskRef task) const = 0;
};

namespace detail {

/// concurrency() as index_t, whose small multiples do not overflow. Throws ValueError below 1,
/// because scratch memory is allocated per worker.
inline index_t worker_count(const Executor& executor) {
  const int count = executor.concurrency();
  if (count < 1) {
    throw ValueError(
        message("Executor", "concurrency()", "be at least 1", to_string(std::ptrdiff_t{count})));
  }
  return count;
}

}  // namespace detail

class SerialExecutor final : public Executor {
 public:
  int concurrency() const override { return 1; }
  void run(index_t count, TaskRef task) const override {
    for (index_t i = 0; i < count; ++i) task(i, 0);
  }
};

#if defined(ATTN_WATCH_FORK)
namespace detail {

/// One per thread.
struct ForkState {
  bool had_threads = false;   ///< the process had other threads at the last fork()
  bool lost_threads = false;  ///< this thread is in a child of such a fork()
};
inline thread_local constinit ForkState fork_state;

/// Whether the process has other threads than the calling one; true if the system does not report
/// it. On Linux the link count of the folder is two more than the number of threads.
inline bool has_other_threads() noexcept {
  struct stat folder;
  return stat("/proc/self/task", &folder) != 0 || folder.st_nlink != 3;
}

/// Counts all threads, because libgomp does not reveal whether it has started some: any OpenMP
/// region of the program does, for example one in Eigen. So the handlers are registered before
/// main(). libgomp's state is per thread, and so is this: threads that a child starts work as
/// usual.
inline const int fork_watch =
    pthread_atfork([] { fork_state.had_threads = has_other_threads(); }, nullptr,
                   [] { fork_state.lost_threads |= fork_state.had_threads; });

}  // namespace detail
#endif

#if defined(_OPENMP)
/// OpenMP threads. Runs serially within a parallel region of the caller, since the cores are busy,
/// and in a child of fork() whose parent had threads, since libgomp (g++) would wait for them.
class OpenMPExecutor final : public Executor {
 public:
  /// threads = 0: the number that omp_get_max_threads() returns at each call. Throws ValueError for
  /// a negative number.
  explicit OpenMPExecutor(int threads = 0) : threads_(threads) {
    if (threads < 0) {
      throw ValueError(
          message("OpenMPExecutor", "threads", "be at least 0", std::to_string(threads)));
    }
  }

  int concurrency() const override {
#if defined(ATTN_WATCH_FORK)
    if (detail::fork_state.lost_threads) return 1;
#endif
    if (omp_in_parallel()) return 1;
    return threads_ > 0 ? threads_ : omp_get_max_threads();
  }

  void run(index_t count, TaskRef task) const override {
    const int threads = static_cast<int>(count < concurrency() ? count : concurrency());
    if (threads <= 1) {
      for (index_t i = 0; i < count; ++i) task(i, 0);
      return;
    }
    // An exception must not leave an OpenMP region: the first one is kept and rethrown after it.
    std::exception_ptr error;
    std::atomic_flag is_kept;  // no omp critical: its lock is a symbol that libraries would export
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (index_t i = 0; i < count; ++i) {
      try {
        task(i, omp_get_thread_num());
      } catch (...) {
        if (!is_kept.test_and_set()) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
  }

 private:
  int threads_;
};
#endif

/// OpenMP if the program is compiled with it, otherwise serial.
inline const Executor& default_executor() {
#if defined(_OPENMP)
  static const OpenMPExecutor executor;
#else
  static const SerialExecutor executor;
#endif
  return executor;
}

ATTN_NAMESPACE_END
