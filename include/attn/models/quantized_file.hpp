// save_quantized, load_quantized: quantised modules in safetensors files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <variant>

#include "attn/io/state_dict.hpp"
#include "attn/models/float16_weight.hpp"
#include "attn/models/gguf/weights.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// The parameters of a module that are tensors, in the form that state_dict() and load_state_dict()
/// require.
template <class Module>
class TensorsOf {
 public:
  using Element = parameter_t<Module>;
  using T = std::conditional_t<std::is_const_v<Module>, const Element, Element>;

  explicit TensorsOf(Module& module) : module_(module) {}

  template <class F>
  void visit_parameters(F&& f) const {
    Both<F> both{f};
    module_.visit_parameters(ParameterVisitor<T>::of_all(both));
  }

 private:
  template <class F>
  struct Both {
    F& f;
    void operator()(std::string_view, WeightSlot<T>&) const {}
    template <int Rank>
    void operator()(std::string_view name, const TensorView<T, Rank>& view) const {
      f(name, view);
    }
  };

  Module& module_;
};

/// Quantised values and scales of a matrix with one scale per row.
struct QuantizedRows {
  Tensor2<std::int8_t> codes;
  Tensor1<float> scales;

  explicit QuantizedRows(const QuantizedWeights& weights)
      : codes({weights.n(), weights.k()}), scales({weights.n()}) {
    std::vector<std::uint8_t> row(static_cast<std::size_t>(weights.k()));
    float offset;
    for (index_t n = 0; n < weights.n(); ++n) {
      weights.get_block(n, 0, row.data(), scales(n), offset);
      for (index_t i = 0; i < weights.k(); ++i) {
        codes(n, i) = static_cast<std::int8_t>(row[static_cast<std::size_t>(i)] - 128);
      }
    }
  }
};

inline QuantizedWeights quantized_rows(TensorView2<const std::int8_t> codes,
                                       TensorView1<const float> scales) {
  QuantizedWeights result(codes.extent(0), codes.extent(1), {.block = 0, .float_scales = true});
  std::vector<std::uint8_t> row(static_cast<std::size_t>(codes.extent(1)));
  for (index_t n = 0; n < codes.extent(0); ++n) {
    for (index_t i = 0; i < codes.extent(1); ++i) {
      row[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(codes(n, i) + 128);
    }
    result.set_block(n, 0, row.data(), scales(n));
  }
  return result;
}

inline std::string scale_name(const std::string& weight) { return weight + "_scale"; }

}  // namespace detail

/// Saves a module that quantize() compressed: weights of WeightFormat::int8 as `weight` (I8, (out,
/// in)) and `weight_scale` (F32, (out)), where each weight is their product; those of
/// WeightFormat::bf16 and f16 as BF16 and F16; everything else in the format of save_state_dict().
/// Throws ValueError for formats with blocks, which only GGUF files hold (save_gguf()), before
/// anything is written, and what save_safetensors() throws.
template <class Module>
void save_quantized(const std::filesystem::path& path, const Module& module,
                    const SaveOptions& options = {}) {
  std::vector<NamedTensor> tensors = state_dict(detail::TensorsOf<const Module>(module), options);
  std::deque<detail::QuantizedRows> rows;  // a deque does not move its elements
  std::deque<std::variant<Tensor2<bfloat16>, Tensor2<float16>>> unpacked;
  using T = const detail::parameter_t<Module>;
  visit_weights<T>(module, [&](std::string_view name, WeightSlot<T>& slot) {
    if (slot.form == nullptr) return;
    const std::string full =
        options.prefix + (options.rename ? options.rename(name) : std::string(name));
    const auto add_if = [&]<class E>(E) {
      const auto* in_16_bits = dynamic_cast<const Float16Weight<E>*>(slot.form.get());
      if (in_16_bits == nullptr) return false;
      auto& memory = std::get<Tensor2<E>>(unpacked.emplace_back(Tensor2<E>()));
      tensors.emplace_back(full, in_16_bits->weight(memory));
      return true;
    };
    if (add_if(bfloat16{}) || add_if(float16{})) return;
    const auto* codes = dynamic_cast<const QuantizedWeight*>(slot.form.get());
    const QuantizedFormat by_row{.block = 0, .float_scales = true};
    if (codes == nullptr || codes->weights().format() != by_row) {
      throw ValueError(
          message("save_quantized", detail::quote(full),
                  "be int8 with one scale per row, bfloat16 or float16 (only GGUF files store "
                  "blocks)",
                  "blocks"));
    }
    const detail::QuantizedRows& made = rows.emplace_back(codes->weights());
    tensors.emplace_back(full, made.codes.view());
    tensors.emplace_back(detail::scale_name(full), made.scales.view());
  });
  save_safetensors(path, tensors, options.metadata);
}

/// Loads a file of save_quantized() into a float module with the options of the saved one: weight
/// matrices of I8, BF16 or F16 keep that format in the module and are multiplied with `activations`
/// (BF16 and F16 with float activations if these are int8 or int16); everything else is loaded as
/// by load_state_dict(), with its errors, naming tensors. A failed load leaves the module
/// unchanged.
template <class Module>
LoadReport load_quantized(Module& module, const SafetensorsFile& file,
                          ActivationFormat activations = ActivationFormat::exact,
                          const LoadOptions& options = {}) {
  Module loaded = module;
  LoadOptions rest = options;
  std::vector<std::string> compressed;
  using T = detail::parameter_t<Module>;
  visit_weights<T>(loaded, [&](std::string_view name, WeightSlot<T>& slot) {
    const std::string own = options.rename ? options.rename(name) : std::string(name);
    const std::string full = options.prefix + own;
    if (!file.contains(full)) return;
    const DType stored = file.dtype(full);
    const auto take = [&]<class E>(E) {
      file.check<E>(full, slot.shape);
      slot.compress(std::make_shared<const Float16Weight<E>>(
          file.load<E, 2>(full), activations == ActivationFormat::bf16));
    };
    if (detail::with_dtype<bfloat16, float16>(stored, take)) {
      // Already loaded.
    } else if (stored == DType::I8) {
      const std::string scale = detail::scale_name(full);
      file.check<std::int8_t>(full, slot.shape);
      file.check<float>(scale, Shape<1>{slot.shape[0]});
      slot.compress(std::make_shared<const QuantizedWeight>(
          detail::quantized_rows(file.load<std::int8_t, 2>(full), file.load<float, 1>(scale)),
          activations));
      rest.ignore.push_back(detail::scale_name(own));
      compressed.push_back(scale);
    } else {
      return;
    }
    rest.ignore.push_back(own);
    compressed.push_back(full);
  });
  detail::TensorsOf<Module> tensors(loaded);
  LoadReport report = load_state_dict(tensors, file, rest);
  report.loaded.insert(report.loaded.end(), compressed.begin(), compressed.end());
  module = std::move(loaded);
  return report;
}

ATTN_NAMESPACE_END
