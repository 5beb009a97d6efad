// Gpt: a decoder-only Transformer from token ids to logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/embedding/input_embedding.hpp"
#include "attn/layers/embedding/output_projection.hpp"
#include "attn/layers/encoder.hpp"

ATTN_NAMESPACE_BEGIN

struct GptOptions {
  index_t vocab_size = 0;              ///< ids are 0 .. vocab_size - 1
  index_t num_layers = 12;             ///< layers with separate weights
  TransformerLayerOptions layer = {};  ///< GPT-2: .activation = gelu_tanh, .norm_first = true
  /// Position embedding; default: learned. Required with layer.attention.rotary or `rotary`,
  /// usually Positions::none.
  std::optional<Positions> positions = {};
  index_t max_positions = 1024;  ///< of sinusoidal and learned positions
  index_t position_offset = 0;   ///< rows of the learned table before position 0 (OPT: 2)
  bool scale_embedding = false;  ///< multiply embeddings by sqrt(d_model)
  double embedding_factor = 1;   ///< further factor of embeddings
  bool embedding_norm = false;   ///< layer norm of the embeddings, as in BLOOM
  bool norm = true;              ///< final norm before the logits
  bool tied = true;        ///< compute logits with the word embedding instead of a separate weight
  bool head_bias = false;  ///< bias of the logits
  double logit_scale = 1;  ///< factor of the logits
  double logit_softcap = 0;           ///< then logit = softcap tanh(logit / softcap); 0: none
  std::vector<index_t> windows = {};  ///< per layer: see TransformerStackOptions
  std::vector<std::optional<RotaryOptions>> rotary = {};  ///< see TransformerStackOptions
  std::vector<TokenMixer> mixers = {};                    ///< see TransformerStackOptions
  index_t dense_layers = 0;                               ///< first layers without experts: see
                                                          ///< TransformerStackOptions

  InputEmbeddingOptions embedding_options() const {
    return {.vocab_size = vocab_size,
            .d_model = layer.d_model,
            .positions = positions.value_or(Positions::learned),
            .max_positions = max_positions,
            .position_offset = position_offset,
            .scale = scale_embedding,
            .factor = embedding_factor,
            .norm = embedding_norm,
            .layer_norm_eps = layer.layer_norm_eps,
            .dropout = layer.dropout};
  }
  TransformerStackOptions stack_options() const {
    return {.num_layers = num_layers,
            .layer = layer,
            .norm = norm,
            .windows = windows,
            .rotary = rotary,
            .mixers = mixers,
            .dense_layers = dense_layers};
  }
};

namespace detail {

/// Calls fail(expected, found) if a file requests so many positions that the rotary angles take
/// more than 64 MB and more memory than the weights, which are estimated from options.
template <class Fail>
void check_positions(const GptOptions& options, const Fail& fail) {
  const auto number = [](index_t n) { return static_cast<double>(n); };
  const MultiHeadAttentionOptions& attention = options.layer.attention;
  const index_t dim = attention.rotary->dim > 0 ? attention.rotary->dim : attention.head_dim;
  const double weights = number(options.layer.d_model) *
                         (number(options.vocab_size) +
                          number(options.num_layers) * number(options.layer.dim_feedforward));
  constexpr double kSmall = 1 << 24;
  const double most = std::floor((std::max)(weights, kSmall) / number(dim));
  if (number(options.max_positions) <= most) return;
  fail("be at most " + std::to_string(static_cast<index_t>(most)) +
           " for weights of this size (the option max_positions takes fewer)",
       std::to_string(options.max_positions));
}

/// Gives layers with a window one rotary embedding and layers without a window another; either may
/// be none. Call it after setting the windows.
inline void set_rotary_by_window(GptOptions& options,
                                 const std::optional<RotaryOptions>& with_window,
                                 const std::optional<RotaryOptions>& without_window) {
  for (const index_t window : options.windows) {
    options.rotary.push_back(window >= 0 ? with_window : without_window);
  }
}

/// Scales and caps logits (batch, seq, vocab_size) in place, as set in GptOptions.
template <class T>
void cap_logits(const GptOptions& options, const TensorView3<T>& logits,
                const Execution& execution) {
  const T scale = static_cast<T>(options.logit_scale), cap = static_cast<T>(options.logit_softcap);
  if (scale == 1 && cap == 0) return;
  const index_t seq = logits.extent(1), words = logits.extent(2);
  for_rows(execution.threads(), logits.extent(0) * seq, words, [&](index_t row) {
    T* x = logits.at_index({row / seq, row % seq, 0});
    for (index_t i = 0; i < words; ++i) {
      T& logit = x[i * logits.stride(2)];
      logit *= scale;
      if (cap > 0) logit = cap * std::tanh(logit / cap);
    }
  });
}

}  // namespace detail

/// A decoder-only language model: ids (batch, seq) of any integer type to logits (batch, seq,
/// vocab_size); each token sees itself and those before it. Logits are T, or float if T has 16
/// bits. Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019),
/// section 2.3.
template <class T>
class Gpt {
 public:
  Gpt() = default;
  explicit Gpt(const GptOptions& options)
      : embedding(options.embedding_options()),
        blocks(options.stack_options()),
        lm_head(options.layer.d_model, options.vocab_size, options.tied, options.head_bias),
        options_(options) {
    if ((options.layer.attention.rotary || !options.rotary.empty()) && !options.positions) {
      throw ValueError(message("Gpt", "positions",
                               "be given with layer.attention.rotary: Positions::none, or learned "
                               "if the model has both",
                               "neither"));
    }
    if (!std::isfinite(options.logit_scale) || !(options.logit_softcap >= 0) ||
        !std::isfinite(options.logit_softcap)) {
      throw ValueError(message(
          "Gpt", "logit_scale and logit_softcap", "be finite, and logit_softcap not negative",
          to_string(options.logit_scale) + " and " + to_string(options.logit_softcap)));
    }
  }

  const GptOptions& options() const { return options_; }
  index_t vocab_size() const { return embedding.options().vocab_size; }

  /// One cache per layer; see MultiHeadAttention::make_cache().
  std::vector<KvCache<T>> make_caches(index_t batch, index_t capacity, index_t window = 0,
                                      std::optional<DType> element = {}) const {
    return blocks.make_caches(batch, capacity, window, element);
  }

  template <TensorLike Ids, class... Functors>
  Tensor3<Accumulator<T>> operator()(const Ids& ids,
                                     const AttentionOptions<Accumulator<T>>& options = {},
                                     std::span<KvCache<T>> caches = {},
                                     TensorView2<const index_t> position_ids = {},
                                     const Functors&... functors) const {
    ATTN_ASSERT_IDS(Ids, "Gpt: ids");
    const auto from = detail::view_as<const detail::id_t<Ids>, 2>(ids);
    auto out =
        Tensor3<Accumulator<T>>::uninitialized({from.extent(0), from.extent(1), vocab_size()});
    forward(from, out, options, caches, position_ids, functors...);
    return out;
  }

  /// Writes to `out` (batch, seq, vocab_size), or (batch, 1, vocab_size) for the logits of the last
  /// token only. causal() is added to options.mask, and all layers get the functors. With caches,
  /// one per layer, ids are the tokens after those in the caches. Throws ShapeError or ValueError,
  /// and then leaves the caches unchanged, except for keys that a window forgot.
  template <TensorLike Ids, TensorLike Out, class... Functors>
  void forward(const Ids& ids, Out&& out, AttentionOptions<Accumulator<T>> options = {},
               std::span<KvCache<T>> caches = {}, TensorView2<const index_t> position_ids = {},
               const Functors&... functors) const {
    ATTN_ASSERT_IDS(Ids, "Gpt: ids");
    ATTN_ASSERT_OUTPUT(Out, Accumulator<T>, 3, "Gpt: out", "(batch, seq, vocab_size)",
                       "logits, which are float where the model has 16 bits");
    options.mask = options.mask & causal();
    detail::CacheGuard guard(caches);
    run(detail::view_as<const detail::id_t<Ids>, 2>(ids), detail::view_as<Accumulator<T>, 3>(out),
        {.first_position = caches.empty() ? 0 : caches[0].length(),
         .position_ids = position_ids,
         .cu_seqlens = options.cu_seqlens_k,
         .execution = options.execution},
        [&](const TensorView3<T>& hidden) {
          blocks.forward(hidden, hidden, options, position_ids, caches, functors...);
        });
    guard.commit();
  }

  /// Forward of a tree of tokens after those in the caches: ids (batch, n), out (batch, n,
  /// vocab_size), parents (n). Token i follows token parents(i), or for -1 those in the caches, and
  /// sees only these, itself and its ancestors; its position counts by depth. See
  /// MultiHeadAttentionCall::parents and KvCache::keep_path(). Throws ShapeError or ValueError,
  /// and then leaves the caches unchanged.
  template <TensorLike Ids, TensorLike Out>
  void forward_tree(const Ids& ids, Out&& out, AttentionOptions<Accumulator<T>> options,
                    std::span<KvCache<T>> caches, TensorView1<const index_t> parents) const {
    ATTN_ASSERT_IDS(Ids, "Gpt: ids");
    ATTN_ASSERT_OUTPUT(Out, Accumulator<T>, 3, "Gpt: out", "(batch, seq, vocab_size)",
                       "logits, which are float where the model has 16 bits");
    const auto iv = detail::view_as<const detail::id_t<Ids>, 2>(ids);
    const index_t batch = iv.extent(0), n = iv.extent(1);
    check_shape("Gpt::forward_tree", "parents", "(n)", Shape<1>{n}, parents.shape());
    std::vector<index_t> positions = detail::tree_depths("Gpt::forward_tree", parents);
    for (index_t& position : positions) position += caches.empty() ? 0 : caches[0].length();
    const TensorView2<const index_t> position_ids(positions.data(), {batch, n}, {0, 1});
    options.mask = options.mask & causal();
    detail::CacheGuard guard(caches);
    run(iv, detail::view_as<Accumulator<T>, 3>(out),
        {.position_ids = position_ids, .execution = options.execution},
        [&](const TensorView3<T>& hidden) {
          blocks.forward_tree(hidden, hidden, options, position_ids, caches, parents);
        });
    guard.commit();
  }

  /// Forward for several conversations of any lengths: row b of ids holds the tokens after those of
  /// conversations[b], a cache of one row per layer, and gets the bits of a call of its own;
  /// weights are read once for all rows. Options must not hold tensors with an axis of rows,
  /// queries or keys. Throws ShapeError or ValueError, and then leaves all caches unchanged, except
  /// for keys that a window forgot.
  template <TensorLike Ids, TensorLike Out, class... Functors>
  void forward_rows(const Ids& ids, Out&& out, AttentionOptions<Accumulator<T>> options,
                    std::span<const std::span<KvCache<T>>> conversations,
                    const Functors&... functors) const {
    ATTN_ASSERT_IDS(Ids, "Gpt: ids");
    ATTN_ASSERT_OUTPUT(Out, Accumulator<T>, 3, "Gpt: out", "(batch, seq, vocab_size)",
                       "logits, which are float where the model has 16 bits");
    const auto iv = detail::view_as<const detail::id_t<Ids>, 2>(ids);
    const index_t seq = iv.extent(1);
    Scratch<index_t> memory(options.execution.scratch(), std::ssize(conversations) * seq);
    const TensorView2<index_t> position_ids(memory.data(), {std::ssize(conversations), seq});
    for (index_t b = 0; b < std::ssize(conversations); ++b) {
      const std::span<KvCache<T>> caches = conversations[static_cast<std::size_t>(b)];
      const index_t length = caches.empty() ? 0 : caches[0].length();
      for (index_t i = 0; i < seq; ++i) position_ids(b, i) = length + i;
    }
    options.mask = options.mask & causal();
    detail::CallGuard<T> guard(conversations);
    run(iv, detail::view_as<Accumulator<T>, 3>(out),
        {.position_ids = position_ids, .execution = options.execution},
        [&](const TensorView3<T>& hidden) {
          blocks.forward_rows(hidden, hidden, options, conversations, functors...);
        });
    guard.commit();
  }

  /// See Linear::pack().
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    blocks.pack(precision);
    lm_head.pack(embedding.words, precision);
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  InputEmbedding<T> embedding;
  Encoder<T> blocks;
  OutputProjection<T> lm_head;

 private:
  /// Embeds ids, calls run_blocks(hidden), which changes the embeddings in place, and computes the
  /// logits of all tokens or of the last one.
  template <class Ids, class F>
  void run(const Ids& ids, const TensorView3<Accumulator<T>>& out, const InputEmbeddingCall& call,
           const F& run_blocks) const {
    const index_t batch = ids.extent(0), seq = ids.extent(1), dim = embedding.options().d_model;
    const index_t rows = out.extent(1) == 1 ? (std::min)(seq, index_t{1}) : seq;
    check_shape("Gpt", "out", Shape<3>{batch, rows, vocab_size()}, out.shape());
    Scratch<T> memory(call.execution.scratch(), batch * seq * dim);
    const TensorView3<T> hidden(memory.data(), {batch, seq, dim});
    embedding.forward(ids, hidden, call);
    run_blocks(hidden);
    lm_head.forward(hidden.slice(1, seq - rows, seq), embedding.words, out, call.execution);
    detail::cap_logits(options_, out, call.execution);
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    self.embedding.visit_parameters(f.under("embedding."));
    self.blocks.visit_parameters(f.under("blocks."));
    self.lm_head.visit_parameters(f.under("lm_head."));
  }

  GptOptions options_;
};

ATTN_NAMESPACE_END
