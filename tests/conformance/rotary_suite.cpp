// Conformance suite RotaryEmbedding. Without position ids the caches hold one row per token,
// (batch, seq, rotary_dim / 2): joined into one cache, with the tokens' own numbers as positions.
#include "attn/layers/attention/heads.hpp"
#include "attn/layers/attention/rotary.hpp"

#include "conformance/cases.hpp"

namespace attn_test {
namespace {

template <class T>
void check_rotary_on(Case& c, attn::Isa isa) {
  const auto x = c.load<T>(in("input")), cos = c.load<T>(in("cos_cache")),
             sin = c.load<T>(in("sin_cache"));
  const Index batch = x.extent(0), pairs = cos.shape.back();
  if (const Index dim = c.attribute<Index>("rotary_embedding_dim").value_or(0);
      dim != 0 && dim != 2 * pairs) {
    throw std::runtime_error("rotary_embedding_dim is not that of the caches");
  }
  Array<T> y(x.shape);
  const bool split = x.shape.size() == 3;
  const auto heads = [&](auto& array) {
    if (!split) return array.template view<4>();
    return attn::split_heads(array.template view<3>(), c.required<Index>("num_heads"));
  };
  const Index seq = x.extent(split ? 1 : 2);
  Array<Index> ids({batch, seq});
  if (c.has(in("position_ids"))) {
    ids = c.load<Index>(in("position_ids"));
  } else {
    std::iota(ids.data.begin(), ids.data.end(), Index{0});
  }
  const std::vector<Index> rows = {cos.size() / pairs, pairs};
  const Array<T> cos_rows = cos.reshaped(rows), sin_rows = sin.reshaped(rows);
  attn::rotary_embedding(heads(x), cos_rows.template view<2>(), sin_rows.template view<2>(),
                         std::as_const(ids).template view<2>(), heads(y),
                         c.attribute<int>("interleaved").value_or(0) != 0
                             ? attn::RotaryPairs::interleaved
                             : attn::RotaryPairs::halves,
                         {.isa = isa});
  expect_output(c, "output", y, isa);
}

void check_rotary(Case& c) {
  on_each_isa(c, [&]<class T>(T, attn::Isa isa) { check_rotary_on<T>(c, isa); });
}

}  // namespace

const Suite rotary_embedding_suite{{"num_heads", "interleaved", "rotary_embedding_dim"},
                                   check_rotary};

}  // namespace attn_test
