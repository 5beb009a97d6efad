// Instruction set features that the compiler may use, as tokens of the inline namespace.
// SPDX-License-Identifier: Apache-2.0
//
// Features available only through intrinsics (AES, SHA, AMX, XSAVE and others) have no token: attn
// uses intrinsics only inside target regions, whose namespace names the target. tests/isa_mix
// compares the tokens with the compiler's flags. Processors other than x86-64 are not
// distinguished.
#pragma once

#define ATTN_ABI_PASTE_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
  a##b##c##d##e##f##g##h##i##j##k##l##m##n##o##p
/// Joins up to 16 tokens, each expanded first.
#define ATTN_ABI_PASTE(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
  ATTN_ABI_PASTE_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)

// The x86-64 level: the highest one whose features are all enabled.
#if !ATTN_ARCH_X86
#define ATTN_ABI_LEVEL 0
#define ATTN_ABI_PROCESSOR generic
#elif !defined(__SSE4_2__) || !defined(__POPCNT__) || !defined(__LAHF_SAHF__) || \
    !defined(__GCC_HAVE_SYNC_COMPARE_AND_SWAP_16)
#define ATTN_ABI_LEVEL 1
#define ATTN_ABI_PROCESSOR x86v1
#elif !defined(__AVX2__) || !defined(__BMI__) || !defined(__BMI2__) || !defined(__F16C__) || \
    !defined(__FMA__) || !defined(__LZCNT__) || !defined(__MOVBE__)
#define ATTN_ABI_LEVEL 2
#define ATTN_ABI_PROCESSOR x86v2
#elif !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512CD__) || \
    !defined(__AVX512DQ__) || !defined(__AVX512VL__)
#define ATTN_ABI_LEVEL 3
#define ATTN_ABI_PROCESSOR x86v3
#else
#define ATTN_ABI_LEVEL 4
#define ATTN_ABI_PROCESSOR x86v4
#endif

// The widest vectors, which contain all narrower ones.
#if defined(__AVX512F__) && ATTN_ABI_LEVEL < 4
#define ATTN_ABI_VECTORS _avx512f
#elif defined(__AVX2__) && ATTN_ABI_LEVEL < 3
#define ATTN_ABI_VECTORS _avx2
#elif defined(__AVX__) && ATTN_ABI_LEVEL < 3
#define ATTN_ABI_VECTORS _avx
#elif defined(__SSE4_2__) && ATTN_ABI_LEVEL < 2
#define ATTN_ABI_VECTORS _sse42
#elif defined(__SSE4_1__) && ATTN_ABI_LEVEL < 2
#define ATTN_ABI_VECTORS _sse41
#elif defined(__SSSE3__) && ATTN_ABI_LEVEL < 2
#define ATTN_ABI_VECTORS _ssse3
#elif defined(__SSE3__) && ATTN_ABI_LEVEL < 2
#define ATTN_ABI_VECTORS _sse3
#else
#define ATTN_ABI_VECTORS
#endif

// Scalar instructions, except those that the level contains.
#if defined(__GCC_HAVE_SYNC_COMPARE_AND_SWAP_16) && ATTN_ABI_LEVEL < 2
#define ATTN_ABI_CX16 _cx16
#else
#define ATTN_ABI_CX16
#endif
#if defined(__LAHF_SAHF__) && ATTN_ABI_LEVEL < 2
#define ATTN_ABI_SAHF _sahf
#else
#define ATTN_ABI_SAHF
#endif
#if defined(__POPCNT__) && ATTN_ABI_LEVEL < 2
#define ATTN_ABI_POPCNT _popcnt
#else
#define ATTN_ABI_POPCNT
#endif
#if defined(__CRC32__) && ATTN_ABI_LEVEL < 2
#define ATTN_ABI_CRC32 _crc32
#else
#define ATTN_ABI_CRC32
#endif
#if defined(__BMI__) && ATTN_ABI_LEVEL < 3
#define ATTN_ABI_BMI _bmi
#else
#define ATTN_ABI_BMI
#endif
#if defined(__BMI2__) && ATTN_ABI_LEVEL < 3
#define ATTN_ABI_BMI2 _bmi2
#else
#define ATTN_ABI_BMI2
#endif
#if defined(__LZCNT__) && ATTN_ABI_LEVEL < 3
#define ATTN_ABI_LZCNT _lzcnt
#else
#define ATTN_ABI_LZCNT
#endif
#if defined(__MOVBE__) && ATTN_ABI_LEVEL < 3
#define ATTN_ABI_MOVBE _movbe
#else
#define ATTN_ABI_MOVBE
#endif
#if defined(__TBM__)
#define ATTN_ABI_TBM _tbm
#else
#define ATTN_ABI_TBM
#endif
#if defined(__APX_F__)
#define ATTN_ABI_APX _apx
#else
#define ATTN_ABI_APX
#endif
#if defined(__CMPCCXADD__)
#define ATTN_ABI_CMPCCXADD _cmpccxadd
#else
#define ATTN_ABI_CMPCCXADD
#endif
#if defined(__RAOINT__)
#define ATTN_ABI_RAOINT _raoint
#else
#define ATTN_ABI_RAOINT
#endif
#if defined(__PRFCHW__)
#define ATTN_ABI_PRFCHW _prfchw
#else
#define ATTN_ABI_PRFCHW
#endif
#if defined(__PREFETCHWT1__)
#define ATTN_ABI_PREFETCHWT1 _prefetchwt1
#else
#define ATTN_ABI_PREFETCHWT1
#endif
#define ATTN_ABI_SCALAR_TOKENS                                                                \
  ATTN_ABI_PASTE(ATTN_ABI_CX16, ATTN_ABI_SAHF, ATTN_ABI_POPCNT, ATTN_ABI_CRC32, ATTN_ABI_BMI, \
                 ATTN_ABI_BMI2, ATTN_ABI_LZCNT, ATTN_ABI_MOVBE, ATTN_ABI_TBM, ATTN_ABI_APX,   \
                 ATTN_ABI_CMPCCXADD, ATTN_ABI_RAOINT, ATTN_ABI_PRFCHW, ATTN_ABI_PREFETCHWT1, , )

// Vectors of up to 256 bits.
#if defined(__F16C__) && ATTN_ABI_LEVEL < 3
#define ATTN_ABI_F16C _f16c
#else
#define ATTN_ABI_F16C
#endif
#if defined(__FMA__) && ATTN_ABI_LEVEL < 3
#define ATTN_ABI_FMA _fma
#else
#define ATTN_ABI_FMA
#endif
#if defined(__3dNOW__)
#define ATTN_ABI_3DNOW _3dnow
#else
#define ATTN_ABI_3DNOW
#endif
#if defined(__SSE4A__)
#define ATTN_ABI_SSE4A _sse4a
#else
#define ATTN_ABI_SSE4A
#endif
#if defined(__PCLMUL__)
#define ATTN_ABI_PCLMUL _pclmul
#else
#define ATTN_ABI_PCLMUL
#endif
#if defined(__FMA4__)
#define ATTN_ABI_FMA4 _fma4
#else
#define ATTN_ABI_FMA4
#endif
#if defined(__XOP__)
#define ATTN_ABI_XOP _xop
#else
#define ATTN_ABI_XOP
#endif
#if defined(__GFNI__)
#define ATTN_ABI_GFNI _gfni
#else
#define ATTN_ABI_GFNI
#endif
#if defined(__AVXVNNI__)
#define ATTN_ABI_AVXVNNI _avxvnni
#else
#define ATTN_ABI_AVXVNNI
#endif
#if defined(__AVXVNNIINT8__)
#define ATTN_ABI_AVXVNNIINT8 _avxvnniint8
#else
#define ATTN_ABI_AVXVNNIINT8
#endif
#if defined(__AVXVNNIINT16__)
#define ATTN_ABI_AVXVNNIINT16 _avxvnniint16
#else
#define ATTN_ABI_AVXVNNIINT16
#endif
#if defined(__AVXIFMA__)
#define ATTN_ABI_AVXIFMA _avxifma
#else
#define ATTN_ABI_AVXIFMA
#endif
#if defined(__AVXNECONVERT__)
#define ATTN_ABI_AVXNECONVERT _avxneconvert
#else
#define ATTN_ABI_AVXNECONVERT
#endif
#define ATTN_ABI_AVX_TOKENS                                                                    \
  ATTN_ABI_PASTE(ATTN_ABI_F16C, ATTN_ABI_FMA, ATTN_ABI_3DNOW, ATTN_ABI_SSE4A, ATTN_ABI_PCLMUL, \
                 ATTN_ABI_FMA4, ATTN_ABI_XOP, ATTN_ABI_GFNI, ATTN_ABI_AVXVNNI,                 \
                 ATTN_ABI_AVXVNNIINT8, ATTN_ABI_AVXVNNIINT16, ATTN_ABI_AVXIFMA,                \
                 ATTN_ABI_AVXNECONVERT, , , )

// Vectors of 512 bits.
#if defined(__AVX512CD__) && ATTN_ABI_LEVEL < 4
#define ATTN_ABI_CD _cd
#else
#define ATTN_ABI_CD
#endif
#if defined(__AVX512BW__) && ATTN_ABI_LEVEL < 4
#define ATTN_ABI_BW _bw
#else
#define ATTN_ABI_BW
#endif
#if defined(__AVX512DQ__) && ATTN_ABI_LEVEL < 4
#define ATTN_ABI_DQ _dq
#else
#define ATTN_ABI_DQ
#endif
#if defined(__AVX512VL__) && ATTN_ABI_LEVEL < 4
#define ATTN_ABI_VL _vl
#else
#define ATTN_ABI_VL
#endif
#if defined(__AVX512ER__)
#define ATTN_ABI_ER _er
#else
#define ATTN_ABI_ER
#endif
#if defined(__AVX512PF__)
#define ATTN_ABI_PF _pf
#else
#define ATTN_ABI_PF
#endif
#if defined(__AVX512IFMA__)
#define ATTN_ABI_IFMA _ifma
#else
#define ATTN_ABI_IFMA
#endif
#if defined(__AVX512VBMI__)
#define ATTN_ABI_VBMI _vbmi
#else
#define ATTN_ABI_VBMI
#endif
#if defined(__AVX512VBMI2__)
#define ATTN_ABI_VBMI2 _vbmi2
#else
#define ATTN_ABI_VBMI2
#endif
#if defined(__AVX512VNNI__)
#define ATTN_ABI_VNNI _vnni
#else
#define ATTN_ABI_VNNI
#endif
#if defined(__AVX512BITALG__)
#define ATTN_ABI_BITALG _bitalg
#else
#define ATTN_ABI_BITALG
#endif
#if defined(__AVX512VPOPCNTDQ__)
#define ATTN_ABI_VPOPCNTDQ _vpopcntdq
#else
#define ATTN_ABI_VPOPCNTDQ
#endif
#if defined(__AVX512BF16__)
#define ATTN_ABI_BF16 _bf16
#else
#define ATTN_ABI_BF16
#endif
#if defined(__AVX512FP16__)
#define ATTN_ABI_FP16 _fp16
#else
#define ATTN_ABI_FP16
#endif
#if defined(__AVX10_1__)
#define ATTN_ABI_AVX10_1 _avx10_1
#else
#define ATTN_ABI_AVX10_1
#endif
#if defined(__AVX10_2__)
#define ATTN_ABI_AVX10_2 _avx10_2
#else
#define ATTN_ABI_AVX10_2
#endif
#define ATTN_ABI_AVX512_TOKENS                                                                 \
  ATTN_ABI_PASTE(ATTN_ABI_CD, ATTN_ABI_BW, ATTN_ABI_DQ, ATTN_ABI_VL, ATTN_ABI_ER, ATTN_ABI_PF, \
                 ATTN_ABI_IFMA, ATTN_ABI_VBMI, ATTN_ABI_VBMI2, ATTN_ABI_VNNI, ATTN_ABI_BITALG, \
                 ATTN_ABI_VPOPCNTDQ, ATTN_ABI_BF16, ATTN_ABI_FP16, ATTN_ABI_AVX10_1,           \
                 ATTN_ABI_AVX10_2)
