// SmallRun: trains a GPT with some thousand parameters on generated sequences, step by step.
#pragma once

#include <span>
#include <vector>

#include "attn/train.hpp"

namespace attn_test {

inline attn::GptOptions small_gpt() {
  return {.vocab_size = 11,
          .num_layers = 2,
          .layer = {.d_model = 16,
                    .nhead = 2,
                    .dim_feedforward = 32,
                    .dropout = 0,
                    .activation = attn::Activation::gelu_tanh,
                    .norm_first = true},
          .max_positions = 8};
}

/// Adds the gradients of generated sequences; returns their loss.
template <class T>
double small_gradients(const attn::Gpt<T>& model, attn::GptSaved<T>& saved,
                       attn::Gpt<float>& gradients, std::span<const attn::index_t> examples,
                       const attn::CrossEntropyOptions<float>& options) {
  const attn::index_t batch = std::ssize(examples);
  attn::Tensor2<attn::index_t> ids({batch, 8});
  attn::Tensor1<attn::index_t> targets({8 * batch});
  attn::index_t row = 0;
  for (attn::index_t example : examples) {
    for (attn::index_t i = 0; i < 8; ++i) {
      ids(row, i) = (example + i * i) % 11;
      targets(8 * row + i) = (example + (i + 1) * (i + 1)) % 11;
    }
    ++row;
  }
  attn::Tensor3<float> logits({batch, 8, 11});
  const attn::TensorView2<float> rows(logits.data(), {8 * batch, 11});
  attn::forward(model, ids, logits, saved, {.execution = options.execution});
  const double loss = attn::cross_entropy_backward(rows, targets, rows, options);
  attn::backward(model, logits, saved, gradients, {.execution = options.execution});
  return loss;
}

/// A small run on generated ids: the loss of each step.
struct SmallRun {
  attn::Gpt<float> model{small_gpt()};
  attn::Gpt<float> gradients = attn::gradients_of(model);
  std::vector<attn::TrainedParameter<float>> parameters =
      attn::parameters_of<float>(model, gradients);
  attn::Adam<float> adam{parameters, {.weight_decay = 0.1, .decoupled = true}};
  attn::Batches batches{20, 4, 3};
  attn::GptSaved<float> saved;
  attn::Execution execution;

  explicit SmallRun(const attn::Executor& executor) : execution{.executor = &executor} {
    attn::initialize(model, {.seed = 5, .embedding_std = 0.1});
  }

  /// The gradients of the next batch.
  double gradient_step() {
    attn::clear_gradients(parameters);
    return small_gradients(model, saved, gradients, batches.next(), {.execution = execution});
  }

  double step() {
    const double loss = gradient_step();
    attn::clip_gradient_norm(parameters, 1);
    adam.step(0.01, execution);
    return loss;
  }
};

}  // namespace attn_test
