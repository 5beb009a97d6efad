// Benchmarks of scaled_dot_product_attention by instruction set: shapes, masks and decoding.
#include <benchmark/benchmark.h>

#include "attn/attn.hpp"

#include "support/check.hpp"
#include "support/counters.hpp"
#include "support/shapes.hpp"

namespace {

using attn::index_t;

void attention(benchmark::State& state, const bench::AttentionShape& c, bool all_threads,
               attn::Isa isa) {
  attn_test::ReferenceOptions masked{.causal = c.causal};
  if (c.window > 0) masked.left = c.window - 1;
  const auto q = bench::random_tensor<float, 4>({c.batch, c.num_heads, c.q_len, c.head_dim}, 1);
  const auto keys = [&](std::uint64_t seed) {
    attn::Shape<4> shape{c.batch, c.num_kv_heads, c.kv_len, c.head_dim};
    if (c.seq_major) std::swap(shape[1], shape[2]);
    return bench::random_tensor<float, 4>(shape, seed);
  };
  const auto k_memory = keys(2), v_memory = keys(3);
  const auto k = c.seq_major ? k_memory.view().transpose(1, 2) : k_memory.view();
  const auto v = c.seq_major ? v_memory.view().transpose(1, 2) : v_memory.view();
  attn::Tensor4<float> out(q.shape());
  const attn_test::LibraryOptions<float> library(masked);
  attn::AttentionOptions<float> options = library.get();
  options.execution = {.executor = &bench::executor_of(all_threads), .isa = isa};
  const auto work = [&] {
    attn::scaled_dot_product_attention(q, k, v, out, options);
    benchmark::DoNotOptimize(out.data());
  };
  work();
  const std::string complaint = bench::attention_errors(q, k, v, out, masked).complaint();
  if (!complaint.empty()) return state.SkipWithError(complaint.c_str());
  const double flops = 4 * c.visible() * static_cast<double>(c.batch * c.num_heads) *
                       static_cast<double>(c.q_len) * static_cast<double>(c.kv_len * c.head_dim);
  const double seconds = bench::time_flops(state, flops, isa, all_threads, work);
  state.counters["KV_B/s"] = static_cast<double>((k.size() + v.size()) * index_t{4}) / seconds;
}

void add(const std::string& prefix, const bench::AttentionShape& c, attn::Isa isa) {
  for (bool all_threads : {false, true}) {
    const std::string name = prefix + std::string(c.name) + (all_threads ? "@all" : "");
    benchmark::RegisterBenchmark(
        name.c_str(), [=](benchmark::State& state) { attention(state, c, all_threads, isa); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

const bool registered = [] {
  const attn::Isa isa = attn::active_isa();
  for (const bench::AttentionShape& c : bench::kAttentionShapes) add("attention_", c, isa);
  for (const bench::AttentionShape& c : bench::kMoreAttentionShapes) add("attention_", c, isa);
  for (attn::Isa lower : attn::kAllIsas) {
    if (lower >= attn::base(isa) || !attn::is_available(lower)) continue;
    add("attention_" + std::string(attn::name(lower)) + "_",
        bench::shape_of(bench::kAttentionShapes, "d64"), lower);
  }
  return true;
}();

}  // namespace
