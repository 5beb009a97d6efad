// Groups of ranks by split(): data, tensor and context parallelism together, at 2 x 2 ranks.
#include <thread>  // ranks are of std::thread: the thread sanitizer runs this file

#include <gtest/gtest.h>

#include "attn/layers/attention/heads.hpp"
#include "attn/layers/linear_backward.hpp"

#include "distributed/shard_run.hpp"

namespace attn_test {
namespace {

using attn::Communicator, attn::Tensor3, attn::Tensor4;
using namespace std::chrono_literals;

/// Ranks 0 and 1, and 2 and 3, are pairs; `across`: the ranks of all pairs at this one's place.
struct Grid {
  std::unique_ptr<Communicator> pair, across;

  explicit Grid(Communicator& world)
      : pair(world.split(world.rank() / 2)), across(world.split(world.rank() % 2)) {}
};

template <class F>
void on_grid(F f) {
  attn::run_local_ranks(
      4,
      [&](Communicator& world) {
        const Grid grid(world);
        f(*grid.pair, *grid.across);
      },
      60s);
}

template <class A, class B>
bool are_same(const A& a, const B& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(*a.data())) ==
             0;
}

template <class T>
void gather_all(Communicator& comm, const T& mine, T& all) {
  comm.all_gather(std::as_bytes(std::span(mine.elements())),
                  std::as_writable_bytes(std::span(all.elements())));
}

constexpr index_t kSequences = 4, kSeq = 600, kWidth = 12, kHeads = 3;

/// Trains queries, keys and values of causal attention. The ranks of `context` share each sequence,
/// those of `data` the micro-batches of a step, which are sequences. Returns the weights, and the
/// loss of each step.
std::vector<float> trained(Communicator& context, Communicator& data) {
  attn::Linear<float> in(kWidth, 3 * kWidth);
  attn::initialize(in, {.seed = 1});
  attn::Linear<float> gradients = attn::gradients_of(in);
  const auto parameters = attn::parameters_of<float>(in, gradients);
  attn::GradientTree<float> tree(data, parameters, kSequences);
  attn::ShardedOptimizer<attn::Adam<float>> adam(data, parameters);
  const attn::ContextLayout layout(kSeq, context.size());
  const index_t tokens = layout.size(context.rank());
  const auto [begin, end] = layout.ranges(context.rank())[0];
  Tensor3<float> qkv({1, tokens, 3 * kWidth}), d_qkv(qkv.shape()), all_d_qkv({1, kSeq, 3 * kWidth});
  Tensor4<float> out({1, kHeads, tokens, kWidth / kHeads}), d_out(out.shape());
  Tensor3<float> lse({1, kHeads, tokens});
  const auto [q, k, v] = attn::split_qkv(qkv, kHeads);
  const auto [d_q, d_k, d_v] = attn::split_qkv(d_qkv, kHeads);
  attn::AttentionOptions<float> options{.mask = attn::causal()};
  std::vector<float> result;
  for (int step = 0; step < 3; ++step) {
    attn::clear_gradients(parameters);
    for (index_t n = tree.micro_batches().begin; n < tree.micro_batches().end; ++n) {
      Random random(static_cast<std::uint64_t>(kSequences * step + n));
      const auto x = random.tensor<float, 3>({1, kSeq, kWidth});
      in.forward(x.view().slice(1, begin, end), qkv);
      options.lse = lse;
      if (context.size() == 1) {
        attn::scaled_dot_product_attention(q, k, v, out, options);
      } else {
        attn::context_parallel_attention(context, layout, q, k, v, out, options);
      }
      options.lse = {};
      for (index_t i = 0; i < out.size(); ++i) d_out.data()[i] = (out.data()[i] - 1) / kSeq;
      if (context.size() == 1) {
        attn::scaled_dot_product_attention_backward(d_out, q, k, v, out, lse, d_q, d_k, d_v,
                                                    options);
      } else {
        attn::context_parallel_attention_backward(context, layout, d_out, q, k, v, out, lse, d_q,
                                                  d_k, d_v, options);
      }
      // The gradient of a weight is a sum over all tokens.
      gather_all(context, d_qkv, all_d_qkv);
      attn::linear_backward(all_d_qkv, x, in.weight, {}, gradients.weight.view(),
                            gradients.bias.view());
      tree.add(n, static_cast<double>(all_d_qkv(0, 0, 0)));
    }
    result.push_back(static_cast<float>(tree.finish(adam)));
    const double norm = adam.gradient_norm();
    adam.step(0.05, {}, attn::clip_factor(norm, 1));
  }
  result.insert(result.end(), in.weight.elements().begin(), in.weight.elements().end());
  return result;
}

TEST(DistributedGroups, DataAndContextParallelTrainingHasTheBitsOfOneProcess) {
  attn::LocalCommunicator one, other;
  const std::vector<float> expected = trained(one, other);
  on_grid([&](Communicator& pair, Communicator& across) {
    EXPECT_TRUE(are_same(trained(pair, across), expected));
  });
}

TEST(DistributedGroups, DataAndTensorParallelModelsHaveTheBitsOfOneProcess) {
  for (std::uint64_t draw = 0; draw < draws(6); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    attn::Gpt<float> model(draw_gpt(random));
    randomize(model, random);
    if (const auto format = draw_format(random)) attn::quantize(model, *format);
    attn::Tensor2<index_t> ids({4, 6});
    for (index_t& id : ids.elements()) id = random.integer(0, model.vocab_size() - 1);
    const auto expected = model(ids);
    on_grid([&](Communicator& pair, Communicator& across) {
      attn::Gpt<float> own = model;
      attn::shard(own, pair);
      const index_t first = 2 * across.rank();
      const auto mine = own(ids.view().slice(0, first, first + 2));
      Tensor3<float> all(expected.shape());
      gather_all(across, mine, all);
      EXPECT_TRUE(are_same(all, expected));
    });
  }
}

TEST(DistributedGroups, TensorAndContextParallelAttentionHasTheBitsOfOneProcess) {
  Random random(1);
  const attn::Shape<4> shape{2, 4, 700, 8}, kv_shape{2, 2, 700, 8};
  const auto q = random.tensor<float, 4>(shape), k = random.tensor<float, 4>(kv_shape),
             v = random.tensor<float, 4>(kv_shape), d_out = random.tensor<float, 4>(shape);
  Tensor4<float> out(shape), d_q(shape), d_k(kv_shape), d_v(kv_shape);
  Tensor3<float> lse({2, 4, 700});
  const attn::AttentionOptions<float> options{.mask = attn::causal(), .lse = lse};
  attn::scaled_dot_product_attention(q, k, v, out, options);
  attn::scaled_dot_product_attention_backward(d_out, q, k, v, out, lse, d_q, d_k, d_v, options);
  on_grid([&](Communicator& pair, Communicator& across) {
    const attn::ContextLayout layout(700, 2, attn::ContextLayout::Kind::zigzag);
    // The heads of this rank at its tokens.
    const auto part = [&](const Tensor4<float>& x) {
      const index_t heads = x.extent(1) / 2, first = heads * across.rank();
      return attn::local_tokens(layout, pair.rank(), x.view().slice(1, first, first + heads));
    };
    const auto own_q = part(q), own_k = part(k), own_v = part(v);
    Tensor4<float> own_out(own_q.shape()), own_d_q(own_q.shape()), own_d_k(own_k.shape()),
        own_d_v(own_v.shape());
    Tensor3<float> own_lse({2, 2, 350});
    const attn::AttentionOptions<float> own{.mask = attn::causal(), .lse = own_lse};
    attn::context_parallel_attention(pair, layout, own_q, own_k, own_v, own_out, own);
    attn::context_parallel_attention_backward(pair, layout, part(d_out), own_q, own_k, own_v,
                                              own_out, own_lse, own_d_q, own_d_k, own_d_v, own);
    EXPECT_TRUE(are_same(own_out, part(out)));
    EXPECT_TRUE(are_same(own_d_q, part(d_q)));
    EXPECT_TRUE(are_same(own_d_k, part(d_k)));
    EXPECT_TRUE(are_same(own_d_v, part(d_v)));
  });
}

}  // namespace
}  // namespace attn_test
