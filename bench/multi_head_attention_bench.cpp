// Benchmarks of MultiHeadAttention: BERT's shape, one long text, the tutorials' four tokens.
#include <benchmark/benchmark.h>

#include "attn/attn.hpp"

#include "support/check.hpp"
#include "support/counters.hpp"
#include "support/modules.hpp"

namespace {

using attn::index_t;

void multi_head(benchmark::State& state, bool all_threads) {
  const index_t batch = state.range(0), seq = state.range(1), width = state.range(2);
  attn::MultiHeadAttention<float> mha = bench::random_multi_head(width, state.range(3));
  const auto x = bench::random_tensor<float, 3>({batch, seq, width}, 2);
  attn::Tensor3<float> out(x.shape());
  const attn::AttentionOptions<float> options{
      .execution = {.executor = &bench::executor_of(all_threads)}};
  const auto work = [&] {
    mha.forward(x, x, x, out, options);
    benchmark::DoNotOptimize(out.data());
  };
  work();
  const std::string complaint = bench::multi_head_errors(mha, x, out).complaint();
  if (!complaint.empty()) return state.SkipWithError(complaint.c_str());
  bench::time_flops(state, bench::multi_head_flops(batch, seq, width), attn::active_isa(),
                    all_threads, work);
}

const bool registered = [] {
  for (bool all_threads : {false, true}) {
    benchmark::RegisterBenchmark(all_threads ? "multi_head@all" : "multi_head",
                                 [=](benchmark::State& state) { multi_head(state, all_threads); })
        ->Args({8, 128, 768, 12})
        ->Args({1, 512, 768, 12})
        ->Args({1, 4, 16, 4})
        ->ArgNames({"batch", "seq", "width", "heads"})
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  return true;
}();

}  // namespace
