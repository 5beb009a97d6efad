// What each benchmark reports beside its time: FLOP/s, the machine's peak measured around it, and their ratio.
#pragma once

#include <benchmark/benchmark.h>

#include "attn/exec/executor.hpp"

#include "support/machine.hpp"
#include "support/peak.hpp"

namespace bench {

/// One for the program: a peak seen once is the machine's peak from then on.
inline Peaks& peaks() {
  static Peaks all;
  return all;
}

/// The executor of one thread, or attn's own choice for `all`.
inline const attn::Executor& executor_of(bool all) {
  static const attn::SerialExecutor one;
  return all ? attn::default_executor() : static_cast<const attn::Executor&>(one);
}

/// Measures the peak, times `work` in the state's loop, measures the peak again and reports. `lane_ratio` is
/// 2 for double, of which half as many fit a vector.
template <class Work>
void time_flops(benchmark::State& state, double flops, attn::Isa isa, bool all, Work&& work,
                double lane_ratio = 1) {
  const int threads = all ? all_threads() : 1;
  peaks().measure(isa, threads);
  for (auto _ : state) work();
  const double peak = peaks().measure(isa, threads) / lane_ratio;
  const double done = flops * static_cast<double>(state.iterations());
  state.counters["FLOP/s"] = benchmark::Counter(done, benchmark::Counter::kIsRate);
  state.counters["peak"] = benchmark::Counter(peak);
  state.counters["of_peak"] = benchmark::Counter(done / peak, benchmark::Counter::kIsRate);
}

}  // namespace bench
