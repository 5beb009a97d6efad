// CausalConvolution: each channel of a token from the last few tokens; forward and backward.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "attn/exec/row_ranges.hpp"
#include "attn/layers/module/parameter_visitor.hpp"
#include "attn/layers/recurrent/recurrent_call.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// PyTorch's nn.Conv1d with one group per channel, padded on the left: channel c of token t is
/// bias(c) + sum over l of weight(c, 0, l) input(t - width + 1 + l, c). The inputs are `padded`, of
/// shape (batch, width - 1 + seq, channels): first those of width - 1 tokens before the call, or
/// zeros, which are its state. Arithmetic is in Accumulator<T>.
template <class T>
struct CausalConvolution {
  using Acc = Accumulator<T>;

  CausalConvolution() = default;
  CausalConvolution(index_t channels, index_t width, bool with_bias)
      : weight(Tensor3<T>::zero_pages({channels, 1, width})) {
    if (with_bias) bias = Tensor1<T>({channels});
  }

  index_t channels() const { return weight.extent(0); }
  index_t width() const { return weight.extent(2); }
  /// Numbers of the state per row.
  index_t state_size() const { return (width() - 1) * channels(); }
  Shape<3> padded_shape(index_t batch, index_t seq) const {
    return {batch, width() - 1 + seq, channels()};
  }

  /// Writes the rows before the call to `padded`; write_state() copies the last rows of `padded` to
  /// the first numbers of the states after it.
  void read_state(const RowStates<T>& states, const TensorView3<Acc>& padded) const {
    for (index_t b = 0; b < padded.extent(0); ++b) {
      const auto state = states.before(b);
      Acc* to = padded.at_index({b, 0, 0});
      state ? void(std::copy_n(state.data(), state_size(), to))
            : void(std::fill_n(to, state_size(), Acc{0}));
    }
  }
  void write_state(const TensorView3<Acc>& padded, const RowStates<T>& states) const {
    const index_t seq = padded.extent(1) - width() + 1;
    for (index_t b = 0; b < padded.extent(0); ++b) {
      const auto state = states.after(b);
      if (state) std::copy_n(padded.at_index({b, seq, 0}), state_size(), state.data());
    }
  }

  /// Convolves padded, contiguous, to out (batch, seq, channels).
  void forward(const TensorView3<const Acc>& padded, const TensorView3<Acc>& out,
               const Execution& execution) const {
    const index_t seq = out.extent(1), count = channels(), taps = width();
    for_rows(execution.threads(), out.extent(0) * seq, count * taps, [&](index_t row) {
      const Acc* x = padded.at_index({row / seq, row % seq, 0});
      Acc* y = out.at_index({row / seq, row % seq, 0});
      const T* w = weight.data();
      for (index_t c = 0; c < count; ++c, w += taps) {
        Acc sum = bias ? Acc{bias(c)} : Acc{0};
        for (index_t l = 0; l < taps; ++l) sum += Acc{w[l]} * x[l * count + c];
        y[c] = sum;
      }
    });
  }

  /// Computes d_x, the gradient of the last `seq` rows of `padded`, from d_out; both are (batch,
  /// seq, channels). Adds the gradients of the parameters to `gradients`.
  void backward(const TensorView3<const Acc>& d_out, const TensorView3<const Acc>& padded,
                const TensorView3<Acc>& d_x, CausalConvolution<Acc>& gradients,
                const Execution& execution) const {
    const index_t batch = d_out.extent(0), seq = d_out.extent(1), count = channels(),
                  taps = width();
    for_rows(execution.threads(), batch * seq, count * taps, [&](index_t row) {
      const index_t b = row / seq, t = row % seq;
      for (index_t c = 0; c < count; ++c) {
        Acc sum = 0;  // token t is input l of token t + taps - 1 - l
        for (index_t l = 0; l < taps; ++l) {
          const index_t later = t + taps - 1 - l;
          if (later < seq) sum += Acc{weight(c, 0, l)} * d_out(b, later, c);
        }
        d_x(b, t, c) = sum;
      }
    });
    for_rows(execution.threads(), count, batch * seq * taps, [&](index_t c) {
      for (index_t l = 0; gradients.weight && l < taps; ++l) {
        Acc sum = 0;
        for (index_t b = 0; b < batch; ++b) {
          for (index_t t = 0; t < seq; ++t) sum += d_out(b, t, c) * padded(b, t + l, c);
        }
        gradients.weight(c, 0, l) += sum;
      }
      if (!gradients.bias) return;
      Acc sum = 0;
      for (index_t b = 0; b < batch; ++b) {
        for (index_t t = 0; t < seq; ++t) sum += d_out(b, t, c);
      }
      gradients.bias(c) += sum;
    });
  }

  template <class Self, class Visitor>
  static void visit(Self& self, const Visitor& f) {
    f.visit("weight", self.weight);
    f.visit("bias", self.bias);
  }

  Tensor3<T> weight;  ///< (channels, 1, width), as PyTorch stores it
  Tensor1<T> bias;    ///< (channels), or empty
};

}  // namespace detail

ATTN_NAMESPACE_END
