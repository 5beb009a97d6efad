// Execution: how a call runs: executor, workspace, instruction set, precision of products.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "attn/exec/executor.hpp"
#include "attn/exec/workspace.hpp"
#include "attn/simd/isa.hpp"

namespace attn::family {
struct PartProducts;
}

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class Family, class In, class Acc>
struct Backend;
template <class T>
struct TiledProducts;

/// Functions that return an instruction set's kernels for floats in bfloat16 parts; null where
/// attn::compiled provides them.
template <class T>
struct PartTables {
  const Backend<family::PartProducts, T, T>& (*products)(Isa) = nullptr;  ///< of matrices
  TiledProducts<T> (*attention)(Isa) = nullptr;
};

/// Has the PartTables of a program: see part_products.hpp, which attn/attention.hpp includes.
template <class T>
struct PartProducts;

template <class T>
constexpr PartTables<T> part_tables() {
#if defined(ATTN_COMPILED)
  return {};
#else
  constexpr bool is_included = requires { PartProducts<T>::kTables; };
  static_assert(is_included,
                "MatmulPrecision::high and medium compile their kernels where they are named: "
                "include attn/attention.hpp or attn/layers.hpp");
  if constexpr (is_included) {
    return PartProducts<T>::kTables;
  } else {
    return {};
  }
#endif
}

/// The values of MatmulPrecision. They are members of a template because a program instantiates,
/// and so compiles kernels for, only those that it names.
template <class Precision>
struct MatmulPrecisions {
  static const Precision highest, high, medium;
};

}  // namespace detail

/// Arithmetic of products of floats, with the values of torch.set_float32_matmul_precision. Other
/// element types ignore it. docs/precision.md gives the errors.
///
/// MatmulPrecision::highest: products and sums in float.
///
/// MatmulPrecision::high: each float as the sum of two bfloat16: three products, summed in float.
///
/// MatmulPrecision::medium: each float rounded to bfloat16: one product, summed in float.
class MatmulPrecision : public detail::MatmulPrecisions<MatmulPrecision> {
 public:
  using Element = float;  ///< type of the elements to which it applies

  /// Constructs MatmulPrecision::highest.
  constexpr MatmulPrecision() = default;

  friend constexpr bool operator==(const MatmulPrecision& a, const MatmulPrecision& b) {
    return a.parts_ == b.parts_;
  }

  /// Number of bfloat16 into which a float is split: 2 for high, 1 for medium, 0 for highest. Does
  /// not name high and medium, which would compile their kernels.
  constexpr int parts() const { return parts_; }
  /// The kernels; null for highest and where attn::compiled provides them.
  constexpr const detail::PartTables<Element>& tables() const { return tables_; }

 private:
  friend struct detail::MatmulPrecisions<MatmulPrecision>;
  constexpr MatmulPrecision(int parts, detail::PartTables<Element> tables)
      : parts_(parts), tables_(tables) {}

  int parts_ = 0;
  detail::PartTables<Element> tables_ = {};
};

namespace detail {

template <class Precision>
constexpr Precision MatmulPrecisions<Precision>::highest{};
template <class Precision>
constexpr Precision MatmulPrecisions<Precision>::high{2,
                                                      part_tables<typename Precision::Element>()};
template <class Precision>
constexpr Precision MatmulPrecisions<Precision>::medium{1,
                                                        part_tables<typename Precision::Element>()};

}  // namespace detail

constexpr std::string_view name(MatmulPrecision precision) {
  constexpr std::string_view kNames[] = {"highest", "medium", "high"};
  return kNames[precision.parts()];
}

/// The precision used on an instruction set: `precision` if it is faster there, otherwise highest.
/// high needs amx; medium needs amx or avx512bf16.
constexpr MatmulPrecision precision_on(Isa isa, MatmulPrecision precision) {
  const bool is_faster = precision.parts() == 1 ? multiplies_pairs(isa) : isa == Isa::amx;
  return is_faster ? precision : MatmulPrecision::highest;
}

/// How a call runs: the last argument of every function.
struct Execution {
  const Executor* executor = nullptr;  ///< threads; default_executor() if null
  Workspace* workspace = nullptr;      ///< scratch memory; one per thread if null
  /// Instruction set; active_isa() if not given, ValueError if the machine lacks it.
  std::optional<Isa> isa = {};
  /// Precision of float products; matmul_precision_used() returns the one used.
  MatmulPrecision matmul_precision = MatmulPrecision::highest;

  const Executor& threads() const { return executor != nullptr ? *executor : default_executor(); }
  Workspace& scratch() const { return workspace != nullptr ? *workspace : default_workspace(); }
  Isa instruction_set() const { return isa ? require_isa(*isa) : active_isa(); }
  MatmulPrecision matmul_precision_used() const {
    return matmul_precision == MatmulPrecision::highest
               ? MatmulPrecision::highest
               : precision_on(instruction_set(), matmul_precision);
  }
};

ATTN_NAMESPACE_END
