// Benchmarks of softmax over rows of many lengths: in the second-level cache and from memory.
#include <benchmark/benchmark.h>

#include "attn/attn.hpp"

#include "support/check.hpp"
#include "support/counters.hpp"

namespace {

using attn::index_t;

// Operations per element in the kernels: a maximum, a subtraction, e^x (11, mostly multiply-adds),
// a sum and a multiplication. There is no canonical count: this gives the order of magnitude.
constexpr double kFlopsPerElement = 15;

void softmax(benchmark::State& state, attn::Isa isa) {
  const index_t rows = state.range(0), columns = state.range(1);
  const auto x = bench::random_tensor<float, 2>({rows, columns}, 1, 3.0f);
  attn::Tensor2<float> out({rows, columns});
  const attn::Execution execution{.executor = &bench::executor_of(false), .isa = isa};
  const auto work = [&] {
    attn::softmax(x, out, execution);
    benchmark::DoNotOptimize(out.data());
  };
  work();
  const std::string complaint = bench::softmax_complaint(x, out);
  if (!complaint.empty()) return state.SkipWithError(complaint.c_str());
  const double elements = static_cast<double>(rows) * static_cast<double>(columns);
  const double seconds = bench::time_flops(state, kFlopsPerElement * elements, isa, false, work);
  state.counters["B/s"] = 8 * elements / seconds;
  state.counters["ns_per_row"] = seconds * 1e9 / static_cast<double>(rows);
}

const bool registered = [] {
  for (attn::Isa isa : attn::kAllIsas) {
    if (!attn::is_available(isa) || attn::base(isa) != isa) continue;
    benchmark::RegisterBenchmark(("softmax_" + std::string(attn::name(isa))).c_str(),
                                 [isa](benchmark::State& state) { softmax(state, isa); })
        ->Args({bench::second_level_bytes() / (4 * 4096), 1024})
        ->Args({4096, 1024})
        ->Args({4096, 17})
        ->Args({512, 197})
        ->ArgNames({"rows", "columns"})
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  return true;
}();

}  // namespace
