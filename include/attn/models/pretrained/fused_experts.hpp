// ExpertsFile: reads tensors that hold all experts of a layer as tensors of each expert.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "attn/io/gguf/blocks.hpp"
#include "attn/io/safetensors/folder.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// Name suffixes of the tensors that hold all experts of a layer; empty if each expert has tensors
/// of its own. Weights are (num_experts, out, in), biases (num_experts, out). A weight may also be
/// in MXFP4, as two tensors with the ends _blocks and _scales.
struct FusedExperts {
  std::string_view gate_up = {}, down = {};
  std::string_view gate_up_bias = {}, down_bias = {};
  bool transposed = false;   ///< weights are (num_experts, in, out), those in MXFP4 excepted
  bool interleaved = false;  ///< outputs of gate and up alternate; otherwise up follows gate
};

/// Blocks of MXFP4 as in safetensors files: 32 numbers of 4 bits in 16 bytes, the first of two
/// consecutive numbers in the low half, and a scale of 2^(byte - 127) for each block.
inline void decode_mxfp4(std::span<const std::byte> blocks, std::span<const std::byte> scales,
                         float* out) {
  for (std::size_t n = 0; n < scales.size(); ++n) {
    const bool is_nan = std::to_integer<int>(scales[n]) == 255;
    const float scale = is_nan ? std::numeric_limits<float>::quiet_NaN() : mxfp4_scale(scales[n]);
    for (const std::byte two : blocks.subspan(16 * n, 16)) {
      *out++ = scale * kMxfp4Values[std::to_integer<std::size_t>(two & std::byte{15})];
      *out++ = scale * kMxfp4Values[std::to_integer<std::size_t>(two >> 4)];
    }
  }
}

/// A SafetensorsFolder whose tensors of all experts appear as <layer>.experts.<n>.gate_proj.weight,
/// up_proj and down_proj, and their biases. It refers to the folder.
class ExpertsFile {
 public:
  /// Throws ShapeError for a tensor of all experts that is empty or has another rank, or an odd
  /// number of outputs of gate and up.
  ExpertsFile(const SafetensorsFolder& folder, const FusedExperts& fused)
      : folder_(folder), fused_(fused) {
    for (const std::string& name : folder.names()) {
      // Whether the name has this end; the scales belong to their blocks.
      const auto add = [&](std::string_view end, bool is_gate_up, bool is_bias) {
        if (end.empty()) return false;
        const std::string blocks = concat(end, "_blocks"), scales = concat(end, "_scales");
        const bool is_whole = name.ends_with(end), is_blocks = name.ends_with(blocks);
        if (is_whole) add_tensor(name, end, is_gate_up, is_bias, false);
        if (is_blocks) add_tensor(name, blocks, is_gate_up, is_bias, true);
        return is_whole || is_blocks || name.ends_with(scales);
      };
      if (!add(fused.gate_up, true, false) && !add(fused.down, false, false) &&
          !add(fused.gate_up_bias, true, true) && !add(fused.down_bias, false, true)) {
        names_.push_back(name);
      }
    }
    for (const auto& item : parts_) names_.push_back(item.first);
  }

  const std::string& file_name() const { return folder_.file_name(); }
  std::vector<std::string> names() const { return names_; }
  bool contains(std::string_view name) const {
    return parts_.contains(name) || folder_.contains(name);
  }
  DType dtype(std::string_view name) const {
    const Part* part = find(name);
    if (part == nullptr) return folder_.dtype(name);
    return part->is_mxfp4 ? DType::F32 : folder_.dtype(part->tensor);
  }
  const std::vector<index_t>& shape(std::string_view name) const {
    const Part* part = find(name);
    return part == nullptr ? folder_.shape(name) : part->shape;
  }

  /// Throws what load() would throw for elements T and this shape.
  template <TensorElement T>
  void check(std::string_view name, std::span<const index_t> shape) const {
    const Part* part = find(name);
    if (part == nullptr) return folder_.check<T>(name, shape);
    stored(name, part->shape).check_shape("load", shape);
    if (part->is_mxfp4) {
      for (const std::string& tensor : {part->tensor, scales_of(part->tensor)}) {
        if (folder_.dtype(tensor) == DType::U8) continue;
        throw DTypeError(
            stored(tensor, {}).error("load", "hold U8", attn::name(folder_.dtype(tensor))));
      }
      std::vector<index_t> scales = folder_.shape(part->tensor);
      scales.pop_back();
      folder_.check<std::uint8_t>(scales_of(part->tensor), scales);
    } else {
      folder_.check<T>(part->tensor, folder_.shape(part->tensor));
    }
  }

  template <TensorElement T, int Rank>
  void load(std::string_view name, TensorView<T, Rank> out) const {
    const Part* part = find(name);
    if (part == nullptr) return folder_.load(name, out);
    check<T>(name, out.shape());
    if constexpr (Rank == 1 || Rank == 2) {
      if constexpr (Rank == 2 && (std::is_floating_point_v<T> || Float16Element<T>)) {
        if (part->is_mxfp4) return load_mxfp4(*part, out);
      }
      // The expert in the order of the file.
      const std::vector<index_t>& all = folder_.shape(part->tensor);
      const bool is_transposed = Rank == 2 && fused_.transposed;
      Shape<Rank> shape{};
      std::copy(all.begin() + 1, all.end(), shape.begin());
      auto expert = Tensor<T, Rank>::uninitialized(shape);
      decode_stored<T, Rank>(folder_.dtype(part->tensor), bytes_of(*part, part->tensor), false,
                             expert.view());
      TensorView<const T, Rank> outputs = expert.view();
      if constexpr (Rank == 2) {
        if (is_transposed) outputs = outputs.transpose(0, 1);
      }
      copy(outputs_of(*part, outputs), out);
    }
  }

 private:
  /// A tensor of one expert: outputs first, first + step, .. of `expert` in `tensor`.
  struct Part {
    std::string tensor;
    bool is_mxfp4;
    index_t expert, first, step;
    std::vector<index_t> shape;
  };

  const Part* find(std::string_view name) const {
    const auto at = parts_.find(name);
    return at == parts_.end() ? nullptr : &at->second;
  }
  StoredTensor stored(std::string_view name, std::span<const index_t> shape) const {
    return {.reader = "ExpertsFile", .file = file_name(), .name = name, .shape = shape};
  }
  static std::string scales_of(std::string tensor) {
    return tensor.replace(tensor.rfind("_blocks"), std::string::npos, "_scales");
  }

  void add_tensor(const std::string& name, std::string_view end, bool is_gate_up, bool is_bias,
                  bool is_mxfp4) {
    const std::vector<index_t>& all = folder_.shape(name);
    const auto fail = [&](std::string_view expected) {
      throw ShapeError(stored(name, all).error("load", expected, shape_text(all)));
    };
    // Otherwise a small file could request a large number of experts.
    if (size_of(all) == 0) fail("not be empty");
    if (is_mxfp4) {
      if (all.size() != 4 || all[3] != 16) fail("have shape (num_experts, out, in / 32, 16)");
    } else if (all.size() != (is_bias ? 2 : 3)) {
      fail(is_bias ? "have shape (num_experts, out)" : "have rank 3, num_experts first");
    }
    const bool is_transposed = fused_.transposed && !is_mxfp4 && !is_bias;
    const index_t outputs = all[is_transposed ? 2 : 1];
    if (is_gate_up && outputs % 2 != 0) fail("have an even number of outputs");
    std::string layer = name.substr(0, name.size() - end.size());
    if (layer.ends_with(".experts")) layer.resize(layer.size() - 8);
    for (index_t e = 0; e < all[0]; ++e) {
      const std::string expert = concat(layer, ".experts.", e, ".");
      const auto add = [&](std::string_view part, index_t first, index_t step, index_t count) {
        std::vector<index_t> shape{count};
        if (!is_bias) shape.push_back(is_mxfp4 ? 32 * all[2] : all[is_transposed ? 1 : 2]);
        parts_.emplace(concat(expert, part, is_bias ? ".bias" : ".weight"),
                       Part{.tensor = name,
                            .is_mxfp4 = is_mxfp4,
                            .expert = e,
                            .first = first,
                            .step = step,
                            .shape = std::move(shape)});
      };
      if (is_gate_up) {
        const index_t half = outputs / 2, step = fused_.interleaved ? 2 : 1;
        add("gate_proj", 0, step, half);
        add("up_proj", fused_.interleaved ? 1 : half, step, half);
      } else {
        add("down_proj", 0, 1, outputs);
      }
    }
  }

  /// The bytes of the part's expert in a tensor of all experts.
  std::span<const std::byte> bytes_of(const Part& part, const std::string& tensor) const {
    const std::span<const std::byte> all = folder_.file_of(tensor).bytes(tensor);
    const std::size_t bytes = all.size() / static_cast<std::size_t>(folder_.shape(tensor)[0]);
    return all.subspan(static_cast<std::size_t>(part.expert) * bytes, bytes);
  }

  template <class T, int Rank>
  static TensorView<const T, Rank> outputs_of(const Part& part,
                                              const TensorView<const T, Rank>& all) {
    Shape<Rank> shape = all.shape(), strides = all.strides();
    shape[0] = part.shape[0];
    strides[0] *= part.step;
    return {all.data() + part.first * all.stride(0), shape, strides};
  }

  template <class T>
  void load_mxfp4(const Part& part, const TensorView<T, 2>& out) const {
    const std::vector<index_t>& all = folder_.shape(part.tensor);
    auto expert = Tensor2<float>::uninitialized({all[1], 32 * all[2]});
    decode_mxfp4(bytes_of(part, part.tensor), bytes_of(part, scales_of(part.tensor)),
                 expert.data());
    const TensorView2<const float> outputs =
        outputs_of(part, TensorView2<const float>(expert.view()));
    for (index_t i = 0; i < out.extent(0); ++i) {
      for (index_t k = 0; k < out.extent(1); ++k) out(i, k) = static_cast<T>(outputs(i, k));
    }
  }

  const SafetensorsFolder& folder_;
  FusedExperts fused_;
  std::vector<std::string> names_;
  std::map<std::string, Part, std::less<>> parts_;
};

}  // namespace detail

ATTN_NAMESPACE_END
