// Conformance suite Gelu.
#include "attn/kernels/activation.hpp"

#include "conformance/cases.hpp"

namespace attn_test {
namespace {

void check_gelu(Case& c) {
  const auto approximate = c.attribute<std::string>("approximate").value_or("none");
  if (approximate != "none" && approximate != "tanh") {
    throw Unsupported("approximate = " + approximate);
  }
  const auto form = approximate == "tanh" ? attn::Activation::gelu_tanh : attn::Activation::gelu;
  on_each_isa(c, [&]<class T>(T, attn::Isa isa) {
    const auto x = c.load<T>(in("x"));
    const auto y = to_array(attn::activate(form, flat(x), {.isa = isa}));
    expect_output(c, "y", y.reshaped(x.shape), isa);
  });
}

}  // namespace

const Suite gelu_suite{{"approximate"}, check_gelu};

}  // namespace attn_test
