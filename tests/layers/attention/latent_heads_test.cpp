// A LatentAttention of some heads computes these heads with the bits of the whole layer.
#include <algorithm>

#include <gtest/gtest.h>

#include "attn/attention/paths/code_path.hpp"
#include "attn/layers/attention/latent_attention.hpp"

#include "support/error_of.hpp"
#include "support/models/parameters.hpp"

namespace attn_test {
namespace {

using attn::KvCache, attn::LatentAttention, attn::Tensor2, attn::ValueError;

/// `whole` writes the heads' outputs side by side, without a product.
LatentAttention<float> draw_whole(Random& random) {
  attn::LatentAttentionOptions o{.num_heads = random.pick<Index>({1, 2, 5, 10, 12, 16, 30}),
                                 .q_lora_rank = random.chance(0.5) ? random.integer(1, 12) : 0,
                                 .kv_lora_rank = random.integer(2, 24),
                                 .head_dim = random.integer(1, 9),
                                 .rotary_dim = 2 * random.integer(1, 4),
                                 .head_dim_v = random.integer(1, 5),
                                 .rotary = attn::RotaryOptions{.max_positions = 2200}};
  o.embed_dim = o.num_heads * o.head_dim_v;
  auto whole = random_module<LatentAttention<float>>(random, o);
  whole.out_proj.weight.fill(0);
  for (Index i = 0; i < o.embed_dim; ++i) whole.out_proj.weight(i, i) = 1;
  return whole;
}

LatentAttention<float> part_of(const LatentAttention<float>& whole, Index begin, Index end) {
  const attn::LatentAttentionOptions& o = whole.options();
  LatentAttention<float> part = whole.of_heads(begin, end);
  const Index width = o.head_dim + o.rotary_dim;
  part.q_a_proj = whole.q_a_proj;
  part.q_b_proj.weight =
      Tensor2<float>(whole.q_b_proj.weight.view().slice(0, begin * width, end * width));
  part.kv_a_proj = whole.kv_a_proj;
  part.out_proj.weight = Tensor2<float>(
      whole.out_proj.weight.view().slice(1, begin * o.head_dim_v, end * o.head_dim_v));
  return part;
}

/// Absorbed calls on all paths and expanded ones; caches of any element, whose rows may share keys.
TEST(LatentHeads, SomeHaveTheBitsOfAll) {
  for (std::uint64_t n = 0; n < draws(240); ++n) {
    Random random(n);
    SCOPED_TRACE(random.trace());
    const LatentAttention<float> whole = draw_whole(random);
    const attn::LatentAttentionOptions& o = whole.options();
    const Index begin = random.integer(0, o.num_heads - 1),
                end = random.integer(begin + 1, o.num_heads);
    const LatentAttention<float> part = part_of(whole, begin, end);
    const Index before = random.pick<Index>({0, 3, 70, 300, 700, 2100}),
                batch = random.integer(1, 3), seq = random.pick<Index>({1, 2, 3, 20});
    std::optional<attn::DType> element;
    if (random.chance(0.5)) {
      element = random.pick<attn::DType>({attn::DType::BF16, attn::DType::I8});
    }
    KvCache<float> first = whole.make_cache(1, before + 20, 0, element);
    if (before > 0) {
      first.append(random.tensor<float, 4>({1, 1, before, o.rotary_dim}),
                   random.tensor<float, 4>({1, 1, before, o.kv_lora_rank}));
    }
    KvCache<float> of_whole = first.fork(batch), of_part = first.fork(batch);
    const bool is_cached = before > 0 || random.chance(0.5);
    attn::AttentionOptions<float> options{.mask = attn::causal()};
    if (random.chance(0.3)) options.precision = attn::AttentionPrecision::int8;
    const auto x = random.tensor<float, 3>({batch, seq, o.embed_dim});
    const auto all = whole(x, options, {.cache = is_cached ? &of_whole : nullptr}),
               some = part(x, options, {.cache = is_cached ? &of_part : nullptr});
    for (Index row = 0; row < batch * seq; ++row) {
      const float *expected = all.data() + row * o.embed_dim,
                  *found = some.data() + row * o.embed_dim;
      for (Index i = begin * o.head_dim_v; i < end * o.head_dim_v; ++i) {
        ASSERT_EQ(found[i], expected[i]) << "row " << row << ", feature " << i;
      }
    }
  }
}

TEST(LatentHeads, ErrorsNameTheArgument) {
  const LatentAttention<float> whole(
      {.embed_dim = 6, .num_heads = 3, .kv_lora_rank = 4, .head_dim = 2, .rotary_dim = 2});
  EXPECT_EQ(
      error_of<ValueError>([&] { whole.of_heads(2, 4); }),
      "[LatentAttention::of_heads] begin and end must lie in order in 0 .. 3; found 2 and 4.");
  const attn::Tensor3<float> x({1, 2, 6});
  EXPECT_EQ(error_of<ValueError>([&] { whole.of_heads(0, 2)(x, {.dropout = {.p = 0.5}}); }),
            "[LatentAttention] dropout.p must be 0 in a module of some heads; found 0.5.");
}

}  // namespace
}  // namespace attn_test
