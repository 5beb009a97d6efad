// Conversations of different lengths in one call: every row has the bits of a separate call.
#include <deque>

#include <gtest/gtest.h>

#include "attn/layers/encoder.hpp"

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/references/reference_transformer.hpp"
#include "support/thread_executor.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;
using attn_test::to_array;

/// Two caches each of the same conversations with the same keys.
struct Conversations {
  std::deque<std::vector<KvCache<float>>> together, alone;
  std::vector<std::span<KvCache<float>>> spans() { return {together.begin(), together.end()}; }
};

void expect_same(const KvCache<float>& a, const KvCache<float>& b) {
  EXPECT_EQ(a.length(), b.length());
  EXPECT_EQ(a.size(), b.size());
  const auto compare = [&]<class E>(E) {
    if (*a.options().element != dtype_of<E>()) return;
    EXPECT_EQ(to_array(a.keys<E>()).data, to_array(b.keys<E>()).data);
    EXPECT_EQ(to_array(a.values<E>()).data, to_array(b.values<E>()).data);
  };
  compare(float{}), compare(bfloat16{}), compare(std::int8_t{});
  if (*a.options().element == DType::I8) {
    EXPECT_EQ(to_array(a.key_scales()).data, to_array(b.key_scales()).data);
  }
}

TransformerStackOptions drawn_options(Random& random) {
  TransformerStackOptions options{.num_layers = random.integer(1, 3)};
  TransformerLayerOptions& layer = options.layer;
  layer = {.d_model = 24, .nhead = 4, .dim_feedforward = 40, .dropout = 0};
  layer.norm_first = random.chance(0.5);
  layer.attention.num_kv_heads = 2;
  if (random.chance(0.7)) {
    layer.attention.rotary = RotaryOptions{.max_positions = 4000};
    if (random.chance(0.3)) {
      layer.attention.rotary->scaling.kind = RotaryScalingKind::dynamic;
      layer.attention.rotary->scaling.factor = 4;
      layer.attention.rotary->scaling.original_max_positions = 16;
    }
  }
  if (random.chance(0.3)) layer.attention.query_key_norm = NormKind::rms;
  options.norm = random.chance(0.5);
  return options;
}

TEST(RowCaches, GiveEachConversationTheBitsOfACallOfItsOwn) {
  const attn_test::ThreadExecutor two(2), three(3);
  const SerialExecutor one;
  const Executor* const executors[] = {&one, &two, &three};
  for (const Isa isa : available_isas()) {
    for (std::uint64_t draw = 0; draw < attn_test::draws(30); ++draw) {
      Random random(draw);
      SCOPED_TRACE(random.trace());
      const auto encoder = attn_test::random_module<Encoder<float>>(random, drawn_options(random));
      AttentionOptions<float> options{.mask = causal()};
      options.execution.isa = isa;
      const DType elements[] = {DType::F32, DType::BF16, DType::I8};
      const DType element = elements[random.integer(0, 2)];
      const index_t window = random.chance(0.3) ? 9 : 0;
      if (window > 0) options.mask = options.mask & sliding_window(window, 0);
      // Long conversations use several threads.
      const index_t count = random.integer(1, 9), most = random.chance(0.3) ? 1500 : 40;
      Conversations all;
      for (index_t n = 0; n < count; ++n) {
        all.together.push_back(encoder.make_caches(1, most + 30, window, element));
        const index_t length = random.integer(0, most);
        if (length > 0) {
          (void)encoder(random.tensor<float, 3>({1, length, 24}), options, {}, all.together.back());
        }
        all.alone.push_back(all.together.back());
      }
      options.execution.executor = executors[random.integer(0, 2)];
      const auto spans = all.spans();
      for (int step = 0; step < 3; ++step) {
        const auto x = random.tensor<float, 3>({count, random.integer(1, 3), 24});
        Tensor3<float> found(x.shape());
        encoder.forward_rows(x, found, options, spans);
        for (index_t n = 0; n < count; ++n) {
          const auto row = [n](const auto& t) { return t.view().slice(0, n, n + 1); };
          const Tensor3<float> expected =
              encoder(row(x), options, {}, all.alone[static_cast<std::size_t>(n)]);
          EXPECT_EQ(to_array(row(found)).data, to_array(expected).data) << "row " << n;
        }
      }
      for (std::size_t n = 0; n < all.alone.size(); ++n) {
        for (std::size_t layer = 0; layer < all.alone[n].size(); ++layer) {
          expect_same(all.together[n][layer], all.alone[n][layer]);
        }
      }
    }
  }
}

TEST(RowCaches, AreAsTheyWereWhereTheCallFails) {
  Random random(1);
  TransformerStackOptions options{.num_layers = 2};
  options.layer = {.d_model = 24, .nhead = 4, .dim_feedforward = 40, .dropout = 0};
  const auto encoder = attn_test::random_module<Encoder<float>>(random, options);
  std::vector<KvCache<float>> roomy = encoder.make_caches(1, 8), full = encoder.make_caches(1, 2);
  (void)encoder(random.tensor<float, 3>({1, 2, 24}), {}, {}, full);
  const auto x = random.tensor<float, 3>({2, 1, 24});
  Tensor3<float> out(x.shape());
  const auto error = [&](std::vector<std::span<KvCache<float>>> rows,
                         const AttentionOptions<float>& given = {}) {
    return error_of<ValueError>([&] { encoder.forward_rows(x, out, given, rows); });
  };
  EXPECT_TRUE(contains(error({roomy, full}), "in a capacity of 2, must lie in 0 .. 0; found 1"));
  EXPECT_EQ(error({roomy, roomy}),
            "[MultiHeadAttention] row_caches must be a cache of its own for each batch row; found "
            "a repeated or null one.");
  EXPECT_EQ(error({roomy}), "[Encoder] conversations must be one per batch row, 2; found 1.");
  EXPECT_EQ(error({roomy, {}}), "[Encoder] caches must be one per layer, 2; found 0.");
  std::vector<KvCache<float>> other = encoder.make_caches(1, 8);
  const Tensor1<index_t> lengths({2}, {1, 1});
  EXPECT_EQ(error({roomy, other}, {.mask = key_lengths(lengths)}),
            "[MultiHeadAttention] options with row_caches must hold no tensor with an axis of "
            "rows, queries or keys; found key_lengths.");
  for (const KvCache<float>& cache : roomy) EXPECT_EQ(cache.length(), 0);
  for (const KvCache<float>& cache : full) EXPECT_EQ(cache.length(), 2);
  // The second layer's attention throws: the keys that the first layer appended are removed.
  int calls = 0;
  const auto throws = score_mod([&](float score, index_t, index_t, index_t, index_t) {
    if (++calls > 8) throw std::runtime_error("enough");
    return score;
  });
  const SerialExecutor one;
  AttentionOptions<float> serial;
  serial.execution.executor = &one;
  const std::vector<std::span<KvCache<float>>> rows = {roomy, other};
  EXPECT_THROW(encoder.forward_rows(x, out, serial, rows, throws), std::runtime_error);
  for (const KvCache<float>& cache : roomy) EXPECT_EQ(cache.length(), 0);
  for (const KvCache<float>& cache : other) EXPECT_EQ(cache.length(), 0);
}

}  // namespace
}  // namespace attn
