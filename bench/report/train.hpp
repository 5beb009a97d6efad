// Rows of the report on training: attention, an encoder layer, a small model, AdamW.
#pragma once

#include "attn/kernels/losses/loss_backward_jvp.hpp"
#include "attn/layers/encoder_layer_backward.hpp"
#include "attn/models/gpt_hessian.hpp"

#include "report/low_precision_work.hpp"
#include "report/work.hpp"
#include "support/training.hpp"

namespace bench {

namespace detail {

/// Forward and backward of attention; the mask keeps `share` of all pairs.
inline Work training_work(std::string name, const std::shared_ptr<AttentionStep<float>>& step,
                          const attn::Mask& mask = {}, double share = 1) {
  Work work{std::move(name), attn::active_isa(), share * step->flops()};
  work.traffic = 8 * step->q.size() * index_t{sizeof(float)};
  work.run = [=](const attn::Execution& execution) {
    step->run({.mask = mask, .execution = execution});
  };
  work.complaint = [=] { return step->complaint(attn::AttentionOptions<double>{.mask = mask}); };
  return work;
}

inline std::shared_ptr<AttentionStep<float>> attention_step(std::string_view name) {
  const AttentionShape& s = shape_of(kAttentionTrainShapes, name);
  return std::make_shared<AttentionStep<float>>(
      random_attention_step({s.batch, s.num_heads, s.q_len, s.head_dim}));
}

inline Group training_group(std::string name) {
  return {{name},
          [=]() -> std::vector<Work> { return {training_work(name, attention_step(name))}; }};
}

/// The cost of gradients with options, on one thread.
inline std::vector<Work> training_cost_works() {
  constexpr index_t kHeads = 8, kSeq = 1024;
  struct Inputs {
    AttentionStep<float> step = random_attention_step({1, kHeads, kSeq, 64});
    attn::Tensor4<float> bias = random_tensor<float, 4>({1, 1, kSeq, kSeq}, 5, 1.0f),
                         d_bias{bias.shape()};
    attn::Tensor1<float> slopes{{kHeads}}, d_slopes{{kHeads}};
  };
  const auto in = std::make_shared<Inputs>();
  for (float& x : in->slopes.elements()) x = 0.01f;
  const auto work = [&](const char* name, auto run) {
    Work result{name, attn::active_isa(), in->step.flops()};
    result.traffic = 8 * in->step.q.size() * index_t{sizeof(float)};
    result.one_thread = true;
    result.run = [=](const attn::Execution& execution) { run(in->step, *in, execution); };
    result.complaint = [=]() -> std::string {
      AttentionStep<float> other = random_attention_step(in->step.q.shape());
      run(other, *in, attn::Execution{.isa = attn::Isa::scalar});
      return in->step.complaint(other);
    };
    return result;
  };
  return {
      work("cost_train_plain",
           [](AttentionStep<float>& step, Inputs&, const attn::Execution& execution) {
             step.run({.execution = execution});
           }),
      work("cost_train_bias",
           [](AttentionStep<float>& step, Inputs& i, const attn::Execution& execution) {
             step.run({.mask = attn::additive_mask(i.bias), .execution = execution},
                      {.d_bias = {i.d_bias.view()}});
           }),
      work("cost_train_dropout",
           [](AttentionStep<float>& step, Inputs&, const attn::Execution& execution) {
             step.run({.dropout = {0.1, 1}, .execution = execution});
           }),
      work("cost_train_score_mod",
           [](AttentionStep<float>& step, Inputs& i, const attn::Execution& execution) {
             const auto mod = attn::score_mod(
                 [](auto score, int, int, int query, int key, auto slope) {
                   return score - slope * static_cast<float>(std::abs(query - key));
                 },
                 i.slopes);
             step.run({.execution = execution}, {.d_score_parameters = {i.d_slopes.view()}}, mod);
           }),
  };
}

/// A step of an encoder layer with dropout and AdamW.
template <class T>
struct EncoderStep {
  static constexpr index_t kBatch = kEncoderTrain.batch, kSeq = kEncoderTrain.seq,
                           kWidth = kEncoderTrain.width, kHeads = kEncoderTrain.heads,
                           kHidden = kEncoderTrain.hidden;

  attn::EncoderLayer<T> layer, gradients = attn::gradients_of(layer);
  attn::Tensor3<T> x, d_out, out{x.shape()}, d_x{x.shape()};
  attn::EncoderLayerSaved<T> saved = {};
  std::vector<attn::TrainedParameter<T>> parameters = attn::parameters_of<T>(layer, gradients);
  attn::Adam<T> adamw{parameters, {.weight_decay = 0.01, .decoupled = true}};

  void add_gradients(const attn::Execution& execution) {
    saved.dropout = {.seed = 1, .step = 1};
    attn::clear_gradients(parameters);
    attn::forward(layer, x, out, saved, {.execution = execution});
    attn::backward(layer, d_out, saved, d_x, gradients, {.execution = execution});
  }
  void run(const attn::Execution& execution) {
    add_gradients(execution);
    adamw.step(1e-5, execution);
  }
};

inline attn::EncoderLayer<float> random_training_layer() {
  using Step = EncoderStep<float>;
  return with_random_parameters(attn::EncoderLayer<float>({.d_model = Step::kWidth,
                                                           .nhead = Step::kHeads,
                                                           .dim_feedforward = Step::kHidden,
                                                           .dropout = 0.1,
                                                           .activation = attn::Activation::gelu}),
                                Step::kWidth);
}

/// `work`, and the same in MatmulPrecision::high unless it runs as highest.
inline std::vector<Work> with_high_precision(Work work, std::function<std::string()> complaint) {
  Work high = work;
  high.name += "_high";
  std::vector<Work> works = in_high_precision(std::move(high), std::move(complaint));
  works.insert(works.begin(), std::move(work));
  return works;
}

inline std::vector<Work> encoder_train_works() {
  using Step = EncoderStep<float>;
  const attn::Shape<3> shape{Step::kBatch, Step::kSeq, Step::kWidth};
  const auto make = [=] {
    return std::shared_ptr<Step>(new Step{.layer = random_training_layer(),
                                          .x = random_tensor<float, 3>(shape, 2),
                                          .d_out = random_tensor<float, 3>(shape, 3)});
  };
  const auto in = make();
  Work work{"encoder_train", attn::active_isa(),
            3 * encoder_layer_flops(Step::kBatch, Step::kSeq, Step::kWidth, Step::kHidden)};
  work.traffic = 4 * in->x.size() * index_t{sizeof(float)};
  for (const auto& parameter : in->parameters) {
    work.traffic += 4 * parameter.size * index_t{sizeof(float)};
  }
  work.run = [=](const attn::Execution& execution) { in->run(execution); };
  // The gradients of the first step, before AdamW has changed anything.
  const auto complaint = [=](const attn::Execution& execution) -> std::string {
    const auto first = make(), other = make();
    first->add_gradients(execution);
    other->add_gradients({.isa = attn::Isa::scalar});
    double worst = 0;
    for (std::size_t n = 0; n < first->parameters.size(); ++n) {
      const auto &ours = first->parameters[n], &theirs = other->parameters[n];
      for (index_t i = 0; i < ours.size; ++i) {
        const double off = std::abs(static_cast<double>(ours.gradient[i] - theirs.gradient[i]));
        if (!(off <= worst)) worst = off;
      }
    }
    return worst <= 1e-2 ? "" : "wrong gradients: off the scalar set's by " + std::to_string(worst);
  };
  work.complaint = [=] { return complaint({}); };
  return with_high_precision(std::move(work), [=] {
    return complaint({.matmul_precision = attn::MatmulPrecision::high});
  });
}

/// 16 million parameters: 256 MB with their gradients and two moments.
inline std::vector<Work> optimizer_works() {
  constexpr index_t kSize = index_t{1} << 24, kChunk = index_t{1} << 14;
  struct Inputs {
    attn::Linear<float> layer{kSize / 4096, 4096, false}, gradients = attn::gradients_of(layer);
    std::vector<attn::TrainedParameter<float>> parameters =
        attn::parameters_of<float>(layer, gradients);
    attn::Adam<float> adamw{parameters, {.weight_decay = 0.01, .decoupled = true}};
    attn::Tensor1<float> moments[2] = {attn::Tensor1<float>({kSize}),
                                       attn::Tensor1<float>({kSize})};
  };
  const auto in = std::make_shared<Inputs>();
  Random random(6);
  for (float& x : in->gradients.weight.elements()) x = random.number<float>();
  // Zero pages are allocated when first written: without this, the first step measures page faults.
  in->adamw.step(1e-3);
  for (attn::Tensor1<float>& moment : in->moments) moment.fill(0);
  Work plain{"adamw_plain", attn::active_isa(), 3.0 * kSize},
      adamw{"adamw", attn::active_isa(), 12.0 * kSize};
  plain.traffic = adamw.traffic = 7 * kSize * index_t{sizeof(float)};
  plain.run = [=](const attn::Execution& execution) {
    execution.threads().run(kSize / kChunk, [&](index_t chunk, int) {
      float *p = in->layer.weight.data(), *m = in->moments[0].data(), *v = in->moments[1].data();
      const float* g = in->gradients.weight.data();
      constexpr index_t kLanes = 16;  // a constant count, so that g++ -O2 vectorises
      for (index_t i = chunk * kChunk; i < (chunk + 1) * kChunk; i += kLanes) {
        float next[kLanes];
        for (index_t x = 0; x < kLanes; ++x) next[x] = p[i + x] + m[i + x] + v[i + x] + g[i + x];
        for (index_t x = 0; x < kLanes; ++x) p[i + x] = 0.25f * next[x];
        for (index_t x = 0; x < kLanes; ++x) m[i + x] = next[x];
        for (index_t x = 0; x < kLanes; ++x) v[i + x] = -next[x];
      }
    });
  };
  plain.complaint = [] { return std::string(); };
  adamw.run = [=](const attn::Execution& execution) { in->adamw.step(1e-3, execution); };
  adamw.complaint = [=]() -> std::string {
    attn::Linear<float> layer = in->layer, gradients = in->gradients;
    attn::Adam<float> first(attn::parameters_of<float>(layer, gradients), {});
    first.step(1e-3);  // a step is rate times the sign of the gradient
    for (index_t i = 0; i < kSize; ++i) {
      const float g = in->gradients.weight.data()[i];
      const double moved = in->layer.weight.data()[i] - layer.weight.data()[i];
      if (std::abs(g) > 1e-3f && std::abs(moved - std::copysign(1e-3, g)) > 1e-5) {
        return "wrong step at element " + std::to_string(i);
      }
    }
    return "";
  };
  return {plain, adamw};
}

inline std::vector<Work> gpt_works(const GptShape& shape) {
  const auto model = std::make_shared<GptStep>(shape);
  Work work{std::string(shape.name), attn::active_isa(), model->flops()};
  work.traffic = 7 * model->num_parameters() * index_t{sizeof(float)};
  const double first = model->step({});
  work.run = [=](const attn::Execution& execution) { model->step(execution); };
  const auto complaint = [=](const attn::Execution& execution) -> std::string {
    double last = first;
    for (int n = 0; n < 3; ++n) last = model->step(execution);
    return last < first ? "" : "the model does not learn";
  };
  work.complaint = [=] { return complaint({}); };
  return with_high_precision(std::move(work), [=] {
    return complaint({.matmul_precision = attn::MatmulPrecision::high});
  });
}

/// A model's forward pass, and the product of its Hessian with a vector.
inline std::vector<Work> hessian_works() {
  constexpr index_t kVocab = 256, kTokens = 1024, kWidth = 256;
  struct Inputs {
    attn::Gpt<float> model{{.vocab_size = kVocab,
                            .num_layers = 2,
                            .layer = {.d_model = kWidth,
                                      .nhead = 4,
                                      .dim_feedforward = 4 * kWidth,
                                      .activation = attn::Activation::gelu_tanh,
                                      .norm_first = true}}};
    attn::Gpt<float> vector = model, product = attn::gradients_of(model);
    attn::Tensor2<index_t> ids{{1, kTokens}};
    attn::Tensor1<index_t> targets{{kTokens}};
    attn::Tensor3<float> logits{{1, kTokens, kVocab}};

    void multiply(const attn::Execution& execution) {
      const auto loss = [&](const auto& y, const auto& d_y) {
        return attn::cross_entropy_backward_jvp(y.rows(), targets, d_y.rows(),
                                                {.execution = execution});
      };
      attn::clear_gradients(attn::parameters_of<float>(model, product), execution);
      attn::hessian_vector_product(model, ids, loss, vector, product, {.execution = execution});
    }
  };
  const auto in = std::make_shared<Inputs>();
  attn::initialize(in->model, {.seed = 1, .embedding_std = 0.02});
  attn::initialize(in->vector, {.seed = 2, .embedding_std = 0.02});
  for (index_t i = 0; i < kTokens; ++i) {
    in->ids(0, i) = i * i % kVocab, in->targets(i) = (i + 1) * (i + 1) % kVocab;
  }
  index_t size = 0;
  for (const auto& parameter : attn::parameters_of<float>(in->model, in->product)) {
    size += parameter.size;
  }
  const double flops = 2 * static_cast<double>(size) * kTokens;
  Work forward{"hvp_forward", attn::active_isa(), flops},
      product{"hvp_gpt", attn::active_isa(), 8 * flops};
  forward.traffic = size * index_t{sizeof(float)}, product.traffic = 4 * forward.traffic;
  forward.run = [=](const attn::Execution& execution) {
    in->model.forward(in->ids, in->logits, {.execution = execution});
  };
  forward.complaint = [] { return std::string(); };
  product.run = [=](const attn::Execution& execution) { in->multiply(execution); };
  product.complaint = [=]() -> std::string {
    const attn::Tensor2<float> found = in->product.blocks.layers[0].feed_forward.linear1.weight;
    in->multiply({.isa = attn::Isa::scalar});
    return scalar_complaint(found, in->product.blocks.layers[0].feed_forward.linear1.weight, 1e-3);
  };
  return {forward, product};
}

}  // namespace detail

/// The rows with a baseline, in the report's order.
inline std::vector<Comparison> training_comparisons() {
  return {{"sdpa_train_causal", "sdpa_train_d64"},
          {"cost_train_bias", "cost_train_plain"},
          {"cost_train_dropout", "cost_train_plain"},
          {"cost_train_score_mod", "cost_train_plain"},
          {"adamw", "adamw_plain"},
          {"hvp_gpt", "hvp_forward"},
          {"encoder_train_high", "encoder_train"},
          {"chargpt_train_high", "chargpt_train"},
          {"gpt2_train_high", "gpt2_train"}};
}

inline std::vector<Group> training_groups() {
  return {
      {{"sdpa_train_d64", "sdpa_train_causal"},
       []() -> std::vector<Work> {
         const auto step = detail::attention_step("sdpa_train_d64");
         return {detail::training_work("sdpa_train_d64", step),
                 detail::training_work("sdpa_train_causal", step, attn::causal(), 0.5)};
       }},
      detail::training_group("sdpa_train_d128"),
      detail::training_group("sdpa_train_short"),
      {{"cost_train_plain", "cost_train_bias", "cost_train_dropout", "cost_train_score_mod"},
       detail::training_cost_works},
      {{"encoder_train", "encoder_train_high"}, detail::encoder_train_works},
      {{"adamw_plain", "adamw"}, detail::optimizer_works},
      {{"hvp_forward", "hvp_gpt"}, detail::hessian_works},
      {{"chargpt_train", "chargpt_train_high"},
       [] { return detail::gpt_works(kGptTrainShapes[0]); }},
      {{"gpt2_train", "gpt2_train_high"}, [] { return detail::gpt_works(kGptTrainShapes[1]); }}};
}

}  // namespace bench
