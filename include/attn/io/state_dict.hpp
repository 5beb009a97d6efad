// State dicts: parameters by PyTorch's names, from safetensors files into modules and back.
// SPDX-License-Identifier: Apache-2.0
//
// A module takes part by two members, which call f(name, view) once per parameter, always in the same order:
//
//   void visit_parameters(const ParameterVisitor<T>& f);  // layers/parameter_visitor.hpp
//   void visit_parameters(const ParameterVisitor<const T>& f) const;
//
// or, where its parameters have several element types, by templates over f.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/io/named_tensor.hpp"
#include "attn/io/safetensors.hpp"
#include "attn/io/safetensors_writer.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

struct AnyParameterVisitor {
  template <TensorElement T, int Rank>
  void operator()(std::string_view, TensorView<T, Rank>) const {}
  template <TensorElement T, int Rank>
  void operator()(std::string_view, TensorView<const T, Rank>) const {}
};

}  // namespace detail

/// A module, or a const one, with parameters that have names.
template <class M>
concept ParameterModule = requires(M& module, const detail::AnyParameterVisitor& visitor) {
  module.visit_parameters(visitor);
};

struct LoadOptions {
  /// Stands before every name in the file: "encoder.layer.0." loads one layer of a model.
  std::string prefix = {};
  /// Missing and unexpected tensors are errors; otherwise they are only reported.
  bool strict = true;
  /// From the module's name to the file's (without prefix), for files of other naming schemes.
  std::function<std::string(std::string_view)> rename = {};
  /// What the file may hold beside the module's tensors: names without prefix, or with a dot at the end all below.
  std::vector<std::string> ignore = {};
};

/// Names as in the file, prefix included.
struct LoadReport {
  std::vector<std::string> loaded;   ///< in the module's order
  std::vector<std::string> missing;  ///< what the module has and the file has not
  std::vector<std::string>
      unexpected;  ///< what the file has under the prefix, not ignored, and the module has not
};

/// Copies tensors of `file` into the module's parameters, with the conversions of
/// SafetensorsFile::load(). Everything is checked before anything is written: a failed load leaves
/// the module as it was. Throws ShapeError or DTypeError for a tensor that does not fit, naming it
/// and both shapes; in strict mode ValueError that lists the missing and the unexpected names.
template <ParameterModule Module>
LoadReport load_state_dict(Module& module, const SafetensorsFile& file,
                           const LoadOptions& options = {}) {
  LoadReport report;
  std::vector<std::string> names;  // one per parameter: renaming is not asked twice
  module.visit_parameters([&]<class T, int Rank>(std::string_view name, TensorView<T, Rank> out) {
    const std::string& full = names.emplace_back(
        options.prefix + (options.rename ? options.rename(name) : std::string(name)));
    if (file.contains(full)) {
      file.check<T>(full, out.shape());
      report.loaded.push_back(full);
    } else {
      report.missing.push_back(full);
    }
  });
  const std::set<std::string_view> used(names.begin(), names.end());
  const auto is_ignored = [&](std::string_view name) {
    return std::any_of(options.ignore.begin(), options.ignore.end(), [&](const std::string& one) {
      return one.ends_with('.') ? name.starts_with(one) : name == one;
    });
  };
  for (std::string& name : file.names()) {
    if (name.starts_with(options.prefix) && !used.contains(name) &&
        !is_ignored(std::string_view(name).substr(options.prefix.size()))) {
      report.unexpected.push_back(std::move(name));
    }
  }
  if (options.strict && !(report.missing.empty() && report.unexpected.empty())) {
    throw ValueError(message("load_state_dict", detail::quote(file.file_name()),
                             "hold the module's tensors and no others",
                             detail::concat(detail::list_text(report.missing, "missing"), " and ",
                                            detail::list_text(report.unexpected, "unexpected"))));
  }

  auto name = names.cbegin();
  module.visit_parameters([&]<class T, int Rank>(std::string_view, TensorView<T, Rank> out) {
    if (file.contains(*name)) file.load(*name, out);
    ++name;
  });
  return report;
}

struct SaveOptions {
  /// As those of LoadOptions: the same two load what was saved.
  std::string prefix = {};
  std::function<std::string(std::string_view)> rename = {};  ///< as that of LoadOptions
  SafetensorsMetadata metadata = {};  ///< texts by name, in the head of the file
};

/// The module's parameters in its own order, by PyTorch's names or those that `options` makes of them; the list refers
/// to the module's memory.
template <class Module>
  requires ParameterModule<const Module>
std::vector<NamedTensor> state_dict(const Module& module, const SaveOptions& options = {}) {
  std::vector<NamedTensor> tensors;
  module.visit_parameters([&](std::string_view name, const auto& view) {
    tensors.emplace_back(
        options.prefix + (options.rename ? options.rename(name) : std::string(name)), view);
  });
  return tensors;
}

/// Writes a file that load_state_dict() and PyTorch read. Throws as save_safetensors() does.
template <class Module>
  requires ParameterModule<const Module>
void save_state_dict(const std::filesystem::path& path, const Module& module,
                     const SaveOptions& options = {}) {
  save_safetensors(path, state_dict(module, options), options.metadata);
}

ATTN_NAMESPACE_END
