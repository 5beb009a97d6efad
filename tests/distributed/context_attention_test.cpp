// Context parallel attention on local ranks: the bits of one process; errors reach all ranks.
#include <atomic>
#include <chrono>
#include <thread>  // ranks are of std::thread: the thread sanitizer runs this file

#include <gtest/gtest.h>

#include "attn/distributed.hpp"

#include "distributed/context_draw.hpp"
#include "support/error_of.hpp"

namespace attn {
namespace {

using attn_test::contains;
using attn_test::ContextDraw;
using attn_test::error_of;
using attn_test::Random;
using namespace std::chrono_literals;

constexpr auto kLimit = 60s;

/// Random calls on several numbers of ranks.
template <class T>
void compare_draws(std::uint64_t first) {
  for (std::uint64_t draw = first; draw < first + attn_test::draws(50); ++draw) {
    Random random(draw);
    const ContextDraw<T> drawn(random);
    const int ranks = random.pick<int>({1, 2, 3, 4, 7});
    SCOPED_TRACE(random.trace() + ": " + drawn.text() + ", ranks " + std::to_string(ranks));
    std::atomic<int> same = 0;
    ASSERT_NO_THROW(run_local_ranks(
        ranks, [&](Communicator& comm) { same += drawn.has_same_bits(comm) ? 1 : 0; }, kLimit));
    EXPECT_EQ(same, ranks);
  }
}

TEST(DistributedContext, HasTheBitsOfOneProcessInFloat) { compare_draws<float>(0); }
TEST(DistributedContext, HasTheBitsOfOneProcessInDouble) { compare_draws<double>(1000); }

/// Calls run(comm, q, k, v, out, layout) on two ranks, each with its share of five tokens; returns
/// the errors of both.
template <class Run>
std::vector<std::string> errors_of(const Run& run) {
  std::vector<std::string> errors(2);
  run_local_ranks(
      2,
      [&](Communicator& comm) {
        const ContextLayout layout(5, 2);
        const index_t tokens = layout.size(comm.rank());
        Tensor4<float> q({1, 2, tokens, 4}), k({1, 1, tokens, 4}), out({1, 2, tokens, 4});
        try {
          run(comm, layout, q, k, out);
        } catch (const std::exception& error) {
          errors[static_cast<std::size_t>(comm.rank())] = error.what();
        }
      },
      kLimit);
  return errors;
}

TEST(DistributedContext, WhatDiffersBetweenRanksIsOneErrorOnAll) {
  const auto scaled = [](auto& comm, auto& layout, auto& q, auto& k, auto& out) {
    const double scale = comm.rank() == 1 ? 0.5 : 0.25;
    context_parallel_attention(comm, layout, q, k, k, out, {.scale = scale});
  };
  for (const std::string& error : errors_of(scaled)) {
    EXPECT_EQ(error,
              "[context_parallel_attention] scale must be the same on every rank; found another "
              "on rank 1 than on rank 0.");
  }
  const auto wide = [](auto& comm, auto& layout, auto& q, auto& k, auto& out) {
    const Tensor4<float> other({1, 1, layout.size(comm.rank()), 4 + comm.rank()});
    Tensor4<float> to({1, 2, layout.size(comm.rank()), 4 + comm.rank()});
    context_parallel_attention(comm, layout, q, k, other, to);
    (void)out;
  };
  for (const std::string& error : errors_of(wide)) {
    EXPECT_EQ(error,
              "[context_parallel_attention] head_dim_v must be the same on every rank; found 4 on "
              "rank 0, 5 on rank 1.");
  }
  const auto lengths = [](auto& comm, auto& layout, auto& q, auto& k, auto& out) {
    const Tensor1<index_t> keys({1}, {3 + comm.rank()});
    context_parallel_attention(comm, layout, q, k, k, out, {.mask = key_lengths(keys)});
  };
  for (const std::string& error : errors_of(lengths)) {
    EXPECT_TRUE(contains(error, "key_lengths must be the same on every rank"));
  }
  const auto packed = [](auto& comm, auto& layout, auto& q, auto& k, auto& out) {
    const Tensor1<index_t> starts({3}, {0, 2 + comm.rank(), 5});
    context_parallel_attention(comm, layout, q, k, k, out,
                               {.cu_seqlens_q = starts, .cu_seqlens_k = starts});
  };
  for (const std::string& error : errors_of(packed)) {
    EXPECT_TRUE(contains(error, "cu_seqlens_q must be the same on every rank"));
  }
}

TEST(DistributedContext, AWrongArgumentOfOneRankIsAnErrorOnAll) {
  const auto short_keys = [](auto& comm, auto& layout, auto& q, auto& k, auto& out) {
    const Tensor4<float> none({1, 1, 0, 4});
    context_parallel_attention(comm, layout, q, comm.rank() == 0 ? none : k, k, out);
  };
  const std::string text =
      "[context_parallel_attention] k must have shape (batch, num_kv_heads, tokens of the rank, "
      "head_dim) = (1, 1, 3, 4); found (1, 1, 0, 4).";
  const auto errors = errors_of(short_keys);
  EXPECT_EQ(errors[0], text);
  EXPECT_EQ(errors[1], "[context_parallel_attention] rank 0: " + text);

  const auto other_layout = [](auto& comm, auto&, auto& q, auto& k, auto& out) {
    context_parallel_attention(comm, ContextLayout(5, 3), q, k, k, out);
  };
  EXPECT_EQ(errors_of(other_layout)[0],
            "[context_parallel_attention] the layout must have as many ranks as the communicator, "
            "2; found 3.");
}

/// Runs call(comm, layout, q, k, out, execution) on two ranks, of which rank 1 asks for an
/// instruction set that the machine lacks.
template <class Call>
void expect_missing_isa_on_all(std::string_view function, const Call& call) {
  std::optional<Isa> missing;
  for (Isa isa : kAllIsas) {
    if (!is_available(isa)) missing = isa;
  }
  if (!missing) GTEST_SKIP() << "this machine has every instruction set";
  const auto errors = errors_of([&](auto& comm, auto& layout, auto& q, auto& k, auto& out) {
    call(comm, layout, q, k, out,
         Execution{.isa = comm.rank() == 1 ? missing : std::optional<Isa>()});
  });
  EXPECT_TRUE(contains(errors[1], "the instruction set must be one that this machine"));
  EXPECT_EQ(errors[0], "[" + std::string(function) + "] rank 1: " + errors[1]);
}

TEST(DistributedContext, AnInstructionSetThatOneRankLacksIsAnErrorOnAll) {
  expect_missing_isa_on_all(
      "context_parallel_attention",
      [](auto& comm, auto& layout, auto& q, auto& k, auto& out, const Execution& execution) {
        context_parallel_attention(comm, layout, q, k, k, out, {.execution = execution});
      });
  expect_missing_isa_on_all(
      "context_parallel_attention_backward",
      [](auto& comm, auto& layout, auto& q, auto& k, auto& out, const Execution& execution) {
        const Tensor3<float> lse({1, 2, q.extent(2)});
        Tensor4<float> d_q(q.shape()), d_k(k.shape()), d_v(k.shape());
        context_parallel_attention_backward(comm, layout, out, q, k, k, out, lse, d_q, d_k, d_v,
                                            {.execution = execution});
      });
  expect_missing_isa_on_all(
      "context_parallel_attention_backward",
      [](auto& comm, auto& layout, auto& q, auto& k, auto& out, const Execution& execution) {
        const Tensor3<float> lse({1, 2, q.extent(2)});
        const Tensor4<bfloat16> half(k.shape());
        Tensor4<float> d_q(q.shape()), d_k(k.shape()), d_v(k.shape());
        context_parallel_attention_backward(comm, layout, out, q, half, half, out, lse, d_q, d_k,
                                            d_v, {.execution = execution});
      });
}

TEST(DistributedContext, AWrongLseOfOneRankIsAnErrorOnAll) {
  const auto errors = errors_of([](auto& comm, auto& layout, auto& q, auto& k, auto& out) {
    const Tensor3<float> lse({1, 2, q.extent(2)});
    const TensorView3<const float> wrong(lse.data(), {1, 2, -1});
    Tensor4<float> d_q(q.shape()), d_k(k.shape()), d_v(k.shape());
    context_parallel_attention_backward(comm, layout, out, q, k, k, out,
                                        comm.rank() == 1 ? wrong : lse.view(), d_q, d_k, d_v);
  });
  EXPECT_EQ(errors[1],
            "[context_parallel_attention_backward] lse must have shape (1, 2, 2, 1); found (1, 2, "
            "-1, 1).");
  EXPECT_EQ(errors[0], "[context_parallel_attention_backward] rank 1: " + errors[1]);
}

TEST(DistributedContext, AnotherFunctionOnOneRankIsAnErrorOnAll) {
  const auto errors = errors_of([](auto& comm, auto& layout, auto& q, auto& k, auto& out) {
    if (comm.rank() == 0) return context_parallel_attention(comm, layout, q, k, k, out);
    const Tensor3<float> lse({1, 2, q.extent(2)});
    Tensor4<float> d_q(q.shape()), d_k(k.shape()), d_v(k.shape());
    context_parallel_attention_backward(comm, layout, out, q, k, k, out, lse, d_q, d_k, d_v);
  });
  const std::string text =
      "the function must be the same on every rank; found context_parallel_attention on rank 0, "
      "context_parallel_attention_backward on rank 1.";
  EXPECT_EQ(errors[0], "[context_parallel_attention] " + text);
  EXPECT_EQ(errors[1], "[context_parallel_attention_backward] " + text);
}

TEST(DistributedContext, RefusesWhatRanksCannotShareByName) {
  const Tensor4<float> q({1, 1, 3, 4});
  Tensor4<float> out({1, 1, 3, 4});
  LocalCommunicator alone;
  Tensor4<float> square({1, 1, 3, 3});
  Tensor3<float> rows({1, 1, 3}), mean({1, 3, 3});
  Tensor2<float> largest({1, 1});
  const Tensor2<index_t> table({1, 1}, {0});
  const Tensor4<index_t> lists({1, 1, 3, 1}, {0, 0, 0});
  const auto refused = [&](std::string_view name, const auto& set) {
    AttentionOptions<float> options;
    set(options);
    EXPECT_EQ(error_of<ValueError>([&] {
                context_parallel_attention(alone, ContextLayout(3, 1), q, q, q, out, options);
              }),
              "[context_parallel_attention] " + std::string(name) +
                  " must not be given to attention on several ranks; found one.");
  };
  refused("weights", [&](auto& o) { o.weights = square; });
  refused("average_weights", [&](auto& o) { o.average_weights = mean; });
  refused("column_sums", [&](auto& o) { o.column_sums = rows; });
  refused("scores", [&](auto& o) { o.scores = square; });
  refused("max_logits", [&](auto& o) { o.max_logits = largest; });
  refused("qv", [&](auto& o) { o.qv = q; });
  refused("block_table", [&](auto& o) { o.block_table = table; });
  refused("gather", [&](auto& o) { o.gather = lists; });
  refused("first_key", [&](auto& o) { o.first_key = 64; });
  refused("MaskedRow::mean", [&](auto& o) { o.masked_row = MaskedRow::mean; });
}

TEST(DistributedContext, BackwardRefusesGradientsThatAreSumsOverRanksByName) {
  Tensor4<float> x({1, 1, 3, 4}), d({1, 1, 3, 4}), d_bias({1, 1, 3, 3});
  const Tensor3<float> lse({1, 1, 3});
  const Tensor1<float> slopes({1}, {1});
  Tensor1<float> of_heads({1}), of_parameter({1});
  Tensor2<float> table({1, 3}), of_batch({1, 1});
  LocalCommunicator alone;
  const auto refused = [&](std::string_view name, const auto& set, const auto&... functors) {
    AttentionOptions<float> options;
    AttentionBackwardCall<float> call;
    set(options, call);
    EXPECT_EQ(error_of<ValueError>([&] {
                context_parallel_attention_backward(alone, ContextLayout(3, 1), x, x, x, x, x, lse,
                                                    d, d, d, options, call, functors...);
              }),
              "[context_parallel_attention_backward] " + std::string(name) +
                  " must not be requested of attention on several ranks; found one.");
  };
  refused("d_bias", [&](auto& o, auto& c) {
    o.mask = additive_mask(d_bias);
    c.d_bias[0] = d_bias;
  });
  refused("d_sinks", [&](auto& o, auto& c) {
    o.sinks = slopes;
    c.d_sinks = of_heads;
  });
  refused("d_alibi_slopes", [&](auto& o, auto& c) {
    o.alibi_slopes = slopes;
    c.d_alibi_slopes = of_heads;
  });
  refused("d_batch_alibi_slopes", [&](auto& o, auto& c) {
    o.batch_alibi_slopes = of_batch;
    c.d_batch_alibi_slopes = of_batch;
  });
  refused("d_relative_bias", [&](auto& o, auto& c) {
    o.relative_bias = table;
    c.d_relative_bias = table;
  });
  refused(
      "d_score_parameters", [&](auto&, auto& c) { c.d_score_parameters[0] = of_parameter; },
      score_mod([](auto s, int, int, int, int, auto scale) { return s * scale; }, 2.0f));
  const auto weights = [&] {
    Tensor4<float> square({1, 1, 3, 3});
    context_parallel_attention_backward(alone, ContextLayout(3, 1), x, x, x, x, x, lse, d, d, d,
                                        {.weights = square});
  };
  EXPECT_TRUE(
      contains(error_of<ValueError>(weights), "[context_parallel_attention_backward] weights"));
  const auto short_lse = [&] {
    context_parallel_attention_backward(alone, ContextLayout(3, 1), x, x, x, x, x,
                                        Tensor3<float>({1, 1, 2}), d, d, d);
  };
  EXPECT_TRUE(contains(error_of<ShapeError>(short_lse), "] lse must have shape (1, 1, 3, 1)"));
}

/// Counts the bytes that a rank sends, and how often it polls.
class CountingCommunicator final : public Communicator {
 public:
  explicit CountingCommunicator(Communicator& comm) : comm_(comm) {}
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  std::unique_ptr<Request> send(int to, std::span<const std::byte> data) override {
    sent += data.size();
    return std::make_unique<Counted>(comm_.send(to, data), polls);
  }
  std::unique_ptr<Request> receive(int from, std::span<std::byte> data) override {
    return std::make_unique<Counted>(comm_.receive(from, data), polls);
  }
  void broadcast(int root, std::span<std::byte> data) override { comm_.broadcast(root, data); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    comm_.all_gather(mine, all);
  }
  void barrier() override { comm_.barrier(); }
  std::unique_ptr<Communicator> split(int group) override { return comm_.split(group); }
  void fail(std::string_view text) noexcept override { comm_.fail(text); }

  std::size_t sent = 0, polls = 0;

 private:
  class Counted final : public Request {
   public:
    Counted(std::unique_ptr<Request> request, std::size_t& polls)
        : request_(std::move(request)), polls_(polls) {}
    bool poll() override {
      ++polls_;
      return request_->poll();
    }
    void wait() override { request_->wait(); }

   private:
    std::unique_ptr<Request> request_;
    std::size_t& polls_;
  };

  Communicator& comm_;
};

TEST(DistributedContext, SendsNoBlockThatQueriesDoNotSee) {
  const auto sent_with = [](const Mask& mask) {
    std::vector<std::size_t> sent(4);
    run_local_ranks(
        4,
        [&](Communicator& comm) {
          CountingCommunicator counting(comm);
          const Tensor4<float> x({1, 1, 512, 4});
          Tensor4<float> out(x.shape());
          context_parallel_attention(counting, ContextLayout(2048, 4), x, x, x, out,
                                     {.mask = mask});
          sent[static_cast<std::size_t>(comm.rank())] = counting.sent;
        },
        kLimit);
    return sent;
  };
  using Sent = std::vector<std::size_t>;
  constexpr std::size_t kRank = 512 * (4 + 4) * sizeof(float);  // keys and values of a rank
  EXPECT_EQ(sent_with({}), (Sent{3 * kRank, 3 * kRank, 3 * kRank, 3 * kRank}));
  EXPECT_EQ(sent_with(causal()), (Sent{3 * kRank, 2 * kRank, kRank, 0}));
  EXPECT_EQ(sent_with(causal() & sliding_window(9, 0)), (Sent{kRank, kRank, kRank, 0}));
}

TEST(DistributedContext, SendsPackedSequencesOnlyAcrossTheBordersOfRanks) {
  const Tensor1<index_t> starts({5}, {0, 300, 512, 900, 1024});
  std::vector<std::size_t> sent(2);
  run_local_ranks(
      2,
      [&](Communicator& comm) {
        CountingCommunicator counting(comm);
        const ContextLayout layout(1024, 2, ContextLayout::Kind::zigzag);  // borders 256, 512, 768
        const Tensor4<float> x({1, 1, 512, 4});
        Tensor4<float> out(x.shape());
        context_parallel_attention(counting, layout, x, x, x, out,
                                   {.cu_seqlens_q = starts, .cu_seqlens_k = starts});
        sent[static_cast<std::size_t>(comm.rank())] = counting.sent;
      },
      kLimit);
  constexpr std::size_t kToken = (4 + 4) * sizeof(float);
  // Rank 0 has tokens 0 .. 256 of the first sequence and 768 .. 900 of the third.
  EXPECT_EQ(sent, (std::vector<std::size_t>{(256 + 132) * kToken, (44 + 256) * kToken}));
}

TEST(DistributedContext, PollsMessagesBetweenTasksAlsoOnOneThread) {
  for (int threads : {1, 2}) {
    SCOPED_TRACE(std::to_string(threads) + " threads");
    run_local_ranks(
        2,
        [&](Communicator& comm) {
          CountingCommunicator counting(comm);
          const attn_test::ThreadExecutor executor(threads);
          const Tensor4<float> x({1, 4, 512, 16});
          Tensor4<float> out(x.shape());
          context_parallel_attention(counting, ContextLayout(1024, 2), x, x, x, out,
                                     {.execution = {.executor = &executor}});
          EXPECT_GT(counting.polls, 0u);
        },
        kLimit);
  }
}

TEST(DistributedContext, AFunctorThatThrowsOnOneRankEndsTheCallOnAll) {
  const auto run = [] {
    run_local_ranks(
        3,
        [](Communicator& comm) {
          const ContextLayout layout(900, 3);
          const Tensor4<float> x({1, 1, layout.size(comm.rank()), 4});
          Tensor4<float> out({1, 1, layout.size(comm.rank()), 4});
          const SerialExecutor serial;
          context_parallel_attention(comm, layout, x, x, x, out,
                                     {.execution = {.executor = &serial}},
                                     score_mod([](float s, int, int, int i, int) {
                                       if (i == 0) throw std::domain_error("token 0");
                                       return s;
                                     }));
          comm.barrier();
        },
        kLimit);
  };
  EXPECT_EQ(error_of<std::domain_error>(run), "token 0");
}

}  // namespace
}  // namespace attn
