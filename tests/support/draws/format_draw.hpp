// format_difference: random calls with quantised weights or small elements, against references.
#pragma once

#include <cstring>
#include <string>

#include "attn/attention/cached_attention.hpp"

#include "support/draws/attention_draw.hpp"
#include "support/isas.hpp"
#include "support/references/quantized_reference.hpp"
#include "support/tolerance.hpp"

namespace attn_test {

/// Rows with hostile numbers: NaN, infinities, denormals, zeros, and numbers of every magnitude.
inline attn::Tensor2<float> hostile_rows(Random& random, Index m, Index k) {
  attn::Tensor2<float> x = random.tensor<float, 2>({m, k});
  for (Index i = 0; i < m; ++i) {
    const float scale = random.pick<float>({1, 1, 1, 0, 1e-42f, 1e-20f, 1e20f});
    for (Index p = 0; p < k; ++p) x(i, p) *= scale;
    if (!random.chance(0.2)) continue;
    constexpr float inf = std::numeric_limits<float>::infinity();
    x(i, random.integer(0, k - 1)) = random.pick<float>({inf, -inf, std::nanf("")});
  }
  return x;
}

/// Checks a product on every instruction set. Exact activations: the bits of gemm() on the
/// dequantised weights. int8: a row with a number that is not finite is NaN, others are within the
/// rounding of their sums. Empty if all is right.
inline std::string product_difference(Random& random) {
  const attn::QuantizedFormat& format = random.pick(quantized_formats());
  const Index k =
      format.block == 0 ? random.integer(1, 200) : 32 * random.pick<Index>({1, 2, 3, 5, 8});
  const Index m = random.integer(1, 9), n = random.pick<Index>({1, 3, 15, 16, 17, 33, 50});
  const attn::QuantizedWeights weights = random_weights(random, n, k, format);
  const attn::Tensor2<float> x = hostile_rows(random, m, k);
  attn::Tensor2<float> dense({n, k}), expected({m, n}), found({m, n});
  weights.dequantize(dense.view());
  attn::Tensor2<double> magnitude({m, n});
  const attn::Tensor2<double> wanted =
      int8_reference(x, dense, shared_activations(k, format), magnitude);
  // As in tests/kernels/quantized_test.cpp.
  const Index blocks = format.block == 0 ? 2 : k / format.block;
  const double bound = 1.2e-7 * static_cast<double>(6 + blocks) * (format.has_offset ? 16 : 1);
  for (const attn::Isa isa : extended_isas()) {
    const auto text = [&](std::string_view activations, Index i, Index j) {
      return std::string(activations) + " on " + std::string(attn::name(isa)) + ", " +
             std::to_string(format.bits) + " bits, block " + std::to_string(format.block) + ", " +
             std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k) + " at " +
             std::to_string(i) + ", " + std::to_string(j) + ": " + std::to_string(found(i, j));
    };
    attn::gemm(x, dense.view().transpose(0, 1), expected, {}, {.isa = isa});
    attn::gemm(x, weights, attn::ActivationFormat::exact, found, {}, {.isa = isa});
    for (Index i = 0; i < m; ++i) {
      for (Index j = 0; j < n; ++j) {
        const bool both_nan = std::isnan(expected(i, j)) && std::isnan(found(i, j));
        if (expected(i, j) != found(i, j) && !both_nan) return text("exact", i, j);
      }
    }
    attn::gemm(x, weights, attn::ActivationFormat::int8, found, {}, {.isa = isa});
    for (Index i = 0; i < m; ++i) {
      bool is_finite = true;
      for (Index p = 0; p < k; ++p) is_finite = is_finite && std::isfinite(x(i, p));
      for (Index j = 0; j < n; ++j) {
        const double error = std::abs(found(i, j) - wanted(i, j));
        const bool good =
            is_finite ? error <= bound * magnitude(i, j) + 1e-30 : std::isnan(found(i, j));
        if (!good) return text("int8", i, j);
      }
    }
  }
  return "";
}

/// The contents of a cache in float.
template <class E>
Array<float> widened(const attn::TensorView4<const E>& x,
                     const attn::TensorView3<const float>& scales) {
  Array<float> result({x.extent(0), x.extent(1), x.extent(2), x.extent(3)});
  const auto to = result.template view<4>();
  for (Index b = 0; b < x.extent(0); ++b) {
    for (Index h = 0; h < x.extent(1); ++h) {
      for (Index j = 0; j < x.extent(2); ++j) {
        for (Index d = 0; d < x.extent(3); ++d) {
          to(b, h, j, d) = static_cast<float>(x(b, h, j, d)) * (scales ? scales(b, h, j) : 1.0f);
        }
      }
    }
  }
  return result;
}

inline std::pair<Array<float>, Array<float>> held(const attn::KvCache<float>& cache) {
  std::pair<Array<float>, Array<float>> result;
  attn::detail::with_cache_element<float>(*cache.options().element, [&]<class E>(E) {
    result = {widened<E>(cache.keys<E>(), cache.key_scales()),
              widened<E>(cache.values<E>(), cache.value_scales())};
  });
  return result;
}

inline attn::KvCache<float> cache_of(const AttentionDraw<float>& call, attn::DType element) {
  attn::KvCache<float> cache({.batch = call.k.extent(0),
                              .num_kv_heads = call.k.extent(1),
                              .capacity = call.k.extent(2),
                              .head_dim = call.k.extent(3),
                              .head_dim_v = call.v.extent(3),
                              .element = element});
  cache.append(call.k.view<4>(), call.v.view<4>());
  return cache;
}

/// Attention on a cache of bfloat16, float16 or int8 is as near to double on the cache's contents
/// as float attention is.
inline std::string attention_difference_of_cache(Random& random) {
  AttentionDraw<float> call(random, 20000);
  if (call.options.first_key > 0) return "";  // only of caches that have dropped keys
  const attn::DType element =
      random.pick<attn::DType>({attn::DType::BF16, attn::DType::F16, attn::DType::I8});
  const attn::KvCache<float> cache = cache_of(call, element);
  AttentionDraw<float> stored = call;
  std::tie(stored.k, stored.v) = held(cache);
  const auto [batch, heads, q_len, kv_len] = call.scores();
  const LibraryOptions<float> library(call.options);
  for (const attn::Isa isa : extended_isas()) {
    ReferenceResult<float> got{Array<float>({batch, heads, q_len, call.v.extent(3)}),
                               Array<float>({batch, heads, q_len, kv_len}),
                               Array<float>({batch, heads, q_len})};
    attn::AttentionOptions<float> options = library.get();
    options.weights = got.weights.view<4>();
    options.lse = got.lse.view<3>();
    options.execution.isa = isa;
    attn::scaled_dot_product_attention(call.q.view<4>(), cache, got.y.view<4>(), options);
    const std::string found =
        attention_difference(got, stored.q, stored.k, stored.v, stored.options, isa);
    if (!found.empty()) {
      return std::string(attn::name(element)) + ", " + call.text() + ": " + found;
    }
  }
  return "";
}

inline std::string format_difference(Random& random) {
  return random.chance(0.5) ? product_difference(random) : attention_difference_of_cache(random);
}

}  // namespace attn_test
