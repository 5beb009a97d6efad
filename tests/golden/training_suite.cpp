// Golden suite `training`: training runs of four models against PyTorch in double.
#include "golden/training_models.hpp"
#include "support/isas.hpp"
#include "support/tolerance.hpp"

namespace attn_test {
namespace {

/// A run's optimizer: SGD, Adam or AdamW, by one call.
template <class T>
class AnyOptimizer {
 public:
  AnyOptimizer(const Case& c, const std::vector<attn::TrainedParameter<T>>& parameters) {
    const auto options = c.required<nlohmann::ordered_json>("optimizer");
    const auto kind = options.at("kind").get<std::string>();
    const double decay = options.value("weight_decay", 0.0);
    if (kind == "sgd") {
      sgd_ = std::make_unique<attn::Sgd<T>>(
          parameters, attn::SgdOptions{.momentum = options.value("momentum", 0.0),
                                       .nesterov = options.value("nesterov", false),
                                       .weight_decay = decay});
    } else if (kind == "adam" || kind == "adamw") {
      adam_ = std::make_unique<attn::Adam<T>>(
          parameters, attn::AdamOptions{.beta1 = options.at("betas").at(0).get<double>(),
                                        .beta2 = options.at("betas").at(1).get<double>(),
                                        .eps = options.at("eps").get<double>(),
                                        .weight_decay = decay,
                                        .decoupled = kind == "adamw"});
    } else {
      throw Unsupported("optimizer " + kind);
    }
  }
  void step(double rate, const attn::Execution& execution) {
    if (sgd_) return sgd_->step(rate, execution);
    adam_->step(rate, execution);
  }

 private:
  std::unique_ptr<attn::Sgd<T>> sgd_;
  std::unique_ptr<attn::Adam<T>> adam_;
};

template <class T>
double norm_of(const Array<T>& x) {
  double sum = 0;
  for (T value : x.data) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

/// Tolerances in double: 1e-10 of a tensor's largest element for first gradients, 1e-8 of the
/// largest element, at least 1, for the rest. In float: 1e-4 of a tensor's norm for first
/// gradients, 1e-3 for losses, none for final parameters, since Adam follows the sign of noise.
template <class T, class Run>
void check_run(Case& c, attn::Isa isa) {
  constexpr bool kDouble = sizeof(T) == 8;
  const attn::Execution execution{.isa = isa};
  Run run(c);
  attn::load_state_dict(run.model, c.file(), {.prefix = c.prefix() + "init/"});
  auto gradients = attn::gradients_of(run.model);
  const auto parameters = attn::parameters_of<T>(run.model, gradients);
  AnyOptimizer<T> optimizer(c, parameters);
  const auto rates = c.load<double>("learning_rates"), losses = c.load<double>("losses"),
             norms = c.load<double>("grad_norms");
  const double clip = c.required<double>("clip_grad_norm");
  Array<double> found_losses(losses.shape), found_norms(norms.shape);
  for (Index n = 0; n < c.required<Index>("steps"); ++n) {
    attn::clear_gradients(parameters);
    found_losses(n) = run.step(c, n, gradients, execution);
    for (const auto& p : parameters) {
      if (n > 0) break;
      c.mark_read("init/" + p.name);
      const auto want = c.load<double>("first_grad/" + p.name);
      Array<T> got(want.shape);
      std::copy_n(p.gradient, p.size, got.data.begin());
      const double bound = kDouble ? 1e-10 * max_abs(want) : 1e-4 * norm_of(want);
      c.expect_gradient(difference(got, want, bound, isa, "first gradient of " + p.name));
    }
    found_norms(n) =
        clip > 0 ? attn::clip_gradient_norm(parameters, clip) : attn::gradient_norm(parameters);
    optimizer.step(rates(n), execution);
  }
  const double within = kDouble ? 1e-8 : 1e-3;
  c.expect(
      difference(found_losses, losses, within * std::max(1.0, max_abs(losses)), isa, "losses"));
  for (const auto& p : parameters) {
    const auto want = c.load<double>("final/" + p.name);
    Array<T> got(want.shape);
    std::copy_n(p.value, p.size, got.data.begin());
    if (!kDouble) continue;
    c.expect(difference(got, want, within * std::max(1.0, max_abs(want)), isa, "final " + p.name));
  }
  if (kDouble) {
    c.expect(difference(found_norms, norms, within * std::max(1.0, max_abs(norms)), isa,
                        "gradient norms"));
  }
}

template <template <class> class Run>
void check_in_both(Case& c) {
  for (attn::Isa isa : available_isas()) {
    check_run<double, Run<double>>(c, isa);
    check_run<float, Run<float>>(c, isa);
  }
}

void check_training(Case& c) {
  const std::string model = c.required<std::string>("model");
  if (c.required<std::string>("loss") != "cross_entropy") throw Unsupported("another loss");
  if (model == "Gpt") return check_in_both<GptRun>(c);
  if (model == "Encoder") return check_in_both<EncoderRun>(c);
  if (model == "Seq2SeqTransformer") return check_in_both<Seq2SeqRun>(c);
  throw Unsupported("model " + model);
}

}  // namespace

const Suite training_suite{{"name",
                            "steps",
                            "clip_grad_norm",
                            "optimizer",
                            "model",
                            "vocab_size",
                            "num_layers",
                            "d_model",
                            "nhead",
                            "dim_feedforward",
                            "activation",
                            "norm_first",
                            "positions",
                            "max_positions",
                            "tied",
                            "norm",
                            "layer_norm_eps",
                            "loss",
                            "num_kv_heads",
                            "gated",
                            "bias",
                            "rotary",
                            "ignore_index",
                            "final_norm",
                            "pooling",
                            "classes",
                            "label_smoothing",
                            "src_vocab_size",
                            "tgt_vocab_size",
                            "final_norms",
                            "scale_embedding",
                            "pad_id",
                            "schedule"},
                           check_training};

}  // namespace attn_test
