// Sublayers equal their composed parts, for both orders of norm and residual, also in place.
#include "attn/layers/sublayer.hpp"

#include <gtest/gtest.h>

#include "support/error_of.hpp"
#include "support/references/reference_transformer.hpp"

namespace attn {
namespace {

using attn_test::error_of;
using attn_test::Random;
using attn_test::unlike;

Tensor3<float> add(const Tensor3<float>& a, Tensor3<float> b) {
  for (index_t i = 0; i < b.size(); ++i) b.data()[i] += a.data()[i];
  return b;
}

class Sublayer : public ::testing::Test {
 protected:
  Sublayer() {
    attn_test::randomize(attention, random);
    attn_test::randomize(feed_forward, random);
    attn_test::randomize(norm, random);
  }
  Random random{1};
  MultiHeadAttention<float> attention{{.embed_dim = 12, .num_heads = 3, .head_dim_v = 5}};
  FeedForward<float> feed_forward{{.d_model = 12, .dim_feedforward = 20}};
  LayerNorm<float> norm{12, 1e-6};
  Tensor3<float> x = random.tensor<float, 3>({2, 5, 12});
  Tensor3<float> memory = random.tensor<float, 3>({2, 7, 12});
};

TEST_F(Sublayer, AttentionWithResidualAndNorm) {
  const Tensor3<float> normed = norm(x);
  const struct {
    bool norm_first, self;
    Tensor3<float> expected;
  } cases[] = {{false, true, norm(add(x, attention(x, {.mask = causal()})))},
               {true, true, add(x, attention(normed, {.mask = causal()}))},
               {false, false, norm(add(x, attention(x, memory, memory, {.mask = causal()})))},
               {true, false, add(x, attention(normed, memory, memory, {.mask = causal()}))}};
  for (const auto& c : cases) {
    const Tensor3<float>& key = c.self ? x : memory;
    Tensor3<float> y(x.shape());
    attention_sublayer<float>(attention, norm, c.norm_first, x, key, key, y, {.mask = causal()});
    EXPECT_EQ(unlike(y, c.expected), "") << c.norm_first << c.self;
    Tensor3<float> in_place = x;
    const Tensor3<float>& same = c.self ? in_place : memory;
    attention_sublayer<float>(attention, norm, c.norm_first, in_place, same, same, in_place,
                              {.mask = causal()});
    EXPECT_EQ(unlike(in_place, c.expected), "") << c.norm_first << c.self;
  }
}

/// A slice of x is a key other than x: it is not normalised.
TEST_F(Sublayer, AttentionToAPartOfItsInput) {
  const TensorView3<const float> part = std::as_const(x).view().slice(1, 0, 2);
  Tensor3<float> y(x.shape());
  attention_sublayer<float>(attention, norm, true, x, part, part, y);
  EXPECT_EQ(unlike(y, add(x, attention(norm(x), part, part))), "");
}

/// Key and value may each be x or not.
TEST_F(Sublayer, AttentionToItsInputWithOtherValues) {
  const Tensor3<float> value = random.tensor<float, 3>({2, 5, 12}), normed = norm(x);
  Tensor3<float> y(x.shape());
  attention_sublayer<float>(attention, norm, false, x, x, value, y);
  EXPECT_EQ(unlike(y, norm(add(x, attention(x, x, value)))), "");
  attention_sublayer<float>(attention, norm, true, x, x, value, y);
  EXPECT_EQ(unlike(y, add(x, attention(normed, normed, value))), "");
  attention_sublayer<float>(attention, norm, true, x, value, x, y);
  EXPECT_EQ(unlike(y, add(x, attention(normed, value, normed))), "");
}

TEST_F(Sublayer, FeedForwardWithResidualAndNorm) {
  for (const bool norm_first : {false, true}) {
    const Tensor3<float> expected =
        norm_first ? add(x, feed_forward(norm(x))) : norm(add(x, feed_forward(x)));
    Tensor3<float> y(x.shape()), in_place = x;
    feed_forward_sublayer<float>(feed_forward, norm, norm_first, x, y);
    EXPECT_EQ(unlike(y, expected), "");
    feed_forward_sublayer<float>(feed_forward, norm, norm_first, in_place, in_place);
    EXPECT_EQ(unlike(in_place, expected), "");
  }
}

/// The norm throws after keys were appended.
TEST_F(Sublayer, ErrorsLeaveTheCache) {
  auto cache = attention.make_cache(2, 5);
  Tensor3<float> y(x.shape());
  for (const bool norm_first : {false, true}) {
    EXPECT_THROW(attention_sublayer<float>(attention, LayerNorm<float>(11), norm_first, x, x, x, y,
                                           {}, {.cache = &cache}),
                 ShapeError);
    EXPECT_EQ(cache.length(), 0);
  }
}

TEST_F(Sublayer, ErrorsNameTheOutput) {
  Tensor3<float> wrong({2, 5, 11});
  EXPECT_EQ(error_of<ShapeError>(
                [&] { attention_sublayer<float>(attention, norm, false, x, x, x, wrong); }),
            "[attention_sublayer] out must have shape (2, 5, 12); found (2, 5, 11).");
  EXPECT_EQ(error_of<ShapeError>(
                [&] { feed_forward_sublayer<float>(feed_forward, norm, false, x, wrong); }),
            "[feed_forward_sublayer] out must have shape (2, 5, 12); found (2, 5, 11).");
}

}  // namespace
}  // namespace attn
