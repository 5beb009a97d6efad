// Case: an entry of a golden manifest with its tensors, and the result of its check.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "attn/io/safetensors.hpp"

#include "support/references/reference.hpp"

namespace attn_test {

/// Reason for skipping a case: the library does not support it.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Case {
 public:
  Case(std::string name, nlohmann::ordered_json attributes, const attn::SafetensorsFile& file)
      : name_(std::move(name)), attributes_(std::move(attributes)), file_(&file) {}

  const std::string& name() const { return name_; }
  const nlohmann::ordered_json& attributes() const { return attributes_; }
  const attn::SafetensorsFile& file() const { return *file_; }
  /// Prefix of the tensors' names in the file.
  std::string prefix() const { return name_ + "/"; }

  /// No value if it is absent or null. Throws for another type.
  template <class V>
  std::optional<V> attribute(std::string_view key) const {
    const auto at = attributes_.find(key);
    if (at == attributes_.end() || at->is_null()) return std::nullopt;
    return at->template get<V>();
  }
  template <class V>
  V required(std::string_view key) const {
    const auto value = attribute<V>(key);
    if (!value) throw std::runtime_error("attribute '" + std::string(key) + "' is missing");
    return *value;
  }

  bool has(std::string_view tensor) const { return file_->contains(path(tensor)); }
  bool is_bool(std::string_view tensor) const {
    return file_->dtype(path(tensor)) == attn::DType::BOOL;
  }

  /// float or double from any floating-point tensor, 0 and 1 from BOOL, std::int64_t from integers.
  template <class T>
  Array<T> load(std::string_view tensor) const {
    mark_read(tensor);
    const std::string full = path(tensor);
    if (file_->dtype(full) == attn::DType::BOOL) return load_rank<bool, T>(full);
    return load_rank<T, T>(full);
  }
  /// Empty if the case has no such tensor.
  template <class T>
  Array<T> load_if(std::string_view tensor) const {
    return has(tensor) ? load<T>(tensor) : Array<T>();
  }

  void mark_read(std::string_view tensor) const { read_.insert(std::string(tensor)); }

  /// Tensors that were not read: an option that the test does not know.
  std::vector<std::string> unread() const {
    std::vector<std::string> names;
    for (const std::string& full : file_->names()) {
      if (!full.starts_with(prefix())) continue;
      const std::string tensor = full.substr(prefix().size());
      if (!read_.contains(tensor)) names.push_back(tensor);
    }
    return names;
  }

  /// Records a comparison; `difference` is empty if it passed.
  void expect(std::string difference) {
    ++checks_;
    if (!difference.empty()) failures_.push_back(std::move(difference));
  }
  /// expect() for a gradient, which is counted separately.
  void expect_gradient(std::string difference) {
    ++gradients_;
    expect(std::move(difference));
  }
  int gradients() const { return gradients_; }
  int checks() const { return checks_; }
  const std::vector<std::string>& failures() const { return failures_; }

 private:
  std::string path(std::string_view tensor) const { return prefix().append(tensor); }

  template <class Stored, class T, int Rank = 1>
  Array<T> load_rank(const std::string& full) const {
    if constexpr (Rank > 5) {
      throw Unsupported("a tensor of rank " + std::to_string(file_->shape(full).size()));
    } else {
      if (file_->shape(full).size() > std::size_t{Rank})
        return load_rank<Stored, T, Rank + 1>(full);
      const attn::Tensor<Stored, Rank> tensor = file_->load<Stored, Rank>(full);
      Array<T> result;
      result.shape.assign(tensor.shape().begin(), tensor.shape().end());
      for (const Stored& x : tensor.elements()) result.data.push_back(static_cast<T>(x));
      return result;
    }
  }

  std::string name_;
  nlohmann::ordered_json attributes_;
  const attn::SafetensorsFile* file_;
  mutable std::set<std::string> read_;
  int checks_ = 0, gradients_ = 0;
  std::vector<std::string> failures_;
};

/// The check of one manifest.
struct Suite {
  /// Attributes that `check` supports; a case with others is skipped. Attributes with text are
  /// comments unless they are listed here.
  std::set<std::string_view> attributes;
  /// Compares everything in the case; throws Unsupported to skip it.
  void (*check)(Case&);
};

extern const Suite sdpa_suite, multihead_attention_suite, transformer_layers_suite, tutorials_suite,
    training_suite;

}  // namespace attn_test
