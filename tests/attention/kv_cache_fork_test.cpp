// KvCache::fork(): rows that share keys have the bits of caches of their own.
#include <vector>

#include <gtest/gtest.h>

#include "attn/attention/cached_attention.hpp"

#include "support/error_of.hpp"
#include "support/isas.hpp"
#include "support/placed.hpp"
#include "support/random.hpp"
#include "support/thread_executor.hpp"

namespace attn {
namespace {

using attn_test::available_isas;
using attn_test::contains;
using attn_test::error_of;
using attn_test::Random;
using attn_test::same_bits;
using attn_test::to_array;

/// A fork, and a cache of its own for each row.
template <class T>
struct ForkAndRows {
  KvCache<T> fork;
  std::vector<KvCache<T>> rows;

  ForkAndRows(const KvCache<T>& source, index_t batch)
      : fork(source.fork(batch)), rows(static_cast<std::size_t>(batch), source) {}

  void append(Random& random, index_t n) {
    const KvCacheOptions& o = fork.options();
    const auto k = random.tensor<T, 4>({o.batch, o.num_kv_heads, n, o.head_dim});
    const auto v = random.tensor<T, 4>({o.batch, o.num_kv_heads, n, o.head_dim_v});
    fork.append(k, v);
    for (std::size_t b = 0; b < rows.size(); ++b) {
      const auto at = static_cast<index_t>(b);
      rows[b].append(k.view().slice(0, at, at + 1), v.view().slice(0, at, at + 1));
    }
  }
  void reorder(Random& random) {
    Tensor1<index_t> from({fork.options().batch});
    const std::vector<KvCache<T>> before = rows;
    for (std::size_t b = 0; b < rows.size(); ++b) {
      const index_t row = random.integer(0, from.size() - 1);
      from(static_cast<index_t>(b)) = row;
      rows[b] = before[static_cast<std::size_t>(row)];
    }
    fork.reorder(from);
  }
};

template <class T>
class KvCacheFork : public ::testing::Test {};
using ForkTypes = ::testing::Types<float, double, bfloat16>;
TYPED_TEST_SUITE(KvCacheFork, ForkTypes);

/// Prefixes and steps about the length of a split of the keys (2048); any element, window, number
/// of queries, mask and number of threads; also after truncation, reordering and a second fork.
TYPED_TEST(KvCacheFork, RowsHaveTheBitsOfCachesOfTheirOwn) {
  using T = TypeParam;
  using Acc = Accumulator<T>;
  for (std::uint64_t draw = 0; draw < attn_test::draws(48); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const index_t kv_heads = random.integer(1, 2), group = random.integer(1, 4);
    const index_t prefix = random.pick<index_t>({0, 3, 500, 2047, 2048, 2049, 4096, 4100});
    KvCacheOptions options{.num_kv_heads = kv_heads,
                           .capacity = prefix + 40,
                           .head_dim = random.integer(1, 9),
                           .head_dim_v = random.integer(1, 9)};
    if (std::same_as<T, float>) {
      options.element = random.pick<DType>({DType::F32, DType::BF16, DType::F16, DType::I8});
    }
    if (random.chance(0.2)) options.window = random.integer(1, prefix + 30);
    KvCache<T> source(options);
    for (index_t n = prefix; n > 0; n -= 1 + n / 2) {
      const auto k = random.tensor<T, 4>({1, kv_heads, 1 + n / 2, options.head_dim});
      source.append(k, random.tensor<T, 4>({1, kv_heads, 1 + n / 2, options.head_dim_v}));
    }
    const index_t length = source.length();
    if (random.chance(0.2)) source = source.fork(1);
    const index_t batch = random.integer(1, 9), heads = kv_heads * group;
    ForkAndRows<T> all(source, batch);
    ASSERT_EQ(all.fork.shared_size(), options.window > 0 ? 0 : length);

    Tensor1<index_t> lengths({batch}), padding({batch});
    const auto slopes = random.tensor<Acc, 1>({heads}), sinks = random.tensor<Acc, 1>({heads});
    const attn_test::ThreadExecutor threads(3);
    const SerialExecutor one_thread;
    for (int step = 0; step < 4; ++step) {
      if (all.fork.length() > length && random.chance(0.3)) {
        all.fork.truncate(1);
        for (KvCache<T>& row : all.rows) row.truncate(1);
      }
      if (random.chance(0.3)) all.reorder(random);
      const index_t n = random.pick<index_t>({1, 1, 1, 2, 3, 9});
      all.append(random, n);
      AttentionOptions<Acc> with;
      with.execution = {.isa = random.pick(available_isas())};
      with.mask = random.chance(0.7) ? causal() : Mask();
      if (random.chance(0.2)) with.mask = sliding_window(random.integer(0, prefix + 30), 0);
      if (random.chance(0.2)) with.softcap = 3;
      if (random.chance(0.2)) with.alibi_slopes = slopes;
      if (random.chance(0.2)) with.sinks = sinks;
      if (random.chance(0.2)) with.masked_row = MaskedRow::mean;
      if (options.window > 0) {
        with.mask = sliding_window(options.window, 0);
        with.masked_row = MaskedRow::zero;
      }
      const bool has_lengths = options.window == 0 && random.chance(0.2);
      const bool has_padding = options.window == 0 && random.chance(0.2);
      for (index_t b = 0; b < batch; ++b) {
        lengths(b) = random.integer(0, all.fork.length());
        padding(b) = random.integer(0, all.fork.length());
      }
      const auto q = random.tensor<T, 4>({batch, heads, n, options.head_dim});
      const auto attend = [&](const KvCache<T>& cache, index_t begin, index_t end) {
        AttentionOptions<Acc> o = with;
        if (has_lengths) o.mask = o.mask & key_lengths(lengths.view().slice(0, begin, end));
        if (has_padding) o.mask = o.mask & left_padding(padding.view().slice(0, begin, end));
        o.execution.executor =
            end - begin > 1 ? static_cast<const Executor*>(&threads) : &one_thread;
        return scaled_dot_product_attention(q.view().slice(0, begin, end), cache, o);
      };
      const Tensor4<T> together = attend(all.fork, 0, batch);
      for (index_t b = 0; b < batch; ++b) {
        const Tensor4<T> alone = attend(all.rows[static_cast<std::size_t>(b)], b, b + 1);
        ASSERT_TRUE(same_bits(to_array(together.view().slice(0, b, b + 1)), to_array(alone)))
            << "step " << step << ", row " << b << " of " << batch << ", prefix " << prefix;
      }
    }
  }
}

TEST(KvCacheForks, StoreSharedKeysOnce) {
  KvCache<float> source({.num_kv_heads = 2, .capacity = 100, .head_dim = 8});
  source.append(Tensor4<float>({1, 2, 90, 8}), Tensor4<float>({1, 2, 90, 8}));
  KvCache<float> fork = source.fork(8);
  EXPECT_EQ(fork.shared_size(), 90);
  EXPECT_EQ(fork.bytes(), (90u + 8 * 10) * 2 * 2 * 8 * sizeof(float));
  EXPECT_EQ(fork.size(), 90);
  const Tensor4<float> ten({8, 2, 10, 8});
  fork.append(ten, ten);
  EXPECT_THROW(fork.extend(1), ValueError);
  EXPECT_EQ(KvCache<float>(std::move(fork)).size(), 100);
  EXPECT_EQ(fork.size(), 0);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(fork.shared_size(), 0);
  fork = source.fork(3);
  fork.clear();
  EXPECT_EQ(fork.shared_size(), 0);
  EXPECT_EQ(fork.extend(100).keys.shape(), (Shape<4>{3, 2, 100, 8}));
}

TEST(KvCacheForks, ErrorsNameWhatCannotBe) {
  KvCache<float> two({.batch = 2, .capacity = 4, .head_dim = 1});
  EXPECT_EQ(error_of<ValueError>([&] { (void)two.fork(2); }),
            "[KvCache::fork] the batch of the cache must lie in 1 .. 1; found 2.");
  KvCache<float> one({.capacity = 4, .head_dim = 1});
  EXPECT_TRUE(contains(error_of<ValueError>([&] { (void)one.fork(0); }), "batch must lie in 1"));
  one.extend(3);
  KvCache<float> fork = one.fork(2);
  EXPECT_EQ(error_of<ValueError>([&] { (void)fork.keys(); }),
            "[KvCache::keys] the cache must hold no keys shared by its rows: see fork(); found 3.");
  EXPECT_THROW((void)fork.values(), ValueError);
  EXPECT_THROW((void)fork.key_scales(), ValueError);
  EXPECT_THROW((void)fork.value_scales(), ValueError);
  fork.extend(1);
  EXPECT_EQ(error_of<ValueError>([&] { fork.truncate_to(2); }),
            "[KvCache::truncate_to] length must lie in 3 .. 4; found 2.");
  // Options that say where keys lie, which shared keys would not follow.
  const Tensor1<index_t> starts({3}, {0, 1, 4});
  const Tensor2<index_t> pages({2, 1});
  const auto refuses = [&](std::string_view name, const AttentionOptions<float>& options) {
    EXPECT_EQ(error_of<ValueError>([&] {
                (void)scaled_dot_product_attention(Tensor4<float>({2, 1, 1, 1}), fork, options);
              }),
              "[scaled_dot_product_attention] " + std::string(name) +
                  " must be none with a cache whose rows share keys: see KvCache::fork(); found "
                  "some.");
  };
  refuses("cu_seqlens_q", {.cu_seqlens_q = starts.view(), .cu_seqlens_k = starts.view()});
  refuses("cu_seqlens_k", {.cu_seqlens_k = starts.view()});
  refuses("block_table", {.block_table = pages.view()});
}

}  // namespace
}  // namespace attn
