// Kernel text: Int8 of the current instruction set.
// SPDX-License-Identifier: Apache-2.0
//
// The operations, the same for every target. A vector has as many 32-bit lanes as Vec<float>, and
// each lane holds four consecutive k of one column:
//   Sums: all(x); four(p): the four bytes at p in every lane
//   Codes, a vector of quantised values: load(p), store(c, p), low(c) and high(c): the low and
//     high halves of every byte
//   dot<kWide>(sums, codes, four): sums + the four products of each lane, exact.
//     Quantised values are unsigned, below 128 unless kWide; `four` is signed, -127 .. 127
//   zero(code, is_wide): the number that dot() uses for `code`, which stands for 0: targets that
//     shift wide values by 128 map 128 to 0
//   to_float(sums); byte(codes, t): the bytes t of all lanes, as floats
//   widen(p): as many float16 as there are lanes, as floats
//   narrow(v, p): lanes that are integers within -127 .. 127, as bytes
// kRows x kPanels is the register tile: rows by panels of 16 columns, of which registers hold
// integer sums and float sums.

#include ATTN_TARGET_INT8
