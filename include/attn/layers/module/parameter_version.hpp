// ParameterVersion: detects packed copies of changed parameters.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "attn/kernels/gemm/gemm.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

/// A number that identifies the content of a parameter: copies of a module keep it, every write
/// takes a new one.
class ParameterVersion {
 public:
  void touch() { number_ = next(); }
  bool operator==(const ParameterVersion&) const = default;

 private:
  static std::uint64_t next() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }

  std::uint64_t number_ = next();
};

/// A weight packed for the kernels, and the version of the weight that it was packed from.
template <class T>
class PackedCopy {
 public:
  PackedCopy() = default;
  /// Packs `weight` (out, in), whose version is `version`.
  PackedCopy(TensorView2<const T> weight, const ParameterVersion& version,
             MatmulPrecision precision)
      : weights_(weight.transpose(0, 1), {}, precision), version_(version) {}

  /// Returns the packed copy, or nullptr if there is none, it is stale, or it is for another
  /// instruction set or precision than the call's.
  const PackedWeights<T>* find(const ParameterVersion& now, const Execution& execution) const {
    return version_ == now && weights_.serves(execution) ? &weights_ : nullptr;
  }

 private:
  PackedWeights<T> weights_;
  ParameterVersion version_;
};

}  // namespace detail

ATTN_NAMESPACE_END
