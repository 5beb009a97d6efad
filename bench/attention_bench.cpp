// Benchmarks of scaled_dot_product_attention: long, short, causal, windowed, grouped, decoding, each instruction set.
#include <benchmark/benchmark.h>

#include "attn/attn.hpp"

#include "support/check.hpp"
#include "support/counters.hpp"

namespace {

using attn::index_t;

struct Case {
  const char* name;
  index_t batch, num_heads, num_kv_heads, q_len, kv_len, head_dim;
  double share = 1;  ///< of the scores that the mask leaves to be computed
  attn_test::ReferenceOptions options = {};
  bool seq_major = false;  ///< keys and values are (batch, seq, heads, dim) in memory
};

void attention(benchmark::State& state, const Case& c, bool all_threads, attn::Isa isa) {
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
  const attn_test::LibraryOptions<float> library(c.options);
  attn::AttentionOptions<float> options = library.get();
  options.execution = {.executor = &bench::executor_of(all_threads), .isa = isa};
  const auto work = [&] {
    attn::scaled_dot_product_attention(q, k, v, out, options);
    benchmark::DoNotOptimize(out.data());
  };
  work();
  const std::string complaint = bench::attention_errors(q, k, v, out, c.options).complaint();
  if (!complaint.empty()) return state.SkipWithError(complaint.c_str());
  const double flops = 4 * c.share * static_cast<double>(c.batch * c.num_heads) *
                       static_cast<double>(c.q_len) * static_cast<double>(c.kv_len * c.head_dim);
  const double seconds = bench::time_flops(state, flops, isa, all_threads, work);
  state.counters["KV_B/s"] = static_cast<double>((k.size() + v.size()) * index_t{4}) / seconds;
}

void add(const std::string& prefix, const Case& c, attn::Isa isa) {
  for (bool all_threads : {false, true}) {
    const std::string name = prefix + c.name + (all_threads ? "@all" : "");
    benchmark::RegisterBenchmark(
        name.c_str(), [=](benchmark::State& state) { attention(state, c, all_threads, isa); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

const bool registered = [] {
  const attn::Isa isa = attn::active_isa();
  const Case d64{"d64", 1, 8, 8, 2048, 2048, 64};
  const Case cases[] = {
      d64,
      {"d128", 1, 8, 8, 2048, 2048, 128},
      {"d80", 1, 8, 8, 2048, 2048, 80},
      {"512", 1, 12, 12, 512, 512, 64},
      {"short", 64, 12, 12, 128, 128, 64},
      {"causal", 1, 8, 8, 2048, 2048, 64, 0.5, {.causal = true}},
      // 256 keys of 2048, less what the first queries lack: 256 * 1920 of 2048 * 2048.
      {"window", 1, 8, 8, 2048, 2048, 64, 0.117, {.causal = true, .left = 255}},
      {"gqa", 1, 8, 2, 1024, 1024, 64},
      {"1024", 1, 16, 16, 1024, 1024, 128},
      {"1024_seq_major", 1, 16, 16, 1024, 1024, 128, 1, {}, true},
      {"decode", 1, 32, 32, 1, 4096, 128},
      {"decode_gqa", 1, 32, 8, 1, 4096, 128},
      {"decode_gqa_seq_major", 1, 32, 8, 1, 4096, 128, 1, {}, true},
      {"queries_8", 1, 32, 32, 8, 4096, 128},
      {"queries_8_short", 1, 8, 8, 8, 256, 64},
      {"queries_64", 1, 32, 32, 64, 4096, 128},
  };
  for (const Case& c : cases) add("attention_", c, isa);
  for (attn::Isa lower : attn::kAllIsas) {
    if (lower >= attn::base(isa) || !attn::is_available(lower)) continue;
    add("attention_" + std::string(attn::name(lower)) + "_", d64, lower);
  }
  return true;
}();

}  // namespace
