// EncoderLayer: self-attention and feed-forward: PyTorch's nn.TransformerEncoderLayer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/sublayer.hpp"

ATTN_NAMESPACE_BEGIN

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
  /// With norm_first: x + norm(f(norm(x))), as in Gemma 2; has no backward.
  bool norm_behind = false;
  bool bias = true;                 ///< of linear layers and norms
  bool gated = false;               ///< gated feed-forward: see FeedForwardOptions
  NormKind norm = NormKind::layer;  ///< layer norm or RMS norm
  /// Further options of attention; the layer sets embed_dim and num_heads, and bias only if it has
  /// biases.
  MultiHeadAttentionOptions attention = {};

  MultiHeadAttentionOptions attention_options() const {
    MultiHeadAttentionOptions result = attention;
    result.embed_dim = d_model;
    result.num_heads = nhead;
    result.bias = bias && attention.bias;
    result.dropout = dropout;
    return result;
  }
  FeedForwardOptions feed_forward_options() const {
    return {.d_model = d_model,
            .dim_feedforward = dim_feedforward,
            .activation = activation,
            .gated = gated,
            .bias = bias};
  }
};

/// x (batch, seq, d_model) to the same shape. With a causal mask it is the block of a decoder-only
/// model. Source: "Attention Is All You Need" (2017), section 3.1.
template <class T>
class EncoderLayer {
 public:
  EncoderLayer() = default;
  explicit EncoderLayer(const TransformerLayerOptions& options)
      : self_attn(options.attention_options()),
        feed_forward(options.feed_forward_options()),
        norm1(options.norm, options.d_model, options.layer_norm_eps, options.bias),
        norm2(norm1),
        norm_first(options.norm_first),
        dropout(options.dropout) {
    if (!options.norm_behind) return;
    if (!norm_first) {
      throw ValueError(
          message("EncoderLayer", "norm_behind", "be false without norm_first", "true"));
    }
    norm1_behind = norm2_behind = norm1;
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
    Scratch<T> memory(options.execution.scratch(), in.size());
    const TensorView3<T> attended(memory.data(), in.shape());
    detail::CallGuard guard(call);
    if (norm1_behind.weight) {
      forward_between(in, attended, to, options, call, functors...);
    } else {
      attention_sublayer<T>(self_attn, norm1, norm_first, in, in, in, attended, options, call,
                            functors...);
      feed_forward_sublayer<T>(feed_forward, norm2, norm_first, attended, to, options.execution);
    }
    guard.commit();
  }

  /// See Linear::pack().
  void pack() {
    self_attn.pack();
    feed_forward.pack();
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  MultiHeadAttention<T> self_attn;
  FeedForward<T> feed_forward;
  Norm<T> norm1, norm2;
  Norm<T> norm1_behind, norm2_behind;  ///< without a weight where there are none
  bool norm_first = false;
  double dropout = 0;  ///< in training

 private:
  /// The layer with a norm before and after each sublayer. `in` may be `to`; `attended` is scratch.
  template <class... Functors>
  void forward_between(const TensorView3<const T>& in, const TensorView3<T>& attended,
                       const TensorView3<T>& to, const AttentionOptions<Accumulator<T>>& options,
                       MultiHeadAttentionCall<T> call, const Functors&... functors) const {
    const Execution& execution = options.execution;
    Scratch<T> memory(execution.scratch(), in.size());
    const TensorView3<T> normed(memory.data(), in.shape());
    call.residual = {};
    norm1.forward(in, normed, execution);
    self_attn.forward(normed, normed, normed, attended, options, call, functors...);
    norm1_behind.forward(attended, attended, execution);
    add(in, attended, execution);
    norm2.forward(attended, normed, execution);
    feed_forward.forward(normed, to, {}, execution);
    norm2_behind.forward(to, to, execution);
    add(attended, to, execution);
  }

  /// out += x.
  static void add(const TensorView3<const T>& x, const TensorView3<T>& out,
                  const Execution& execution) {
    const index_t seq = out.extent(1), dim = out.extent(2);
    detail::for_rows(execution.threads(), out.extent(0) * seq, dim, [&](index_t row) {
      const T* from = x.at_index({row / seq, row % seq, 0});
      T* to = out.at_index({row / seq, row % seq, 0});
      for (index_t i = 0; i < dim; ++i) {
        T& y = to[i * out.stride(2)];
        y = static_cast<T>(y + from[i * x.stride(2)]);
      }
    });
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    self.self_attn.visit_parameters(f.under("self_attn."));
    self.feed_forward.visit_parameters(f);
    self.norm1.visit_parameters(f.under("norm1."));
    self.norm2.visit_parameters(f.under("norm2."));
    if (!self.norm1_behind.weight) return;
    self.norm1_behind.visit_parameters(f.under("norm1_behind."));
    self.norm2_behind.visit_parameters(f.under("norm2_behind."));
  }
};

ATTN_NAMESPACE_END
