// Works of the report on small elements: bfloat16, int8 and quantised weights.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/kernels/convert.hpp"
#include "attn/kernels/quantized.hpp"

#include "report/work.hpp"

namespace bench {

namespace detail {

/// Sizes of a product x W^T: x (m, k), W (n, k).
struct ProductSize {
  index_t m, n, k;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n * k); }
};

/// Every element of `c` within `share` of the largest element of `expected`, which is float's;
/// empty where it is.
inline std::string share_complaint(const attn::Tensor2<float>& c,
                                   const attn::Tensor2<float>& expected, double share) {
  const auto wanted = attn_test::to_array(expected);
  const double off = attn_test::worst(attn_test::to_array(c), wanted).distance;
  return off <= share * attn_test::max_abs(wanted)
             ? ""
             : "wrong result: off float's by " + std::to_string(off);
}

/// x and c of bfloat16, W packed. A matrix-vector product is limited by reading W.
inline Group bf16_group(std::string name, attn::Isa isa, ProductSize size) {
  return {{name}, [=]() -> std::vector<Work> {
            using attn::bfloat16;
            struct Inputs {
              attn::Tensor2<bfloat16> x, w, c;
              attn::PackedWeights<bfloat16> packed;
            };
            const auto [m, n, k] = size;
            const auto in = std::make_shared<Inputs>(
                Inputs{attn::convert<bfloat16>(random_tensor<float, 2>({m, k}, 1)),
                       attn::convert<bfloat16>(random_tensor<float, 2>({n, k}, 2)),
                       attn::Tensor2<bfloat16>({m, n}),
                       {}});
            in->packed = attn::PackedWeights<bfloat16>(in->w.view().transpose(0, 1), isa);
            Work work{name, isa, size.flops()};
            work.beyond_limit = true;
            work.bytes = in->w.size() * index_t{sizeof(bfloat16)};
            work.traffic = (in->x.size() + in->w.size() + in->c.size()) * index_t{sizeof(bfloat16)};
            work.run = [in](const attn::Execution& execution) {
              attn::gemm(in->x, in->packed, in->c, {}, execution);
            };
            work.complaint = [in] {
              // One rounding of the result.
              attn::Tensor2<float> expected(in->c.shape());
              attn::gemm(attn::convert<float>(in->x),
                         attn::convert<float>(in->w).view().transpose(0, 1), expected);
              return share_complaint(attn::convert<float>(in->c), expected, 0x1p-8);
            };
            return {work};
          }};
}

/// Codes and scales at random: any weights of `format` take as long.
inline attn::QuantizedWeights random_codes(ProductSize size, const attn::QuantizedFormat& format) {
  attn::QuantizedWeights weights(size.n, size.k, format);
  const index_t block = format.block == 0 ? size.k : format.block;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(block));
  Random random(3);
  for (index_t row = 0; row < size.n; ++row) {
    for (index_t at = 0; at * block < size.k; ++at) {
      for (auto& code : codes) code = static_cast<std::uint8_t>(random.below(1 << format.bits));
      weights.set_block(row, at, codes.data(), 0x1p-8f, format.has_offset ? -0x1p-5f : 0);
    }
  }
  return weights;
}

/// x and c of float, x rounded to 8 bits in the call.
inline Group int8_group(std::string name, attn::Isa isa, ProductSize size,
                        attn::QuantizedFormat format) {
  return {{name}, [=]() -> std::vector<Work> {
            struct Inputs {
              attn::Tensor2<float> x, c;
              attn::QuantizedWeights weights;
            };
            const auto in = std::make_shared<Inputs>(
                Inputs{random_tensor<float, 2>({size.m, size.k}, 1),
                       attn::Tensor2<float>({size.m, size.n}), random_codes(size, format)});
            Work work{name, isa, size.flops()};
            work.beyond_limit = true;
            work.bytes = in->weights.bytes();
            work.traffic = (in->x.size() + in->c.size()) * index_t{sizeof(float)} + work.bytes;
            work.run = [in](const attn::Execution& execution) {
              attn::gemm(in->x, in->weights, attn::ActivationFormat::int8, in->c, {}, execution);
            };
            work.complaint = [in] {
              // Activations are off by half a step, a 254th of the largest; their errors add up as
              // the square root.
              attn::Tensor2<float> expected(in->c.shape());
              attn::gemm(in->x, in->weights, attn::ActivationFormat::exact, expected);
              return share_complaint(in->c, expected, 0.02);
            };
            return {work};
          }};
}

/// Attention over all queries, with tensors of E.
template <class E>
Group small_attention_group(const std::string& name, const char* shape, attn::Isa isa,
                            attn::AttentionPrecision precision) {
  return {
      {name}, [=]() -> std::vector<Work> {
        struct Inputs {
          attn::Tensor4<E> q, k, v, out;
        };
        const auto exact = attention_inputs(shape);
        const auto in = std::make_shared<Inputs>(
            Inputs{attn::convert<E>(exact->q), attn::convert<E>(exact->k),
                   attn::convert<E>(exact->v), attn::Tensor4<E>(exact->q.shape())});
        Work work{name, isa, attention_flops(in->q.shape(), in->k.extent(2))};
        work.beyond_limit = true;
        work.traffic = 4 * in->q.size() * index_t{sizeof(E)};
        work.run = [=](const attn::Execution& execution) {
          attn::scaled_dot_product_attention(in->q, in->k, in->v, in->out,
                                             {.precision = precision, .execution = execution});
        };
        work.complaint = [=]() -> std::string {
          // What rounding does to an average of 2048 values: docs/precision.md.
          const auto wanted =
              attn_test::to_array(attn::scaled_dot_product_attention(exact->q, exact->k, exact->v));
          const double off =
              attn_test::worst(attn_test::to_array(attn::convert<float>(in->out)), wanted).distance;
          return off <= 0.05 * attn_test::max_abs(wanted)
                     ? ""
                     : "wrong result: off float's by " + std::to_string(off);
        };
        return {work};
      }};
}

}  // namespace detail

inline std::vector<Group> low_precision_groups() {
  using attn::bfloat16;
  using attn::QuantizedFormat;
  using detail::ProductSize;
  constexpr auto exact = attn::AttentionPrecision::exact;
  const attn::Isa isa = attn::active_isa();
  constexpr ProductSize kCube{1024, 1024, 1024}, kBert{128, 3072, 768}, kModel{512, 4096, 4096},
      kVector{1, 8192, 8192};
  const QuantizedFormat rows{.block = 0, .float_scales = true}, q8{},
      q4{.bits = 4, .zero = 0, .has_offset = true, .has_wide = false};
  return {detail::bf16_group("gemm_bf16", isa, kCube),
          detail::bf16_group("gemm_bf16_bert", isa, kBert),
          detail::int8_group("gemm_int8", isa, kCube, rows),
          detail::int8_group("gemm_int8_bert", isa, kBert, rows),
          detail::int8_group("gemm_q8", isa, kModel, q8),
          detail::int8_group("gemm_q4", isa, kModel, q4),
          detail::bf16_group("gemv_bf16", isa, kVector),
          detail::int8_group("gemv_int8", isa, kVector, rows),
          detail::int8_group("gemv_q8", isa, kVector, q8),
          detail::int8_group("gemv_q4", isa, kVector, q4),
          detail::small_attention_group<bfloat16>("sdpa_d64_bf16", "d64", isa, exact),
          detail::small_attention_group<bfloat16>("sdpa_d128_bf16", "d128", isa, exact),
          detail::small_attention_group<float>("sdpa_d128_int8", "d128", isa,
                                               attn::AttentionPrecision::int8)};
}

}  // namespace bench
