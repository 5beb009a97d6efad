// AttentionPooling: one vector per sequence, by attention from a learned query: SigLIP's head.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/feed_forward.hpp"
#include "attn/layers/multi_head_attention.hpp"
#include "attn/layers/norm.hpp"

ATTN_NAMESPACE_BEGIN

struct AttentionPoolingOptions {
  index_t d_model = 768;                     ///< features of a hidden state, and of the result
  index_t nhead = 12;                        ///< heads of the attention
  index_t dim_feedforward = 3072;            ///< hidden features of the feed-forward
  Activation activation = Activation::gelu;  ///< of the feed-forward
  double layer_norm_eps = 1e-5;              ///< epsilon of the norm
};

/// y = attention(probe, x, x); y + feed_forward(norm(y)): hidden states (batch, seq, d_model) to
/// (batch, d_model). Source: Zhai et al., "Scaling Vision Transformers" (2022), section 3.4.
template <class T>
class AttentionPooling {
 public:
  AttentionPooling() = default;
  /// Throws ValueError for options out of range.
  explicit AttentionPooling(const AttentionPoolingOptions& o)
      : probe({1, 1, o.d_model}),
        attention({.embed_dim = o.d_model, .num_heads = o.nhead}),
        norm(o.d_model, o.layer_norm_eps),
        feed_forward({.d_model = o.d_model,
                      .dim_feedforward = o.dim_feedforward,
                      .activation = o.activation}) {}

  /// Throws ShapeError.
  template <TensorLike X>
  Tensor2<T> operator()(const X& x, const Execution& execution = {}) const {
    ATTN_ASSERT_INPUT(X, T, 3, "AttentionPooling: x", "(batch, seq, d_model)", "the layer");
    const auto hidden = detail::view_as<const T, 3>(x);
    const index_t batch = hidden.extent(0), dim = probe.extent(2);
    auto queries = Tensor3<T>::uninitialized({batch, 1, dim});
    for (index_t b = 0; b < batch; ++b) {
      copy(probe.view().select(0, 0), queries.view().select(0, b));
    }
    const Tensor3<T> pooled = attention(queries, hidden, hidden, {.execution = execution});
    const TensorView2<const T> attended(pooled.data(), {batch, dim});
    auto normed = Tensor2<T>::uninitialized(attended.shape());
    norm.forward(attended, normed, execution);
    auto out = Tensor2<T>::uninitialized(attended.shape());
    feed_forward.forward(normed, out, attended, execution);
    return out;
  }

  /// See Linear::pack().
  void pack(MatmulPrecision precision = MatmulPrecision::highest) {
    attention.pack(precision, false);
    feed_forward.pack(precision);
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  Tensor3<T> probe;  ///< (1, 1, d_model)
  MultiHeadAttention<T> attention;
  LayerNorm<T> norm;
  FeedForward<T> feed_forward;

 private:
  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    f("probe", self.probe.view());
    self.attention.visit_parameters(f.under("attention."));
    self.norm.visit_parameters(f.under("norm."));
    self.feed_forward.visit_parameters(f);
  }
};

ATTN_NAMESPACE_END
