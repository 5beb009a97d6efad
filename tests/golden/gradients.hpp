// Gradients of golden cases, whose loss is the sum of y grad_y, against double and float.
#pragma once

#include <string>

#include "attn/train.hpp"

#include "golden/backend.hpp"
#include "golden/case.hpp"

namespace attn_test {

/// Stored gradients are float32: of PyTorch's modules with errors of their own, as their outputs.
inline constexpr double kGradientWithin = 1e-5;

/// `got` against the stored tensor of this name, to `within` of the larger of 1 and its largest
/// magnitude.
template <class T>
void expect_stored_gradient(Case& c, attn::Isa isa, const std::string& name, Array<T> got,
                            double within = kGradientWithin) {
  const auto want = c.load<double>(name);
  got = squeezed_like(got, want.shape);
  c.expect_gradient(difference(got, want, within * std::max(1.0, max_abs(want)), isa,
                               name + (sizeof(T) == 8 ? " (double)" : " (float)")));
}

/// Every parameter's gradient, stored as grad.NAME.
template <class T, class Module>
void expect_parameter_gradients(Case& c, attn::Isa isa, const Module& gradients) {
  gradients.visit_parameters(
      [&]<int Rank>(std::string_view name, attn::TensorView<const T, Rank> gradient) {
        expect_stored_gradient<T>(c, isa, std::string("grad.").append(name),
                                  to_array(attn::Tensor<T, Rank>(gradient)));
      });
}

/// check<T>(isa) in double and in float on every instruction set.
template <class Check>
void check_gradients_in_both(Check check) {
  for (attn::Isa isa : available_isas()) {
    check(double{}, isa);
    check(float{}, isa);
  }
}

}  // namespace attn_test
