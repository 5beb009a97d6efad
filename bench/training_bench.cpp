// Benchmarks of training: attention forward and backward, and a step of a small GPT with AdamW.
#include <benchmark/benchmark.h>

#include "attn/kernels/loss.hpp"
#include "attn/models/gpt_backward.hpp"
#include "attn/train/clipping.hpp"
#include "attn/train/initialize.hpp"
#include "attn/train/optimizer.hpp"

#include "support/counters.hpp"
#include "support/inputs.hpp"

namespace {

using attn::index_t;

/// Forward and backward on one set of tensors of T.
template <class T>
struct AttentionStep {
  attn::Tensor4<T> q, k, v, d_out, out{q.shape()}, d_q{q.shape()}, d_k{q.shape()}, d_v{q.shape()};
  attn::Tensor3<T> lse{{q.extent(0), q.extent(1), q.extent(2)}};

  void run(const attn::Execution& execution, bool causal) {
    const attn::AttentionOptions<T> options{
        .mask = causal ? attn::causal() : attn::Mask(), .lse = lse.view(), .execution = execution};
    attn::scaled_dot_product_attention(q, k, v, out, options);
    attn::scaled_dot_product_attention_backward(d_out, q, k, v, out, lse.view(), d_q, d_k, d_v,
                                                options);
    benchmark::DoNotOptimize(d_q.data());
  }
};

attn::Tensor4<double> widened(const attn::Tensor4<float>& x) {
  attn::Tensor4<double> result(x.shape());
  std::copy(x.elements().begin(), x.elements().end(), result.elements().begin());
  return result;
}

/// Float against double, whose gradients tests compare with central differences.
std::string complaint_of(const AttentionStep<float>& step, bool causal) {
  AttentionStep<double> exact{widened(step.q), widened(step.k), widened(step.v),
                              widened(step.d_out)};
  exact.run({}, causal);
  for (const auto& [got, want] :
       {std::pair{&step.d_q, &exact.d_q}, {&step.d_k, &exact.d_k}, {&step.d_v, &exact.d_v}}) {
    for (index_t i = 0; i < got->size(); ++i) {
      if (std::abs(static_cast<double>(got->data()[i]) - want->data()[i]) > 1e-4) {
        return "a gradient is wrong at element " + std::to_string(i);
      }
    }
  }
  return "";
}

void sdpa_train(benchmark::State& state, attn::Isa isa, bool all_threads) {
  const index_t batch = state.range(0), heads = state.range(1), seq = state.range(2),
                dim = state.range(3);
  const bool causal = state.range(4) != 0;
  const attn::Shape<4> shape{batch, heads, seq, dim};
  AttentionStep<float> step{bench::random_tensor<float, 4>(shape, 1, 1.0f),
                            bench::random_tensor<float, 4>(shape, 2, 1.0f),
                            bench::random_tensor<float, 4>(shape, 3, 1.0f),
                            bench::random_tensor<float, 4>(shape, 4, 1.0f)};
  const attn::Execution execution{.executor = &bench::executor_of(all_threads), .isa = isa};
  step.run(execution, causal);
  const std::string complaint = complaint_of(step, causal);
  if (!complaint.empty()) return state.SkipWithError(complaint.c_str());
  // Two products forward and five backward; halved by causality.
  const double flops =
      3.5 * 4 * static_cast<double>(batch * heads * seq * seq * dim) / (causal ? 2 : 1);
  bench::time_flops(state, flops, isa, all_threads, [&] { step.run(execution, causal); });
}

/// The character model of examples/train_gpt.
void chargpt_train(benchmark::State& state, attn::Isa isa, bool all_threads) {
  constexpr index_t kBatch = 12, kSeq = 64, kVocab = 84;
  attn::Gpt<float> model({.vocab_size = kVocab,
                          .num_layers = 4,
                          .layer = {.d_model = 128,
                                    .nhead = 4,
                                    .dim_feedforward = 512,
                                    .dropout = 0,
                                    .activation = attn::Activation::gelu_tanh,
                                    .norm_first = true},
                          .max_positions = kSeq});
  attn::initialize(model, {.seed = 1, .embedding_std = 0.02});
  attn::Gpt<float> gradients = attn::gradients_of(model);
  const auto parameters = attn::parameters_of<float>(model, gradients);
  attn::Adam<float> adamw(parameters, {.weight_decay = 0.1, .decoupled = true});
  attn::GptSaved<float> saved;
  attn::Tensor2<index_t> ids({kBatch, kSeq});
  attn::Tensor1<index_t> targets({kBatch * kSeq});
  for (index_t i = 0; i < ids.size(); ++i) {
    ids.data()[i] = i * i % kVocab;
    targets(i) = (i + 1) * (i + 1) % kVocab;
  }
  attn::Tensor3<float> logits({kBatch, kSeq, kVocab});
  const attn::TensorView2<float> rows(logits.data(), {kBatch * kSeq, kVocab});
  const attn::Execution execution{.executor = &bench::executor_of(all_threads), .isa = isa};
  const auto step = [&] {
    attn::clear_gradients(parameters);
    attn::forward(model, ids, logits, saved, {.execution = execution});
    const double loss = attn::cross_entropy_backward(rows, targets, rows, {.execution = execution});
    attn::backward(model, logits, saved, gradients, {.execution = execution});
    attn::clip_gradient_norm(parameters, 1);
    adamw.step(3e-3, execution);
    return loss;
  };
  const double first = step();
  double last = first;
  for (int n = 0; n < 10; ++n) last = step();
  if (!(last < first)) return state.SkipWithError("the model does not learn");
  // Products with weights, once forward and twice backward; attention is small beside them.
  double weights = 0;
  for (const auto& parameter : parameters) weights += static_cast<double>(parameter.size);
  bench::time_flops(state, 6 * weights * static_cast<double>(ids.size()), isa, all_threads,
                    [&] { benchmark::DoNotOptimize(step()); });
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(ids.size()),
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
