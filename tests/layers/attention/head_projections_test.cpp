// HeadProjections: joined, separate or packed, the same three projections.
#include "attn/layers/attention/head_projections.hpp"

#include <gtest/gtest.h>

#include "support/isas.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::difference;
using attn_test::Random;
using attn_test::to_array;

TEST(HeadProjections, EveryWayGivesTheThreeProjections) {
  for (std::uint64_t draw = 0; draw < attn_test::draws(60); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const bool one_matrix = random.chance(0.6);
    const MultiHeadAttentionOptions options{.embed_dim = 10,
                                            .num_heads = 4,
                                            .bias = random.chance(0.7),
                                            .kdim = one_matrix ? 10 : random.integer(1, 12),
                                            .vdim = one_matrix ? 10 : random.integer(1, 12),
                                            .num_kv_heads = random.pick<index_t>({1, 2, 4}),
                                            .head_dim = random.integer(1, 9),
                                            .head_dim_v = random.integer(1, 9)};
    HeadProjections<float> projections(options);
    attn_test::randomize(projections, random);
    if (random.chance(0.6)) projections.pack(MatmulPrecision::highest, random.chance(0.5));
    const index_t batch = random.integer(1, 3), q_len = random.integer(1, 7);
    const index_t kv_len = random.integer(1, 7), appended = random.pick<index_t>({0, 0, 2});
    // Some inputs are slices of longer sequences, whose batch rows are not adjacent.
    const index_t more = random.pick<index_t>({0, 0, 2});
    const auto longer_query = random.tensor<float, 3>({batch, q_len + more, 10});
    const auto longer_key = random.tensor<float, 3>({batch, kv_len + more, options.kdim});
    const auto longer_value = random.tensor<float, 3>({batch, kv_len + more, options.vdim});
    const auto query = longer_query.view().slice(1, 0, q_len);
    const auto key = longer_key.view().slice(1, 0, kv_len);
    const auto value = longer_value.view().slice(1, 0, kv_len);
    const bool self = one_matrix && random.chance(0.4), same = one_matrix && random.chance(0.5);
    const auto k = self ? query : key, v = self ? query : same ? key : value;
    const bool queries_only = random.chance(0.2);
    const HeadProjections<float>& made =
        projections;  // a writable weight would invalidate the copies
    for (Isa isa : available_isas()) {
      const Execution on{.isa = isa};
      Tensor1<float> memory({projections.elements(batch, q_len, k.extent(1) + appended)});
      const TensorView3<const float> none;
      const auto heads = queries_only
                             ? projections.project(query, none, none, appended, memory.data(), on)
                             : projections.project(query, k, v, appended, memory.data(), on);
      const auto check = [&](int which, TensorView3<const float> from, TensorView3<float> found) {
        const auto expected = to_array(linear(Tensor3<float>(from), made.weight(which),
                                              made.bias(which), Activation::none, on));
        EXPECT_EQ(found.extent(2), projections.width(which));
        EXPECT_EQ(
            difference(to_array(found.slice(1, 0, from.extent(1))), expected,
                       32 * attn_test::epsilon<float> * std::max(1.0, attn_test::max_abs(expected)),
                       isa),
            "");
      };
      check(0, query, heads.q);
      if (queries_only) continue;
      check(1, k, heads.k);
      check(2, v, heads.v);
      EXPECT_EQ(heads.k.extent(1), k.extent(1) + appended);
    }
  }
}

TEST(HeadProjections, WhatWasLoadedAfterPackingIsUsed) {
  for (const bool self : {true, false}) {
    Random random(200);
    HeadProjections<float> projections({.embed_dim = 10,
                                        .num_heads = 2,
                                        .kdim = 10,
                                        .vdim = 10,
                                        .num_kv_heads = 2,
                                        .head_dim = 5,
                                        .head_dim_v = 5});
    attn_test::randomize(projections, random);
    const auto x = random.tensor<float, 3>({2, 3, 10}), y = random.tensor<float, 3>({2, 3, 10});
    const auto key = self ? x.view() : y.view();
    const auto check = [&] {
      const HeadProjections<float>& read_only = projections;
      Tensor1<float> memory({read_only.elements(2, 3, 3)});
      const auto heads = read_only.project(x.view(), key, key, 0, memory.data(), {});
      const auto expected =
          to_array(linear(Tensor3<float>(key), read_only.weight(2), read_only.bias(2)));
      EXPECT_EQ(difference(to_array(heads.v), expected, 1e-5, active_isa()), "");
    };
    projections.pack(MatmulPrecision::highest, self);
    attn_test::randomize(projections, random);  // by visit_parameters(), as loading does
    check();
    projections.pack(MatmulPrecision::highest, self);
    const TensorView2<float> weight = projections.weight(2);
    for (index_t n = 0; n < weight.size(); ++n) weight.data()[n] = 3;
    check();
  }
}

}  // namespace
}  // namespace attn
