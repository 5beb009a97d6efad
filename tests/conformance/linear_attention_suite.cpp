// Suite LinearAttention: heads are views; decay and beta, given or not, determine the rule.
#include "attn/attention/linear_attention.hpp"
#include "attn/layers/attention/heads.hpp"

#include "conformance/cases.hpp"

namespace attn_test {
namespace {

/// The library's rule for these inputs must be the one that the case names.
void check_rule(const Case& c) {
  const auto rule = c.attribute<std::string>("update_rule").value_or("gated_delta");
  const bool decay = c.has(in("decay")), beta = c.has(in("beta"));
  const std::string given = decay ? (beta ? "gated_delta" : "gated") : beta ? "delta" : "linear";
  if (rule != given) {
    throw Unsupported("update_rule '" + rule + "' with the inputs of '" + given + "'");
  }
}

template <class T>
void check_linear_attention_on(Case& c, attn::Isa isa) {
  const Index num_heads = c.required<Index>("q_num_heads"),
              kv_heads = c.required<Index>("kv_num_heads");
  const auto q = c.load<T>(in("query")), k = c.load<T>(in("key")), v = c.load<T>(in("value"));
  const auto decay = c.load_if<T>(in("decay")), beta = c.load_if<T>(in("beta")),
             past = c.load_if<T>(in("past_state"));
  const auto keys = attn::split_heads(k.template view<3>(), kv_heads),
             values = attn::split_heads(v.template view<3>(), kv_heads);
  Array<T> y({q.extent(0), q.extent(1), num_heads * values.extent(3)});
  Array<T> state({q.extent(0), kv_heads, keys.extent(3), values.extent(3)});

  attn::LinearAttentionOptions<T> options;
  options.scale = c.attribute<double>("scale");
  if (decay) options.decay = attn::split_heads(decay.template view<3>(), kv_heads);
  if (beta) options.beta = beta.template view<3>().transpose(1, 2);
  if (past) options.initial_state = past.template view<4>();
  options.final_state = state.template view<4>();
  attn::linear_attention(attn::split_heads(q.template view<3>(), num_heads), keys, values,
                         attn::split_heads(y.template view<3>(), num_heads), options, {.isa = isa});
  expect_output(c, "output", y, isa);
  expect_output(c, "present_state", state, isa);
}

void check_linear_attention(Case& c) {
  check_rule(c);
  on_each_isa(c, [&]<class T>(T, attn::Isa isa) { check_linear_attention_on<T>(c, isa); });
}

}  // namespace

const Suite linear_attention_suite{{"q_num_heads", "kv_num_heads", "update_rule", "scale"},
                                   check_linear_attention};

}  // namespace attn_test
