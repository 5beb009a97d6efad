// Makes __builtin_cpu_supports claim AVX-512, for programs that emulate it.
//
// attn::best_isa() asks it, inside objects that were compiled for the ordinary tests: what it reads
// is the one place where these can be told. Libraries choose their own code before or elsewhere
// (the C library keeps flags of its own).
/// What __builtin_cpu_supports reads, of libgcc and compiler-rt alike; its layout and its bits are
/// part of their ABI. That function is not called in this file: clang 14 crashes where its own
/// declaration meets this one.
extern "C" struct {
  unsigned vendor, type, subtype, features[1];
} __cpu_model __attribute__((visibility("hidden")));

namespace {

constexpr unsigned kAvx512F = 1u << 15, kAvx512VL = 1u << 20, kAvx512BW = 1u << 21,
                   kAvx512DQ = 1u << 22;

/// 101, the first that is not the compiler's own: before anything else of the program can ask.
/// Should it not be heard, the tests, which ask for AVX-512 by ATTN_ISA, say that the machine lacks
/// it.
__attribute__((constructor(101))) void claim_avx512() {
  __builtin_cpu_init();
  __cpu_model.features[0] |= kAvx512F | kAvx512VL | kAvx512BW | kAvx512DQ;
}

}  // namespace
