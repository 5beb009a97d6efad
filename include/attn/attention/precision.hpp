// AttentionPrecision: arithmetic of the product of queries and keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "attn/simd/isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
struct TiledProducts;

/// Returns the int8 kernels of an instruction set: see code_path.hpp, which sdpa.hpp includes.
template <class T>
struct CodeProducts;

/// Returns the function that gives the int8 kernels, or null where attn::compiled provides them.
template <class T>
constexpr auto code_products() -> TiledProducts<T> (*)(Isa) {
#if defined(ATTN_COMPILED)
  return nullptr;
#else
  constexpr bool is_included = requires { &CodeProducts<T>::on; };
  static_assert(is_included,
                "AttentionPrecision::int8 compiles its kernels where it is named: include "
                "attn/attention.hpp or attn/attention/sdpa.hpp");
  if constexpr (is_included) {
    return &CodeProducts<T>::on;
  } else {
    return nullptr;
  }
#endif
}

/// The values of AttentionPrecision. They are members of a template because a program instantiates,
/// and so compiles kernels for, only those that it names.
template <class Precision>
struct AttentionPrecisions {
  static const Precision exact, int8;
};

}  // namespace detail

/// The arithmetic of the products of queries and keys.
///
/// AttentionPrecision::exact: the arithmetic of the softmax, float or double.
///
/// AttentionPrecision::int8: queries and keys are quantised to 8 bits, with one scale per query and
/// per key of a head. The mean of each block of 64 positions is subtracted from its keys first, and
/// its product with the query is added in float: scale (q . mean + q . (k - mean)). The mean is
/// taken over the finite keys of the block that lengths, causality, windows, documents and chunks
/// keep for at least one query. Everything else is computed as with exact, except that
/// Isa::avx512bf16 and Isa::amx round weights and values to bfloat16. The decode path (few
/// queries), keys of more than 65536 elements, and gradients are exact. Not for double.
/// docs/precision.md lists the errors. Source: Zhang et al., "SageAttention" (2024).
class AttentionPrecision : public detail::AttentionPrecisions<AttentionPrecision> {
 public:
  using Element = float;  ///< type of the dequantised sums
  using CodeProducts = detail::TiledProducts<Element> (*)(Isa);

  /// Constructs AttentionPrecision::exact.
  constexpr AttentionPrecision() = default;

  friend constexpr bool operator==(const AttentionPrecision& a, const AttentionPrecision& b) {
    return a.is_int8_ == b.is_int8_;
  }

  /// Whether it is int8. Does not name AttentionPrecision::int8, which would compile its kernels.
  constexpr bool is_int8() const { return is_int8_; }
  /// The int8 kernels; null where attn::compiled provides them.
  constexpr CodeProducts code_products() const { return code_products_; }
  /// The address that identifies the int8 kernels, to compare with attn::compiled.
  static constexpr std::size_t code_products_offset() {
    return offsetof(AttentionPrecision, code_products_);
  }

 private:
  friend struct detail::AttentionPrecisions<AttentionPrecision>;
  constexpr explicit AttentionPrecision(CodeProducts products)
      : is_int8_(true), code_products_(products) {}

  bool is_int8_ = false;
  CodeProducts code_products_ = nullptr;
};

namespace detail {

template <class Precision>
constexpr Precision AttentionPrecisions<Precision>::exact{};
template <class Precision>
constexpr Precision AttentionPrecisions<Precision>::int8{
    code_products<typename Precision::Element>()};

}  // namespace detail

ATTN_NAMESPACE_END
