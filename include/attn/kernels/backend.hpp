// Backend: a target's table of kernels for one family of operations.
// SPDX-License-Identifier: Apache-2.0
//
//   backend<family::Products, T>(isa).gemm(problem, execution)
//
// The header of a family specialises Backend: pointers to kernels and tile sizes. The family's
// kernel text fills it in, for each target: `template <class T> struct
// TargetTable<detail::Backend<family::Norms, T, T>>`. A call instantiates only the table of its own
// family.
//
// With attn::compiled (ATTN_COMPILED) the tables are in the library, behind
// attn::compiled::table(). Its mangled name contains no type of the inline namespace, which differs
// between a library and programs with other -m flags; the types that pointers refer to have the
// same layout in all of them. A hash of that layout is part of the name, so that headers of another
// version, or with fields in another order, fail to link. Virtual functions are not called across
// the boundary: sanitizers regard the executors on the two sides as different types.
#pragma once

#include <cstddef>
#include <initializer_list>

#include "attn/core/argument_types.hpp"
#include "attn/core/element.hpp"
#include "attn/exec/execution.hpp"
#include "attn/exec/row_ranges.hpp"
#include "attn/simd/tables.hpp"

/// Families of operations; outside the inline namespace, since names in the library hold them.
namespace attn::family {
struct Products;
struct PartProducts;
struct QuantizedProducts;
struct Attention;
struct AttentionParts;
struct LinearAttention;
struct LinearAttentionBackward;
struct Softmax;
struct Norms;
struct Elementwise;
struct Conversions;
struct RowQuantization;
struct Rotary;
struct SoftmaxBackward;
struct NormsBackward;
struct ElementwiseBackward;
struct ColumnSums;
struct Losses;
struct Dropout;
struct Optimizers;
struct AttentionBackward;
struct AttentionTangents;
}  // namespace attn::family

#if defined(ATTN_COMPILED) || defined(ATTN_COMPILED_LIBRARY)
namespace attn::compiled {

/// A program's executor as the library uses it: run(executor, count, task), where task is a
/// TaskRef. concurrency() is a function, called only if needed: OpenMP takes nanoseconds to answer,
/// and small calls run on one thread anyway.
struct ExecutorRef {
  const void* executor;
  int (*concurrency)(const void* executor);
  void (*run)(const void* executor, std::ptrdiff_t count, const void* task);
};

/// A target's Backend<Family, In, Acc>, whose layout is kLayout; element types are DTypes.
template <class Family, int kIn, int kAcc, std::uint64_t kLayout>
const void* table(int isa);

}  // namespace attn::compiled
#endif

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A target's table for one family, with inputs of type In and sums of type Acc: specialised by
/// each family's header. Its member kLayout is a layout_hash() of the table and of its kernels'
/// arguments.
template <class Family, class In, class Acc = In>
struct Backend;

/// FNV-1a hash of sizes and offsets, in a fixed order of the members, and of the version.
constexpr std::uint64_t layout_hash(std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t hash = 0xcbf29ce484222325u ^ ATTN_VERSION;
  for (std::uint64_t number : numbers) {
    hash = (hash ^ number) * 0x100000001b3u;
    hash ^= hash >> 29;  // otherwise numbers would not affect lower bits
  }
  return hash;
}

#if defined(ATTN_COMPILED) || defined(ATTN_COMPILED_LIBRARY)

/// A function of a Backend, called with a problem and the Execution of the call.
template <class Problem>
struct Kernel {
  void (*function)(const void* problem, const attn::compiled::ExecutorRef& executor,
                   void* workspace);

  void operator()(const Problem& problem, const Execution& execution) const {
    const attn::compiled::ExecutorRef executor{
        &execution.threads(),
        [](const void* object) {
          return static_cast<int>(worker_count(*static_cast<const Executor*>(object)));
        },
        [](const void* object, std::ptrdiff_t count, const void* task) {
          static_cast<const Executor*>(object)->run(count, *static_cast<const TaskRef*>(task));
        }};
    function(&problem, executor, &execution.scratch());
  }
};

/// An Executor that forwards to the calling program's.
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

template <auto kFunction, class Problem>
constexpr Kernel<Problem> make_kernel(void (*)(const Problem&, const Executor&, Workspace&)) {
  return {[](const void* problem, const attn::compiled::ExecutorRef& executor, void* workspace) {
    kFunction(*static_cast<const Problem*>(problem), ProgramsExecutor(executor),
              *static_cast<Workspace*>(workspace));
  }};
}

#else

/// A function of a Backend, called with a problem and the Execution of the call.
template <class Problem>
struct Kernel {
  void (*function)(const Problem& problem, const Executor& executor, Workspace& workspace);

  void operator()(const Problem& problem, const Execution& execution) const {
    function(problem, execution.threads(), execution.scratch());
  }
};

template <auto kFunction, class Problem>
constexpr Kernel<Problem> make_kernel(void (*)(const Problem&, const Executor&, Workspace&)) {
  return {kFunction};
}

#endif

/// Wraps function(problem, executor, workspace) of kernel text as an entry of a Backend.
template <auto kFunction>
inline constexpr auto kKernel = make_kernel<kFunction>(kFunction);

/// The backend of `isa`, for which is_available() is true.
template <class Family, class In, class Acc = In>
const Backend<Family, In, Acc>& backend(Isa isa) {
  using Table = Backend<Family, In, Acc>;
#if defined(ATTN_COMPILED)
  return *static_cast<const Table*>(
      attn::compiled::table<Family, static_cast<int>(dtype_of<In>()),
                            static_cast<int>(dtype_of<Acc>()), Table::kLayout>(
          static_cast<int>(isa)));
#else
  return table_of<Table>(isa);
#endif
}

/// The backend that a call runs on.
template <class Family, class In, class Acc = In>
const Backend<Family, In, Acc>& backend(const Execution& execution) {
  return backend<Family, In, Acc>(execution.instruction_set());
}

}  // namespace detail

ATTN_NAMESPACE_END
