// Counters of a benchmark: FLOP/s, the peak measured before and after it, and their ratio.
#pragma once

#include <benchmark/benchmark.h>

#include "attn/exec/executor.hpp"

#include "support/machine.hpp"
#include "support/peak.hpp"

namespace bench {

/// One per program: keeps the best peak of all measurements.
inline Peaks& peaks() {
  static Peaks all;
  return all;
}

/// Measures the peak, times `work` in the state's loop, measures the peak again and reports.
/// `lane_ratio` is 2 for double, because a vector holds half as many. Returns the seconds of one
/// run.
template <class Work>
double time_flops(benchmark::State& state, double flops, attn::Isa isa, bool all, const Work& work,
                  double lane_ratio = 1) {
  const int threads = all ? all_threads() : 1;
  peaks().measure(isa, threads);
  const Clock::time_point start = Clock::now();
  for (auto _ : state) work();
  const double seconds = seconds_since(start) / static_cast<double>(state.iterations());
  peaks().measure(isa, threads);
  const double peak = peaks().best(isa, threads) / lane_ratio;
  state.counters["FLOP/s"] = flops / seconds;
  state.counters["peak"] = peak;
  state.counters["of_peak"] = flops / seconds / peak;
  return seconds;
}

}  // namespace bench
