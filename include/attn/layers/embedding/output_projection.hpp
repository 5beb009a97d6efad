// OutputProjection: features to logits, by its own weight or the tied embedding.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/embedding/embedding.hpp"
#include "attn/layers/linear.hpp"

ATTN_NAMESPACE_BEGIN

/// Tied projections ("Using the Output Embedding to Improve Language Models", Press and Wolf 2017)
/// multiply by the rows of the embedding's table, which every call receives; their only parameter
/// is the optional bias.
template <class T>
class OutputProjection {
 public:
  OutputProjection() = default;
  OutputProjection(index_t d_model, index_t vocab_size, bool tied, bool with_bias = false) {
    if (!tied) {
      linear_ = Linear<T>(d_model, vocab_size, with_bias);
    } else if (with_bias) {
      linear_.bias = Tensor1<T>({vocab_size});
    }
  }

  bool tied() const { return linear_.in_features() == 0; }

  /// x (batch, seq, d_model), words (vocab_size, d_model), out (batch, seq, vocab_size) of type
  /// Accumulator<T>. Throws ShapeError.
  template <TensorLike X, TensorLike Out>
  void forward(const X& x, const Embedding<T>& words, Out&& out,
               const Execution& execution = {}) const {
    ATTN_ASSERT_INPUT(X, T, 3, "OutputProjection: x", "(batch, seq, d_model)", "the layer");
    using Logit = Accumulator<T>;
    ATTN_ASSERT_OUTPUT(Out, Logit, 3, "OutputProjection: out", "(batch, seq, vocab_size)",
                       "logits, which are float where the layer has 16 bits");
    const auto from = detail::view_as<const T, 3>(x);
    const auto to = detail::view_as<Logit, 3>(out);
    if (!tied()) {
      linear_.forward(from, to, Activation::none, {}, execution);
      return;
    }
    const TensorView1<const T> bias = linear_.bias;
    if (words.compressed() != nullptr) {
      detail::linear_parts<T, 3>(from, words.compressed_parts(), bias, to, Activation::none, {},
                                 execution);
      return;
    }
    if (const PackedWeights<T>* packed = packed_words_.find(words.version(), execution)) {
      attn::linear(from, *packed, bias, to, Activation::none, {}, execution);
    } else {
      attn::linear(from, words.weight, bias, to, Activation::none, {}, execution);
    }
  }

  /// See Linear::pack().
  void pack(const Embedding<T>& words, MatmulPrecision precision = MatmulPrecision::highest) {
    if (tied()) {
      if (words.weight) packed_words_ = {words.weight, words.version(), precision};
    } else {
      linear_.pack(precision);
    }
  }

  void visit_parameters(const ParameterVisitor<T>& f) { visit(*this, f); }
  void visit_parameters(const ParameterVisitor<const T>& f) const { visit(*this, f); }

  /// The projection's own weight; empty if it is tied.
  Linear<T>& linear() { return linear_; }
  const Linear<T>& linear() const { return linear_; }

 private:
  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    if (!self.tied()) return self.linear_.visit_parameters(f);
    f.visit("bias", self.linear_.bias);
  }

  Linear<T> linear_;  ///< tied: without a weight
  detail::PackedCopy<T> packed_words_;
};

ATTN_NAMESPACE_END
