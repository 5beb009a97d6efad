// The models of the golden suite `training`: loss and gradients of a step's batch.
#pragma once

#include <memory>
#include <string>

#include "attn/train.hpp"

#include "golden/case.hpp"

namespace attn_test {

/// Cross-entropy with the options of a case.
template <class T>
attn::CrossEntropyOptions<T> loss_options(const Case& c, const attn::Execution& execution) {
  attn::CrossEntropyOptions<T> options;
  if (const auto ignored = c.attribute<Index>("ignore_index")) options.ignore_index = *ignored;
  options.label_smoothing = c.attribute<double>("label_smoothing").value_or(0);
  options.execution = execution;
  return options;
}

inline attn::TransformerLayerOptions training_layer(const Case& c) {
  attn::TransformerLayerOptions layer;
  layer.d_model = c.required<Index>("d_model");
  layer.nhead = c.required<Index>("nhead");
  layer.dim_feedforward = c.required<Index>("dim_feedforward");
  layer.dropout = 0;
  const std::string activation = c.required<std::string>("activation");
  layer.activation = activation == "relu"        ? attn::Activation::relu
                     : activation == "gelu_tanh" ? attn::Activation::gelu_tanh
                     : activation == "gelu"      ? attn::Activation::gelu
                     : activation == "silu"      ? attn::Activation::silu
                                                 : throw Unsupported("activation " + activation);
  layer.layer_norm_eps = c.required<double>("layer_norm_eps");
  layer.norm_first = c.required<bool>("norm_first");
  layer.bias = c.attribute<bool>("bias").value_or(true);
  layer.gated = c.attribute<bool>("gated").value_or(false);
  const std::string norm = c.attribute<std::string>("norm").value_or("layer");
  layer.norm = norm == "rms" ? attn::NormKind::rms : attn::NormKind::layer;
  layer.attention.num_kv_heads = c.attribute<Index>("num_kv_heads").value_or(0);
  if (const auto rotary = c.attribute<nlohmann::ordered_json>("rotary")) {
    layer.attention.rotary = attn::RotaryOptions{.pairs = rotary->at("pairs") == "halves"
                                                              ? attn::RotaryPairs::halves
                                                              : attn::RotaryPairs::interleaved,
                                                 .theta = rotary->at("theta").get<double>()};
  }
  return layer;
}

/// The tensors of one step's batch.
struct StepIds {
  Array<std::int64_t> all;

  attn::TensorView2<const std::int64_t> at(Index step) const {
    const Index rows = all.extent(1), columns = all.shape.size() > 2 ? all.extent(2) : 1;
    return {all.data.data() + step * rows * columns, {rows, columns}};
  }
  /// All ids in one row.
  attn::TensorView1<const std::int64_t> flat(Index step) const {
    const auto view = at(step);
    return {view.data(), {view.size()}};
  }
};

template <class T>
attn::TensorView2<T> joined_rows(attn::Tensor3<T>& x) {
  return {x.data(), {x.extent(0) * x.extent(1), x.extent(2)}};
}

template <class T>
struct GptRun {
  using Module = attn::Gpt<T>;
  Module model;
  attn::GptSaved<T> saved;
  StepIds ids, targets;

  static attn::GptOptions options(const Case& c) {
    attn::GptOptions options;
    options.vocab_size = c.required<Index>("vocab_size");
    options.num_layers = c.required<Index>("num_layers");
    options.layer = training_layer(c);
    options.positions = c.required<std::string>("positions") == "learned" ? attn::Positions::learned
                                                                          : attn::Positions::none;
    options.max_positions = c.attribute<Index>("max_positions").value_or(1024);
    options.tied = c.required<bool>("tied");
    return options;
  }
  explicit GptRun(const Case& c)
      : model(options(c)),
        ids{c.load<std::int64_t>("batch/ids")},
        targets{c.load<std::int64_t>("batch/targets")} {}

  double step(const Case& c, Index n, Module& gradients, const attn::Execution& execution) {
    const auto tokens = ids.at(n);
    attn::Tensor3<T> logits({tokens.extent(0), tokens.extent(1), model.vocab_size()});
    attn::forward(model, tokens, logits, saved, {.execution = execution});
    const double loss = attn::cross_entropy_backward(
        joined_rows(logits), targets.flat(n), joined_rows(logits), loss_options<T>(c, execution));
    attn::backward(model, logits, saved, gradients, {.execution = execution});
    return loss;
  }
};

/// Embedding, encoder, mean over the unpadded rows, head.
template <class T>
struct EncoderClassifier {
  attn::InputEmbedding<T> embedding;
  attn::Encoder<T> encoder;
  attn::Linear<T> head;

  void visit_parameters(const attn::ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const attn::ParameterVisitor<const T>& f) const { visit(*this, f); }

 private:
  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    self.embedding.visit_parameters(f.under("embedding."));
    self.encoder.visit_parameters(f.under("encoder."));
    self.head.visit_parameters(f.under("head."));
  }
};

template <class T>
struct EncoderRun {
  using Module = EncoderClassifier<T>;
  Module model;
  attn::InputEmbeddingSaved<T> embedding_saved;
  attn::EncoderSaved<T> encoder_saved;
  attn::LinearSaved<T> head_saved;
  StepIds ids, targets, padding;

  explicit EncoderRun(const Case& c)
      : model{attn::InputEmbedding<T>({.vocab_size = c.required<Index>("vocab_size"),
                                       .d_model = c.required<Index>("d_model"),
                                       .positions = attn::Positions::sinusoidal,
                                       .max_positions = 64}),
              attn::Encoder<T>({.num_layers = c.required<Index>("num_layers"),
                                .layer = training_layer(c),
                                .norm = c.required<bool>("final_norm")}),
              attn::Linear<T>(c.required<Index>("d_model"), c.required<Index>("classes"))},
        ids{c.load<std::int64_t>("batch/ids")},
        targets{c.load<std::int64_t>("batch/targets")},
        padding{c.load<std::int64_t>("batch/padding")} {}

  double step(const Case& c, Index n, Module& gradients, const attn::Execution& execution) {
    const auto tokens = ids.at(n);
    const auto padded = padding.at(n);
    const Index batch = tokens.extent(0), seq = tokens.extent(1), dim = model.head.weight.extent(1);
    attn::Tensor2<bool> masked({batch, seq});
    std::vector<T> kept(static_cast<std::size_t>(batch));
    for (Index b = 0; b < batch; ++b) {
      for (Index i = 0; i < seq; ++i) {
        masked(b, i) = padded(b, i) != 0;
        if (!masked(b, i)) kept[static_cast<std::size_t>(b)] += T{1};
      }
    }
    const attn::AttentionOptions<T> options{.mask = attn::key_padding_mask(masked),
                                            .execution = execution};
    attn::Tensor3<T> x({batch, seq, dim}), y(x.shape()), pooled({batch, 1, dim}),
        logits({batch, 1, model.head.weight.extent(0)});
    attn::forward(model.embedding, tokens, x, embedding_saved, {.execution = execution});
    attn::forward(model.encoder, x, y, encoder_saved, options);
    const auto each_kept = [&](auto f) {
      for (Index b = 0; b < batch; ++b) {
        for (Index i = 0; i < seq; ++i) {
          for (Index d = 0; d < dim && !masked(b, i); ++d) {
            f(b, i, d, T{1} / kept[static_cast<std::size_t>(b)]);
          }
        }
      }
    };
    each_kept([&](Index b, Index i, Index d, T share) { pooled(b, 0, d) += share * y(b, i, d); });
    attn::forward(model.head, pooled, logits, head_saved, {}, execution);
    const double loss = attn::cross_entropy_backward(
        joined_rows(logits), targets.flat(n), joined_rows(logits), loss_options<T>(c, execution));
    attn::backward(model.head, logits, head_saved, pooled, gradients.head, {}, execution);
    y.fill(0);
    each_kept([&](Index b, Index i, Index d, T share) { y(b, i, d) = share * pooled(b, 0, d); });
    attn::backward(model.encoder, y, encoder_saved, x, gradients.encoder, options);
    attn::backward(model.embedding, x, embedding_saved, gradients.embedding, execution);
    return loss;
  }
};

template <class T>
struct Seq2SeqRun {
  using Module = attn::Seq2SeqTransformer<T>;
  Module model;
  attn::Seq2SeqSaved<T> saved;
  StepIds src, tgt, targets;

  static attn::Seq2SeqOptions options(const Case& c) {
    attn::Seq2SeqOptions options;
    options.src_vocab_size = c.required<Index>("src_vocab_size");
    options.tgt_vocab_size = c.required<Index>("tgt_vocab_size");
    options.transformer.layer = training_layer(c);
    options.transformer.num_encoder_layers = options.transformer.num_decoder_layers =
        c.required<Index>("num_layers");
    options.transformer.norm = c.required<bool>("final_norms");
    options.scale_embedding = c.required<bool>("scale_embedding");
    options.pad_id = c.required<Index>("pad_id");
    options.tied = c.required<bool>("tied");
    return options;
  }
  explicit Seq2SeqRun(const Case& c)
      : model(options(c)),
        src{c.load<std::int64_t>("batch/src")},
        tgt{c.load<std::int64_t>("batch/tgt")},
        targets{c.load<std::int64_t>("batch/targets")} {}

  double step(const Case& c, Index n, Module& gradients, const attn::Execution& execution) {
    const auto to = tgt.at(n);
    attn::Tensor3<T> logits({to.extent(0), to.extent(1), model.options().tgt_vocab_size});
    attn::forward(model, src.at(n), to, logits, saved, execution);
    const double loss = attn::cross_entropy_backward(
        joined_rows(logits), targets.flat(n), joined_rows(logits), loss_options<T>(c, execution));
    attn::backward(model, logits, saved, gradients, execution);
    return loss;
  }
};

}  // namespace attn_test
