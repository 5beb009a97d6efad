// AttentionPrecision: in what the products of queries and keys are computed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "attn/simd/isa.hpp"

ATTN_NAMESPACE_BEGIN

namespace detail {

template <class T>
struct TiledProducts;

/// on(isa), products of codes: see code_path.hpp, which sdpa.hpp includes.
template <class T>
struct CodeProducts;

/// That, or null where attn::compiled has it.
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

/// The values of AttentionPrecision. Members of a template, since a program instantiates, and so
/// compiles kernels for, only those that it names.
template <class Precision>
struct AttentionPrecisions {
  static const Precision exact, int8;
};

}  // namespace detail

/// In what the products of queries and keys are computed.
///
/// AttentionPrecision::exact: in the type that softmax is computed in, float or double.
///
/// AttentionPrecision::int8: in codes of 8 bits, with a scale for each query and key of a head. Of
/// keys the mean of their block of 64 positions (n / 64, counted from first_key on) is taken away
/// first, and what queries make of it is added in float: scale (q . mean + q . (k - mean)).
/// Everything after that is as ever, but that Isa::amx rounds weights and values to bfloat16. The
/// mean is that of all finite keys of the block that lengths, causality, windows, documents and
/// chunks show to some query. Decoding (few queries) and keys of more than 65536 numbers are exact,
/// and so are gradients. Not of double. docs/precision.md has the errors. Source: Zhang et al.,
/// "SageAttention" (2024).
class AttentionPrecision : public detail::AttentionPrecisions<AttentionPrecision> {
 public:
  using Element = float;  ///< what sums of products of codes become
  using CodeProducts = detail::TiledProducts<Element> (*)(Isa);

  /// Exact.
  constexpr AttentionPrecision() = default;

  friend constexpr bool operator==(const AttentionPrecision& a, const AttentionPrecision& b) {
    return a.is_int8_ == b.is_int8_;
  }

  /// Whether it is int8: without naming that, which would compile its kernels.
  constexpr bool is_int8() const { return is_int8_; }
  /// Kernels of int8; null where attn::compiled has them.
  constexpr CodeProducts code_products() const { return code_products_; }
  /// Where that lies, to compare with attn::compiled.
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
