// load_state_dict, save_state_dict: module parameters by PyTorch's names.
// SPDX-License-Identifier: Apache-2.0
//
// A module supports this by two members, which call f(name, view) once per parameter, always in the
// same order:
//
//   void visit_parameters(const ParameterVisitor<T>& f);  // layers/module/parameter_visitor.hpp
//   void visit_parameters(const ParameterVisitor<const T>& f) const;
//
// or, if its parameters have several element types, by templates over f.
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
#include "attn/io/rename.hpp"
#include "attn/io/safetensors.hpp"
#include "attn/io/safetensors/writer.hpp"

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
  /// Prefix of all names in the file: "encoder.layer.0." loads one layer of a model.
  std::string prefix = {};
  /// Missing and unexpected tensors are errors; otherwise the LoadReport lists them.
  bool strict = true;
  /// From the module's name to the file's (without prefix), for files with another naming scheme.
  std::function<std::string(std::string_view)> rename = {};
  /// Unexpected tensors to accept: names without prefix, beginnings that end with a dot, or ends
  /// that start with a dot. The lists below use the same patterns.
  std::vector<std::string> ignore = {};
  std::vector<std::string> transpose = {};  ///< matrices that the file stores transposed: (in, out)
  /// Tensors that the file stores in another shape, with the elements in the same order.
  std::vector<std::string> reshape = {};
  std::vector<std::string> add_one = {};  ///< tensors to add 1 to, such as Gemma's norms
  /// Tensors that the file may lack: the module's own values stay.
  std::vector<std::string> optional = {};
};

/// Names as in the file, prefix included.
struct LoadReport {
  std::vector<std::string> loaded;   ///< in the module's order
  std::vector<std::string> missing;  ///< names that the file lacks
  std::vector<std::string>
      unexpected;  ///< names under the prefix that the module lacks, without ignored ones
};

/// A type to load tensors from, such as SafetensorsFile and SafetensorsFolder.
template <class File>
concept TensorFile = requires(const File& file, std::string_view name, TensorView<float, 1> out) {
  file.names();
  file.template check<float>(name, file.shape(name));
  file.load(name, out);
};

namespace detail {

/// Whether a list of LoadOptions contains a name, given without prefix.
inline bool is_listed(std::span<const std::string> list, std::string_view name) {
  return std::any_of(list.begin(), list.end(), [&](const std::string& one) {
    return name == one || (one.ends_with('.') && name.starts_with(one)) ||
           (one.starts_with('.') && name.ends_with(one));
  });
}

/// How one parameter is stored in its file.
struct StoredAs {
  bool transposed, reshaped, less_one;

  StoredAs(const LoadOptions& options, std::string_view name)
      : transposed(is_listed(options.transpose, name)),
        reshaped(is_listed(options.reshape, name)),
        less_one(is_listed(options.add_one, name)) {}

  /// Throws what load() would throw.
  template <class T, int Rank, class File>
  void check(const File& file, const std::string& name, const TensorView<T, Rank>& out) const {
    Shape<Rank> shape = out.shape();
    if (transposed) std::reverse(shape.begin(), shape.end());
    if (!reshaped) return file.template check<T>(name, shape);
    const std::vector<index_t>& stored = file.shape(name);
    file.template check<T>(name, stored);
    if (size_of(stored) == out.size() && stored.size() <= 4 && out.is_contiguous()) return;
    throw ShapeError(
        message("load_state_dict", concat(quote(file.file_name()), ": tensor ", quote(name)),
                concat("have the elements of ", attn::to_string(shape)), shape_text(stored)));
  }

  template <class T, int Rank, class File>
  void load(const File& file, const std::string& name, const TensorView<T, Rank>& out) const {
    if (reshaped) {
      const std::vector<index_t>& stored = file.shape(name);
      const auto load_as = [&]<int N>(std::integral_constant<int, N>) {
        Shape<N> shape{};
        shape.fill(1);
        std::copy(stored.begin(), stored.end(), shape.begin());
        file.load(name, TensorView<T, N>(out.data(), shape));
      };
      switch (stored.size()) {
        case 0:
        case 1:
          load_as(std::integral_constant<int, 1>{});
          break;
        case 2:
          load_as(std::integral_constant<int, 2>{});
          break;
        case 3:
          load_as(std::integral_constant<int, 3>{});
          break;
        default:
          load_as(std::integral_constant<int, 4>{});
      }
    } else if constexpr (Rank == 2) {
      file.load(name, transposed ? out.transpose(0, 1) : out);
    } else {
      file.load(name, out);
    }
    if (less_one) add_one(out);
  }

 private:
  template <class T, int Rank>
  static void add_one(const TensorView<T, Rank>& x) {
    for (index_t i = 0; i < x.extent(0); ++i) {
      if constexpr (Rank == 1) {
        x(i) = static_cast<T>(x(i) + T{1});
      } else {
        add_one(x.select(0, i));
      }
    }
  }
};

/// The first part of load_state_dict(): throws its errors and writes nothing. Adds the name in the
/// file of each parameter to `names`.
template <class Module, class File>
LoadReport check_state_dict(Module& module, const File& file, const LoadOptions& options,
                            std::vector<std::string>& names) {
  LoadReport report;
  const auto without_prefix = [&](std::string_view name) {
    return name.substr(options.prefix.size());
  };
  module.visit_parameters([&]<class T, int Rank>(std::string_view name, TensorView<T, Rank> out) {
    const std::string& full = names.emplace_back(
        options.prefix + (options.rename ? options.rename(name) : std::string(name)));
    if (file.contains(full)) {
      const StoredAs stored(options, without_prefix(full));
      stored.check(file, full, out);
      if constexpr (is_float_element<T>) {
        if (may_overflow<T>(file.dtype(full))) {
          Tensor<double, Rank> values(out.shape());
          stored.load(file, full, values.view());
          check_overflow<T>("load_state_dict",
                            concat(quote(file.file_name()), ": tensor ", quote(full)),
                            std::span<const double>(values.elements()));
        }
      }
      report.loaded.push_back(full);
    } else if (!is_listed(options.optional, without_prefix(full))) {
      report.missing.push_back(full);
    }
  });
  const std::set<std::string_view> used(names.begin(), names.end());
  for (std::string& name : file.names()) {
    if (name.starts_with(options.prefix) && !used.contains(name) &&
        !is_listed(options.ignore, without_prefix(name))) {
      report.unexpected.push_back(std::move(name));
    }
  }
  if (options.strict && !(report.missing.empty() && report.unexpected.empty())) {
    throw ValueError(message("load_state_dict", quote(file.file_name()),
                             "hold the module's tensors and no others",
                             concat(list_text(report.missing, "missing"), " and ",
                                    list_text(report.unexpected, "unexpected"))));
  }
  return report;
}

/// The second part of load_state_dict(): copies the tensors `names`.
template <class Module, class File>
void copy_state_dict(Module& module, const File& file, const LoadOptions& options,
                     const std::vector<std::string>& names) {
  auto name = names.cbegin();
  module.visit_parameters([&]<class T, int Rank>(std::string_view, TensorView<T, Rank> out) {
    if (file.contains(*name)) {
      const std::string_view listed = std::string_view(*name).substr(options.prefix.size());
      StoredAs(options, listed).load(file, *name, out);
    }
    ++name;
  });
}

}  // namespace detail

/// Copies tensors of `file` into the module's parameters, with the conversions of
/// SafetensorsFile::load(). Everything is checked before anything is written: a failed load leaves
/// the module unchanged. Throws ShapeError or DTypeError for a tensor that does not fit, naming it
/// and both shapes; ValueError for a number that would be rounded to infinity; in strict mode
/// ValueError that lists the missing and the unexpected names.
template <ParameterModule Module, TensorFile File>
  requires(!std::is_const_v<Module>)
LoadReport load_state_dict(Module& module, const File& file, const LoadOptions& options = {}) {
  std::vector<std::string> names;  // one per parameter: rename is called once each
  LoadReport report = detail::check_state_dict(module, file, options, names);
  detail::copy_state_dict(module, file, options, names);
  return report;
}

/// Deleted: a module comes first, a file second.
template <class Module, class File>
  requires(!(ParameterModule<Module> && TensorFile<File>) || std::is_const_v<Module>)
void load_state_dict(Module&, const File&, const LoadOptions& = {}) {
  static_assert(ParameterModule<Module> && !std::is_const_v<Module>,
                "load_state_dict(module, file): the first must be a module that is not const, with "
                "visit_parameters()");
  static_assert(TensorFile<File>,
                "load_state_dict(module, file): the second must be a SafetensorsFile or a folder "
                "of them");
}

struct SaveOptions {
  /// See LoadOptions::prefix. LoadOptions with the same prefix and rename load what was saved.
  std::string prefix = {};
  std::function<std::string(std::string_view)> rename = {};  ///< see LoadOptions::rename
  SafetensorsMetadata metadata = {};  ///< texts by name, in the file's header
};

/// The module's parameters in its own order, under PyTorch's names or those that `options` derive
/// from them; the list refers to the module's memory.
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

/// Writes a file that load_state_dict() and PyTorch read. Throws what save_safetensors() throws.
template <class Module>
  requires ParameterModule<const Module>
void save_state_dict(const std::filesystem::path& path, const Module& module,
                     const SaveOptions& options = {}) {
  save_safetensors(path, state_dict(module, options), options.metadata);
}

/// Deleted: only a module has parameters.
template <class Module>
  requires(!ParameterModule<const Module>)
void save_state_dict(const std::filesystem::path&, const Module&, const SaveOptions& = {}) {
  static_assert(!std::is_same_v<Module, Module>,
                "save_state_dict(path, module): a module has visit_parameters() const; tensors are "
                "written by save_safetensors()");
}

ATTN_NAMESPACE_END
