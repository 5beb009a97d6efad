// distributed: two ranks of one thread each beside one process of two threads, in one run:
// OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive mpirun -n 2 --bind-to none build/bench/distributed
#include "attn/distributed.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <sched.h>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "attn/distributed/mpi.hpp"

#include "support/command_line.hpp"
#include "support/training.hpp"

namespace {

using attn::index_t;
using Clock = std::chrono::steady_clock;

/// Binds the calling thread to one core, or to all of the process if `core` is below 0.
void bind_to(int core) {
  static const cpu_set_t all = [] {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    return set;
  }();
  cpu_set_t set = all;
  if (core >= 0) {
    CPU_ZERO(&set);
    int n = 0;
    for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &all) && n++ == core) CPU_SET(cpu, &set);
    }
  }
  sched_setaffinity(0, sizeof set, &set);
}

/// The most memory since forget_peak(), in MB.
double peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes / 1024;
  }
  return 0;
}
void forget_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

/// One call of a workload, made with its tensors.
using Call = std::function<void()>;

struct Workload {
  std::string name;
  double bar;  ///< the least speed of two ranks relative to two threads
  std::function<Call(const attn::Execution&)> alone;
  std::function<Call(attn::Communicator&, const attn::Execution&)> together;
};

struct Measured {
  double seconds = 1e300;
  double busy = 1e300;  ///< processor seconds per thread, including those spent waiting
  double memory = 0;
};

/// Keeps the best times of the second call: the first allocates.
void measure_call(const Call& call, const std::function<void()>& wait_for_all, int threads,
                  Measured& best) {
  call();
  wait_for_all();
  const auto start = Clock::now();
  const std::clock_t busy = std::clock();
  call();
  wait_for_all();
  best.seconds =
      std::min(best.seconds, std::chrono::duration<double>(Clock::now() - start).count());
  best.busy = std::min(best.busy, static_cast<double>(std::clock() - busy) /
                                      static_cast<double>(CLOCKS_PER_SEC) / threads);
}

/// Rank 0 runs f while the other ranks sleep, so that they take no time of its threads.
void on_rank_0(attn::Communicator& comm, const std::function<void()>& f) {
  std::byte done{};
  if (comm.rank() == 0) {
    f();
    for (int to = 1; to < comm.size(); ++to) comm.send(to, {&done, 1})->wait();
    return;
  }
  const auto request = comm.receive(0, {&done, 1});
  while (!request->poll()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// Runs both forms in turns; rank 0 prints the best time of each, and the memory of the last rank.
void measure(attn::Communicator& comm, const Workload& workload, index_t rounds,
             const attn::Executor& threads) {
  const attn::SerialExecutor one;
  Measured alone, together;
  for (index_t round = 0; round < rounds; ++round) {
    on_rank_0(comm, [&] {
      bind_to(-1);
      forget_peak();
      measure_call(
          workload.alone({.executor = &threads}), [] {}, threads.concurrency(), alone);
      alone.memory = peak_memory();
    });
    bind_to(comm.rank());
    forget_peak();
    measure_call(
        workload.together(comm, {.executor = &one}), [&] { comm.barrier(); }, 1, together);
    together.memory = peak_memory();
  }
  comm.broadcast(comm.size() - 1, std::as_writable_bytes(std::span(&together.memory, 1)));
  if (comm.rank() != 0) return;
  const double speed = alone.seconds / together.seconds;
  std::printf("| %-32s | %9.1f | %9.1f | %5.3f | %5.3f | %4.2f | %s | %6.0f | %6.0f |\n",
              workload.name.c_str(), 1e3 * alone.seconds, 1e3 * together.seconds, speed,
              alone.busy / together.busy, workload.bar, speed >= workload.bar ? "yes" : "no ",
              alone.memory, together.memory);
  std::fflush(stdout);
}

Workload attention(std::string name, double bar, index_t seq, bool causal, bool backward) {
  const attn::AttentionOptions<float> options{.mask = causal ? attn::causal() : attn::Mask()};
  const auto with = [options](const attn::Execution& execution) {
    attn::AttentionOptions<float> result = options;
    result.execution = execution;
    return result;
  };
  const attn::Shape<4> shape{1, 8, seq, 64};
  return {std::move(name), bar,
          [=](const attn::Execution& execution) -> Call {
            auto step =
                std::make_shared<bench::AttentionStep<float>>(bench::random_attention_step(shape));
            if (backward) return [=] { step->run(with(execution)); };
            return [=] {
              attn::scaled_dot_product_attention(step->q, step->k, step->v, step->out,
                                                 with(execution));
            };
          },
          [=](attn::Communicator& comm, const attn::Execution& execution) -> Call {
            using Kind = attn::ContextLayout::Kind;
            const attn::ContextLayout layout(seq, comm.size(),
                                             causal ? Kind::zigzag : Kind::contiguous);
            attn::Shape<4> own = shape;
            own[2] = layout.size(comm.rank());
            auto step =
                std::make_shared<bench::AttentionStep<float>>(bench::random_attention_step(own));
            return [=, &comm] {
              attn::AttentionOptions<float> call = with(execution);
              if (backward) call.lse = step->lse.view();
              attn::context_parallel_attention(comm, layout, step->q, step->k, step->v, step->out,
                                               call);
              if (!backward) return;
              call.lse = {};
              attn::context_parallel_attention_backward(comm, layout, step->d_out, step->q, step->k,
                                                        step->v, step->out, step->lse.view(),
                                                        step->d_q, step->d_k, step->d_v, call);
            };
          }};
}

/// A step of bench::GptStep on ranks, each of which computes a micro-batch.
class RankStep {
 public:
  RankStep(attn::Communicator& comm, bench::GptShape shape)
      : comm_(comm), tokens_(static_cast<double>(shape.batch * shape.seq)), gradients_([&] {
          shape.batch /= comm.size();
          return shape;
        }()) {}

  void step(const attn::Execution& execution) {
    tree_.add(comm_.rank(), gradients_.compute(execution, tokens_));
    tree_.finish(adamw_);
    const double norm = adamw_.gradient_norm(execution);
    adamw_.step(gradients_.rate(), execution, attn::clip_factor(norm, 1));
  }

 private:
  attn::Communicator& comm_;
  double tokens_;  // of all ranks
  bench::GptGradients gradients_;
  attn::GradientTree<float> tree_{comm_, gradients_.parameters(), comm_.size()};
  attn::ShardedOptimizer<attn::Adam<float>> adamw_{
      comm_, gradients_.parameters(), {.weight_decay = 0.1, .decoupled = true}};
};

Workload gpt2(double bar) {
  const bench::GptShape shape = bench::shape_of(bench::kGptTrainShapes, "gpt2_train");
  return {"GPT-2 124M step, batch 4 x 64", bar,
          [=](const attn::Execution& execution) -> Call {
            auto step = std::make_shared<bench::GptStep>(shape);
            return [=] { step->step(execution); };
          },
          [=](attn::Communicator& comm, const attn::Execution& execution) -> Call {
            auto step = std::make_shared<RankStep>(comm, shape);
            return [=] { step->step(execution); };
          }};
}

void run(index_t seq, index_t rounds) {
  attn::MpiCommunicator comm;
  if (comm.size() != 2) throw examples::UsageError("must be started by mpirun -n 2");
  const attn::Executor& threads = attn::default_executor();
  if (comm.rank() == 0) {
    std::printf(
        "| workload                         | 2 threads, ms | 2 ranks, ms | speed | by processor "
        "time | bar | holds | MB | MB of a rank |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  }
  const std::string tokens = std::to_string(seq) + " tokens, ";
  measure(comm, attention(tokens + "causal", 0.95, seq, true, false), rounds, threads);
  measure(comm, attention(tokens + "causal, backward", 0.93, seq, true, true), rounds, threads);
  measure(comm, attention(tokens + "all keys", 0.96, seq, false, false), rounds, threads);
  measure(comm, gpt2(0.93), rounds, threads);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Measures two ranks of one thread, each bound to a core, beside one process of two threads:\n"
      "OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive mpirun -n 2 --bind-to none distributed");
  index_t seq = 16384, rounds = 3;
  examples::add_number(app, "--tokens", seq, index_t{4}, "Tokens of attention");
  examples::add_number(app, "--rounds", rounds, index_t{1}, "Rounds, of which the best counts");
  return examples::run_program(app, "distributed", argc, argv, [&] { run(seq, rounds); });
}
