// Works of the report beside products and attention: linear layers with few rows, small batched
// products, and elementwise or row-wise functions.
#pragma once

#include "report/work.hpp"

namespace bench {

namespace detail {

/// Rows through a weight (out, in), packed or not.
inline Work linear_work(std::string name, attn::Isa isa, const LinearShape& shape, bool packed) {
  struct Inputs {
    attn::Tensor2<float> x, weight, out;
    attn::PackedWeights<float> packed;
  };
  const auto in = std::make_shared<Inputs>(
      Inputs{random_tensor<float, 2>({shape.rows, shape.in_features}, 1),
             random_tensor<float, 2>({shape.out_features, shape.in_features}, 2),
             attn::Tensor2<float>({shape.rows, shape.out_features}),
             {}});
  if (packed) in->packed = attn::PackedWeights<float>(in->weight.view().transpose(0, 1), isa);
  Work work{std::move(name), isa, 2 * static_cast<double>(shape.rows * in->weight.size())};
  work.traffic = (in->x.size() + in->weight.size() + in->out.size()) * index_t{sizeof(float)};
  if (is_read_once(shape)) work.bytes = in->weight.size() * index_t{sizeof(float)};
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
  return work;
}

/// A row of the report; if the caches hold the weights, also its baseline with packed weights.
inline Group linear_group(const LinearShape& shape, attn::Isa isa) {
  const std::string name(shape.name), packed = name + "_packed";
  if (!is_cached(shape)) {
    return {{name},
            [=]() -> std::vector<Work> { return {linear_work(name, isa, shape, shape.packed)}; }};
  }
  return {{name, packed}, [=]() -> std::vector<Work> {
            return {linear_work(name, isa, shape, false), linear_work(packed, isa, shape, true)};
          }};
}

inline Group batched_group(const GemmShape& shape, attn::Isa isa) {
  const std::string name(shape.name);
  return {{name}, [=]() -> std::vector<Work> {
            const auto [_, batch, m, n, k, packed] = shape;
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
            work.complaint = [in] {
              const index_t last = in->a.extent(0) - 1;
              return gemm_complaint<float>(in->a.view().select(0, last),
                                           in->b.view().select(0, last),
                                           in->c.view().select(0, last));
            };
            return {work};
          }};
}

/// Calls run(x, out, execution) over rows; compares its result with that of Isa::scalar.
template <class Run>
Work element_work(std::string name, attn::Isa isa, const RowsShape& rows, Run run) {
  const attn::Shape<2> shape{rows.rows, rows.columns};
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
                            const RowsShape& rows) {
  return element_work(std::move(name), isa, rows,
                      [activation](const auto& x, auto& out, const attn::Execution& execution) {
                        attn::activate(activation, x, out, execution);
                      });
}

}  // namespace detail

inline std::vector<Group> element_groups() {
  using attn::Activation;
  const attn::Isa isa = attn::active_isa();
  const auto rows = [](const char* name) { return shape_of(kRowsShapes, name); };
  std::vector<Group> groups;
  for (const LinearShape& shape : kLinearShapes) {
    groups.push_back(detail::linear_group(shape, isa));
  }
  for (const char* name : {"batched_16", "batched_128"}) {
    groups.push_back(detail::batched_group(shape_of(kGemmShapes, name), isa));
  }
  groups.push_back({{"gelu"}, [=]() -> std::vector<Work> {
                      return {detail::activation_work("gelu", isa, Activation::gelu, rows("gelu"))};
                    }});
  groups.push_back({{"silu"}, [=]() -> std::vector<Work> {
                      return {detail::activation_work("silu", isa, Activation::silu, rows("silu"))};
                    }});
  groups.push_back({{"relu_cached", "gelu_cached"}, [=]() -> std::vector<Work> {
                      const RowsShape shape = rows("gelu_cached");
                      return {detail::activation_work("relu_cached", isa, Activation::relu, shape),
                              detail::activation_work("gelu_cached", isa, Activation::gelu, shape)};
                    }});
  groups.push_back({{"layer_norm"}, [=]() -> std::vector<Work> {
                      return {detail::element_work(
                          "layer_norm", isa, rows("layer_norm"),
                          [](const auto& x, auto& out, const attn::Execution& execution) {
                            attn::layer_norm(x, {}, {}, 1e-5, out, execution);
                          })};
                    }});
  return groups;
}

}  // namespace bench
