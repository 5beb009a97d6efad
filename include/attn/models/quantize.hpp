// quantize: weight matrices of a module in 4 to 8 bits, bfloat16 or float16.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/io/gguf/quantize.hpp"
#include "attn/kernels/quantized/quantized.hpp"
#include "attn/layers/module/compressed_weight.hpp"
#include "attn/models/float16_weight.hpp"
#include "attn/models/gguf/weights.hpp"

ATTN_NAMESPACE_BEGIN

/// How weights are stored: bits per weight, including scales.
enum class WeightFormat {
  int8,  ///< 8 bits, and a float per row
  q8_0,  ///< 8.5 bits: GGUF blocks of 32 consecutive weights with a scale
  q5_1,  ///< 9 bits in memory, 6 in files; with an offset
  q5_0,  ///< 8.5 bits in memory, 5.5 in files
  q4_1,  ///< 5 bits, with an offset
  q4_0,  ///< 4.5 bits
  bf16,  ///< 16 bits: bfloat16; activations are exact or bf16
  f16,   ///< 16 bits: float16; activations are exact or bf16
};

struct QuantizeOptions {
  WeightFormat weights = WeightFormat::int8;               ///< format of stored weights
  ActivationFormat activations = ActivationFormat::exact;  ///< format of activations in products
};

namespace detail {

inline GgufType gguf_type_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::int8:
    case WeightFormat::bf16:
    case WeightFormat::f16:
    case WeightFormat::q8_0:
      break;
    case WeightFormat::q5_1:
      return GgufType::Q5_1;
    case WeightFormat::q5_0:
      return GgufType::Q5_0;
    case WeightFormat::q4_1:
      return GgufType::Q4_1;
    case WeightFormat::q4_0:
      return GgufType::Q4_0;
  }
  return GgufType::Q8_0;
}

inline QuantizedWeights quantized_weights(TensorView2<const float> weight, WeightFormat format) {
  if (format == WeightFormat::int8) return quantize_rows(weight);
  const Tensor2<float> rows(weight);
  const GgufType type = gguf_type_of(format);
  const auto blocks = quantize_gguf(type, {rows.data(), static_cast<std::size_t>(rows.size())});
  return quantized_weights(type, weight.extent(0), weight.extent(1), blocks);
}

template <class T>
std::shared_ptr<const CompressedWeight<float>> compressed_weight(TensorView2<const T> weight,
                                                                 const QuantizeOptions& options) {
  if constexpr (Float16Element<T>) {
    return compressed_weight<float>(convert<float>(weight), options);
  } else {
    return std::make_shared<const QuantizedWeight>(quantized_weights(weight, options.weights),
                                                   options.activations);
  }
}

}  // namespace detail

/// Quantises every weight matrix of a module, including word tables; norms, biases, position
/// tables, routers of experts and kv_b_proj of LatentAttention stay. The float weights are freed:
/// such a module cannot be trained; save_quantized() saves one of int8, bf16 or f16. A 16-bit
/// module keeps its activations in 16 bits and widens them for its products, which it rounds once.
/// Weights that are already compressed stay. Throws ValueError, and changes nothing, if the columns
/// of a matrix are not a multiple of 32 (WeightFormat::int8, bf16 and f16 accept any) or a scale
/// overflows float16; also for activations in int8 or int16 with WeightFormat::bf16 and f16, and
/// for the reasons of store_weights().
template <class Module>
void quantize(Module& module, const QuantizeOptions& options = {}) {
  using T = detail::parameter_t<Module>;
  static_assert(std::same_as<Accumulator<T>, float>,
                "quantize: the module must be of float, bfloat16 or float16");
  const bool is_bf16 = options.weights == WeightFormat::bf16;
  if (is_bf16 || options.weights == WeightFormat::f16) {
    if (detail::is_integer(options.activations)) {
      throw ValueError(message("quantize", "activations",
                               "be exact or bf16 with weights of 16 bits",
                               options.activations == ActivationFormat::int8 ? "int8" : "int16"));
    }
    return store_weights(module, is_bf16 ? DType::BF16 : DType::F16,
                         options.activations == ActivationFormat::bf16);
  }
  const bool any_width = options.weights == WeightFormat::int8;
  visit_weights<T>(module, [&](std::string_view name, WeightSlot<T>& slot) {
    if (any_width || slot.shape[1] % 32 == 0) return;
    throw ValueError(
        message("quantize", name, "have a multiple of 32 columns", std::to_string(slot.shape[1])));
  });
  std::vector<std::shared_ptr<const CompressedWeight<float>>> forms;
  visit_weights<T>(module, [&](std::string_view, WeightSlot<T>& slot) {
    forms.push_back(slot.dense ? detail::compressed_weight<T>(slot.dense, options) : nullptr);
  });
  std::size_t at = 0;
  visit_weights<T>(module, [&](std::string_view, WeightSlot<T>& slot) {
    if (forms[at] != nullptr) slot.compress(std::move(forms[at]));
    ++at;
  });
}

/// Bytes of a module's weight matrices, as tensors or quantised; copies made by pack() are not
/// counted.
template <class Module>
index_t weight_bytes(Module& module) {
  using T = detail::parameter_t<Module>;
  index_t total = 0;
  visit_weights<T>(module, [&](std::string_view, WeightSlot<T>& slot) { total += slot.bytes; });
  return total;
}

ATTN_NAMESPACE_END
