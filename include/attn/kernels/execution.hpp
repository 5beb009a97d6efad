// Execution: how one call runs, given by the caller: its threads, its scratch memory, its instruction set.
#pragma once

#include <optional>

#include "attn/exec/executor.hpp"
#include "attn/exec/workspace.hpp"
#include "attn/simd/isa.hpp"

ATTN_NAMESPACE_BEGIN

/// Last argument of every function; each field may be left out.
struct Execution {
  const Executor* executor = nullptr;  ///< default_executor()
  Workspace* workspace = nullptr;      ///< one per thread
  std::optional<Isa> isa = {};  ///< active_isa(); throws ValueError for one the machine lacks

  const Executor& threads() const { return executor != nullptr ? *executor : default_executor(); }
  Workspace& scratch() const { return workspace != nullptr ? *workspace : default_workspace(); }
  Isa instruction_set() const { return isa ? require_isa(*isa) : active_isa(); }
};

ATTN_NAMESPACE_END

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Below a million multiplications, about 30 us, waking threads costs more than they save.
constexpr bool is_worth_threads(index_t multiplications) { return multiplications >= 1000000; }

/// The executor for so much work.
inline const Executor& threads_for(const Executor& executor, index_t multiplications) {
  static const SerialExecutor one_thread;
  return is_worth_threads(multiplications) ? executor : one_thread;
}

/// f(begin, end) for ranges of rows that make up all of them; an element of softmax or of a norm counts as 16
/// multiplications.
template <class F>
void for_row_ranges(const Executor& executor, index_t rows, index_t elements_per_row, F f) {
  constexpr index_t kRangeElements = index_t{1} << 14;
  const Executor& threads = threads_for(executor, 16 * rows * elements_per_row);
  const index_t range = 1 + kRangeElements / (elements_per_row + 1);
  threads.run((rows + range - 1) / range, [&](index_t task, int) {
    f(task * range, (task + 1) * range < rows ? (task + 1) * range : rows);
  });
}

/// f(row) for every row.
template <class F>
void for_rows(const Executor& executor, index_t rows, index_t elements_per_row, F f) {
  for_row_ranges(executor, rows, elements_per_row, [&f](index_t begin, index_t end) {
    for (index_t row = begin; row < end; ++row) f(row);
  });
}

}  // namespace detail

ATTN_NAMESPACE_END

// ATTN_KERNEL_DOOR(gemm, GemmProblem), after the kernel text, makes
//   detail::gemm(const GemmProblem<T>&, const Execution&)
// which calls set::gemm(problem, executor, workspace) of the set that this call runs on: the one switch between
// instruction sets, once per public call. require_isa() and active_isa() let nothing through that was not compiled.
//
// With attn::compiled (ATTN_COMPILED) the switch lies in the library, behind attn::compiled::gemm<T, size>. That name
// holds no type of the inline namespace, which differs between a library and programs with other -m flags; the
// types behind the pointers are laid out alike in all of them. The size of the problem is part of the name, so that
// headers beside a library of another version fail to link. Virtual functions are not called across: to a
// sanitizer the executors of the two are different types.
#define ATTN_KERNEL_DOOR(kernel, Problem)                                             \
  ATTN_KERNEL_SWITCH(kernel, Problem)                                                 \
  ATTN_NAMESPACE_BEGIN                                                                \
  namespace detail {                                                                  \
  template <class T>                                                                  \
  void kernel(const Problem<T>& problem, const Execution& execution) {                \
    ATTN_KERNEL_CALL(kernel, Problem)                                                 \
    (execution.instruction_set(), problem, execution.threads(), execution.scratch()); \
  }                                                                                   \
  }                                                                                   \
  ATTN_NAMESPACE_END

#if defined(ATTN_COMPILED) || defined(ATTN_COMPILED_LIBRARY)
namespace attn::compiled {

/// The executor of a program, for the library: run(executor, count, task), where task is a TaskRef. Its threads are
/// counted only where that matters: OpenMP takes some nanoseconds, and small calls run on one thread anyway.
struct ExecutorRef {
  const void* executor;
  int (*concurrency)(const void* executor);
  void (*run)(const void* executor, std::ptrdiff_t count, const void* task);
};

}  // namespace attn::compiled
#endif

#if defined(ATTN_COMPILED)
#define ATTN_KERNEL_SWITCH(kernel, Problem)                                                \
  namespace attn::compiled {                                                               \
  template <class T, std::size_t kSize>                                                    \
  void kernel(int isa, const void* problem, const ExecutorRef& executor, void* workspace); \
  }
#define ATTN_KERNEL_CALL(kernel, Problem) \
  detail::call_compiled<&attn::compiled::kernel<T, sizeof(Problem<T>)>>

ATTN_NAMESPACE_BEGIN
namespace detail {

template <auto kEntry, class Problem>
void call_compiled(Isa isa, const Problem& problem, const Executor& executor,
                   Workspace& workspace) {
  const attn::compiled::ExecutorRef reference{
      &executor,
      [](const void* object) { return static_cast<const Executor*>(object)->concurrency(); },
      [](const void* object, std::ptrdiff_t count, const void* task) {
        static_cast<const Executor*>(object)->run(count, *static_cast<const TaskRef*>(task));
      }};
  kEntry(static_cast<int>(isa), &problem, reference, &workspace);
}

}  // namespace detail
ATTN_NAMESPACE_END
#else
#define ATTN_KERNEL_CALL(kernel, Problem) kernel##_on
#define ATTN_KERNEL_SWITCH(kernel, Problem)                                      \
  ATTN_NAMESPACE_BEGIN                                                           \
  namespace detail {                                                             \
  template <class T>                                                             \
  void kernel##_on(Isa isa, const Problem<T>& problem, const Executor& executor, \
                   Workspace& workspace) {                                       \
    switch (isa) {                                                               \
      ATTN_KERNEL_CASES(kernel)                                                  \
      default:                                                                   \
        __builtin_unreachable();                                                 \
    }                                                                            \
  }                                                                              \
  }                                                                              \
  ATTN_NAMESPACE_END                                                             \
  ATTN_KERNEL_ENTRY(kernel, Problem)

#define ATTN_KERNEL_CASE(set, kernel) \
  case Isa::set:                      \
    return set::kernel(problem, executor, workspace);
#if defined(ATTN_PIN_ISA)
#define ATTN_KERNEL_CASES(kernel) ATTN_KERNEL_CASE(ATTN_PIN_ISA, kernel)
#elif ATTN_ARCH_X86
#define ATTN_KERNEL_CASES(kernel) \
  ATTN_KERNEL_CASE(scalar, kernel) ATTN_KERNEL_CASE(avx2, kernel) ATTN_KERNEL_CASE(avx512, kernel)
#else
#define ATTN_KERNEL_CASES(kernel) ATTN_KERNEL_CASE(scalar, kernel)
#endif

#if defined(ATTN_COMPILED_LIBRARY)  // the library itself: the element type of this file's instances
ATTN_NAMESPACE_BEGIN
namespace detail {

/// The executor of the program that called.
class ProgramsExecutor final : public Executor {
 public:
  explicit ProgramsExecutor(const attn::compiled::ExecutorRef& program) : program_(program) {}
  int concurrency() const override { return program_.concurrency(program_.executor); }
  void run(index_t count, TaskRef task) const override {
    program_.run(program_.executor, count, &task);
  }

 private:
  const attn::compiled::ExecutorRef& program_;
};

}  // namespace detail
ATTN_NAMESPACE_END

#define ATTN_KERNEL_ENTRY(kernel, Problem)                                                        \
  namespace attn::compiled {                                                                      \
  template <class T, std::size_t kSize>                                                           \
  void kernel(int isa, const void* problem, const ExecutorRef& executor, void* workspace) {       \
    detail::kernel##_on(static_cast<Isa>(isa), *static_cast<const detail::Problem<T>*>(problem),  \
                        detail::ProgramsExecutor(executor), *static_cast<Workspace*>(workspace)); \
  }                                                                                               \
  template void kernel<ATTN_COMPILED_LIBRARY, sizeof(detail::Problem<ATTN_COMPILED_LIBRARY>)>(    \
      int, const void*, const ExecutorRef&, void*);                                               \
  }
#else
#define ATTN_KERNEL_ENTRY(kernel, Problem)
#endif
#endif
