// Quantised GGUF tensors as weights of linear layers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/exec/execution.hpp"
#include "attn/io/gguf.hpp"
#include "attn/io/gguf/blocks.hpp"
#include "attn/kernels/quantized/quantized.hpp"
#include "attn/layers/module/compressed_weight.hpp"

ATTN_NAMESPACE_BEGIN

/// A quantised weight in a module, with the format of its activations.
class QuantizedWeight final : public CompressedWeight<float> {
 public:
  QuantizedWeight(QuantizedWeights weights, ActivationFormat activations)
      : weights_(std::move(weights)), activations_(activations) {}

  Shape<2> shape() const override { return {weights_.n(), weights_.k()}; }
  void multiply(TensorView2<const float> x, TensorView2<float> c, const Epilogue<float>& epilogue,
                const Execution& execution) const override {
    gemm(x, weights_, activations_, c, epilogue, execution);
  }
  /// Parts with other forms or activations are multiplied one by one.
  void multiply_parts(std::span<const std::shared_ptr<const CompressedWeight>> parts,
                      TensorView2<const float> x, TensorView2<float> c,
                      const Epilogue<float>& epilogue, const Execution& execution) const override {
    Scratch<detail::QuantizedMatrix> matrices(execution.scratch(), std::ssize(parts));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto* part = dynamic_cast<const QuantizedWeight*>(parts[i].get());
      if (part == nullptr || part->activations_ != activations_) {
        return CompressedWeight::multiply_parts(parts, x, c, epilogue, execution);
      }
      matrices.data()[i] = part->weights_.matrix();
    }
    detail::gemm(x, {matrices.data(), parts.size()}, activations_, c, epilogue, execution);
  }
  void row(index_t index, TensorView1<float> out) const override {
    weights_.dequantize_row(index, out);
  }
  std::shared_ptr<const CompressedWeight> rows(index_t begin, index_t end) const override {
    return std::make_shared<const QuantizedWeight>(weights_.rows(begin, end), activations_);
  }
  index_t bytes() const override { return weights_.bytes(); }
  const QuantizedWeights& weights() const { return weights_; }

 private:
  QuantizedWeights weights_;
  ActivationFormat activations_;
};

namespace detail {

/// kv_b_proj of latent attention, `out` (heads * features of a head, rank), from the tensors of
/// newer files: of keys (heads, rank, head_dim), transposed, and of values (heads, head_dim_v,
/// rank).
inline void load_gguf_kv_b(const GgufFile& file, const std::string& keys, const std::string& values,
                           const TensorView2<float>& out) {
  const auto load = [&](const std::string& name) {
    const GgufTensor tensor = file.tensor(name);
    auto all = Tensor3<float>::uninitialized({tensor.shape[0], tensor.shape[1], tensor.shape[2]});
    dequantize_gguf(tensor.type, tensor.bytes, {all.data(), static_cast<std::size_t>(all.size())});
    return all;
  };
  const Tensor3<float> k = load(keys), v = load(values);
  const index_t heads = k.extent(0), head_dim = k.extent(2), width = head_dim + v.extent(1);
  const TensorView3<float> by_head(out.data(), {heads, width, out.extent(1)});
  copy(k.view().transpose(1, 2), by_head.slice(1, 0, head_dim));
  copy(v.view(), by_head.slice(1, head_dim, width));
}

/// Whether tensors of a type are quantised blocks.
constexpr bool is_quantized(GgufType type) { return block_elements(type) > 1; }

constexpr QuantizedFormat quantized_format(GgufType type) {
  switch (type) {
    case GgufType::Q4_0:
      return {.bits = 4, .zero = 8, .has_wide = false};
    case GgufType::Q4_1:
      return {.bits = 4, .zero = 0, .has_offset = true, .has_wide = false};
    case GgufType::Q5_0:
      return {.zero = 16, .has_wide = false};
    case GgufType::Q5_1:
      return {.zero = 0, .has_offset = true, .has_wide = false};
    case GgufType::Q4_K:
      return {.bits = 4, .zero = 0, .has_offset = true, .has_wide = false, .float_scales = true};
    case GgufType::Q5_K:
      return {.zero = 0, .has_offset = true, .has_wide = false, .float_scales = true};
    case GgufType::Q6_K:
      return {.block = 16, .zero = 32, .has_wide = false, .float_scales = true};
    case GgufType::MXFP4:
      return {.zero = 12, .has_wide = false, .float_scales = true};
    case GgufType::IQ4_XS:
      return {.float_scales = true};
    case GgufType::Q2_K:
      return {.block = 16, .zero = 0, .has_offset = true, .has_wide = false, .float_scales = true};
    case GgufType::Q3_K:
      return {.block = 16, .zero = 4, .has_wide = false, .float_scales = true};
    case GgufType::IQ4_NL:
    case GgufType::Q8_0:
    case GgufType::F32:
    case GgufType::F16:
    case GgufType::BF16:
      break;
  }
  return {};
}

/// Converts one block of a file into blocks of a row, the first of them `first`.
template <GgufType kType>
void put_gguf_block(const std::byte* from, const QuantizedRowWriter& to, index_t first) {
  std::uint8_t codes[32];
  constexpr bool kOffset = kType == GgufType::Q4_1 || kType == GgufType::Q5_1;
  const auto scale_at = [from](std::size_t at) {
    float16 value;
    std::memcpy(&value, from + at, sizeof value);
    return value;
  };
  if constexpr (kType == GgufType::Q8_0) {
    // Eight at once: 128 + the signed value is its byte with the highest bit flipped.
    for (std::size_t i = 0; i < 32; i += 8) {
      std::uint64_t eight;
      std::memcpy(&eight, from + 2 + i, sizeof eight);
      eight ^= 0x8080808080808080u;
      std::memcpy(codes + i, &eight, sizeof eight);
    }
    to.set_bytes(first, codes, scale_at(0), float16());
  } else if constexpr (kType == GgufType::Q4_0 || kType == GgufType::Q4_1) {
    // As in the file, a byte contains values i and i + 16.
    to.set_bytes(first, reinterpret_cast<const std::uint8_t*>(from) + (kOffset ? 4 : 2),
                 scale_at(0), kOffset ? scale_at(2) : float16());
  } else if constexpr (kType == GgufType::Q5_0 || kType == GgufType::Q5_1) {
    const std::byte* at = from + (kOffset ? 4 : 2);
    const auto all = gguf_nibbles(at + 4, at);
    for (std::size_t i = 0; i < 32; ++i) codes[i] = static_cast<std::uint8_t>(all[i]);
    to.set_bytes(first, codes, scale_at(0), kOffset ? scale_at(2) : float16());
  } else if constexpr (kType == GgufType::Q4_K || kType == GgufType::Q5_K) {
    constexpr bool kFive = kType == GgufType::Q5_K;
    const float d = gguf_float<float16>(from), d_offset = gguf_float<float16>(from + 2);
    const std::byte *high = from + 16, *low = from + (kFive ? 48 : 16);
    for (std::size_t j = 0; j < 8; ++j) {
      const auto [scale, offset] = gguf_scale(from + 4, j);
      for (std::size_t i = 0; i < 32; ++i) {
        int code = gguf_u8(low[32 * (j / 2) + i]) >> (j % 2 == 0 ? 0 : 4) & 15;
        if constexpr (kFive) code |= (gguf_u8(high[i]) >> j & 1) << 4;
        codes[i] = static_cast<std::uint8_t>(code);
      }
      const float step = d * static_cast<float>(scale);
      const float m = -(d_offset * static_cast<float>(offset));
      if constexpr (kFive) {
        to.set_bytes(first + static_cast<index_t>(j), codes, step, m);
      } else {
        to.set(first + static_cast<index_t>(j), codes, step, m);
      }
    }
  } else if constexpr (kType == GgufType::MXFP4 || kType == GgufType::IQ4_NL) {
    constexpr bool kFloats = kType == GgufType::MXFP4;
    constexpr int kZero = quantized_format(kType).zero;
    const auto all = gguf_nibbles(from + (kFloats ? 1 : 2), nullptr);
    for (std::size_t i = 0; i < 32; ++i) {
      const auto code = static_cast<std::size_t>(all[i]);
      codes[i] =
          static_cast<std::uint8_t>(kZero + (kFloats ? kMxfp4Values[code] : kIq4Values[code]));
    }
    if constexpr (kFloats) {
      to.set_bytes(first, codes, mxfp4_scale(*from), 0.0f);
    } else {
      to.set_bytes(first, codes, scale_at(0), float16());
    }
  } else if constexpr (kType == GgufType::IQ4_XS) {
    const float d = gguf_float<float16>(from);
    for (std::size_t j = 0; j < 8; ++j) {
      const auto all = gguf_nibbles(from + 8 + 16 * j, nullptr);
      for (std::size_t i = 0; i < 32; ++i) {
        codes[i] = static_cast<std::uint8_t>(128 + kIq4Values[static_cast<std::size_t>(all[i])]);
      }
      to.set_bytes(first + static_cast<index_t>(j), codes,
                   d * static_cast<float>(iq4_xs_scale(from, j)), 0.0f);
    }
  } else if constexpr (kType == GgufType::Q2_K || kType == GgufType::Q3_K) {
    constexpr bool kTwo = kType == GgufType::Q2_K;
    const float d = gguf_float<float16>(from + (kTwo ? 80 : 108));
    const float d_offset = kTwo ? gguf_float<float16>(from + 82) : 0;
    for (std::size_t j = 0; j < 16; ++j) {
      for (std::size_t x = 0; x < 16; ++x) {
        const std::size_t i = 16 * j + x;
        codes[x] =
            static_cast<std::uint8_t>(kTwo ? two_bit_code(from + 16, i) : q3_k_code(from, i));
      }
      const int scale = kTwo ? gguf_u8(from[j]) & 15 : q3_k_scale(from + 96, j);
      const int offset = kTwo ? gguf_u8(from[j]) >> 4 : 0;
      to.set_bytes(first + static_cast<index_t>(j), codes, d * static_cast<float>(scale),
                   -(d_offset * static_cast<float>(offset)));
    }
  } else {
    static_assert(kType == GgufType::Q6_K);
    const std::byte *high = from + 128, *scales = from + 192;
    const float d = gguf_float<float16>(from + 208);
    for (std::size_t j = 0; j < 16; ++j) {  // runs of 16; eight runs share 64 bytes
      const std::size_t half = j / 8, quarter = j / 2 % 4;
      for (std::size_t x = 0; x < 16; ++x) {
        const std::size_t i = j % 2 * 16 + x;
        const int four =
            gguf_u8(from[64 * half + 32 * (quarter % 2) + i]) >> (quarter < 2 ? 0 : 4) & 15;
        codes[x] = static_cast<std::uint8_t>(
            four | (gguf_u8(high[32 * half + i]) >> (2 * quarter) & 3) << 4);
      }
      to.set_bytes(first + static_cast<index_t>(j), codes,
                   d * static_cast<float>(static_cast<std::int8_t>(scales[j])), 0.0f);
    }
  }
}

/// A matrix (n, k) of a quantised type, from its blocks in a file; the weights equal
/// dequantize_gguf().
inline QuantizedWeights quantized_weights(GgufType type, index_t n, index_t k,
                                          std::span<const std::byte> blocks,
                                          const Execution& execution = {}) {
  QuantizedWeights result(n, k, quantized_format(type), QuantizedWeights::Fill::none);
  const auto elements = static_cast<index_t>(block_elements(type));
  const index_t in_row = k / elements, made = elements / result.format().block;
  with_gguf_type(type, [&](auto constant) {
    if constexpr (is_quantized(constant.value)) {
      constexpr index_t kPanel = QuantizedMatrix::kPanelColumns;
      execution.threads().run((n + kPanel - 1) / kPanel, [&](index_t panel, int) {
        for (index_t row = panel * kPanel; row < (std::min)((panel + 1) * kPanel, n); ++row) {
          const QuantizedRowWriter to = result.writer(row);
          for (index_t b = 0; b < in_row; ++b) {
            put_gguf_block<constant.value>(
                blocks.data() +
                    static_cast<std::size_t>(row * in_row + b) * block_bytes(constant.value),
                to, b * made);
          }
        }
      });
    }
  });
  return result;
}

}  // namespace detail

ATTN_NAMESPACE_END
