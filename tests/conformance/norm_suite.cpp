// Conformance suites LayerNormalization and RMSNormalization: axes from `axis` on form one row.
#include <iostream>

#include "attn/kernels/rows/norm.hpp"

#include "conformance/cases.hpp"

namespace attn_test {
namespace {

constexpr double kDefaultEpsilon = 1e-5;

/// Compares the first of three outputs; mean and inverse deviation are not outputs of layer_norm.
void check_layer_norm(Case& c) {
  const double eps = c.attribute<double>("epsilon").value_or(kDefaultEpsilon);
  on_each_isa(c, [&]<class T>(T, attn::Isa isa) {
    const auto x = c.load<T>(in("X")), weight = c.load<T>(in("W")), bias = c.load_if<T>(in("B"));
    const Array<T> rows = rows_from(x, axis_of(c, x.shape.size()));
    const auto y = to_array(
        attn::layer_norm(rows.template view<2>(), flat(weight), flat(bias), eps, {.isa = isa}));
    expect_output(c, "Y", y.reshaped(x.shape), isa);
  });
  for (const char* name : {"Mean", "InvStdDev"}) {
    if (!c.has(out(name))) continue;
    std::cout << c.name() << ": output " << name << " is not compared, layer_norm has none\n";
    c.mark_read(out(name));
  }
}

void check_rms_norm(Case& c) {
  const double eps = c.attribute<double>("epsilon").value_or(kDefaultEpsilon);
  on_each_isa(c, [&]<class T>(T, attn::Isa isa) {
    const auto x = c.load<T>(in("X")), weight = c.load<T>(in("W"));
    const Array<T> rows = rows_from(x, axis_of(c, x.shape.size()));
    const auto y =
        to_array(attn::rms_norm(rows.template view<2>(), flat(weight), eps, {.isa = isa}));
    expect_output(c, "Y", y.reshaped(x.shape), isa);
  });
}

}  // namespace

const Suite layer_normalization_suite{{"axis", "epsilon"}, check_layer_norm};
const Suite rms_normalization_suite{{"axis", "epsilon"}, check_rms_norm};

}  // namespace attn_test
