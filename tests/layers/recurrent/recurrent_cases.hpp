// Cases that every recurrent layer must pass.
#pragma once

#include <deque>
#include <vector>

#include <gtest/gtest.h>

#include "attn/attention/kv_cache.hpp"

#include "support/error_of.hpp"
#include "support/gradient_check.hpp"
#include "support/models/module_gradients.hpp"
#include "support/random.hpp"
#include "support/thread_executor.hpp"
#include "support/tolerance.hpp"

namespace attn_test {

/// Calls with row caches, on three threads, have the bits of a call of each row.
template <class Module>
void expect_bits_of_rows_alone(Random& random, const Module& module, Index batch, Index seq) {
  const ThreadExecutor three(3);
  const Index dim = module.options().d_model;
  std::deque<attn::KvCache<float>> together, alone;
  std::vector<attn::KvCache<float>*> rows;
  for (Index b = 0; b < batch; ++b) {
    together.push_back(module.make_cache(1, 100));
    module(random.tensor<float, 3>({1, random.integer(0, 9), dim}), {.cache = &together.back()});
    alone.push_back(together.back());
    rows.push_back(&together.back());
  }
  const auto x = random.tensor<float, 3>({batch, seq, dim});
  const auto found = module(x, {.row_caches = rows}, {.executor = &three});
  for (Index b = 0; b < batch; ++b) {
    const auto expected = module(attn::const_view(x).slice(0, b, b + 1),
                                 {.cache = &alone[static_cast<std::size_t>(b)]});
    for (Index i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(found.data()[b * expected.size() + i], expected.data()[i]) << b << " " << i;
    }
  }
}

/// The forward that saves gives reference(module, x) + residual, and backward the gradients of
/// central differences; backward refuses a d_x of another shape before it adds to the
/// gradients. `name`: the function in errors.
template <class Saved, class Module, class Reference>
void expect_gradients(Random& random, std::string_view name, Module& module,
                      const Reference& reference, double tolerance,
                      double gradient_tolerance = 2e-6) {
  auto x = random.tensor<double, 3>({2, random.integer(1, 6), module.options().d_model});
  const auto d = random.tensor<double, 3>(x.shape()),
             residual = random.tensor<double, 3>(x.shape());
  Saved saved, other;
  attn::Tensor3<double> out(x.shape()), d_x(x.shape());
  const auto loss = [&] {
    forward(module, x, out, other);
    return weighted_sum(d.elements(), out.elements());
  };
  auto gradients = attn::gradients_of(module);
  forward(module, x, out, saved, residual);
  auto expected = reference(module, x);
  for (Index i = 0; i < x.size(); ++i) expected.data()[i] += residual.data()[i];
  expect_within(tolerance, out, expected);
  attn::Tensor3<double> wrong({x.extent(0), x.extent(1) + 1, x.extent(2)});
  EXPECT_TRUE(contains(
      error_of<attn::ShapeError>([&] { backward(module, d, saved, wrong, gradients, residual); }),
      "[" + std::string(name) + "] d_x"));
  backward(module, d, saved, d_x, gradients, residual);
  for (Index i = 0; i < x.size(); ++i) d_x.data()[i] -= residual.data()[i];
  expect_gradient("x", random, x.elements(), d_x.elements(), loss, gradient_tolerance);
  expect_module_gradients(random, module, gradients, loss, gradient_tolerance);
}

}  // namespace attn_test
