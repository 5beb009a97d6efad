// A model that is sharded over any number of ranks gives the bits of one process.
#include <thread>  // ranks are of std::thread: the thread sanitizer runs this file

#include <gtest/gtest.h>

#include "attn/generation/saved_session.hpp"

#include "distributed/shard_run.hpp"
#include "support/error_of.hpp"
#include "support/files/temp_folder.hpp"

namespace attn_test {
namespace {

using attn::Communicator, attn::ValueError;
using namespace std::chrono_literals;

constexpr int kRanks[] = {1, 2, 3, 4, 7};

TEST(DistributedShard, HasTheBitsOfOneProcess) {
  for (std::uint64_t draw = 0; draw < draws(40); ++draw) {
    const Random random(draw);
    SCOPED_TRACE(random.trace());
    attn::run_local_ranks(
        kRanks[draw % 5],
        [&](Communicator& comm) { EXPECT_TRUE(shards_as_one_process(comm, draw)); }, 60s);
  }
}

/// A double model, and a bfloat16 one with compressed weights, whose bits differ from those of
/// float.
TEST(DistributedShard, OtherElementsHaveTheBitsOfOneProcess) {
  for (const int ranks : {2, 3}) {
    Random random(static_cast<std::uint64_t>(ranks));
    SCOPED_TRACE(random.trace());
    attn::Gpt<double> doubles(draw_gpt(random));
    attn::Gpt<attn::bfloat16> halves(draw_gpt(random));
    randomize(doubles, random);
    randomize(halves, random);
    attn::quantize(halves, {.weights = attn::WeightFormat::bf16});
    const ShardCalls<double> of_doubles(doubles, 1);
    const ShardCalls<attn::bfloat16> of_halves(halves, 1);
    attn::run_local_ranks(
        ranks,
        [&](Communicator& comm) {
          attn::Gpt<double> a = doubles;
          attn::Gpt<attn::bfloat16> b = halves;
          attn::shard(a, comm);
          attn::shard(b, comm);
          EXPECT_TRUE(ShardCalls<double>(a, 1) == of_doubles);
          EXPECT_TRUE(ShardCalls<attn::bfloat16>(b, 1) == of_halves);
        },
        60s);
  }
}

/// An encoder with a relative bias, as T5's, and no causal mask.
TEST(DistributedShard, AnEncoderHasTheBitsOfOneProcess) {
  Random random(9);
  attn::Encoder<float> encoder({.num_layers = 2,
                                .layer = {.d_model = 24, .nhead = 6, .dim_feedforward = 40},
                                .relative_buckets = 8});
  randomize(encoder, random);
  const auto x = random.tensor<float, 3>({2, 7, 24});
  const auto expected = encoder(x);
  for (const int ranks : kRanks) {
    SCOPED_TRACE(ranks);
    attn::run_local_ranks(
        ranks,
        [&](Communicator& comm) {
          attn::Encoder<float> own = encoder;
          attn::shard(own, comm);
          const auto found = own(x);
          EXPECT_TRUE(std::ranges::equal(found.elements(), expected.elements()));
        },
        60s);
  }
}

/// The logits of whole sequences, and of steps with caches.
template <class T>
std::vector<attn::Accumulator<T>> translated(const attn::Seq2SeqTransformer<T>& model) {
  const attn::Tensor2<index_t> src({2, 5}, {1, 2, 3, 4, 0, 5, 6, 7, 0, 0}),
      tgt({2, 3}, {1, 9, 8, 2, 0, 0});
  const auto all = model(src, tgt);
  std::vector<attn::Accumulator<T>> logits(all.elements().begin(), all.elements().end());
  attn::Tensor3<T> memory({2, 5, model.options().transformer.layer.d_model});
  model.encode(src, memory);
  auto caches = model.make_caches(2, 8, 5);
  for (const index_t id : {3, 4, 5}) {
    const attn::Tensor2<index_t> next({2, 1}, {id, id + 1});
    attn::Tensor3<attn::Accumulator<T>> out({2, 1, model.options().tgt_vocab_size});
    model.decode(next, memory, src, out, caches);
    logits.insert(logits.end(), out.elements().begin(), out.elements().end());
  }
  return logits;
}

template <class T>
void expect_same_translation(Random& random, const attn::QuantizeOptions* format) {
  const bool has_buckets = random.chance(0.5);
  attn::Seq2SeqTransformer<T> model(
      {.src_vocab_size = 20,
       .tgt_vocab_size = random.integer(15, 40),
       .transformer = {.layer = {.d_model = 32,
                                 .nhead = random.pick<index_t>({2, 4}),
                                 .dim_feedforward = random.pick<index_t>({32, 64}),
                                 .norm_first = random.chance(0.5),
                                 .bias = random.chance(0.5),
                                 .gated = random.chance(0.5)},
                       .num_encoder_layers = 2,
                       .num_decoder_layers = 1,
                       .relative_buckets = has_buckets ? 8 : 0},
       .positions = has_buckets ? attn::Positions::none : attn::Positions::sinusoidal,
       .tied = random.chance(0.5),
       .output_bias = random.chance(0.5),
       .pad_id = 0});
  randomize(model, random);
  if constexpr (!std::same_as<T, double>) {
    if (format != nullptr) attn::quantize(model, *format);
  }
  const auto expected = translated(model);
  const int ranks = random.pick<int>({1, 2, 3, 4, 7});
  SCOPED_TRACE(std::to_string(ranks) + " ranks");
  attn::run_local_ranks(
      ranks,
      [&](Communicator& comm) {
        auto own = model;
        attn::shard(own, comm);
        const auto found = translated(own);
        ASSERT_EQ(found.size(), expected.size());
        EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(found[0])), 0);
      },
      60s);
}

TEST(DistributedShard, AnEncoderDecoderHasTheBitsOfOneProcess) {
  for (std::uint64_t draw = 0; draw < draws(10); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    const auto format = draw_format(random);
    expect_same_translation<float>(random, format ? &*format : nullptr);
    if (draw % 5 == 0) expect_same_translation<double>(random, nullptr);
    const attn::QuantizeOptions halves{.weights = attn::WeightFormat::bf16};
    if (draw % 5 == 1) expect_same_translation<attn::bfloat16>(random, &halves);
  }
}

/// The logits of every kind of step, and the limits that decide how generate() steps.
std::vector<float> session_logits(const attn::Gpt<float>& model,
                                  const std::filesystem::path& file) {
  std::vector<float> found;
  const auto run = [&](attn::GptSession<float>& session, const attn::Tensor2<index_t>& ids) {
    attn::Tensor2<float> logits({session.batch(), model.vocab_size()});
    session.step(ids, logits);
    found.insert(found.end(), logits.elements().begin(), logits.elements().end());
  };
  attn::GptSession<float> session(model, 1, 40), other(model, 1, 40);
  run(session, {{1, 6}, {1, 2, 3, 4, 5, 6}});
  const std::vector<index_t> ids{1, 2, 3, 4, 5, 6};
  attn::save_session(file, session, ids);
  EXPECT_EQ(attn::load_session(file, other), ids);
  run(other, {{1, 1}, {7}});
  attn::GptSession<float> rows = session.fork(2);
  run(rows, {{2, 2}, {7, 8, 9, 1}});
  attn::GptSession<float>* const both[] = {&session, &other};
  attn::Tensor2<float> logits({2, model.vocab_size()});
  attn::GptSession<float>::step_together(both, attn::Tensor1<index_t>({2}, {7, 8}), logits);
  found.insert(found.end(), logits.elements().begin(), logits.elements().end());
  attn::Tensor3<float> of_tree({1, 4, model.vocab_size()});
  session.step_tree(attn::Tensor2<index_t>({1, 4}, {1, 2, 3, 4}),
                    attn::Tensor1<index_t>({4}, {-1, 0, 0, 2}), of_tree);
  found.insert(found.end(), of_tree.elements().begin(), of_tree.elements().end());
  session.keep_path(4, attn::Tensor1<index_t>({3}, {0, 2, 3}));
  run(session, {{1, 3}, {5, 6, 7}});
  found.push_back(static_cast<float>(session.max_decode_tokens()));
  found.push_back(static_cast<float>(session.min_prefill_tokens().value_or(0)));
  return found;
}

TEST(DistributedShard, SessionsHaveTheBitsOfOneProcess) {
  for (std::uint64_t draw = 0; draw < draws(48); ++draw) {
    Random random(draw);
    SCOPED_TRACE(random.trace());
    attn::GptOptions options{
        .vocab_size = 20, .num_layers = 2, .layer = {.d_model = 32, .nhead = 4}};
    options.layer.dim_feedforward = 32;
    draw_mixer(random, options);
    attn::Gpt<float> model(options);
    randomize(model, random);
    const TempFolder folder;
    const std::vector<float> expected = session_logits(model, folder.path() / "whole");
    attn::run_local_ranks(
        kRanks[draw % 5],
        [&](Communicator& comm) {
          attn::Gpt<float> own = model;
          attn::shard(own, comm);
          const auto found = session_logits(own, folder.path() / std::to_string(comm.rank()));
          EXPECT_TRUE(found == expected);
        },
        60s);
  }
}

TEST(DistributedShard, WeightsAndCachesAreSpread) {
  attn::Gpt<float> model({.vocab_size = 64,
                          .num_layers = 2,
                          .layer = {.d_model = 32, .nhead = 4, .dim_feedforward = 64},
                          .tied = false});
  const index_t words = 64 * 32 * index_t{sizeof(float)},
                layers = attn::weight_bytes(model) - 2 * words;
  const std::size_t caches = ShardCalls<float>(model, 1).cache_bytes;
  attn::run_local_ranks(
      4,
      [&](Communicator& comm) {
        attn::Gpt<float> own = model;
        attn::shard(own, comm);
        EXPECT_EQ(attn::weight_bytes(own), words + words / 4 + layers / 4);
        EXPECT_EQ(ShardCalls<float>(own, 1).cache_bytes, caches / 4);
      },
      60s);
}

/// Latents stay whole, matrices of gated delta rules do not; states of convolutions stay whole.
TEST(DistributedShard, CachesOfOtherMixers) {
  attn::GptOptions options{.vocab_size = 64,
                           .num_layers = 1,
                           .layer = {.d_model = 32, .nhead = 4, .dim_feedforward = 64},
                           .tied = false};
  const auto expect = [&](std::size_t parts) {
    attn::Gpt<float> model(options);
    const index_t words = 64 * 32 * index_t{sizeof(float)},
                  others = attn::weight_bytes(model) - words;
    const std::size_t caches = ShardCalls<float>(model, 1).cache_bytes;
    attn::run_local_ranks(
        4,
        [&](Communicator& comm) {
          attn::Gpt<float> own = model;
          attn::shard(own, comm);
          EXPECT_EQ(attn::weight_bytes(own), words + others / 4);
          EXPECT_EQ(ShardCalls<float>(own, 1).cache_bytes, caches / parts);
        },
        60s);
  };
  options.layer.latent = {
      .q_lora_rank = 16, .kv_lora_rank = 12, .head_dim = 4, .rotary_dim = 4, .head_dim_v = 8};
  expect(1);
  options.mixers = {attn::TokenMixer::short_convolution};
  expect(1);
  options.mixers = {attn::TokenMixer::gated_delta};
  options.layer.gated_delta = {
      .num_key_heads = 4, .num_value_heads = 8, .key_dim = 8, .value_dim = 8};
  expect(4);
}

TEST(DistributedShard, PartsLieWithinTheWhole) {
  EXPECT_EQ(error_of<attn::ShapeError>([] { attn::QuantizedWeights(4, 32, {}).rows(2, 5); }),
            "[QuantizedWeights::rows] begin and end must lie in order in 0 .. 4; found 2 and 5.");
  const attn::MultiHeadAttention<float> attention({.embed_dim = 8, .num_heads = 2});
  EXPECT_EQ(error_of<ValueError>([&] { attention.of_heads(1, 1); }),
            "[MultiHeadAttention::of_heads] begin and end must lie in order in 0 .. 2; found 1 "
            "and 1.");
}

TEST(DistributedShard, RefusesWhatItCannotSpread) {
  const attn::GptOptions options{
      .vocab_size = 16, .num_layers = 1, .layer = {.d_model = 8, .nhead = 2, .dim_feedforward = 4}};
  attn::run_local_ranks(
      2,
      [&](Communicator& comm) {
        const auto refused = [&](auto model) {
          return error_of<ValueError>([&] { attn::shard(model, comm); });
        };
        EXPECT_EQ(refused(attn::Gpt<attn::bfloat16>(options)),
                  "[shard] q_proj_weight must be compressed in a module of 16 bits (see "
                  "store_weights()); found a tensor.");
        attn::GptOptions other = options;
        other.layer.latent = {.kv_lora_rank = 4 + comm.rank(), .head_dim = 4, .rotary_dim = 2};
        EXPECT_EQ(refused(attn::Gpt<float>(other)),
                  "[shard] the token mixers must be the same on every rank; found another on rank "
                  "1 than on rank 0.");
        other = options;
        other.layer.experts = {.num_experts = 2 + comm.rank(), .dim_feedforward = 4};
        EXPECT_EQ(refused(attn::Gpt<float>(other)),
                  "[shard] the experts must be the same on every rank; found another on rank 1 "
                  "than on rank 0.");
        other = options;
        other.mixers = {attn::TokenMixer::short_convolution};
        attn::Gpt<float> recurrent(other);
        attn::shard(recurrent, comm);
        EXPECT_EQ(error_of<ValueError>([&] { attn::shard(recurrent, comm); }),
                  "[shard] the module must have whole weights; found weights that are spread over "
                  "ranks already.");
        other = options;
        other.layer.attention.output_projection = false;
        EXPECT_EQ(refused(attn::Gpt<float>(other)),
                  "[shard] attention.output_projection must be true; found false.");
        other = options;
        other.layer.attention.query_key_norm = attn::NormKind::rms;
        other.layer.attention.query_key_norm_of_all_heads = true;
        EXPECT_EQ(refused(attn::Gpt<float>(other)),
                  "[MultiHeadAttention::of_heads] query_key_norm_of_all_heads must be false; "
                  "found true.");
        other = options;
        other.layer.dim_feedforward = 1;
        EXPECT_EQ(refused(attn::Gpt<float>(other)),
                  "[shard] dim_feedforward must be at least the number of ranks, 2; found 1.");
        other = options;
        other.num_layers = 1 + comm.rank();
        EXPECT_EQ(refused(attn::Gpt<float>(other)),
                  "[shard] the number of layers must be the same on every rank; found 1 on rank "
                  "0, 2 on rank 1.");
        other = options;
        other.layer.dim_feedforward = 4 + comm.rank();
        EXPECT_EQ(refused(attn::Gpt<float>(other)),
                  "[shard] dim_feedforward must be the same on every rank; found another on rank 1 "
                  "than on rank 0.");
        other = options;
        other.vocab_size = 16 + comm.rank();
        EXPECT_EQ(refused(attn::Gpt<float>(other)),
                  "[shard] vocab_size must be the same on every rank; found 16 on rank 0, 17 on "
                  "rank 1.");
        EXPECT_EQ(refused(attn::Seq2SeqTransformer<float>(
                      {.src_vocab_size = 9,
                       .tgt_vocab_size = 9,
                       .transformer = {.layer = options.layer,
                                       .num_encoder_layers = 1,
                                       .num_decoder_layers = 1 + comm.rank()}})),
                  "[shard] the number of layers of the decoder must be the same on every rank; "
                  "found 1 on rank 0, 2 on rank 1.");
        attn::Gpt<float> model(options);
        attn::shard(model, comm);
        const attn::Tensor2<index_t> ids({1, 2}, {3, 4});
        const auto identity = attn::score_mod([](float s, int, int, int, int) { return s; });
        EXPECT_EQ(error_of<ValueError>([&] { model(ids, {}, {}, {}, identity); }),
                  "[MultiHeadAttention] functors must be none in a module of some heads, whose "
                  "numbers they would get; found functors.");
        EXPECT_EQ(error_of<ValueError>([&] { model(ids, {.dropout = {.p = 0.5}}); }),
                  "[MultiHeadAttention] dropout.p must be 0 in a module of some heads; found 0.5.");
        attn::Tensor3<float> average({1, 2, 2});
        EXPECT_EQ(error_of<ValueError>([&] { model(ids, {.average_weights = average}); }),
                  "[MultiHeadAttention] average_weights must be none in a module of some heads; "
                  "found one.");
        EXPECT_EQ(error_of<ValueError>([&] { attn::shard(model, comm); }),
                  "[shard] the module must have whole weights; found weights that are spread over "
                  "ranks already.");
      },
      60s);
}

}  // namespace
}  // namespace attn_test
