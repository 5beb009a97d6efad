// Conformance suites Gelu, Swish and SwiGLU.
#include "attn/kernels/rows/activation.hpp"

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

void check_swish(Case& c) {
  const double alpha = c.attribute<double>("alpha").value_or(1);
  on_each_isa(c, [&]<class T>(T, attn::Isa isa) {
    const auto x = c.load<T>(in("x"));
    expect_output(c, "y", to_array(attn::swish(flat(x), alpha, {.isa = isa})).reshaped(x.shape),
                  isa);
  });
}

void check_swiglu(Case& c) {
  const double alpha = c.attribute<double>("alpha").value_or(1);
  on_each_isa(c, [&]<class T>(T, attn::Isa isa) {
    const auto a = c.load<T>(in("a")), b = c.load<T>(in("b"));
    const auto y = to_array(attn::swiglu(flat(a), flat(b), alpha, {.isa = isa}));
    expect_output(c, "y", y.reshaped(a.shape), isa);
  });
}

}  // namespace

const Suite gelu_suite{{"approximate"}, check_gelu};
const Suite swish_suite{{"alpha"}, check_swish};
const Suite swiglu_suite{{"alpha"}, check_swiglu};

}  // namespace attn_test
