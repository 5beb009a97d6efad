// Benchmarks of gemm: square, Transformer shapes, few rows, packed weights; float and double.
#include <benchmark/benchmark.h>

#include "attn/attn.hpp"

#include "support/check.hpp"
#include "support/counters.hpp"

namespace {

using attn::index_t;

enum class Weights { plain, packed };

template <class T>
void gemm(benchmark::State& state, Weights weights, bool all_threads, attn::Isa isa) {
  const index_t m = state.range(0), n = state.range(1), k = state.range(2);
  const auto a = bench::random_tensor<T, 2>({m, k}, 1), b = bench::random_tensor<T, 2>({k, n}, 2);
  attn::Tensor2<T> c({m, n});
  attn::PackedWeights<T> packed;
  if (weights == Weights::packed) packed = attn::PackedWeights<T>(b.view(), isa);
  const attn::Execution execution{.executor = &bench::executor_of(all_threads), .isa = isa};
  const auto work = [&] {
    if (weights == Weights::packed) {
      attn::gemm(a, packed, c, {}, execution);
    } else {
      attn::gemm(a, b, c, {}, execution);
    }
    benchmark::DoNotOptimize(c.data());
  };
  work();
  const std::string complaint = bench::gemm_complaint<T>(a, b, c);
  if (!complaint.empty()) return state.SkipWithError(complaint.c_str());
  const double flops = 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  bench::time_flops(state, flops, isa, all_threads, work, sizeof(T) / 4);
}

/// A batch of this many products.
void batched(benchmark::State& state, bool all_threads) {
  const index_t batch = state.range(0), m = state.range(1), n = state.range(2), k = state.range(3);
  const auto a = bench::random_tensor<float, 3>({batch, m, k}, 1),
             b = bench::random_tensor<float, 3>({batch, k, n}, 2);
  attn::Tensor3<float> c({batch, m, n});
  const attn::Execution execution{.executor = &bench::executor_of(all_threads)};
  const auto work = [&] {
    attn::batched_gemm(a, b, c, {}, execution);
    benchmark::DoNotOptimize(c.data());
  };
  work();
  for (const index_t i : {index_t{0}, batch - 1}) {
    const std::string complaint = bench::gemm_complaint<float>(
        a.view().select(0, i), b.view().select(0, i), c.view().select(0, i));
    if (!complaint.empty()) return state.SkipWithError(complaint.c_str());
  }
  const double flops = 2 * static_cast<double>(batch) * static_cast<double>(m) *
                       static_cast<double>(n) * static_cast<double>(k);
  bench::time_flops(state, flops, attn::active_isa(), all_threads, work);
}

void add(const std::string& name, void (*run)(benchmark::State&, Weights, bool, attn::Isa),
         Weights weights, attn::Isa isa, const std::vector<std::vector<index_t>>& shapes) {
  for (bool all_threads : {false, true}) {
    auto* bench = benchmark::RegisterBenchmark(
        (name + (all_threads ? "@all" : "")).c_str(),
        [=](benchmark::State& state) { run(state, weights, all_threads, isa); });
    for (const auto& shape : shapes) bench->Args({shape[0], shape[1], shape[2]});
    bench->ArgNames({"m", "n", "k"})->UseRealTime()->Unit(benchmark::kMicrosecond);
  }
}

const bool registered = [] {
  const attn::Isa isa = attn::active_isa();
  add("gemm", gemm<float>, Weights::plain, isa,
      {{1024, 1024, 1024}, {128, 3072, 768}, {1, 768, 768}, {16, 768, 768}, {64, 768, 768}});
  add("gemm_packed", gemm<float>, Weights::packed, isa,
      {{128, 3072, 768}, {128, 768, 3072}, {1, 768, 768}, {16, 768, 768}});
  add("gemm_double", gemm<double>, Weights::plain, isa, {{512, 512, 512}});
  for (bool all_threads : {false, true}) {
    benchmark::RegisterBenchmark(all_threads ? "gemm_batched@all" : "gemm_batched",
                                 [=](benchmark::State& state) { batched(state, all_threads); })
        ->Args({64, 64, 64, 64})
        ->Args({96, 128, 128, 64})
        ->ArgNames({"batch", "m", "n", "k"})
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  for (attn::Isa lower : attn::kAllIsas) {
    if (lower >= attn::base(isa) || !attn::is_available(lower)) continue;
    add("gemm_" + std::string(attn::name(lower)), gemm<float>, Weights::plain, lower,
        {{512, 512, 512}});
  }
  return true;
}();

}  // namespace
