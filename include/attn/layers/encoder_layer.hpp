// EncoderLayer: self-attention and feed-forward with residuals and norms, by PyTorch's names.
#pragma once

#include "attn/layers/feed_forward.hpp"
#include "attn/layers/layer_norm.hpp"
#include "attn/layers/multi_head_attention.hpp"

ATTN_NAMESPACE_BEGIN

/// PyTorch's nn.TransformerEncoderLayer options.
struct EncoderLayerOptions {
  index_t d_model = 0;
  index_t nhead = 1;
  index_t dim_feedforward = 2048;
  Activation activation = Activation::relu;
  double layer_norm_eps = 1e-5;
  bool norm_first = false;  ///< pre-norm: x + f(norm(x)); else post-norm: norm(x + f(x))
  bool bias = true;
};

/// x (batch, seq, d_model) to the same shape. Source: "Attention Is All You Need" (2017), section 3.1.
template <class T>
class EncoderLayer {
 public:
  EncoderLayer() = default;
  explicit EncoderLayer(const EncoderLayerOptions& options)
      : self_attn({.embed_dim = options.d_model, .num_heads = options.nhead, .bias = options.bias}),
        feed_forward(options.d_model, options.dim_feedforward, options.activation, options.bias),
        norm1(options.d_model, options.layer_norm_eps),
        norm2(options.d_model, options.layer_norm_eps),
        norm_first(options.norm_first) {}

  template <TensorLike X>
  Tensor3<T> operator()(const X& x, const MultiHeadAttentionCall<T>& call = {}) const {
    auto out = Tensor3<T>::uninitialized(const_view(x).shape());
    forward(x, out, call);
    return out;
  }

  /// Into `out`, which may be x. call.residual is set by the layer. Throws ShapeError or ValueError.
  template <TensorLike X, TensorLike Out>
  void forward(const X& x, Out&& out, MultiHeadAttentionCall<T> call = {}) const {
    const TensorView3<const T> in = const_view(x);
    const TensorView3<T> to = view_of(out);
    const Execution& execution = call.execution;
    Scratch<T> memory(execution.scratch(), 2 * in.size());
    const TensorView3<T> normed(memory.data(), in.shape()),
        sum(memory.data() + in.size(), in.shape());
    call.residual = in;
    if (norm_first) {
      norm1.forward(in, normed, execution);
      self_attn.forward(normed, normed, normed, sum, call);
      norm2.forward(sum, normed, execution);
      feed_forward.forward(normed, to, sum, execution);
    } else {
      self_attn.forward(in, in, in, sum, call);
      norm1.forward(sum, normed, execution);
      feed_forward.forward(normed, sum, normed, execution);
      norm2.forward(sum, to, execution);
    }
  }

  /// See Linear::pack().
  void pack() {
    self_attn.pack();
    feed_forward.pack();
  }

  template <class F>
  void visit_parameters(F&& f) {
    visit(*this, f);
  }
  template <class F>
  void visit_parameters(F&& f) const {
    visit(*this, f);
  }

  MultiHeadAttention<T> self_attn;
  FeedForward<T> feed_forward;
  LayerNorm<T> norm1, norm2;
  bool norm_first = false;

 private:
  template <class Self, class F>
  static void visit(Self& self, F& f) {
    visit_part("self_attn.", self.self_attn, f);
    self.feed_forward.visit_parameters(f);
    visit_part("norm1.", self.norm1, f);
    visit_part("norm2.", self.norm2, f);
  }
};

ATTN_NAMESPACE_END
