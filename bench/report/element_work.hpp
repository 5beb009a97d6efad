// Calls that the report times beside products and attention: few rows through a linear layer, small batched products, and
// what goes element by element or row by row.
#pragma once

#include "report/work.hpp"

namespace bench {

namespace detail {

/// `rows` rows through a weight (4096, 4096), as PyTorch stores it or packed before.
inline Group linear_group(std::string name, attn::Isa isa, index_t rows, bool packed) {
  return {{name}, [=]() -> std::vector<Work> {
            constexpr index_t kWidth = 4096;
            struct Inputs {
              attn::Tensor2<float> x, weight, out;
              attn::PackedWeights<float> packed;
            };
            const auto in =
                std::make_shared<Inputs>(Inputs{random_tensor<float, 2>({rows, kWidth}, 1),
                                                random_tensor<float, 2>({kWidth, kWidth}, 2),
                                                attn::Tensor2<float>({rows, kWidth}),
                                                {}});
            if (packed) {
              in->packed = attn::PackedWeights<float>(in->weight.view().transpose(0, 1), isa);
            }
            Work work{name, isa, 2 * static_cast<double>(rows * in->weight.size())};
            work.traffic =
                (in->x.size() + in->weight.size() + in->out.size()) * index_t{sizeof(float)};
            if (!packed) work.bytes = in->weight.size() * index_t{sizeof(float)};
            work.run = [in, packed](const attn::Execution& execution) {
              if (packed) {
                attn::linear(in->x, in->packed, {}, in->out, attn::Activation::none, {}, execution);
              } else {
                attn::linear(in->x, in->weight, {}, in->out, attn::Activation::none, {}, execution);
              }
            };
            work.complaint = [in] {
              return gemm_complaint<float>(in->x, in->weight.view().transpose(0, 1), in->out);
            };
            return {work};
          }};
}

/// A batch of products (m, k) (k, n).
inline Group batched_group(std::string name, attn::Isa isa, index_t batch, index_t m, index_t n,
                           index_t k) {
  return {{name}, [=]() -> std::vector<Work> {
            struct Inputs {
              attn::Tensor3<float> a, b, c;
            };
            const auto in = std::make_shared<Inputs>(Inputs{
                random_tensor<float, 3>({batch, m, k}, 1),
                random_tensor<float, 3>({batch, k, n}, 2), attn::Tensor3<float>({batch, m, n})});
            Work work{name, isa, 2 * static_cast<double>(batch * m * n * k)};
            work.traffic = (in->a.size() + in->b.size() + in->c.size()) * index_t{sizeof(float)};
            work.run = [in](const attn::Execution& execution) {
              attn::batched_gemm(in->a, in->b, in->c, {}, execution);
            };
            work.complaint = [in, batch] {
              return gemm_complaint<float>(in->a.view().select(0, batch - 1),
                                           in->b.view().select(0, batch - 1),
                                           in->c.view().select(0, batch - 1));
            };
            return {work};
          }};
}

/// run(x, out, execution) over `rows` of 1024; its result is compared with the scalar set's.
template <class Run>
Work element_work(std::string name, attn::Isa isa, index_t rows, Run run) {
  const attn::Shape<2> shape{rows, 1024};
  const auto x = std::make_shared<attn::Tensor2<float>>(random_tensor<float, 2>(shape, 1, 3.0f));
  const auto out = std::make_shared<attn::Tensor2<float>>(shape);
  Work work{std::move(name), isa};
  work.traffic = 2 * x->size() * index_t{sizeof(float)};
  work.bytes = work.traffic;
  work.run = [=](const attn::Execution& execution) { run(*x, *out, execution); };
  work.complaint = [=]() -> std::string {
    attn::Tensor2<float> other(shape);
    run(*x, other, attn::Execution{.isa = attn::Isa::scalar});
    const double worst =
        attn_test::worst(attn_test::to_array(*out), attn_test::to_array(other)).distance;
    return worst <= 1e-5 ? "" : "wrong result: off the scalar set's by " + std::to_string(worst);
  };
  return work;
}

inline Work activation_work(std::string name, attn::Isa isa, attn::Activation activation,
                            index_t rows) {
  return element_work(std::move(name), isa, rows,
                      [activation](const auto& x, auto& out, const attn::Execution& execution) {
                        attn::activate(activation, x, out, execution);
                      });
}

}  // namespace detail

/// Rows of linear_group() whose weights are not packed.
inline constexpr index_t kLinearRows[] = {1, 4, 8};

inline std::vector<Group> element_groups() {
  using attn::Activation;
  const attn::Isa isa = attn::active_isa();
  constexpr index_t kManyRows = 4096, kCachedRows = 64;
  std::vector<Group> groups;
  for (const index_t rows : kLinearRows) {
    groups.push_back(detail::linear_group("linear_" + std::to_string(rows), isa, rows, false));
  }
  groups.push_back(detail::linear_group("linear_packed_8", isa, 8, true));
  groups.push_back(detail::linear_group("linear_packed_16", isa, 16, true));
  groups.push_back(detail::batched_group("batched_16", isa, 512, 16, 16, 16));
  groups.push_back(detail::batched_group("batched_128", isa, 96, 128, 64, 128));
  groups.push_back({{"gelu"}, [=]() -> std::vector<Work> {
                      return {detail::activation_work("gelu", isa, Activation::gelu, kManyRows)};
                    }});
  groups.push_back({{"silu"}, [=]() -> std::vector<Work> {
                      return {detail::activation_work("silu", isa, Activation::silu, kManyRows)};
                    }});
  groups.push_back(
      {{"relu_cached", "gelu_cached"}, [=]() -> std::vector<Work> {
         return {detail::activation_work("relu_cached", isa, Activation::relu, kCachedRows),
                 detail::activation_work("gelu_cached", isa, Activation::gelu, kCachedRows)};
       }});
  groups.push_back({{"layer_norm"}, [=]() -> std::vector<Work> {
                      return {detail::element_work(
                          "layer_norm", isa, kManyRows,
                          [](const auto& x, auto& out, const attn::Execution& execution) {
                            attn::layer_norm(x, {}, {}, 1e-5, out, execution);
                          })};
                    }});
  return groups;
}

}  // namespace bench
