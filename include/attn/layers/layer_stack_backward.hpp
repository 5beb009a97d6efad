// Backward of Encoder, Decoder and Transformer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/layers/decoder_layer_backward.hpp"
#include "attn/layers/encoder_layer_backward.hpp"
#include "attn/layers/transformer.hpp"

ATTN_NAMESPACE_BEGIN

template <class LayerSaved, class T>
struct StackSaved {
  /// Activation checkpointing: saves only the input of each layer and runs the layer again in
  /// backward, into one buffer shared by all layers: about 1.3 times the work, and a fraction of
  /// the memory. Set it before forward. Source: Chen et al., "Training Deep Nets with Sublinear
  /// Memory Cost" (2016).
  bool recompute = false;
  std::vector<LayerSaved> layers;   ///< one for all layers with recompute
  std::vector<Saved<T, 3>> inputs;  ///< with recompute
  NormSaved<T> norm;
  DropoutStep dropout;  ///< its layer is the index of the first layer

  index_t bytes() const {
    index_t sum = norm.bytes();
    for (const LayerSaved& layer : layers) sum += layer.bytes();
    for (const Saved<T, 3>& input : inputs) sum += input.bytes();
    return sum;
  }

  /// Where layer n of a stack finds its saved activations, and where its input is saved.
  LayerSaved& of_layer(std::size_t n) { return layers[recompute ? 0 : n]; }
  template <class Stack>
  Saved<T, 3>& input(const Stack& stack, std::size_t n) {
    return recompute ? inputs[n] : layers[n].input(stack.layers[stack.place_of(n)]);
  }
  /// Call this before of_layer() and input().
  void resize(std::size_t count) {
    layers.resize(recompute ? (std::min)(count, std::size_t{1}) : count);
    inputs.resize(recompute ? count : 0);
  }
};
template <class T>
using EncoderSaved = StackSaved<EncoderLayerSaved<T>, T>;
template <class T>
using DecoderSaved = StackSaved<DecoderLayerSaved<T>, T>;

namespace detail {

/// Calls run(layer, saved, in, out) for each layer, which writes its output where the next one
/// saves it; then the norm.
template <class T, class Stack, class LayerSaved, class F>
void forward_stack(const Stack& stack, TensorView3<const T> in, TensorView3<T> out,
                   StackSaved<LayerSaved, T>& saved, const Execution& execution, F run) {
  const std::size_t count = stack.num_layers();
  saved.resize(count);
  for (std::size_t n = 0; n < count; ++n) {
    in = saved.input(stack, n).keep(in);
    TensorView3<T> to = out;
    if (n + 1 < count) {
      to = saved.input(stack, n + 1).make(in.shape());
    } else if (stack.norm.weight) {
      to = saved.norm.x.make(in.shape());
    }
    LayerSaved& kept = saved.of_layer(n);
    kept.dropout = saved.dropout;
    kept.dropout.layer += static_cast<index_t>(n);
    run(stack.layers[stack.place_of(n)], kept, in, to);
    in = to;
  }
  if (stack.norm.weight) {
    forward(stack.norm, in, out, saved.norm, execution);
  } else if (count == 0) {
    copy(in, out);
  }
}

/// Runs the backward of the norm, then calls run(layer, saved, gradients) for each layer, the last
/// one first, with d_x in place. If only the input of a layer is saved, calls again(layer, saved,
/// in, out) before run().
template <class T, class Stack, class LayerSaved, class Gradients, class Again, class F>
void backward_stack(const Stack& stack, TensorView3<const T> d_out, TensorView3<T> d_x,
                    StackSaved<LayerSaved, T>& saved, Gradients& gradients,
                    const Execution& execution, Again again, F run) {
  const std::size_t count = stack.num_layers();
  const auto require_layers = [&](std::string_view name, std::size_t expected, std::size_t found) {
    if (found == expected) return;
    throw ValueError(message("backward", name,
                             "have " + std::to_string(expected) + " layers, as the stack has",
                             std::to_string(found)));
  };
  require_layers("gradients", stack.layers.size(), gradients.layers.size());
  if (saved.recompute) {
    require_layers("saved.inputs", count, saved.inputs.size());
  } else {
    require_layers("saved", count, saved.layers.size());
  }
  if (stack.norm.weight) {
    backward(stack.norm, d_out, saved.norm, d_x, gradients.norm, {}, execution);
  } else if (d_x.data() != d_out.data()) {
    copy(d_out, d_x);
  }
  Scratch<T> memory(execution.scratch(), saved.recompute ? d_x.size() : 0);
  const TensorView3<T> unused(memory.data(), d_x.shape());
  for (std::size_t n = count; n-- > 0;) {
    LayerSaved& kept = saved.of_layer(n);
    const std::size_t place = stack.place_of(n);
    if (saved.recompute) {
      kept.dropout.layer = saved.dropout.layer + static_cast<index_t>(n);
      again(stack.layers[place], kept, saved.inputs[n].view(), unused);
    }
    run(stack.layers[place], kept, gradients.layers[place]);
  }
}

/// Holds the gradient of a stack's relative bias during one backward.
template <class T>
class StackBiasGradient {
 public:
  template <class LayerSaved>
  StackBiasGradient(const StackBias<T>& bias, StackSaved<LayerSaved, T>& saved,
                    const Execution& execution)
      : memory_(execution.scratch(), size_of(bias.shape())), d_bias_(memory_.data(), bias.shape()) {
    if (memory_.size() == 0) return;
    fill(d_bias_, Accumulator<T>{0});
    for (LayerSaved& layer : saved.layers) layer.self_attn.d_relative_bias = d_bias_;
  }
  /// Call this once all layers have added their gradients.
  template <class LayerSaved, class Gradients>
  void finish(StackSaved<LayerSaved, T>& saved, Gradients& gradients) const {
    if (memory_.size() == 0) return;
    for (LayerSaved& layer : saved.layers) layer.self_attn.d_relative_bias = {};
    if (!gradients.relative_bias) return;
    t5_relative_bias_backward(d_bias_, gradients.relative_bidirectional, gradients.relative_bias);
  }

 private:
  Scratch<Accumulator<T>> memory_;
  TensorView2<Accumulator<T>> d_bias_;
};

}  // namespace detail

/// Encoder::forward() that saves activations: x and out (batch, seq, d_model). Throws ShapeError or
/// ValueError.
template <class T, class... Functors>
void forward(const Encoder<T>& stack, Input3<T> x, Output3<T> out, EncoderSaved<T>& saved,
             const AttentionOptions<Accumulator<T>>& options = {},
             TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  check_shape("Encoder", "out", x.shape(), out.shape());
  const detail::StackBias<T> own("Encoder", stack, options);
  detail::forward_stack<T>(stack, x, out, saved, options.execution,
                           [&](const auto& layer, auto& kept, const auto& in, const auto& to) {
                             forward(layer, in, to, kept, own.options(), position_ids, functors...);
                           });
}

/// Computes d_x (batch, seq, d_model), which may be d_out; adds the gradients of the parameters to
/// `gradients`.
template <class T, class... Functors>
void backward(const Encoder<T>& stack, Input3<T> d_out, EncoderSaved<T>& saved, Output3<T> d_x,
              Encoder<Accumulator<T>>& gradients,
              const AttentionOptions<Accumulator<T>>& options = {},
              TensorView2<const index_t> position_ids = {}, const Functors&... functors) {
  const detail::StackBias<T> own("Encoder", stack, options);
  const detail::StackBiasGradient<T> d_bias(own, saved, options.execution);
  detail::backward_stack<T>(
      stack, d_out, d_x, saved, gradients, options.execution,
      [&](const auto& layer, auto& kept, const auto& in, const auto& to) {
        forward(layer, in, to, kept, own.options(), position_ids, functors...);
      },
      [&](const auto& layer, auto& kept, auto& into) {
        backward(layer, d_x, kept, d_x, into, own.options(), position_ids, functors...);
      });
  d_bias.finish(saved, gradients);
}

/// Decoder::forward() that saves activations: x and out (batch, tgt_len, d_model), memory (batch,
/// src_len, d_model).
template <class T, class... Functors>
void forward(const Decoder<T>& stack, Input3<T> x, Input3<T> memory, Output3<T> out,
             DecoderSaved<T>& saved, const AttentionOptions<Accumulator<T>>& options = {},
             const DecoderCall<T>& call = {}, const Functors&... functors) {
  check_shape("Decoder", "out", x.shape(), out.shape());
  const detail::StackBias<T> own("Decoder", stack, options);
  detail::forward_stack<T>(stack, x, out, saved, options.execution,
                           [&](const auto& layer, auto& kept, const auto& in, const auto& to) {
                             forward(layer, in, memory, to, kept, own.options(), call, functors...);
                           });
}

/// Computes d_x (batch, tgt_len, d_model), which may be d_out; d_memory (batch, src_len, d_model)
/// += its gradient.
template <class T, class... Functors>
void backward(const Decoder<T>& stack, Input3<T> d_out, DecoderSaved<T>& saved, Output3<T> d_x,
              Output3<T> d_memory, Decoder<Accumulator<T>>& gradients,
              const AttentionOptions<Accumulator<T>>& options = {}, const DecoderCall<T>& call = {},
              const Functors&... functors) {
  const detail::StackBias<T> own("Decoder", stack, options);
  const detail::StackBiasGradient<T> d_bias(own, saved, options.execution);
  // All layers attend to one memory, which is saved once.
  detail::backward_stack<T>(
      stack, d_out, d_x, saved, gradients, options.execution,
      [&](const auto& layer, auto& kept, const auto& in, const auto& to) {
        const TensorView3<const T> memory = kept.multihead_attn.key.view();
        forward(layer, in, memory, to, kept, own.options(), call, functors...);
      },
      [&](const auto& layer, auto& kept, auto& into) {
        backward(layer, d_x, kept, d_x, d_memory, into, own.options(), call, functors...);
      });
  d_bias.finish(saved, gradients);
}

template <class T>
struct TransformerSaved {
  EncoderSaved<T> encoder;
  DecoderSaved<T> decoder;
  Saved<T, 3> memory;   ///< the encoder's result
  DropoutStep dropout;  ///< layers of the decoder are numbered after those of the encoder

  index_t bytes() const { return encoder.bytes() + decoder.bytes() + memory.bytes(); }
};

/// Transformer::forward() that saves activations: src (batch, src_len, d_model), tgt and out
/// (batch, tgt_len, d_model).
template <class T>
void forward(const Transformer<T>& model, Input3<T> src, Input3<T> tgt, Output3<T> out,
             TransformerSaved<T>& saved, TransformerCall<T> call = {}) {
  call.src.execution = call.tgt.execution = call.execution;
  const TensorView3<T> memory = saved.memory.make(src.shape());
  saved.encoder.dropout = saved.decoder.dropout = saved.dropout;
  saved.decoder.dropout.layer += static_cast<index_t>(model.encoder.num_layers());
  forward(model.encoder, src, memory, saved.encoder, call.src);
  forward(model.decoder, tgt, memory, out, saved.decoder, call.tgt, {.memory = call.memory});
}

/// Computes d_src and d_tgt (d_tgt may be d_out); adds the gradients of the parameters to
/// `gradients`.
template <class T>
void backward(const Transformer<T>& model, Input3<T> d_out, TransformerSaved<T>& saved,
              Output3<T> d_src, Output3<T> d_tgt, Transformer<Accumulator<T>>& gradients,
              TransformerCall<T> call = {}) {
  call.src.execution = call.tgt.execution = call.execution;
  detail::fill(d_src, T{0});
  backward(model.decoder, d_out, saved.decoder, d_tgt, d_src, gradients.decoder, call.tgt,
           {.memory = call.memory});
  backward(model.encoder, d_src, saved.encoder, d_src, gradients.encoder, call.src);
}

ATTN_NAMESPACE_END
