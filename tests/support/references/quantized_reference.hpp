// Quantised products as plain loops in double, and random weights of every format.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attn/kernels/quantized/quantized.hpp"

#include "support/random.hpp"

namespace attn_test {

inline const std::vector<attn::QuantizedFormat>& quantized_formats() {
  static const std::vector<attn::QuantizedFormat> formats = {
      {},                                                                                   // Q8_0
      {.zero = 16, .has_wide = false},                                                      // Q5_0
      {.zero = 0, .has_offset = true, .has_wide = false},                                   // Q5_1
      {.bits = 4, .zero = 8, .has_wide = false},                                            // Q4_0
      {.bits = 4, .zero = 0, .has_offset = true, .has_wide = false},                        // Q4_1
      {.bits = 4, .zero = 0, .has_offset = true, .has_wide = false, .float_scales = true},  // Q4_K
      {.block = 16, .zero = 32, .has_wide = false, .float_scales = true},                   // Q6_K
      {.block = 0, .float_scales = true},                                                   // int8
  };
  return formats;
}

/// Random quantised weights; in one of eight blocks all are the extreme value.
inline attn::QuantizedWeights random_weights(Random& random, Index n, Index k,
                                             const attn::QuantizedFormat& format) {
  attn::QuantizedWeights weights(n, k, format);
  const Index block = format.block == 0 ? k : format.block;
  const Index top = format.bits == 4 ? 15 : format.has_wide ? 255 : 63;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(block));
  for (Index row = 0; row < n; ++row) {
    for (Index b = 0; b * block < k; ++b) {
      const bool is_extreme = random.chance(0.125);
      for (auto& code : codes) {
        code = static_cast<std::uint8_t>(is_extreme ? random.integer(0, 1) * top
                                                    : random.integer(0, top));
      }
      const auto half = [&](double x) { return static_cast<float>(attn::float16(x)); };
      weights.set_block(row, b, codes.data(), half(0.01 * random.normal()),
                        format.has_offset ? half(0.1 * random.normal()) : 0);
    }
  }
  return weights;
}

/// The number of adjacent activations that share a scale, of k: 32, or with weights of one scale
/// per row, as many whole runs of 64 as fit in half of them (k up to 2048; in a third of longer
/// ones, and so on).
inline Index shared_activations(Index k, const attn::QuantizedFormat& format) {
  if (format.block != 0) return 32;
  Index parts = 2;
  while (parts * 1024 < k) ++parts;
  Index runs = 1;
  while (runs * 64 * parts < k) ++runs;
  return runs * 64;
}

/// The product with ActivationFormat::int8, in double except for the activations' quantisation.
inline attn::Tensor2<double> int8_reference(const attn::Tensor2<float>& x,
                                            const attn::Tensor2<float>& dense, Index shared,
                                            attn::Tensor2<double>& magnitude) {
  const Index m = x.extent(0), k = x.extent(1), n = dense.extent(0);
  attn::Tensor2<double> result({m, n});
  for (Index i = 0; i < m; ++i) {
    std::vector<double> codes(static_cast<std::size_t>(k));
    for (Index begin = 0; begin < k; begin += shared) {
      const Index end = std::min(k, begin + shared);
      float largest = 0;
      for (Index p = begin; p < end; ++p) largest = std::max(largest, std::abs(x(i, p)));
      const float scale = largest / 127;
      const bool is_zero = scale < std::numeric_limits<float>::min();
      for (Index p = begin; p < end; ++p) {
        codes[static_cast<std::size_t>(p)] =
            is_zero ? 0 : double{scale} * double{std::nearbyint(x(i, p) * (127 / largest))};
      }
    }
    for (Index j = 0; j < n; ++j) {
      for (Index p = 0; p < k; ++p) {
        const double product = codes[static_cast<std::size_t>(p)] * double{dense(j, p)};
        result(i, j) += product;
        magnitude(i, j) += std::abs(product);
      }
    }
  }
  return result;
}

}  // namespace attn_test
