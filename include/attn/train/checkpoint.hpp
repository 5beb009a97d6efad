// Checkpoints: model, optimizer state and position in one safetensors file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <filesystem>

#include "attn/io/state_dict.hpp"
#include "attn/train/batches.hpp"
#include "attn/train/loss_scale.hpp"
#include "attn/train/optimizer.hpp"

ATTN_NAMESPACE_BEGIN

/// The position of training.
struct TrainingState {
  index_t step = 0;
  Batches::Position batches = {};
  LossScale::Position loss_scale = {};  ///< for float16; with factor 0, the default, not saved
  SafetensorsMetadata more = {};        ///< the program's own entries
};

namespace detail {

inline constexpr std::string_view kModelPrefix = "model.", kOptimizerPrefix = "optimizer.";

template <class Number>
Number number_in(const SafetensorsMetadata& metadata, const std::string& key) {
  const auto at = metadata.find(key);
  Number number{};
  if (at != metadata.end()) {
    const std::string& text = at->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) return number;
  }
  throw ValueError(message("load_checkpoint", "the metadata", "hold a number " + key,
                           at == metadata.end() ? "none" : quote(at->second)));
}

/// The shortest decimal text that reads back as x.
inline std::string exact_text(double x) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, x).ptr};
}

/// load_checkpoint() in two parts: the constructor throws its errors and writes nothing; write()
/// loads what was checked. Refers to its arguments.
template <class Model, class Optimizer>
class CheckpointLoad {
 public:
  CheckpointLoad(const SafetensorsFile& file, Model& model, Optimizer& optimizer)
      : file_(file), model_(model), optimizer_(optimizer) {
    state_.more = file.metadata();
    state_.step = number_in<index_t>(state_.more, "training.step");
    state_.batches = {.seed = number_in<std::uint64_t>(state_.more, "training.seed"),
                      .epoch = number_in<index_t>(state_.more, "training.epoch"),
                      .batch = number_in<index_t>(state_.more, "training.batch")};
    if (state_.more.contains("training.loss_scale")) {
      state_.loss_scale = {
          .factor = number_in<double>(state_.more, "training.loss_scale"),
          .finite_steps = number_in<index_t>(state_.more, "training.finite_steps")};
    }
    steps_ = number_in<index_t>(state_.more, "training.optimizer_steps");
    std::erase_if(state_.more,
                  [](const auto& entry) { return entry.first.starts_with("training."); });
    optimizer.visit_state([&]<class T>(const std::string& name, TensorView<T, 1> view) {
      file.check<T>(name_of(name), view.shape());
    });
    check_state_dict(model, file, options_, names_);
  }

  const TrainingState& state() const { return state_; }

  void write() {
    copy_state_dict(model_, file_, options_, names_);
    optimizer_.visit_state(
        [&](const std::string& name, const auto& view) { file_.load(name_of(name), view); });
    optimizer_.set_steps(steps_);
    optimizer_.publish();
  }

 private:
  static std::string name_of(const std::string& name) {
    return std::string(kOptimizerPrefix) + name;
  }

  const SafetensorsFile& file_;
  Model& model_;
  Optimizer& optimizer_;
  const LoadOptions options_{.prefix = std::string(kModelPrefix)};
  std::vector<std::string> names_;  ///< of the model's tensors in the file
  TrainingState state_;
  index_t steps_ = 0;
};

}  // namespace detail

/// Replaces `path` atomically: if the program stops while it writes, the previous checkpoint stays.
/// Tensors: model.NAME, and optimizer.NAME.exp_avg and others by PyTorch's names. Throws what
/// save_safetensors() throws.
template <class Model, class Optimizer>
void save_checkpoint(const std::filesystem::path& path, const Model& model, Optimizer& optimizer,
                     const TrainingState& state) {
  std::vector<NamedTensor> tensors =
      state_dict(model, {.prefix = std::string(detail::kModelPrefix)});
  optimizer.visit_state([&](const std::string& name, const auto& view) {
    tensors.emplace_back(std::string(detail::kOptimizerPrefix) + name, view);
  });
  SafetensorsMetadata metadata = state.more;
  metadata["training.step"] = std::to_string(state.step);
  metadata["training.optimizer_steps"] = std::to_string(optimizer.steps());
  metadata["training.seed"] = std::to_string(state.batches.seed);
  metadata["training.epoch"] = std::to_string(state.batches.epoch);
  metadata["training.batch"] = std::to_string(state.batches.batch);
  if (state.loss_scale.factor != 0) {
    metadata["training.loss_scale"] = detail::exact_text(state.loss_scale.factor);
    metadata["training.finite_steps"] = std::to_string(state.loss_scale.finite_steps);
  }
  save_safetensors(path, tensors, metadata);
}

/// Loads the file of save_checkpoint() into a model and an optimizer with the same options:
/// training continues with the same bits. In mixed precision `model` holds the float master
/// weights; the 16-bit model is updated from them. Throws IoError for a file that cannot be read,
/// ValueError or ShapeError for the file of another model or optimizer.
template <class Model, class Optimizer>
TrainingState load_checkpoint(const std::filesystem::path& path, Model& model,
                              Optimizer& optimizer) {
  const SafetensorsFile file(path);
  detail::CheckpointLoad<Model, Optimizer> load(file, model, optimizer);
  load.write();
  return load.state();
}

ATTN_NAMESPACE_END
