// Isa: instruction sets that are compiled in, available and selected.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "attn/core/error.hpp"
#include "attn/simd/cpu_probe.hpp"
#include "attn/simd/pair_speed.hpp"

// Turns the features of a row of targets.inc into the arguments of a target region, and into a
// check of the machine.
#define ATTN_PRAGMA_(...) _Pragma(#__VA_ARGS__)
#define ATTN_PRAGMA(...) ATTN_PRAGMA_(__VA_ARGS__)
#define ATTN_STRING_(...) #__VA_ARGS__
#define ATTN_STRING(...) ATTN_STRING_(__VA_ARGS__)
#define ATTN_FEATURE(feature) #feature
#define ATTN_FEATURE_ALSO(feature) "," #feature
// Also checks that the operating system saves the wide registers.
#define ATTN_CPU_HAS(feature) __builtin_cpu_supports(#feature) != 0
#define ATTN_CPU_HAS_ALSO(feature) &&__builtin_cpu_supports(#feature) != 0
#define ATTN_TARGET_IS_(name) ATTN_TARGET_IS_##name
#define ATTN_TARGET_IS(name) ATTN_TARGET_IS_(name)

ATTN_NAMESPACE_BEGIN

/// The rows of simd/targets.inc, which lists the features that each one needs:
/// - scalar: the baseline of the family, SSE2 on x86-64, plain vectors elsewhere
/// - avx2: AVX2 and FMA
/// - avxvnni: also AVX-VNNI, for products of 8-bit integers; everything else runs as avx2
/// - avx512: AVX-512 F, BW, DQ and VL
/// - avx512vnni: also AVX-512 VNNI, for products of 8-bit integers; everything else runs as avx512
/// - avx512bf16: avx512vnni and AVX-512-BF16, for products of bfloat16
/// - amx: avx512vnni and AMX tiles of bfloat16 and 8-bit integers, for products of both; Linux only
/// - neon: the baseline of AArch64
/// - neondot: also the dot product of ARMv8.2, for products of 8-bit integers
enum class Isa {
#define ATTN_TARGET_ENTRY(name, base, is_compiled, is_there) name,
#include "attn/simd/targets.inc"
#undef ATTN_TARGET_ENTRY
};

inline constexpr Isa kAllIsas[] = {
#define ATTN_TARGET_ENTRY(name, base, is_compiled, is_there) Isa::name,
#include "attn/simd/targets.inc"
#undef ATTN_TARGET_ENTRY
};

namespace detail {

inline constexpr std::string_view kIsaNames[] = {
#define ATTN_TARGET_ENTRY(name, base, is_compiled, is_there) ATTN_STRING(name),
#include "attn/simd/targets.inc"
#undef ATTN_TARGET_ENTRY
};

}  // namespace detail

/// The set that `isa` extends, whose kernels run if the additional instructions do not help; isa
/// itself if it extends none.
constexpr Isa base(Isa isa) {
  constexpr Isa kBases[] = {
#define ATTN_TARGET_ENTRY(name, base, is_compiled, is_there) Isa::base,
#include "attn/simd/targets.inc"
#undef ATTN_TARGET_ENTRY
  };
  return kBases[static_cast<std::size_t>(isa)];
}

/// Whether bfloat16 products take pairs of consecutive k, by vectors or in tiles.
constexpr bool multiplies_pairs(Isa isa) { return isa == Isa::avx512bf16 || isa == Isa::amx; }

constexpr std::string_view name(Isa isa) {
  return detail::kIsaNames[static_cast<std::size_t>(isa)];
}

namespace detail {

/// A set of instruction sets.
class IsaSet {
 public:
  constexpr void insert(Isa isa) { bits_ |= bit(isa); }
  constexpr void remove(Isa isa) { bits_ &= ~bit(isa); }
  constexpr bool contains(Isa isa) const { return (bits_ & bit(isa)) != 0; }
  /// For a set that is not empty.
  constexpr Isa last() const { return static_cast<Isa>(std::bit_width(bits_) - 1); }

 private:
  static constexpr unsigned bit(Isa isa) { return 1u << static_cast<unsigned>(isa); }
  unsigned bits_ = 0;
};

/// The sets whose features this machine has, compiled or not.
inline IsaSet machine_isas() {
  static const IsaSet isas = [] {
#if ATTN_ARCH_X86
    __builtin_cpu_init();
#endif
    IsaSet found;
#define ATTN_TARGET_ENTRY(name, base, is_compiled, is_there) \
  if (is_there) found.insert(Isa::name);
#include "attn/simd/targets.inc"
#undef ATTN_TARGET_ENTRY
    return found;
  }();
  return isas;
}

/// The sets that the program was compiled with.
inline constexpr IsaSet kCompiledIsas = [] {
  IsaSet compiled;
#define ATTN_TARGET_ENTRY(name, base, is_compiled, is_there) \
  if (is_compiled) compiled.insert(Isa::name);
#include "attn/simd/targets.inc"
#undef ATTN_TARGET_ENTRY
  return compiled;
}();

inline constexpr std::string_view kBeAnIsa = "be one of:"
#define ATTN_TARGET_ENTRY(name, base, is_compiled, is_there) " " ATTN_STRING(name)
#include "attn/simd/targets.inc"
#undef ATTN_TARGET_ENTRY
    ;

inline Isa isa_from_name(std::string_view function, std::string_view argument,
                         std::string_view text) {
  for (Isa isa : kAllIsas) {
    if (name(isa) == text) return isa;
  }
  throw ValueError(message(function, argument, kBeAnIsa, join({"'", text, "'"})));
}

}  // namespace detail

/// The preferred set among those of this machine: avx512bf16 only if a measurement, once per
/// program, finds its products faster than those of floats.
inline Isa best_isa() {
  static const Isa best = [] {
    detail::IsaSet isas = detail::machine_isas();
    if (!detail::has_fast_pairs()) isas.remove(Isa::avx512bf16);
    return isas.last();
  }();
  return best;
}

/// True if the machine has every feature of the set and the program was compiled with it.
inline bool is_available(Isa isa) {
  return detail::kCompiledIsas.contains(isa) && detail::machine_isas().contains(isa);
}

namespace detail {

[[noreturn]] ATTN_COLD inline void throw_isa(std::string_view function, std::string_view argument,
                                             Isa isa) {
  std::string available;
  for (Isa other : kAllIsas) {
    if (is_available(other)) {
      available = join({available, available.empty() ? "" : ", ", name(other)});
    }
  }
  throw ValueError(message(function, argument,
                           join({"be one that this machine and this build have (", available, ")"}),
                           name(isa)));
}

inline Isa require_isa(std::string_view function, std::string_view argument, Isa isa) {
  if (!is_available(isa)) throw_isa(function, argument, isa);
  return isa;
}

}  // namespace detail

/// Throws ValueError for an unknown name.
inline Isa isa_from_name(std::string_view text) {
  return detail::isa_from_name("isa_from_name", "the instruction set", text);
}

/// `isa` itself. Throws ValueError where is_available(isa) is false.
inline Isa require_isa(Isa isa) {
  return detail::require_isa("require_isa", "the instruction set", isa);
}

/// The set of calls that name none: ATTN_PIN_ISA if the build pins one, otherwise the environment
/// variable ATTN_ISA (read once), otherwise best_isa(). Throws ValueError for a set that is unknown
/// or missing.
inline Isa active_isa() {
#if defined(ATTN_PIN_ISA)
  static const Isa isa = require_isa(Isa::ATTN_PIN_ISA);
#else
  static const Isa isa = [] {
    const char* wanted = std::getenv("ATTN_ISA");
    if (wanted == nullptr || *wanted == '\0') return best_isa();
    constexpr std::string_view kFunction = "active_isa", kArgument = "the variable ATTN_ISA";
    return detail::require_isa(kFunction, kArgument,
                               detail::isa_from_name(kFunction, kArgument, wanted));
  }();
#endif
  return isa;
}

ATTN_NAMESPACE_END
