// Checks of Hessian-vector products: central differences of gradients, symmetry.
#pragma once

#include "support/tangent_check.hpp"

namespace attn_test {

/// All parameters after one another.
template <class Module>
attn::Tensor1<double> joined_parameters(const Module& module) {
  std::vector<double> all;
  module.visit_parameters([&](std::string_view, const auto& x) {
    all.insert(all.end(), x.data(), x.data() + x.size());
  });
  attn::Tensor1<double> result({static_cast<Index>(all.size())});
  std::ranges::copy(all, result.data());
  return result;
}

/// add_gradients(gradients) adds the gradients of a loss of `model`, add_product(vector, result) the
/// Hessian times a vector; checks the latter against central differences and for symmetry.
template <class Module, class Gradients, class Product>
void expect_hessian(Random& random, Module& model, const Gradients& add_gradients,
                    const Product& add_product, double tolerance) {
  Module vector = attn::gradients_of(model), other = vector, product = vector, of_other = vector;
  Direction direction, unused;
  unused.add_parameters(random, model, other);
  direction.add_parameters(random, model, vector);
  add_product(vector, product);
  const auto run = [&] {
    Module gradients = attn::gradients_of(product);
    add_gradients(gradients);
    return joined_parameters(gradients);
  };
  // A step of 2e-6: the error of the difference is step^2 / 6 times the third derivative of the
  // gradient, which is large with softcap; its rounding, about 1e-16 / 2e-6, is far below the
  // tolerance.
  expect_tangent(direction, run, joined_parameters(product), tolerance, 2e-6);
  add_product(other, of_other);
  const double one = dot_parameters(product, other);
  EXPECT_NEAR(one, dot_parameters(of_other, vector), 1e-9 * (1 + std::abs(one)));
  // Products are added to the result.
  add_product(other, product);
  const auto sum = joined_parameters(product), second = joined_parameters(of_other);
  Module first = attn::gradients_of(model);
  add_product(vector, first);
  const auto start = joined_parameters(first);
  for (Index i = 0; i < sum.size(); ++i) {
    ASSERT_NEAR(sum(i), start(i) + second(i), 1e-9 * (1 + std::abs(sum(i))));
  }
}

}  // namespace attn_test
