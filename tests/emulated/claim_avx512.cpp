// Makes __builtin_cpu_supports claim AVX-512, for programs that emulate it.
//
// attn::best_isa() calls it, in objects that were compiled for the ordinary tests; only the data
// that it reads can tell these that AVX-512 exists. Libraries are not affected: they choose their
// code earlier or by other means (the C library has flags of its own).
/// The data that __builtin_cpu_supports reads, equal in libgcc and compiler-rt; its layout and its
/// bits are part of their ABI. This file does not call that function: clang 14 crashes if its own
/// declaration meets this one.
extern "C" struct {
  unsigned vendor, type, subtype, features[1];
} __cpu_model __attribute__((visibility("hidden")));

namespace {

constexpr unsigned kAvx512F = 1u << 15, kAvx512VL = 1u << 20, kAvx512BW = 1u << 21,
                   kAvx512DQ = 1u << 22;

/// Priority 101, the first that is not reserved: runs before any other code of the program. If it
/// had no effect, the tests, which select AVX-512 by ATTN_ISA, would report that the machine lacks
/// it.
__attribute__((constructor(101))) void claim_avx512() {
  __builtin_cpu_init();
  __cpu_model.features[0] |= kAvx512F | kAvx512VL | kAvx512BW | kAvx512DQ;
}

}  // namespace
