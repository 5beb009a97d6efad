// Kernel text: Int8 of the current instruction set.
// SPDX-License-Identifier: Apache-2.0
//
// The vocabulary, the same in every target. A vector has as many lanes of 32 bits as Vec<float>
// has, and in each of them four neighbours k of one column:
//   Sums: all(x); four(p): the four bytes at p in every lane
//   Codes: load(p), store(c, p), low(c) and high(c): the low and high halves of every byte
//   dot<kWide>(sums, codes, four): sums + the four products of each lane, exact. Codes are
//     unsigned, below 128 unless kWide; `four` is signed, -127 .. 127
//   zero(code, is_wide): what dot() leaves of a code that stands for 0: where it shifts wide codes
//     by 128, 0 of 128
//   to_float(sums); byte(codes, t): the bytes t of all lanes, as floats
//   widen(p): as many float16 as there are lanes, as floats
//   narrow(v, p): lanes that are whole numbers within -127 .. 127, as bytes
// kRows x kPanels, the tile that the registers hold: rows by panels of 16 columns, twice (integer
// sums, and float ones).

#include ATTN_TARGET_INT8
