// Checkpoints of a ShardedOptimizer, equal to those of one process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attn/distributed/sharded_optimizer.hpp"
#include "attn/train/checkpoint.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The whole state of an optimizer, on rank 0. What save_checkpoint() needs of an optimizer.
template <class T>
class GatheredState {
 public:
  /// All ranks construct it.
  template <class Optimizer>
  explicit GatheredState(ShardedOptimizer<Optimizer>& optimizer) : steps_(optimizer.steps()) {
    Communicator& communicator = optimizer.communicator();
    Requests requests;
    optimizer.visit_parts(
        [&](const std::string& name, index_t size, const auto& part_of, const TensorView1<T>& own) {
          if (communicator.rank() != 0) {
            requests.push_back(communicator.send(0, std::as_bytes(elements(own, {0, own.size()}))));
            return;
          }
          const auto& whole = states_.emplace_back(name, Tensor1<T>({size})).second.view();
          std::copy_n(own.data(), own.size(), whole.data());
          for (int rank = 1; rank < communicator.size(); ++rank) {
            requests.push_back(
                communicator.receive(rank, std::as_writable_bytes(elements(whole, part_of(rank)))));
          }
        });
    wait_for(requests);
  }

  index_t steps() const { return steps_; }
  template <class F>
  void visit_state(const F& f) const {
    for (const auto& [name, state] : states_) f(name, state.view());
  }

 private:
  static std::span<T> elements(const TensorView1<T>& x, const IndexRange& range) {
    return {x.data() + range.begin, static_cast<std::size_t>(range.end - range.begin)};
  }

  index_t steps_;
  std::vector<std::pair<std::string, Tensor1<T>>> states_;
};

/// What load_checkpoint() needs of an optimizer, for this rank's part. Only one state at a time is
/// in memory as a whole.
template <class Optimizer>
class LoadedParts {
 public:
  explicit LoadedParts(ShardedOptimizer<Optimizer>& optimizer) : optimizer_(optimizer) {}

  /// f may write to the views.
  template <class F>
  void visit_state(const F& f) {
    const int rank = optimizer_.communicator().rank();
    optimizer_.visit_parts([&]<class T>(const std::string& name, index_t size, const auto& part_of,
                                        const TensorView<T, 1>& own) {
      Tensor1<T> whole({size});
      T* const part = whole.data() + part_of(rank).begin;
      std::copy_n(own.data(), own.size(), part);
      f(name, whole.view());
      std::copy_n(part, own.size(), own.data());
    });
  }
  void set_steps(index_t steps) { optimizer_.set_steps(steps); }
  void publish() { optimizer_.publish(); }

 private:
  ShardedOptimizer<Optimizer>& optimizer_;
};

}  // namespace detail

/// All ranks call it. Rank 0 gathers the optimizer's whole state and writes the file, which has the
/// bytes that one process would write and loads on any number of ranks. If the file cannot be
/// written, rank 0 throws what save_safetensors() throws, and the others ValueError.
template <class Model, class Optimizer>
void save_checkpoint(const std::filesystem::path& path, const Model& model,
                     ShardedOptimizer<Optimizer>& optimizer, const TrainingState& state) {
  using State = detail::GatheredState<typename Optimizer::Element>;
  Communicator& communicator = optimizer.communicator();
  std::unique_ptr<State> whole;
  detail::agree(communicator, "save_checkpoint", [&] {
    detail::AgreedFields fields;
    fields.add("state.step", state.step);
    return fields;
  });
  detail::run_or_fail(communicator, [&] { whole = std::make_unique<State>(optimizer); });
  detail::agree(communicator, "save_checkpoint", [&] {
    if (communicator.rank() == 0) save_checkpoint(path, model, *whole, state);
    return detail::AgreedFields();
  });
}

/// load_checkpoint() for all ranks: each reads the file, which must have the same bytes everywhere.
/// If a rank cannot load its file, or the files differ, every rank throws, and models and
/// optimizers are unchanged: a rank whose file is at fault throws its own error, the others
/// ValueError.
template <class Model, class Optimizer>
TrainingState load_checkpoint(const std::filesystem::path& path, Model& model,
                              ShardedOptimizer<Optimizer>& optimizer) {
  using Parts = detail::LoadedParts<Optimizer>;
  Communicator& communicator = optimizer.communicator();
  Parts parts(optimizer);
  MappedFile map;
  std::optional<SafetensorsFile> file;
  std::optional<detail::CheckpointLoad<Model, Parts>> load;
  detail::agree(communicator, "load_checkpoint", [&] {
    map = MappedFile(path);
    file.emplace(map.bytes(), detail::utf8(path));
    load.emplace(*file, model, parts);
    detail::AgreedFields fields;
    fields.add("the file's step", load->state().step);
    fields.add("the file's bytes", detail::Digest().take(map.bytes()));
    return fields;
  });
  detail::run_or_fail(communicator, [&] { load->write(); });
  return load->state();
}

ATTN_NAMESPACE_END
