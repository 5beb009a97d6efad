// Conformance suite FlexAttention: score_mod, mask_mod and prob_mod. The cases lack their
// subgraphs; the functors here, selected by the cases' names, reproduce the outputs.
#include "attn/attention/sdpa.hpp"

#include "conformance/cases.hpp"

namespace attn_test {
namespace {

template <class T, class... Functors>
void attend(Case& c, attn::Isa isa, const Functors&... functors) {
  const auto q = c.load<T>(in("Q")), k = c.load<T>(in("K")), v = c.load<T>(in("V"));
  attn::AttentionOptions<T> options;
  options.scale = c.attribute<double>("scale");
  options.execution.isa = isa;
  const auto y = attn::scaled_dot_product_attention(q.template view<4>(), k.template view<4>(),
                                                    v.template view<4>(), options, functors...);
  expect_output(c, "Y", to_array(y), isa);
}

void check_flex_attention(Case& c) {
  on_each_isa(c, [&]<class T>(T, attn::Isa isa) {
    const auto is = [&](std::string_view modifier) {
      return c.name() == "test_flexattention_" + std::string(modifier);
    };
    if (is("score_mod")) {
      attend<T>(c, isa, attn::score_mod([](T s, int, int, int, int) { return s; }));
    } else if (is("soft_cap")) {
      attend<T>(c, isa, attn::score_mod([](T s, int, int, int, int) {
                  return T{20} * std::tanh(s / T{20});
                }));
    } else if (is("relative_positional")) {
      attend<T>(c, isa, attn::score_mod([](T s, int, int, int i, int j) {
                  return s + static_cast<T>(i - j);
                }));
    } else if (is("causal_mask")) {
      attend<T>(c, isa, attn::mask_mod([](int, int, int i, int j) { return j <= i; }));
    } else if (is("prob_mod")) {
      attend<T>(c, isa, attn::prob_mod([](T p, int, int, int, int) { return p / T{2}; }));
    } else {
      attend<T>(c, isa);
    }
  });
}

}  // namespace

const Suite flex_attention_suite{{"scale", "domain"}, check_flex_attention};

}  // namespace attn_test
