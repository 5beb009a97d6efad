// EncoderLayer: self-attention or recurrence, and feed-forward: nn.TransformerEncoderLayer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/attention/latent_attention.hpp"
#include "attn/layers/experts/mixture_of_experts.hpp"
#include "attn/layers/recurrent/gated_delta.hpp"
#include "attn/layers/recurrent/short_convolution.hpp"
#include "attn/layers/sublayer.hpp"

ATTN_NAMESPACE_BEGIN

/// What mixes the tokens of a layer.
enum class TokenMixer {
  attention,          ///< multi-head or latent attention
  short_convolution,  ///< see ShortConvolution; causal
  gated_delta         ///< see GatedDelta; causal
};

/// PyTorch's options of nn.TransformerEncoderLayer and nn.TransformerDecoderLayer, followed by
/// attn's own.
struct TransformerLayerOptions {
  index_t d_model = 0;             ///< features of a token
  index_t nhead = 1;               ///< query heads
  index_t dim_feedforward = 2048;  ///< hidden features of the feed-forward
  double dropout = 0.1;  ///< where PyTorch applies it, only in calls that save for backward
  Activation activation = Activation::relu;  ///< of the feed-forward
  double layer_norm_eps = 1e-5;              ///< epsilon of the norms
  bool norm_first = false;  ///< pre-norm: x + f(norm(x)); otherwise post-norm: norm(x + f(x))
  /// Norms of the outputs of f: x + norm(f(x)), as in OLMo 2; with norm_first x + norm(f(norm(x))),
  /// as in Gemma 2.
  bool norm_behind = false;
  /// x + attention(norm1(x)) + feed_forward(norm2(x)), as in GPT-NeoX; requires norm_first.
  bool parallel = false;
  bool shared_norm = false;            ///< with parallel: one norm for both, as in GPT-J and Cohere
  double residual_scale = 1;           ///< factor of f, as in Granite; not for post-norm
  bool bias = true;                    ///< of linear layers and norms
  std::optional<bool> norm_bias = {};  ///< of norms, if it differs
  bool gated = false;                  ///< gated feed-forward: see FeedForwardOptions
  bool joint_gate = false;             ///< one name for gate and up: see FeedForwardOptions
  NormKind norm = NormKind::layer;     ///< layer norm or RMS norm
  /// With num_experts > 0: experts instead of the feed-forward.
  MixtureOfExpertsOptions experts = {};
  /// Further options of attention; the layer sets embed_dim, num_heads and dropout. attention.bias
  /// has an effect only if `bias` is true.
  MultiHeadAttentionOptions attention = {};
  /// With kv_lora_rank > 0: latent attention instead of multi-head attention; the layer sets
  /// embed_dim, num_heads and dropout, and takes rotary and scale from `attention`. Other options
  /// of `attention` that change results, such as softcap and window, must keep their defaults.
  LatentAttentionOptions latent = {};
  TokenMixer mixer = TokenMixer::attention;  ///< instead of attention; of EncoderLayer
  ShortConvolutionOptions convolution = {};  ///< of that mixer; the layer sets d_model
  GatedDeltaOptions gated_delta = {};        ///< of that mixer; the layer sets d_model

  MultiHeadAttentionOptions attention_options() const {
    MultiHeadAttentionOptions result = attention;
    result.embed_dim = d_model;
    result.num_heads = nhead;
    result.bias = bias && attention.bias;
    result.dropout = dropout;
    return result;
  }
  LatentAttentionOptions latent_options() const {
    LatentAttentionOptions result = latent;
    result.embed_dim = d_model;
    result.num_heads = nhead;
    result.rotary = attention.rotary;
    result.scale = attention.scale;
    result.dropout = dropout;
    return result;
  }
  ShortConvolutionOptions convolution_options() const {
    ShortConvolutionOptions result = convolution;
    result.d_model = d_model;
    return result;
  }
  GatedDeltaOptions gated_delta_options() const {
    GatedDeltaOptions result = gated_delta;
    result.d_model = d_model;
    return result;
  }
  FeedForwardOptions feed_forward_options() const {
    return {.d_model = d_model,
            .dim_feedforward = dim_feedforward,
            .activation = activation,
            .gated = gated,
            .bias = bias,
            .joint_gate = joint_gate};
  }
  /// A norm of a layer or stack.
  template <class T>
  Norm<T> make_norm() const {
    return {norm, d_model, layer_norm_eps, norm_bias.value_or(bias)};
  }
};

/// x (batch, seq, d_model) to the same shape. With a causal mask it is the block of a decoder-only
/// model. Source: "Attention Is All You Need" (2017), section 3.1.
template <class T>
class EncoderLayer {
 public:
  EncoderLayer() = default;
  explicit EncoderLayer(const TransformerLayerOptions& options)
      : norm_first(options.norm_first),
        parallel(options.parallel),
        residual_scale(options.residual_scale),
        dropout(options.dropout) {
    const auto refuse = [](std::string_view argument, std::string_view expected,
                           std::string_view found) {
      throw ValueError(message("EncoderLayer", argument, expected, found));
    };
    if (parallel && (!norm_first || options.norm_behind)) {
      refuse("parallel", "be false without norm_first and with norm_behind", "true");
    }
    if (options.shared_norm && !parallel) {
      refuse("shared_norm", "be false without parallel", "true");
    }
    const bool post_norm = !norm_first && !options.norm_behind;
    if (!std::isfinite(residual_scale) || (post_norm && residual_scale != 1)) {
      refuse("residual_scale", post_norm ? "be 1 for post-norm" : "be finite",
             to_string(residual_scale));
    }
    if (options.mixer == TokenMixer::short_convolution) {
      convolution = ShortConvolution<T>(options.convolution_options());
    } else if (options.mixer == TokenMixer::gated_delta) {
      gated_delta = GatedDelta<T>(options.gated_delta_options());
    } else if (options.latent.kv_lora_rank != 0) {
      const MultiHeadAttentionOptions& o = options.attention;
      const std::pair<std::string_view, bool> unsupported[] = {
          {"add_bias_kv", o.add_bias_kv},
          {"add_zero_attn", o.add_zero_attn},
          {"output_projection", !o.output_projection},
          {"query_key_norm", o.query_key_norm.has_value()},
          {"clip_qkv", o.clip_qkv != 0},
          {"output_gate", o.output_gate},
          {"softcap", o.softcap != 0},
          {"window", o.window != -1},
          {"sinks", o.sinks},
          {"alibi", o.alibi}};
      for (const auto& [name, is_set] : unsupported) {
        if (!is_set) continue;
        refuse(std::string("attention.").append(name), "have its default with latent attention",
               "another value");
      }
      latent_attn = LatentAttention<T>(options.latent_options());
    } else {
      self_attn = MultiHeadAttention<T>(options.attention_options());
    }
    if (options.experts.num_experts != 0) {
      experts = MixtureOfExperts<T>(options.d_model, options.activation, options.experts);
    } else {
      feed_forward = FeedForward<T>(options.feed_forward_options());
    }
    if (norm_first || post_norm) norm1 = options.make_norm<T>();
    if (!options.shared_norm) norm2 = norm1;
    if (options.norm_behind) norm1_behind = norm2_behind = options.make_norm<T>();
  }

  template <TensorLike X, class... Functors>
  Tensor3<T> operator()(const X& x, const AttentionOptions<Accumulator<T>>& options = {},
                        const MultiHeadAttentionCall<T>& call = {},
                        const Functors&... functors) const {
    ATTN_ASSERT_INPUT(X, T, 3, "EncoderLayer: x", "(batch, seq, d_model)", "the layer");
    const auto from = detail::view_as<const T, 3>(x);
    auto out = Tensor3<T>::uninitialized(from.shape());
    forward(from, out, options, call, functors...);
    return out;
  }

  /// Writes to `out`, which may be x. The layer sets call.residual. Throws ShapeError or
  /// ValueError, and then leaves the cache unchanged, except for keys that its window forgot.
  template <TensorLike X, TensorLike Out, class... Functors>
  void forward(const X& x, Out&& out, const AttentionOptions<Accumulator<T>>& options = {},
               const MultiHeadAttentionCall<T>& call = {}, const Functors&... functors) const {
    ATTN_ASSERT_INPUT(X, T, 3, "EncoderLayer: x", "(batch, seq, d_model)", "the layer");
    ATTN_ASSERT_OUTPUT(Out, T, 3, "EncoderLayer: out", "(batch, seq, d_model)", "the layer");
    const auto in = detail::view_as<const T, 3>(x);
    const auto to = detail::view_as<T, 3>(out);
    check_shape("EncoderLayer", "out", in.shape(), to.shape());
    const Execution& execution = options.execution;
    Scratch<T> memory(execution.scratch(), in.size());
    const TensorView3<T> attended(memory.data(), in.shape());
    detail::CallGuard guard(call);
    MultiHeadAttentionCall<T> self_call = call;
    detail::forward_sublayer<T>(
        attention_norms(), in, in, attended, execution,
        [&](const auto& from, const auto& residual, const auto& result) {
          self_call.residual = residual;
          if (is_recurrent()) detail::check_recurrent_options(options, functors...);
          if (convolution) {
            convolution.forward(from, result, self_call, execution);
          } else if (gated_delta) {
            gated_delta.forward(from, result, self_call, execution);
          } else if (latent_attn) {
            latent_attn.forward(from, result, options, self_call, functors...);
          } else {
            self_attn.forward(from, from, from, result, options, self_call, functors...);
          }
        });
    detail::forward_sublayer<T>(feed_forward_norms(), parallel ? in : attended, attended, to,
                                execution,
                                [&](const auto& from, const auto& residual, const auto& result) {
                                  if (experts) {
                                    experts.forward(from, result, residual, execution);
                                  } else {
                                    feed_forward.forward(from, result, residual, execution);
                                  }
                                });
    guard.commit();
  }

  detail::SublayerNorms<T> attention_norms() const {
    return {
        .norm = &norm1, .behind = &norm1_behind, .norm_first = norm_first, .scale = residual_scale};
  }
  detail::SublayerNorms<T> feed_forward_norms() const { return feed_forward_norms(*this); }
  /// The norms of `tangents`, the module of this layer's tangents; they may be empty.
  detail::SublayerNorms<T> feed_forward_norms(const EncoderLayer& tangents) const {
    return {.norm = norm2.weight ? &tangents.norm2 : &tangents.norm1,
            .behind = &tangents.norm2_behind,
            .norm_first = norm_first,
            .scale = residual_scale};
  }

  /// A cache for the layer's attention or state: see MultiHeadAttention::make_cache().
  KvCache<T> make_cache(index_t batch, index_t capacity, index_t window = 0,
                        std::optional<DType> element = {}) const {
    return with_mixer(*this, [&](const auto& mixer) {
      return mixer.make_cache(batch, capacity, window, element);
    });
  }

  /// Whether the layer has a state instead of keys and values.
  bool is_recurrent() const { return convolution || gated_delta; }

  /// Shares the rotary table of `other`, whose attention is of the same kind.
  void share_rotary(const EncoderLayer& other) {
    if (latent_attn) {
      latent_attn.share_rotary(other.latent_attn);
    } else {
      self_attn.share_rotary(other.self_attn);
    }
  }
  /// The rotary embedding of its attention, if any.
  const std::optional<RotaryOptions>& rotary() const {
    return latent_attn ? latent_attn.options().rotary : self_attn.options().rotary;
  }

  /// See Linear::pack().
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    with_mixer(*this, [&](auto& mixer) { mixer.pack(precision); });
    if (experts) {
      experts.pack(precision);
    } else {
      feed_forward.pack(precision);
    }
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  // Only the layer's own mixer has weights.
  MultiHeadAttention<T> self_attn;
  LatentAttention<T> latent_attn;
  ShortConvolution<T> convolution;
  GatedDelta<T> gated_delta;
  FeedForward<T> feed_forward;  ///< without weights if there are experts
  MixtureOfExperts<T> experts;
  // Norms that the options exclude have no weight.
  Norm<T> norm1, norm2;
  Norm<T> norm1_behind, norm2_behind;
  bool norm_first = false;
  bool parallel = false;
  double residual_scale = 1;
  double dropout = 0;  ///< in training

 private:
  /// Calls f with the attention or recurrent layer that it has.
  template <class Self, class F>
  static auto with_mixer(Self& self, const F& f) {
    if (self.convolution) return f(self.convolution);
    if (self.gated_delta) return f(self.gated_delta);
    return self.latent_attn ? f(self.latent_attn) : f(self.self_attn);
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    const auto names = f.under(self.convolution   ? "short_conv."
                               : self.gated_delta ? "linear_attn."
                                                  : "self_attn.");
    with_mixer(self, [&](auto& mixer) { mixer.visit_parameters(names); });
    if (self.experts) {
      self.experts.visit_parameters(f.under("moe."));
    } else {
      self.feed_forward.visit_parameters(f);
    }
    self.norm1.visit_parameters(f.under("norm1."));
    self.norm2.visit_parameters(f.under("norm2."));
    self.norm1_behind.visit_parameters(f.under("norm1_behind."));
    self.norm2_behind.visit_parameters(f.under("norm2_behind."));
  }
};

ATTN_NAMESPACE_END
