// Training steps for benchmarks: attention forward and backward, and a GPT.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attn/kernels/losses/loss.hpp"
#include "attn/models/gpt_backward.hpp"
#include "attn/train/clipping.hpp"
#include "attn/train/initialize.hpp"
#include "attn/train/optimizer.hpp"

#include "support/inputs.hpp"
#include "support/shapes.hpp"

namespace bench {

using attn::index_t;

inline attn::Tensor4<double> widened(const attn::Tensor4<float>& x) {
  attn::Tensor4<double> result(x.shape());
  std::copy(x.elements().begin(), x.elements().end(), result.elements().begin());
  return result;
}

/// Forward and backward on one set of tensors of type T.
template <class T>
struct AttentionStep {
  attn::Tensor4<T> q, k, v, d_out, out{q.shape()}, d_q{q.shape()}, d_k{q.shape()}, d_v{q.shape()};
  attn::Tensor3<T> lse{{q.extent(0), q.extent(1), q.extent(2)}};

  template <class... Functors>
  void run(attn::AttentionOptions<T> options, const attn::AttentionBackwardCall<T>& call = {},
           const Functors&... functors) {
    options.lse = lse.view();
    attn::scaled_dot_product_attention(q, k, v, out, options, functors...);
    attn::scaled_dot_product_attention_backward(d_out, q, k, v, out, lse.view(), d_q, d_k, d_v,
                                                options, call, functors...);
  }

  /// Operations: two products forward and five backward, without masks.
  double flops() const {
    return 3.5 * 4 * static_cast<double>(q.size()) * static_cast<double>(k.extent(2));
  }

  /// The error if gradients differ from those of another step; empty if they agree.
  template <class U>
  std::string complaint(const AttentionStep<U>& right) const {
    for (const auto& [got, want] :
         {std::pair{&d_q, &right.d_q}, {&d_k, &right.d_k}, {&d_v, &right.d_v}}) {
      for (index_t i = 0; i < got->size(); ++i) {
        const double off =
            std::abs(static_cast<double>(got->data()[i]) - static_cast<double>(want->data()[i]));
        if (!(off <= 1e-4)) return "a gradient is wrong at element " + std::to_string(i);
      }
    }
    return "";
  }
  /// The error of float gradients against those in double, which the tests compare with central
  /// differences.
  std::string complaint(const attn::AttentionOptions<double>& options) const {
    AttentionStep<double> exact{widened(q), widened(k), widened(v), widened(d_out)};
    exact.run(options);
    return complaint(exact);
  }
};

inline AttentionStep<float> random_attention_step(const attn::Shape<4>& shape) {
  return {random_tensor<float, 4>(shape, 1, 1.0f), random_tensor<float, 4>(shape, 2, 1.0f),
          random_tensor<float, 4>(shape, 3, 1.0f), random_tensor<float, 4>(shape, 4, 1.0f)};
}

/// A GPT and its gradients on generated ids. Not copyable or movable: parameters() refers to it.
class GptGradients {
 public:
  explicit GptGradients(const GptShape& shape) : shape_(shape) {
    attn::initialize(model_, {.seed = 1, .embedding_std = 0.02});
    for (index_t i = 0; i < ids_.size(); ++i) {
      ids_.data()[i] = i * i % shape_.vocab;
      targets_(i) = (i + 1) * (i + 1) % shape_.vocab;
    }
  }
  GptGradients(const GptGradients&) = delete;
  GptGradients& operator=(const GptGradients&) = delete;

  const std::vector<attn::TrainedParameter<float>>& parameters() const { return parameters_; }

  /// Computes the gradients; returns the loss, the sum over tokens divided by `divisor`, by default
  /// their number.
  double compute(const attn::Execution& execution, std::optional<double> divisor = {}) {
    const attn::TensorView2<float> rows(logits_.data(), {ids_.size(), shape_.vocab});
    attn::clear_gradients(parameters_, execution);
    attn::forward(model_, ids_, logits_, saved_, {.execution = execution});
    const double loss = attn::cross_entropy_backward(rows, targets_, rows,
                                                     {.divisor = divisor, .execution = execution});
    attn::backward(model_, logits_, saved_, gradients_, {.execution = execution});
    return loss;
  }

  index_t tokens() const { return ids_.size(); }
  index_t num_parameters() const {
    index_t count = 0;
    for (const auto& parameter : parameters_) count += parameter.size;
    return count;
  }
  /// Operations of the products with weights, one forward and two backward; attention is
  /// negligible.
  double flops() const {
    return 6 * static_cast<double>(num_parameters()) * static_cast<double>(tokens());
  }
  double rate() const { return shape_.width > 128 ? 3e-4 : 3e-3; }

 private:
  GptShape shape_;
  attn::Gpt<float> model_{{.vocab_size = shape_.vocab,
                           .num_layers = shape_.layers,
                           .layer = {.d_model = shape_.width,
                                     .nhead = shape_.heads,
                                     .dim_feedforward = 4 * shape_.width,
                                     .dropout = 0,
                                     .activation = attn::Activation::gelu_tanh,
                                     .norm_first = true},
                           .max_positions = shape_.seq}};
  attn::Gpt<float> gradients_ = attn::gradients_of(model_);
  std::vector<attn::TrainedParameter<float>> parameters_ =
      attn::parameters_of<float>(model_, gradients_);
  attn::GptSaved<float> saved_;
  attn::Tensor2<index_t> ids_{{shape_.batch, shape_.seq}};
  attn::Tensor1<index_t> targets_{{ids_.size()}};
  attn::Tensor3<float> logits_{{shape_.batch, shape_.seq, shape_.vocab}};
};

/// A GPT that trains on generated ids.
class GptStep : public GptGradients {
 public:
  using GptGradients::GptGradients;

  /// Trains one step; returns the loss.
  double step(const attn::Execution& execution) {
    const double loss = compute(execution);
    const double norm = attn::gradient_norm(parameters(), execution);
    adamw_.step(rate(), execution, attn::clip_factor(norm, 1));
    return loss;
  }

 private:
  attn::Adam<float> adamw_{parameters(), {.weight_decay = 0.1, .decoupled = true}};
};

}  // namespace bench
