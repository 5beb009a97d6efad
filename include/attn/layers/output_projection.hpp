// OutputProjection: from features to a logit for each word, by a weight of its own or by that of the embedding.
#pragma once

#include "attn/layers/linear.hpp"

ATTN_NAMESPACE_BEGIN

/// Tied ("Using the Output Embedding to Improve Language Models", Press and Wolf 2017), logits are products with the
/// rows of the embedding's table, which every call is given; it has no parameters then.
template <class T>
class OutputProjection {
 public:
  OutputProjection() = default;
  OutputProjection(index_t d_model, index_t vocab_size, bool tied, bool with_bias = false) {
    if (!tied) linear_ = Linear<T>(d_model, vocab_size, with_bias);
  }

  bool tied() const { return !linear_.weight; }

  /// x (batch, seq, d_model), table (vocab_size, d_model), out (batch, seq, vocab_size). Throws ShapeError.
  template <TensorLike X, TensorLike Out>
  void forward(const X& x, TensorView2<const T> table, Out&& out,
               const Execution& execution = {}) const {
    if (!tied()) {
      linear_.forward(x, out, Activation::none, {}, execution);
    } else if (packed_table_.serves(execution)) {
      linear(x, packed_table_, {}, out, Activation::none, {}, execution);
    } else {
      linear(x, table, {}, out, Activation::none, {}, execution);
    }
  }

  /// See Linear::pack().
  void pack(TensorView2<const T> table) {
    if (tied()) {
      packed_table_ = PackedWeights<T>(table.transpose(0, 1));
    } else {
      linear_.pack();
    }
  }

  void visit_parameters(const ParameterVisitor<T>& f) {
    if (!tied()) linear_.visit_parameters(f);
  }
  void visit_parameters(const ParameterVisitor<const T>& f) const {
    if (!tied()) linear_.visit_parameters(f);
  }

 private:
  Linear<T> linear_;
  PackedWeights<T> packed_table_;
};

ATTN_NAMESPACE_END
