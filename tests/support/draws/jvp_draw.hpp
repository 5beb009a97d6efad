// JvpRun: outputs of attention and their tangents, for random tangents of an AttentionDraw.
#pragma once

#include <deque>

#include "attn/attention/jvp/sdpa_jvp.hpp"

#include "support/draws/attention_draw.hpp"
#include "support/references/reference_jvp.hpp"

namespace attn_test {

template <class T>
struct JvpRun {
  explicit JvpRun(const AttentionDraw<T>& draw)
      : y({draw.q.extent(0), draw.q.extent(1), draw.q.extent(2), draw.v.extent(3)}),
        lse({draw.q.extent(0), draw.q.extent(1), draw.q.extent(2)}),
        d_y(y),
        d_lse(lse) {}

  Array<T> y, lse, d_y, d_lse;
};

/// The tangents of a draw in the library's types, which refer to `held`.
template <class T>
attn::AttentionTangents<T> library_tangents(const ReferenceTangents<T>& from,
                                            std::deque<Array<T>>& held) {
  const auto hold = [&](const auto& x) -> const Array<T>& {
    return held.emplace_back(x.template as<T>());
  };
  const auto hold_all = [&](const std::vector<double>& x) -> const Array<T>& {
    return hold(Array<double>({static_cast<Index>(x.size())}, x));
  };
  attn::AttentionTangents<T> to;
  if (from.q) to.q = from.q.template view<4>();
  if (from.k) to.k = from.k.template view<4>();
  if (from.v) to.v = from.v.template view<4>();
  if (from.qv) to.qv = hold(from.qv).template view<4>();
  if (from.batch_alibi_slopes) {
    to.batch_alibi_slopes = hold(from.batch_alibi_slopes).template view<2>();
  }
  if (from.relative_bias) to.relative_bias = hold(from.relative_bias).template view<2>();
  if (!from.alibi_slopes.empty()) to.alibi_slopes = hold_all(from.alibi_slopes).template view<1>();
  if (!from.sinks.empty()) to.sinks = hold_all(from.sinks).template view<1>();
  for (std::size_t n = 0; n < from.bias.size(); ++n) {
    to.bias[n] = hold(from.bias[n]).template view<4>();
  }
  return to;
}

/// Calls the library with these options, for contiguous inputs.
template <class T, class... Functors>
JvpRun<T> call_jvp(const AttentionDraw<T>& draw, const ReferenceTangents<T>& tangents,
                   attn::AttentionOptions<T> options, const Functors&... functors) {
  JvpRun<T> r(draw);
  std::deque<Array<T>> held;
  attn::AttentionTangents<T> given = library_tangents(tangents, held);
  given.d_lse = r.d_lse.template view<3>();
  options.lse = r.lse.template view<3>();
  attn::scaled_dot_product_attention_jvp(draw.q.template view<4>(), draw.k.template view<4>(),
                                         draw.v.template view<4>(), given, r.y.template view<4>(),
                                         r.d_y.template view<4>(), options, functors...);
  return r;
}

/// Some of the inputs have no tangents.
template <class T>
ReferenceTangents<T> draw_tangents(Random& random, const AttentionDraw<T>& draw) {
  auto t = ReferenceTangents<T>::draw(random, draw.q, draw.k, draw.v, draw.options);
  if (random.chance(0.15)) t.q = {};
  if (random.chance(0.15)) t.k = {};
  if (random.chance(0.15)) t.v = {};
  if (random.chance(0.15)) t.qv = {};
  if (random.chance(0.15)) t.sinks = {};
  if (random.chance(0.15)) t.alibi_slopes = {};
  if (random.chance(0.15)) t.relative_bias = {};
  return t;
}

}  // namespace attn_test
