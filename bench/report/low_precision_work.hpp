// Works of the report in low precision: bfloat16, int8, quantised weights, MatmulPrecision::high.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/kernels/quantized/quantized.hpp"
#include "attn/kernels/rows/convert.hpp"

#include "report/work.hpp"

namespace bench {

namespace detail {

inline double flops_of(const SmallGemmShape& shape) {
  return 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n * shape.k);
}

/// Empty if every element of `c` is within `share` of the largest element of `expected`, the result
/// in float; otherwise a description of the error.
inline std::string share_complaint(const attn::Tensor2<float>& c,
                                   const attn::Tensor2<float>& expected, double share) {
  const auto wanted = attn_test::to_array(expected);
  const double off = attn_test::worst(attn_test::to_array(c), wanted).distance;
  return off <= share * attn_test::max_abs(wanted)
             ? ""
             : "wrong result: off float's by " + std::to_string(off);
}

/// x and c in bfloat16, W packed. Reading W limits a matrix-vector product.
inline Group bf16_group(const SmallGemmShape& shape, attn::Isa isa) {
  const std::string name(shape.name);
  return {{name}, [=]() -> std::vector<Work> {
            using attn::bfloat16;
            struct Inputs {
              attn::Tensor2<bfloat16> x, w, c;
              attn::PackedWeights<bfloat16> packed;
            };
            const auto [_, element, m, n, k] = shape;
            const auto in = std::make_shared<Inputs>(
                Inputs{attn::convert<bfloat16>(random_tensor<float, 2>({m, k}, 1)),
                       attn::convert<bfloat16>(random_tensor<float, 2>({n, k}, 2)),
                       attn::Tensor2<bfloat16>({m, n}),
                       {}});
            in->packed = attn::PackedWeights<bfloat16>(in->w.view().transpose(0, 1), isa);
            Work work{name, isa, flops_of(shape)};
            work.beyond_limit = true;
            work.bytes = in->w.size() * index_t{sizeof(bfloat16)};
            work.traffic = (in->x.size() + in->w.size() + in->c.size()) * index_t{sizeof(bfloat16)};
            work.run = [in](const attn::Execution& execution) {
              attn::gemm(in->x, in->packed, in->c, {}, execution);
            };
            work.complaint = [in] {
              // The result is rounded once.
              attn::Tensor2<float> expected(in->c.shape());
              attn::gemm(attn::convert<float>(in->x),
                         attn::convert<float>(in->w).view().transpose(0, 1), expected);
              return share_complaint(attn::convert<float>(in->c), expected, 0x1p-8);
            };
            return {work};
          }};
}

/// Random quantised values and scales, since the time does not depend on them.
inline attn::QuantizedWeights random_codes(const SmallGemmShape& shape,
                                           const attn::QuantizedFormat& format) {
  attn::QuantizedWeights weights(shape.n, shape.k, format);
  const index_t block = format.block == 0 ? shape.k : format.block;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(block));
  Random random(3);
  for (index_t row = 0; row < shape.n; ++row) {
    for (index_t at = 0; at * block < shape.k; ++at) {
      for (auto& code : codes) code = static_cast<std::uint8_t>(random.below(1 << format.bits));
      weights.set_block(row, at, codes.data(), 0x1p-8f, format.has_offset ? -0x1p-5f : 0);
    }
  }
  return weights;
}

/// x and c in float, x rounded to 8 bits in the call.
inline Group int8_group(const SmallGemmShape& shape, attn::Isa isa,
                        const attn::QuantizedFormat& format) {
  const std::string name(shape.name);
  return {{name}, [=]() -> std::vector<Work> {
            struct Inputs {
              attn::Tensor2<float> x, c;
              attn::QuantizedWeights weights;
            };
            const auto in = std::make_shared<Inputs>(
                Inputs{random_tensor<float, 2>({shape.m, shape.k}, 1),
                       attn::Tensor2<float>({shape.m, shape.n}), random_codes(shape, format)});
            Work work{name, isa, flops_of(shape)};
            work.beyond_limit = true;
            work.bytes = in->weights.bytes();
            work.traffic = (in->x.size() + in->c.size()) * index_t{sizeof(float)} + work.bytes;
            work.run = [in](const attn::Execution& execution) {
              attn::gemm(in->x, in->weights, attn::ActivationFormat::int8, in->c, {}, execution);
            };
            work.complaint = [in] {
              // Activations are rounded by at most half a step, a 254th of the largest; these
              // errors add up as the square root of their number.
              attn::Tensor2<float> expected(in->c.shape());
              attn::gemm(in->x, in->weights, attn::ActivationFormat::exact, expected);
              return share_complaint(in->c, expected, 0.02);
            };
            return {work};
          }};
}

/// Attention over all queries, with tensors of type E.
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
          // The effect of rounding on an average of 2048 values: see docs/precision.md.
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

/// `work` in MatmulPrecision::high; no work where it would run as highest.
inline std::vector<Work> in_high_precision(Work work, std::function<std::string()> complaint) {
  const auto high = attn::MatmulPrecision::high;
  if (attn::precision_on(work.isa, high) != high) return {};
  work.beyond_limit = true;
  work.run = [high, run = work.run](attn::Execution execution) {
    execution.matmul_precision = high;
    run(execution);
  };
  work.complaint = std::move(complaint);
  return {work};
}

inline Group high_gemm_group(const std::string& name, const char* shape, attn::Isa isa,
                             bool packed) {
  return {{name}, [=] {
            const auto in = std::make_shared<GemmInputs>(shape_of(kGemmShapes, shape));
            Work work = gemm_work(name, isa, in, packed);
            if (packed) {
              in->packed = attn::PackedWeights<float>(in->b, isa, attn::MatmulPrecision::high);
            }
            return in_high_precision(std::move(work), [in] {
              attn::Tensor2<float> expected(in->c.shape());
              attn::gemm(in->a, in->b, expected);
              return share_complaint(in->c, expected, 0x1p-13);
            });
          }};
}

inline Group high_attention_group(const std::string& name, const char* shape, attn::Isa isa) {
  return {{name}, [=] {
            const auto in = attention_inputs(shape);
            return in_high_precision(
                attention_work(name, isa, in, in->q.extent(2)), [in]() -> std::string {
                  const auto expected =
                      attn_test::to_array(attn::scaled_dot_product_attention(in->q, in->k, in->v));
                  const double off =
                      attn_test::worst(attn_test::to_array(in->out), expected).distance;
                  return off <= 1e-3 * attn_test::max_abs(expected)
                             ? ""
                             : "wrong result: off float's by " + std::to_string(off);
                });
          }};
}

}  // namespace detail

inline std::vector<Group> low_precision_groups() {
  using attn::bfloat16;
  const auto exact = attn::AttentionPrecision::exact;
  const attn::Isa isa = attn::active_isa();
  std::vector<Group> groups;
  for (const SmallGemmShape& shape : kSmallGemmShapes) {
    if (shape.element == "bfloat16") {
      groups.push_back(detail::bf16_group(shape, isa));
    } else if (shape.element == "int8") {
      groups.push_back(detail::int8_group(shape, isa, {.block = 0, .float_scales = true}));
    } else if (shape.element == "q8_0") {
      groups.push_back(detail::int8_group(shape, isa, {}));
    } else {
      groups.push_back(detail::int8_group(
          shape, isa, {.bits = 4, .zero = 0, .has_offset = true, .has_wide = false}));
    }
  }
  groups.push_back(detail::small_attention_group<bfloat16>("sdpa_d64_bf16", "d64", isa, exact));
  groups.push_back(detail::small_attention_group<bfloat16>("sdpa_d128_bf16", "d128", isa, exact));
  groups.push_back(detail::small_attention_group<float>("sdpa_d128_int8", "d128", isa,
                                                        attn::AttentionPrecision::int8));
  groups.push_back(detail::high_gemm_group("gemm_1024_high", "gemm_1024", isa, false));
  groups.push_back(detail::high_gemm_group("gemm_bert_high", "gemm_bert", isa, true));
  groups.push_back(detail::high_attention_group("sdpa_d64_high", "d64", isa));
  groups.push_back(detail::high_attention_group("sdpa_d128_high", "d128", isa));
  return groups;
}

}  // namespace bench
