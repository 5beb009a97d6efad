// Instruction sets: which ones are compiled in, which the machine has, and which one calls use.
#pragma once

#include <cstdlib>
#include <optional>
#include <string_view>

#include "attn/core/error.hpp"

ATTN_NAMESPACE_BEGIN

/// Ordered: a machine that has one has all before it.
enum class Isa {
  scalar,  ///< what every machine of the family has: SSE2 on x86-64, plain vectors elsewhere
  avx2,    ///< AVX2 and FMA
  avx512,  ///< AVX-512 F, BW, DQ and VL
};

inline constexpr Isa kAllIsas[] = {Isa::scalar, Isa::avx2, Isa::avx512};

constexpr std::string_view name(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "scalar";
}

namespace detail {

inline Isa isa_from_name(std::string_view function, std::string_view argument,
                         std::string_view text) {
  for (Isa isa : kAllIsas) {
    if (name(isa) == text) return isa;
  }
  throw ValueError(
      message(function, argument, "be scalar, avx2 or avx512", "'" + std::string(text) + "'"));
}

inline Isa find_best_isa() {
#if ATTN_ARCH_X86
  __builtin_cpu_init();
  // __builtin_cpu_supports also asks the operating system whether it saves the wide registers.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return Isa::avx512;
    }
    return Isa::avx2;
  }
#endif
  return Isa::scalar;
}

}  // namespace detail

/// The highest set that this machine has.
inline Isa best_isa() {
  static const Isa isa = detail::find_best_isa();
  return isa;
}

/// True if the machine has the set and the program was compiled with it.
inline bool is_available(Isa isa) {
#if defined(ATTN_PIN_ISA)
  return isa == Isa::ATTN_PIN_ISA && isa <= best_isa();
#else
  return isa <= best_isa();
#endif
}

namespace detail {

inline Isa require_isa(std::string_view function, std::string_view argument, Isa isa) {
  if (is_available(isa)) return isa;
  std::string available;
  for (Isa other : kAllIsas) {
    if (is_available(other)) available.append(available.empty() ? "" : ", ").append(name(other));
  }
  throw ValueError(message(function, argument,
                           "be one that this machine and this build have (" + available + ")",
                           name(isa)));
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

/// What calls use that name no set: ATTN_PIN_ISA if the build pins one, else the environment variable
/// ATTN_ISA (read once), else the best. Throws ValueError for a set that is unknown or missing.
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
