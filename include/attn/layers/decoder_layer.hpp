// DecoderLayer: self-attention, cross-attention, feed-forward: nn.TransformerDecoderLayer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/encoder_layer.hpp"

ATTN_NAMESPACE_BEGIN

/// The keys and values that one decoder layer keeps between calls.
template <class T>
struct DecoderLayerCache {
  KvCache<T> self;  ///< of the tokens so far
  /// Keys and values of memory, the encoder's result: filled by the first call; later calls do not
  /// read memory.
  KvCache<T> memory;

  struct Length {
    index_t self = 0, memory = 0;

    bool operator==(const Length&) const = default;
  };

  /// See KvCache::is_like().
  bool is_like(const DecoderLayerCache& other) const {
    return self.is_like(other.self) && memory.is_like(other.memory);
  }

  /// See KvCache::length() and undo_to().
  Length length() const { return {.self = self.length(), .memory = memory.length()}; }
  void undo_to(const Length& length) {
    self.undo_to(length.self);
    memory.undo_to(length.memory);
  }
};

/// Options of one call beyond the AttentionOptions of self-attention.
template <class T>
struct DecoderCall {
  AttentionOptions<Accumulator<T>> memory =
      {};  ///< of attention to memory; its execution is that of self-attention
  TensorView2<const index_t> position_ids = {};  ///< positions of x: see MultiHeadAttentionCall

  ATTN_REFUSE_OTHER_ELEMENTS(DecoderCall)
};

/// x (batch, tgt_len, d_model) and memory (batch, src_len, d_model) to the shape of x; PyTorch's
/// nn.TransformerDecoderLayer. Language models pass causal() as options.mask of self-attention.
/// Source: "Attention Is All You Need" (2017), section 3.1.
template <class T>
class DecoderLayer {
 public:
  DecoderLayer() = default;
  /// options.attention.rotary and window apply to self-attention only. Throws ValueError for
  /// norm_behind, parallel, shared_norm, residual_scale, experts, latent and mixer, which only
  /// EncoderLayer implements.
  explicit DecoderLayer(const TransformerLayerOptions& options)
      : self_attn(options.attention_options()),
        multihead_attn(without_positions(options.attention_options())),
        feed_forward(options.feed_forward_options()),
        norm1(options.make_norm<T>()),
        norm2(norm1),
        norm3(norm1),
        norm_first(options.norm_first),
        dropout(options.dropout) {
    const std::pair<std::string_view, bool> of_encoders[] = {
        {"norm_behind", options.norm_behind},
        {"parallel", options.parallel},
        {"shared_norm", options.shared_norm},
        {"residual_scale", options.residual_scale != 1},
        {"experts", options.experts.num_experts != 0},
        {"latent", options.latent.kv_lora_rank != 0},
        {"mixer", options.mixer != TokenMixer::attention}};
    for (const auto& [name, given] : of_encoders) {
      if (given)
        throw ValueError(message("DecoderLayer", name, "have its default", "another value"));
    }
  }

  /// Capacity for `capacity` tokens and a memory of `memory_len`, stored as `element`: see
  /// KvCacheOptions.
  DecoderLayerCache<T> make_cache(index_t batch, index_t capacity, index_t memory_len,
                                  std::optional<DType> element = {}) const {
    return {.self = self_attn.make_cache(batch, capacity, 0, element),
            .memory = multihead_attn.make_cache(batch, memory_len, 0, element)};
  }

  template <TensorLike X, TensorLike Memory, class... Functors>
  Tensor3<T> operator()(const X& x, const Memory& memory,
                        const AttentionOptions<Accumulator<T>>& options = {},
                        const DecoderCall<T>& call = {}, DecoderLayerCache<T>* cache = nullptr,
                        const Functors&... functors) const {
    ATTN_ASSERT_INPUT(X, T, 3, "DecoderLayer: x", "(batch, seq, d_model)", "the layer");
    ATTN_ASSERT_INPUT(Memory, T, 3, "DecoderLayer: memory", "(batch, memory_len, d_model)",
                      "the layer");
    const auto from = detail::view_as<const T, 3>(x), source = detail::view_as<const T, 3>(memory);
    auto out = Tensor3<T>::uninitialized(from.shape());
    forward(from, source, out, options, call, cache, functors...);
    return out;
  }

  /// Writes to `out`, which may be x. Functors apply to self-attention. Throws ShapeError or
  /// ValueError, and then leaves the cache unchanged.
  template <TensorLike X, TensorLike Memory, TensorLike Out, class... Functors>
  void forward(const X& x, const Memory& memory, Out&& out,
               const AttentionOptions<Accumulator<T>>& options = {},
               const DecoderCall<T>& call = {}, DecoderLayerCache<T>* cache = nullptr,
               const Functors&... functors) const {
    ATTN_ASSERT_INPUT(X, T, 3, "DecoderLayer: x", "(batch, seq, d_model)", "the layer");
    ATTN_ASSERT_INPUT(Memory, T, 3, "DecoderLayer: memory", "(batch, memory_len, d_model)",
                      "the layer");
    ATTN_ASSERT_OUTPUT(Out, T, 3, "DecoderLayer: out", "(batch, seq, d_model)", "the layer");
    const auto in = detail::view_as<const T, 3>(x), source = detail::view_as<const T, 3>(memory);
    const auto to = detail::view_as<T, 3>(out);
    check_shape("DecoderLayer", "out", in.shape(), to.shape());
    AttentionOptions<Accumulator<T>> memory_options = call.memory;
    memory_options.execution = options.execution;
    MultiHeadAttentionCall<T> self_call{.position_ids = call.position_ids}, memory_call;
    if (cache != nullptr) {
      self_call.cache = &cache->self;
      memory_call.cache = &cache->memory;
      memory_call.append = cache->memory.length() == 0;
    }
    Scratch<T> scratch(options.execution.scratch(), 2 * in.size());
    const TensorView3<T> first(scratch.data(), in.shape());
    const TensorView3<T> second(scratch.data() + in.size(), in.shape());
    detail::CacheGuard guard(cache);
    attention_sublayer<T>(self_attn, norm1, norm_first, in, in, in, first, options, self_call,
                          functors...);
    attention_sublayer<T>(multihead_attn, norm2, norm_first, first, source, source, second,
                          memory_options, memory_call);
    feed_forward_sublayer<T>(feed_forward, norm3, norm_first, second, to, options.execution);
    guard.commit();
  }

  /// Shares the rotary table of the self-attention of `other`.
  void share_rotary(const DecoderLayer& other) { self_attn.share_rotary(other.self_attn); }

  /// See Linear::pack().
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    self_attn.pack(precision);
    multihead_attn.pack(precision, false);
    feed_forward.pack(precision);
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  MultiHeadAttention<T> self_attn, multihead_attn;
  FeedForward<T> feed_forward;
  Norm<T> norm1, norm2, norm3;
  bool norm_first = false;
  double dropout = 0;  ///< in training

 private:
  static MultiHeadAttentionOptions without_positions(MultiHeadAttentionOptions options) {
    options.rotary.reset();
    options.window = -1;
    return options;
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    self.self_attn.visit_parameters(f.under("self_attn."));
    self.multihead_attn.visit_parameters(f.under("multihead_attn."));
    self.feed_forward.visit_parameters(f);
    self.norm1.visit_parameters(f.under("norm1."));
    self.norm2.visit_parameters(f.under("norm2."));
    self.norm3.visit_parameters(f.under("norm3."));
  }
};

ATTN_NAMESPACE_END
