// Benchmarks of training: attention forward and backward, and a step of a small GPT with AdamW.
#include <benchmark/benchmark.h>

#include "support/counters.hpp"
#include "support/training.hpp"

namespace {

using attn::index_t;

void sdpa_train(benchmark::State& state, attn::Isa isa, bool all_threads) {
  const attn::Shape<4> shape{state.range(0), state.range(1), state.range(2), state.range(3)};
  const attn::Mask mask = state.range(4) != 0 ? attn::causal() : attn::Mask();
  bench::AttentionStep<float> step = bench::random_attention_step(shape);
  const attn::AttentionOptions<float> options{
      .mask = mask, .execution = {.executor = &bench::executor_of(all_threads), .isa = isa}};
  step.run(options);
  const std::string complaint = step.complaint(attn::AttentionOptions<double>{.mask = mask});
  if (!complaint.empty()) return state.SkipWithError(complaint.c_str());
  bench::time_flops(state, step.flops() / (mask.causal ? 2 : 1), isa, all_threads, [&] {
    step.run(options);
    benchmark::DoNotOptimize(step.d_q.data());
  });
}

void chargpt_train(benchmark::State& state, attn::Isa isa, bool all_threads) {
  bench::GptStep model(bench::kGptTrainShapes[0]);
  const attn::Execution execution{.executor = &bench::executor_of(all_threads), .isa = isa};
  const double first = model.step(execution);
  double last = first;
  for (int n = 0; n < 10; ++n) last = model.step(execution);
  if (!(last < first)) return state.SkipWithError("the model does not learn");
  bench::time_flops(state, model.flops(), isa, all_threads,
                    [&] { benchmark::DoNotOptimize(model.step(execution)); });
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(model.tokens()),
                                                  benchmark::Counter::kIsIterationInvariantRate);
}

const bool registered = [] {
  for (attn::Isa isa : attn::kAllIsas) {
    if (!attn::is_available(isa) || isa == attn::Isa::scalar || attn::base(isa) != isa) continue;
    for (const bool all_threads : {false, true}) {
      const std::string set =
          std::string(attn::name(isa)) + (all_threads ? "/all_threads" : "/one_thread");
      benchmark::RegisterBenchmark(
          ("sdpa_train_" + set).c_str(),
          [=](benchmark::State& state) { sdpa_train(state, isa, all_threads); })
          ->Args({1, 8, 2048, 64, 0})
          ->Args({1, 8, 2048, 64, 1})
          ->Args({1, 8, 2048, 128, 0})
          ->Args({64, 12, 128, 64, 0})
          ->ArgNames({"batch", "heads", "seq", "dim", "causal"})
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
      benchmark::RegisterBenchmark(
          ("chargpt_train_" + set).c_str(),
          [=](benchmark::State& state) { chargpt_train(state, isa, all_threads); })
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
