// DataParallelRun: trains a small float16 GPT on several ranks, or on one process without them.
#pragma once

#include <vector>

#include "attn/distributed.hpp"
#include "attn/distributed/sharded_checkpoint.hpp"

#include "support/models/small_run.hpp"

namespace attn_test {

/// Micro-batches of each step: one sequence each.
inline constexpr attn::index_t kMicroBatches = 5;

/// Of the two groups one has weight decay; the second norm of each layer is in none.
inline attn::AdamOptions grouped_adam() {
  const auto none = [](std::string_view name) { return name.find("norm2") != name.npos; };
  return {.decoupled = true,
          .groups = {{[none](std::string_view name) { return !none(name) && attn::decays(name); },
                      1.0, 0.1},
                     {[none](std::string_view name) { return !none(name); }, 0.5}}};
}

/// Loss scale, clipping and 16-bit weights, with an optimizer made by make(parameters).
template <class Optimizer>
struct DataParallelRun {
  attn::Gpt<float> masters{small_gpt()};
  attn::Gpt<float> gradients = attn::gradients_of(masters);
  attn::Gpt<attn::float16> model{small_gpt()};
  std::vector<attn::TrainedParameter<float>> parameters;
  Optimizer adam;
  attn::Batches batches{20, kMicroBatches, 3};
  attn::LossScale scale{{.initial = 1 << 30, .backoff = 1.0 / 1024, .growth_interval = 3}};
  attn::GptSaved<attn::float16> saved;
  const attn::SerialExecutor one;
  attn::index_t steps = 0;

  template <class... Group>
  explicit DataParallelRun(Group&... group)
      : parameters(initialized()), adam(group..., parameters, grouped_adam()) {}

  /// Adds the gradients of micro-batch n.
  double add_gradients(std::span<const attn::index_t> batch, attn::index_t n) {
    return small_gradients(model, saved, gradients, attn::micro_batch(batch, n, kMicroBatches),
                           {.divisor = 8 * kMicroBatches,
                            .gradient_scale = scale.factor(),
                            .execution = {.executor = &one}});
  }
  /// After all gradients: whether the step was taken.
  bool update() {
    ++steps;
    const double once = 1 / scale.factor(), norm = once * gradient_norm();
    if (!scale.update(norm)) return false;
    adam.step(0.01, {.executor = &one}, once * attn::clip_factor(norm, 0.5));
    return true;
  }

  double gradient_norm() {
    if constexpr (requires { adam.gradient_norm(); }) {
      return adam.gradient_norm({.executor = &one});
    } else {
      return attn::gradient_norm(parameters);
    }
  }

  void save(const std::filesystem::path& path) {
    attn::save_checkpoint(
        path, masters, adam,
        {.step = steps, .batches = batches.position(), .loss_scale = scale.position()});
  }
  void load(const std::filesystem::path& path) {
    const attn::TrainingState state = attn::load_checkpoint(path, masters, adam);
    steps = state.step;
    batches.move_to(state.batches);
    scale.move_to(state.loss_scale);
  }

  /// The bits of all parameters, masters and rounded.
  std::vector<std::byte> bits() const {
    std::vector<std::byte> all;
    const auto add = [&](std::string_view, const auto& view) {
      const auto bytes = std::as_bytes(std::span(view.data(), std::size_t(view.size())));
      all.insert(all.end(), bytes.begin(), bytes.end());
    };
    masters.visit_parameters(add);
    model.visit_parameters(add);
    return all;
  }

 private:
  std::vector<attn::TrainedParameter<float>> initialized() {
    attn::initialize(masters, {.seed = 5, .embedding_std = 0.1});
    return attn::parameters_of<float>(masters, gradients, model);
  }
};

/// A step of one process: keeps the gradients of all micro-batches and adds them by the tree's
/// definition, 0 + 1, 2 + 3, then these pairs. Returns the loss.
inline double step_alone(DataParallelRun<attn::Adam<float>>& run) {
  std::vector<std::vector<float>> sums;
  const auto batch = run.batches.next();
  double loss = 0;
  for (attn::index_t n = 0; n < kMicroBatches; ++n) {
    attn::clear_gradients(run.parameters);
    loss += run.add_gradients(batch, n);
    std::vector<float>& sum = sums.emplace_back();
    for (const auto& p : run.parameters) sum.insert(sum.end(), p.gradient, p.gradient + p.size);
  }
  for (std::size_t apart = 1; apart < sums.size(); apart *= 2) {
    for (std::size_t n = 0; n + apart < sums.size(); n += 2 * apart) {
      for (std::size_t i = 0; i < sums[n].size(); ++i) sums[n][i] += sums[n + apart][i];
    }
  }
  const float* from = sums[0].data();
  for (const auto& p : run.parameters) {
    std::copy_n(from, p.size, p.gradient);
    from += p.size;
  }
  run.update();
  return loss;
}

/// A step of all ranks; returns the loss.
inline double step_together(DataParallelRun<attn::ShardedOptimizer<attn::Adam<float>>>& run,
                            attn::GradientTree<float>& tree) {
  const auto batch = run.batches.next();
  attn::clear_gradients(run.parameters);
  const auto [begin, end] = tree.micro_batches();
  for (attn::index_t n = begin; n < end; ++n) tree.add(n, run.add_gradients(batch, n));
  const double loss = tree.finish(run.adam);
  run.update();
  return loss;
}

/// Called by every rank: whether six steps on all ranks have the bits and losses of one process.
inline bool trains_as_one_process(attn::Communicator& comm) {
  DataParallelRun<attn::Adam<float>> alone;
  DataParallelRun<attn::ShardedOptimizer<attn::Adam<float>>> run(comm);
  attn::GradientTree<float> tree(comm, run.parameters, kMicroBatches);
  bool same = true;
  for (int n = 0; n < 6; ++n) same = step_alone(alone) == step_together(run, tree) && same;
  return same && run.bits() == alone.bits() && run.adam.steps() == alone.adam.steps();
}

}  // namespace attn_test
