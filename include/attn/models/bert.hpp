// Bert: an encoder from token ids to hidden states, of BERT and later models.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/io/rename.hpp"
#include "attn/layers/embedding/input_embedding.hpp"
#include "attn/layers/encoder.hpp"

ATTN_NAMESPACE_BEGIN

/// Options with the names of config.json.
struct BertOptions {
  index_t vocab_size = 30522;             ///< ids are 0 .. vocab_size - 1
  index_t hidden_size = 768;              ///< features of a token
  index_t num_hidden_layers = 12;         ///< encoder layers
  index_t num_attention_heads = 12;       ///< heads per layer
  index_t intermediate_size = 3072;       ///< hidden features of the feed-forward
  index_t max_position_embeddings = 512;  ///< number of sinusoidal or learned positions
  index_t position_offset = 0;    ///< rows of the position table before position 0 (RoBERTa: 2)
  bool skip_padding = false;      ///< RoBERTa: see InputEmbeddingOptions
  index_t type_vocab_size = 2;    ///< segments
  double layer_norm_eps = 1e-12;  ///< epsilon of all norms
  Activation hidden_act = Activation::gelu;  ///< activation of the feed-forward
  double hidden_dropout_prob = 0.1;          ///< only in calls that save for backward
  bool pooler = false;                       ///< tanh of a linear layer on the first token
  Positions positions = Positions::learned;  ///< none for encoders with rotary embedding
  /// Features of embeddings, which a linear layer maps to hidden_size, as in ALBERT; 0:
  /// hidden_size, without that layer.
  index_t embedding_size = 0;
  bool scale_embedding = false;  ///< multiply word embeddings by the root of their features (Gemma)
  bool embedding_norm = true;    ///< layer norm of the embeddings
  bool embedding_norm_bias = true;  ///< of that norm
  /// Further options of the encoder; Bert sets num_layers, and the layer options that have a field
  /// above.
  TransformerStackOptions encoder = {.layer = {.attention = {.separate_in_proj = true}}};

  InputEmbeddingOptions embedding_options() const {
    return {.vocab_size = vocab_size,
            .d_model = embedding_size > 0 ? embedding_size : hidden_size,
            .positions = positions,
            .max_positions = max_position_embeddings,
            .position_offset = position_offset,
            .skip_padding = skip_padding,
            .num_token_types = type_vocab_size,
            .scale = scale_embedding,
            .norm = embedding_norm,
            .norm_bias = embedding_norm_bias,
            .layer_norm_eps = layer_norm_eps,
            .dropout = hidden_dropout_prob};
  }
  TransformerStackOptions encoder_options() const {
    TransformerStackOptions result = encoder;
    result.num_layers = num_hidden_layers;
    result.layer.d_model = hidden_size;
    result.layer.nhead = num_attention_heads;
    result.layer.dim_feedforward = intermediate_size;
    result.layer.dropout = hidden_dropout_prob;
    result.layer.activation = hidden_act;
    result.layer.layer_norm_eps = layer_norm_eps;
    return result;
  }
};

/// Options of one call beyond AttentionOptions.
struct BertCall {
  TensorView2<const index_t> token_type_ids = {};  ///< (batch, seq); 0 if not given
  /// (batch, seq), of learned positions or rotary; default: 0, 1, .. in each sequence.
  TensorView2<const index_t> position_ids = {};
};

namespace detail {

/// Token i has position i for masks, windows and biases, whatever lengths the keys have, unless the
/// caller gives another offset.
template <class T>
AttentionOptions<T> with_token_positions(AttentionOptions<T> options) {
  if (options.offset.kind == QueryOffset::Kind::bottom_right) options.offset = top_left;
  return options;
}

}  // namespace detail

/// ids (batch, seq) of any integer type to hidden states (batch, seq, hidden_size). Source: Devlin
/// et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2019), section 3.
template <class T>
class Bert {
 public:
  Bert() = default;
  explicit Bert(const BertOptions& options)
      : embeddings(options.embedding_options()), encoder(options.encoder_options()) {
    if (options.embedding_size > 0) {
      projection = Linear<T>(options.embedding_size, options.hidden_size);
    }
    if (options.pooler) pooler = Linear<T>(options.hidden_size, options.hidden_size);
  }

  /// Features of a hidden state.
  index_t hidden_size() const {
    return projects() ? projection.out_features() : embeddings.options().d_model;
  }
  /// Whether a linear layer maps embeddings to hidden_size().
  bool projects() const { return projection.in_features() > 0; }

  template <TensorLike Ids, class... Functors>
  Tensor3<T> operator()(const Ids& ids, const AttentionOptions<Accumulator<T>>& options = {},
                        const BertCall& call = {}, const Functors&... functors) const {
    ATTN_ASSERT_IDS(Ids, "Bert: ids");
    const auto from = detail::view_as<const detail::id_t<Ids>, 2>(ids);
    auto out = Tensor3<T>::uninitialized({from.extent(0), from.extent(1), hidden_size()});
    forward(from, out, options, call, functors...);
    return out;
  }

  /// options.mask must mask out padding: key_lengths() or key_padding_mask(); token i has position
  /// i in either case. Without padding, pass sequences one after another in one row, with
  /// options.cu_seqlens_q and cu_seqlens_k. All layers get the functors. Throws ShapeError or
  /// ValueError.
  template <TensorLike Ids, TensorLike Out, class... Functors>
  void forward(const Ids& ids, Out&& out, const AttentionOptions<Accumulator<T>>& options = {},
               const BertCall& call = {}, const Functors&... functors) const {
    ATTN_ASSERT_IDS(Ids, "Bert: ids");
    ATTN_ASSERT_OUTPUT(Out, T, 3, "Bert: out", "(batch, seq, hidden_size)", "the model");
    const auto from = detail::view_as<const detail::id_t<Ids>, 2>(ids);
    const auto to = detail::view_as<T, 3>(out);
    const Shape<3> shape{from.extent(0), from.extent(1), hidden_size()};
    check_shape("Bert", "out", shape, to.shape());
    Workspace& workspace = options.execution.scratch();
    Scratch<T> memory(workspace, size_of(shape));
    const TensorView3<T> hidden(memory.data(), shape);
    const InputEmbeddingCall embedding_call{.position_ids = call.position_ids,
                                            .cu_seqlens = options.cu_seqlens_q,
                                            .token_type_ids = call.token_type_ids,
                                            .execution = options.execution};
    if (projects()) {
      const Shape<3> narrow{shape[0], shape[1], projection.in_features()};
      Scratch<T> narrow_memory(workspace, size_of(narrow));
      const TensorView3<T> embedded(narrow_memory.data(), narrow);
      embeddings.forward(from, embedded, embedding_call);
      projection.forward(embedded, hidden, Activation::none, {}, options.execution);
    } else {
      embeddings.forward(from, hidden, embedding_call);
    }
    encoder.forward(hidden, to, detail::with_token_positions(options), call.position_ids, {},
                    functors...);
  }

  /// out (batch, hidden_size) = tanh(dense(hidden(:, 0))). Throws ShapeError, or ValueError for a
  /// model without a pooler.
  template <TensorLike Hidden, TensorLike Out>
  void pool(const Hidden& hidden, Out&& out, const Execution& execution = {}) const {
    ATTN_ASSERT_INPUT(Hidden, T, 3, "Bert::pool: hidden", "(batch, seq, hidden_size)", "the model");
    ATTN_ASSERT_OUTPUT(Out, T, 2, "Bert::pool: out", "(batch, hidden_size)", "the model");
    const auto from = detail::view_as<const T, 3>(hidden);
    const auto to = detail::view_as<T, 2>(out);
    if (pooler.in_features() == 0)
      throw ValueError(message("Bert::pool", "the model", "have a pooler", "none"));
    check_shape(
        "Bert::pool", "hidden", "(batch, seq >= 1, hidden_size)",
        Shape<3>{from.extent(0), (std::max)(from.extent(1), index_t{1}), pooler.in_features()},
        from.shape());
    pooler.forward(from.select(1, 0), to, Activation::none, {}, execution);
    for (index_t b = 0; b < to.extent(0); ++b) {
      for (index_t x = 0; x < to.extent(1); ++x) {
        to(b, x) = static_cast<T>(std::tanh(static_cast<Accumulator<T>>(to(b, x))));
      }
    }
  }

  /// See Linear::pack().
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    if (projects()) projection.pack(precision);
    encoder.pack(precision);
    if (pooler.in_features() > 0) pooler.pack(precision);
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  InputEmbedding<T> embeddings;
  Linear<T> projection;  ///< of embeddings; no weight without embedding_size
  Encoder<T> encoder;
  Linear<T> pooler;  ///< no weight without a pooler

 private:
  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    self.embeddings.visit_parameters(f.under("embeddings."));
    // In gradients it may have only its bias.
    if (self.projects() || self.projection.bias) {
      self.projection.visit_parameters(f.under("projection."));
    }
    self.encoder.visit_parameters(f.under("encoder."));
    if (self.pooler.in_features() > 0 || self.pooler.bias) {
      self.pooler.visit_parameters(f.under("pooler."));
    }
  }
};

/// The name of a parameter of Bert in BERT's files: load_state_dict(bert, file, {.rename =
/// bert_name}).
inline std::string bert_name(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"embeddings.words.", "embeddings.word_embeddings."},
      {"embeddings.positions.", "embeddings.position_embeddings."},
      {"embeddings.token_types.", "embeddings.token_type_embeddings."},
      {"embeddings.norm.", "embeddings.LayerNorm."},
      {"pooler.", "pooler.dense."},
      {"encoder.layers.", "encoder.layer."},
      {".self_attn.q_proj_", ".attention.self.query."},
      {".self_attn.k_proj_", ".attention.self.key."},
      {".self_attn.v_proj_", ".attention.self.value."},
      {".self_attn.out_proj.", ".attention.output.dense."},
      {".norm1.", ".attention.output.LayerNorm."},
      {".linear1.", ".intermediate.dense."},
      {".linear2.", ".output.dense."},
      {".norm2.", ".output.LayerNorm."},
  };
  return detail::renamed(name, kNames);
}

ATTN_NAMESPACE_END
