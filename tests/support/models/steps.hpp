// by_steps: runs a model over a sequence piece by piece, as in decoding with a cache.
#pragma once

#include <algorithm>

#include "attn/kernels/rows/convert.hpp"

#include "support/array.hpp"

namespace attn_test {

/// Passes rows (axis 1) of x in pieces of 1, 2, 3, .. rows to run(piece, whether it is the first)
/// and joins its results (batch, rows, features).
template <class T, int Rank, class F>
Array<float> by_steps(const attn::Tensor<T, Rank>& x, F run) {
  Array<float> y;
  for (attn::index_t i = 0, n = 1; i < x.extent(1); i += n, ++n) {
    const attn::index_t end = std::min(i + n, x.extent(1));
    const auto out = run(attn::Tensor<T, Rank>(x.view().slice(1, i, end)), i == 0);
    if (i == 0) y = Array<float>({x.extent(0), x.extent(1), out.extent(2)});
    attn::convert(out, y.view<3>().slice(1, i, end));
  }
  return y;
}

/// 0, 1, .. in every row of (batch, seq).
inline attn::Tensor2<attn::index_t> counted_positions(attn::index_t batch, attn::index_t seq) {
  attn::Tensor2<attn::index_t> positions({batch, seq});
  for (attn::index_t i = 0; i < positions.size(); ++i) positions.data()[i] = i % seq;
  return positions;
}

}  // namespace attn_test
