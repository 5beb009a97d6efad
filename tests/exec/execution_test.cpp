// Execution: the defaults of its fields; calls run on the instruction set that they name.
#include "attn/exec/execution.hpp"

#include <gtest/gtest.h>

#include "attn/attn.hpp"

#include "support/array.hpp"
#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/thread_executor.hpp"

namespace attn {
namespace {

using attn_test::all_are;
using attn_test::contains;
using attn_test::error_of;

TEST(Execution, Defaults) {
  const Execution none;
  EXPECT_EQ(&none.threads(), &default_executor());
  EXPECT_EQ(&none.scratch(), &default_workspace());
  const attn_test::ThreadExecutor threads(2);
  Workspace workspace;
  const Execution given{.executor = &threads, .workspace = &workspace};
  EXPECT_EQ(&given.threads(), &threads);
  EXPECT_EQ(&given.scratch(), &workspace);
}

/// Every public function refuses an instruction set that the machine lacks, and writes nothing.
TEST(Execution, UnavailableSetThrowsEverywhere) {
  for (Isa isa : kAllIsas) {
    if (is_available(isa)) continue;
    const Execution on{.isa = isa};
    const auto refused = [](auto f) {
      EXPECT_TRUE(contains(error_of<ValueError>(f), "[require_isa] the instruction set must be"));
    };
    const Tensor2<float> a({4, 4});
    Tensor2<float> out({4, 4});
    out.fill(7);
    const Tensor4<float> q({1, 1, 4, 4});
    Tensor4<float> y({1, 1, 4, 4});
    y.fill(7);
    refused([&] { gemm(a, a, out, {}, on); });
    refused([&] { softmax(a, out, on); });
    refused([&] { layer_norm(a, {}, {}, 1e-5, out, on); });
    refused([&] { activate(Activation::silu, out, out, on); });
    refused([&] { PackedWeights<float>(a, isa); });
    refused([&] { linear(a, a, {}, out, Activation::none, {}, on); });
    refused([&] { scaled_dot_product_attention(q, q, q, y, {.execution = on}); });
    EXPECT_TRUE(all_are(out, 7));
    EXPECT_TRUE(all_are(y, 7));
  }
}

}  // namespace
}  // namespace attn
