// Gradients of golden cases against double and float; the loss is the sum of y grad_y.
#pragma once

#include <string>

#include "attn/train.hpp"

#include "golden/backend.hpp"
#include "golden/case.hpp"

namespace attn_test {

/// Tolerance of stored gradients, which are float32 and have errors of their own in PyTorch's
/// modules.
inline constexpr double kGradientWithin = 1e-5;

/// Compares `got` with the stored tensor of this name: `within` times the tensor's largest
/// magnitude, at least 1.
template <class T>
void expect_stored_gradient(Case& c, attn::Isa isa, const std::string& name, Array<T> got,
                            double within = kGradientWithin) {
  const auto want = c.load<double>(name);
  got = squeezed_like(got, want.shape);
  c.expect_gradient(difference(got, want, within * std::max(1.0, max_abs(want)), isa,
                               name + (sizeof(T) == 8 ? " (double)" : " (float)")));
}

/// Compares every parameter's gradient, stored as grad.NAME.
template <class T, class Module>
void expect_parameter_gradients(Case& c, attn::Isa isa, const Module& gradients) {
  gradients.visit_parameters(
      [&]<int Rank>(std::string_view name, attn::TensorView<const T, Rank> gradient) {
        expect_stored_gradient<T>(c, isa, std::string("grad.").append(name),
                                  to_array(attn::Tensor<T, Rank>(gradient)));
      });
}

/// Calls check<T>(isa) in double and in float on every instruction set.
template <class Check>
void check_gradients_in_both(Check check) {
  for (attn::Isa isa : available_isas()) {
    check(double{}, isa);
    check(float{}, isa);
  }
}

}  // namespace attn_test
