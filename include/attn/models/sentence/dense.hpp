// SentenceDense: a dense layer after the pooling of a sentence-transformers folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "attn/models/pretrained/config.hpp"

ATTN_NAMESPACE_BEGIN

/// y = f(x weight^T + bias), f being tanh or nothing.
template <class T>
struct SentenceDense {
  Linear<T> linear;
  bool tanh = true;

  /// x (lines, in_features) to (lines, out_features).
  Tensor2<T> operator()(const Tensor2<T>& x, const Execution& execution = {}) const {
    Tensor2<T> y = linear(x, Activation::none, execution);
    if (!tanh) return y;
    for (T& one : y.elements()) {
      one = static_cast<T>(std::tanh(static_cast<Accumulator<T>>(one)));
    }
    return y;
  }
};

namespace detail {

/// Reads config.json and model.safetensors of a module's folder, for vectors of `in` features.
template <class T>
SentenceDense<T> dense_from_folder(const std::filesystem::path& folder, index_t in,
                                   const PretrainedOptions& options) {
  const ConfigFile config(folder / "config.json");
  const SafetensorsFolder file(folder);
  if (config.count("in_features") != in) {
    config.fail("in_features", concat("be ", in, ", the width of its input"),
                std::to_string(config.count("in_features")));
  }
  const index_t out = config.count("out_features");
  const auto function = config.get<std::string>("activation_function", "torch.nn.Tanh");
  const bool is_tanh = function.ends_with(".Tanh");
  if (!is_tanh && !function.ends_with(".Identity")) {
    config.fail("activation_function", "be Tanh or Identity of torch.nn", quote(function));
  }
  for (const std::string_view key : {"module_input_name", "module_output_name"}) {
    check_only<std::string>(config, key, "sentence_embedding", "sentence_embedding");
  }
  check_only(config, "use_residual", false, "false");
  const bool bias = config.get<bool>("bias", true);
  check_all_read(config, options);
  SentenceDense<T> dense{.linear = {in, out, bias}, .tanh = is_tanh};
  load_state_dict(dense.linear, file, {.prefix = "linear."});
  if (options.pack) dense.linear.pack(options.matmul_precision);
  return dense;
}

}  // namespace detail

ATTN_NAMESPACE_END
