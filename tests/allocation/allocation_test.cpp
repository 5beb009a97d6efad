// Steady state: a repeated call into memory of the caller allocates nothing.
//
// Counts the allocations of every thread: this program replaces malloc and related functions
// (glibc's interface for that), operator new among them. Sanitizers do the same themselves: with
// them these tests are skipped.
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "attn/attention/kv_cache.hpp"
#include "attn/generation/decoding_session.hpp"
#include "attn/generation/gpt_session.hpp"
#include "attn/models/bert.hpp"
#include "attn/train.hpp"

#include "support/isas.hpp"
#include "support/random.hpp"
#include "support/thread_executor.hpp"

#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ATTN_TEST_COUNTS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ATTN_TEST_COUNTS 0
#endif
#endif
#if !defined(ATTN_TEST_COUNTS)
#define ATTN_TEST_COUNTS 1
#endif

namespace {

std::atomic<long> allocations{0}, allocated_bytes{0};

[[maybe_unused]] void count(std::size_t bytes) {
  ++allocations;
  allocated_bytes += static_cast<long>(bytes);
}

}  // namespace

#if ATTN_TEST_COUNTS
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t size) {
  count(size);
  return __libc_malloc(size);
}
void* calloc(std::size_t count_of, std::size_t size) {
  count(count_of * size);
  return __libc_calloc(count_of, size);
}
void* realloc(void* p, std::size_t size) {
  count(size);
  return __libc_realloc(p, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  count(size);
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) { return memalign(alignment, size); }
int posix_memalign(void** p, std::size_t alignment, std::size_t size) {
  *p = memalign(alignment, size);
  return *p == nullptr ? ENOMEM : 0;
}
}
#endif

namespace attn {
namespace {

/// Runs call() until its memory has grown, then once more, and counts.
template <class F>
long allocations_of(F call) {
  call();
  call();
  const long before = allocations;
  call();
  return allocations - before;
}

class Allocation : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ATTN_TEST_COUNTS) GTEST_SKIP() << "under a sanitizer";
  }
  SerialExecutor serial;
  Workspace workspace;
};

TEST_F(Allocation, IsCounted) {
  EXPECT_EQ(allocations_of([] { Tensor1<float> x({3}); }), 1);
}

TEST_F(Allocation, NoneInAttention) {
  attn_test::Random random(1);
  const auto x = random.tensor<float, 4>({2, 4, 70, 32});
  const Tensor4<bool> keep({2, 1, 1, 70});
  Tensor4<float> y(x.shape()), weights({2, 4, 70, 70});
  for (Isa isa : attn_test::available_isas()) {
    const Execution on{.executor = &serial, .workspace = &workspace, .isa = isa};
    EXPECT_EQ(allocations_of([&] {
                scaled_dot_product_attention(
                    x, x, x, y,
                    {.mask = causal() & keep_mask(keep), .weights = weights, .execution = on});
              }),
              0)
        << name(isa);
  }
}

TEST_F(Allocation, NoneInLayers) {
  attn_test::Random random(2);
  const auto x = random.tensor<float, 3>({2, 30, 48});
  Tensor3<float> y(x.shape()), average({2, 30, 30});
  const Tensor1<index_t> ends({3}, {0, 12, 30});
  TransformerLayerOptions everything{
      .d_model = 48,
      .nhead = 4,
      .dim_feedforward = 96,
      .activation = Activation::silu,
      .norm_first = true,
      .gated = true,
      .norm = NormKind::rms,
      .attention = {
          .num_kv_heads = 2, .query_key_norm = NormKind::layer, .rotary = RotaryOptions{}}};
  for (Isa isa : attn_test::available_isas()) {
    const Execution on{.executor = &serial, .workspace = &workspace, .isa = isa};
    const MultiHeadAttention<float> appends(
        {.embed_dim = 48, .num_heads = 4, .add_bias_kv = true, .add_zero_attn = true});
    EXPECT_EQ(
        allocations_of([&] { appends.forward(x, x, x, y, {.mask = causal(), .execution = on}); }),
        0)
        << name(isa);
    const MultiHeadAttention<float> module({.embed_dim = 48, .num_heads = 4});
    EXPECT_EQ(allocations_of([&] {
                module.forward(
                    x, x, x, y, {.mask = causal(), .average_weights = average, .execution = on},
                    {.residual = x}, score_mod([](float s, int, int, int, int) { return 2 * s; }));
              }),
              0)
        << name(isa);
    for (const TransformerLayerOptions& options :
         {TransformerLayerOptions{.d_model = 48, .nhead = 4, .dim_feedforward = 96}, everything}) {
      const EncoderLayer<float> layer(options);
      EXPECT_EQ(allocations_of([&] { layer.forward(x, y, {.execution = on}); }), 0) << name(isa);
      const DecoderLayer<float> decoder(options);
      EXPECT_EQ(
          allocations_of([&] { decoder.forward(x, x, y, {.mask = causal(), .execution = on}); }), 0)
          << name(isa);
    }
    const EncoderLayer<float> layer(everything);
    const Tensor3<float> row({1, 30, 48});
    Tensor3<float> row_y(row.shape());
    EXPECT_EQ(allocations_of([&] {
                layer.forward(row, row_y,
                              {.cu_seqlens_q = ends, .cu_seqlens_k = ends, .execution = on});
              }),
              0)
        << name(isa);
  }
}

TEST_F(Allocation, NoneInModels) {
  const Tensor2<int> ids({2, 9}), step({2, 1});
  const Execution on{.executor = &serial, .workspace = &workspace};
  const TransformerLayerOptions layer{.d_model = 32, .nhead = 4, .dim_feedforward = 48};

  Transformer<float> transformer(
      {.layer = layer, .num_encoder_layers = 2, .num_decoder_layers = 2});
  const Tensor3<float> x({2, 9, 32});
  Tensor3<float> y(x.shape());
  EXPECT_EQ(allocations_of([&] {
              transformer.forward(x, x, y, {.tgt = {.mask = causal()}, .execution = on});
            }),
            0);

  Bert<float> bert({.vocab_size = 7,
                    .hidden_size = 32,
                    .num_hidden_layers = 2,
                    .num_attention_heads = 4,
                    .intermediate_size = 48,
                    .pooler = true});
  Tensor2<float> pooled({2, 32});
  EXPECT_EQ(allocations_of([&] {
              bert.forward(ids, y, {.execution = on});
              bert.pool(y, pooled, on);
            }),
            0);

  Gpt<float> gpt({.vocab_size = 7, .num_layers = 2, .layer = layer, .max_positions = 16});
  auto caches = gpt.make_caches(2, 16);
  Tensor3<float> logits({2, 9, 7}), last({2, 1, 7});
  EXPECT_EQ(allocations_of([&] {
              for (KvCache<float>& cache : caches) cache.clear();
              gpt.forward(ids, logits, {.execution = on});
              gpt.forward(ids, last, {.execution = on}, caches);
              gpt.forward(step, last, {.execution = on}, caches);
            }),
            0);

  TransformerLayerOptions with_state = layer;
  with_state.gated_delta = {.num_value_heads = 2, .key_dim = 4, .value_dim = 8};
  Gpt<float> recurrent(
      {.vocab_size = 7,
       .num_layers = 3,
       .layer = with_state,
       .max_positions = 16,
       .mixers = {TokenMixer::short_convolution, TokenMixer::gated_delta, TokenMixer::attention}});
  auto states = recurrent.make_caches(2, 16);
  EXPECT_EQ(allocations_of([&] {
              for (KvCache<float>& cache : states) cache.clear();
              recurrent.forward(ids, last, {.execution = on}, states);
              recurrent.forward(step, last, {.execution = on}, states);
            }),
            0);

  Seq2SeqTransformer<float> seq2seq(
      {.src_vocab_size = 7,
       .tgt_vocab_size = 7,
       .transformer = {.layer = layer, .num_encoder_layers = 2, .num_decoder_layers = 2},
       .pad_id = 1});
  auto decoder_caches = seq2seq.make_caches(2, 16, 9);
  EXPECT_EQ(allocations_of([&] {
              for (DecoderLayerCache<float>& cache : decoder_caches) {
                cache.self.clear();
                cache.memory.clear();
              }
              seq2seq.forward(ids, ids, logits, on);
              seq2seq.encode(ids, y, on);
              seq2seq.decode(ids, y, ids, last, decoder_caches, on);
              seq2seq.decode(step, y, ids, last, decoder_caches, on);
            }),
            0);
}

/// Forward, loss, backward, clipping and optimizer allocate nothing in later steps. The memory that
/// a saved struct reports is what the first forward allocates, except for vectors of its layers.
TEST_F(Allocation, NoneInTraining) {
  const Execution on{.executor = &serial, .workspace = &workspace};
  const TransformerLayerOptions layer{.d_model = 32, .nhead = 4, .dim_feedforward = 48};
  const Tensor2<int> ids({2, 9}, {1, 2, 3, 4, 5, 6, 1, 2, 3, 2, 3, 4, 5, 6, 1, 2, 3, 4});
  Tensor3<float> logits({2, 9, 7});
  const TensorView2<float> rows(logits.data(), {18, 7});
  const TensorView1<const int> targets(ids.data(), {18});
  const auto expect_none = [&](const char* name, auto& model, auto forward_of, auto backward_of,
                               auto saved) {
    SCOPED_TRACE(name);
    auto gradients = gradients_of(model);
    const auto parameters = parameters_of<float>(model, gradients);
    Adam<float> adam(parameters, {.weight_decay = 0.1, .decoupled = true});
    Sgd<float> sgd(parameters, {.momentum = 0.9});
    for (const index_t step : {1, 2}) {
      EXPECT_EQ(allocations_of([&] {
                  saved.dropout = {.seed = 1, .step = step};
                  clear_gradients(parameters, on);
                  forward_of(saved);
                  cross_entropy_backward(rows, targets, rows,
                                         {.label_smoothing = 0.1, .execution = on});
                  backward_of(saved, gradients);
                  clip_gradient_norm(parameters, 1, on);
                  check_gradients(parameters);
                  adam.step(1e-3, on);
                  sgd.step(1e-3, on);
                }),
                0);
    }
    auto other = decltype(saved)();
    const long before = allocated_bytes;
    forward_of(other);
    const long bytes = allocated_bytes - before;
    EXPECT_GE(bytes, other.bytes());
    EXPECT_LE(bytes, other.bytes() + 10000);  // vectors of layers
    EXPECT_GT(other.bytes(), 20000);
  };

  Gpt<float> gpt({.vocab_size = 7, .num_layers = 2, .layer = layer, .max_positions = 16});
  const auto gpt_forward = [&](auto& saved) {
    forward(gpt, ids, logits, saved, {.execution = on});
  };
  const auto gpt_backward = [&](auto& saved, auto& gradients) {
    backward(gpt, logits, saved, gradients, {.execution = on});
  };
  expect_none("Gpt", gpt, gpt_forward, gpt_backward, GptSaved<float>());

  GptSaved<float> recomputes;
  recomputes.blocks.recompute = true;
  auto gpt_gradients = gradients_of(gpt);
  EXPECT_EQ(allocations_of([&] {
              gpt_forward(recomputes);
              gpt_backward(recomputes, gpt_gradients);
            }),
            0);

  Lora<float> lora(gpt, {.rank = 2});
  auto lora_gradients = gradients_of(lora);
  const auto adapters = parameters_of<float>(lora, lora_gradients);
  Adam<float> of_adapters(adapters);
  GptSaved<float> saved;
  EXPECT_EQ(allocations_of([&] {
              gpt_forward(saved);
              gpt_backward(saved, gpt_gradients);
              lora.backward(gpt_gradients, lora_gradients, on);
              of_adapters.step(1e-3, on);
              lora.merge(gpt, on);
            }),
            0);

  Bert<float> bert({.vocab_size = 7,
                    .hidden_size = 32,
                    .num_hidden_layers = 2,
                    .num_attention_heads = 4,
                    .intermediate_size = 48});
  Linear<float> head(32, 7), head_gradients(32, 7);
  Tensor3<float> hidden({2, 9, 32});
  LinearSaved<float> of_head;
  expect_none(
      "Bert", bert,
      [&](auto& bert_saved) { forward(bert, ids, hidden, bert_saved, {.execution = on}); },
      [&](auto& bert_saved, auto& gradients) {
        forward(head, hidden, logits, of_head, {}, on);
        backward(head, logits, of_head, hidden, head_gradients, {}, on);
        backward(bert, hidden, bert_saved, gradients, {.execution = on});
      },
      BertSaved<float>());

  Encoder<float> encoder({.num_layers = 2, .layer = layer, .norm = true});
  const Tensor3<float> x({2, 9, 32});
  expect_none(
      "Encoder", encoder,
      [&](auto& encoder_saved) { forward(encoder, x, hidden, encoder_saved, {.execution = on}); },
      [&](auto& encoder_saved, auto& gradients) {
        backward(encoder, hidden, encoder_saved, hidden, gradients, {.execution = on});
      },
      EncoderSaved<float>());

  Seq2SeqTransformer<float> seq2seq(
      {.src_vocab_size = 7,
       .tgt_vocab_size = 7,
       .transformer = {.layer = layer, .num_encoder_layers = 2, .num_decoder_layers = 2},
       .pad_id = 1});
  expect_none(
      "Seq2SeqTransformer", seq2seq,
      [&](auto& both) { forward(seq2seq, ids, ids, logits, both, on); },
      [&](auto& both, auto& gradients) { backward(seq2seq, logits, both, gradients, on); },
      Seq2SeqSaved<float>());

  // 16-bit parameters with float masters.
  Gpt<bfloat16> small({.vocab_size = 7, .num_layers = 2, .layer = layer, .max_positions = 16});
  const auto both = parameters_of<float>(gpt, gpt_gradients, small);
  Adam<float> of_masters(both);
  GptSaved<bfloat16> of_small;
  EXPECT_EQ(allocations_of([&] {
              forward(small, ids, logits, of_small, {.execution = on});
              cross_entropy_backward(rows, targets, rows, {.execution = on});
              backward(small, logits, of_small, gpt_gradients, {.execution = on});
              of_masters.step(1e-3, on);
            }),
            0);

  Tensor2<float> a({4, 8}), b({4, 8}), d_a({4, 8}), d_b({4, 8});
  a.fill(1), b.fill(2);
  EXPECT_EQ(allocations_of([&] { contrastive_loss_backward(a, b, d_a, d_b, {.execution = on}); }),
            0);
}

TEST_F(Allocation, NoneInAKvCache) {
  const Tensor4<float> q({2, 4, 3, 16}), k({2, 2, 3, 16});
  const Tensor1<index_t> rows({2}, {1, 1});
  Tensor4<float> y(q.shape());
  KvCache<float> cache(
      {.batch = 2, .num_kv_heads = 2, .capacity = 12, .head_dim = 16, .window = 5});
  EXPECT_EQ(allocations_of([&] {
              cache.append(k, k);
              scaled_dot_product_attention(
                  q, cache.keys(), cache.values(), y,
                  {.mask = causal(), .execution = {.executor = &serial, .workspace = &workspace}});
              cache.reorder(rows);
              cache.truncate(1);
            }),
            0);
}

TEST_F(Allocation, NoneInADecodingStep) {
  const Gpt<float> gpt({.vocab_size = 50,
                        .num_layers = 2,
                        .layer = {.d_model = 32, .nhead = 4, .dim_feedforward = 64}});
  const Seq2SeqTransformer<float> seq2seq({.src_vocab_size = 50,
                                           .tgt_vocab_size = 50,
                                           .transformer = {.layer = {.d_model = 32, .nhead = 4},
                                                           .num_encoder_layers = 1,
                                                           .num_decoder_layers = 2},
                                           .pad_id = 0});
  const Execution on{.executor = &serial, .workspace = &workspace};
  GptSession<float> gpt_session(gpt, 2, 10, {.execution = on});
  Seq2SeqSession<float> seq2seq_session(seq2seq, Tensor2<index_t>({1, 5}), 10, 2, on);
  Sampler sampler({.top_k = 10, .top_p = 0.9}, 50);
  Tensor2<index_t> tokens({2, 1});
  const Tensor1<index_t> rows({2}, {1, 1});
  Tensor2<float> logits({2, 50});
  EXPECT_EQ(allocations_of([&] {
              gpt_session.step(tokens, logits);
              tokens(0, 0) = sampler(logits.view().select(0, 0));
              gpt_session.reorder(rows);
              seq2seq_session.step(tokens, logits);
              seq2seq_session.reorder(rows);
            }),
            0);
}

TEST_F(Allocation, NoneWithTheDefaultWorkspace) {
  attn_test::Random random(3);
  const auto a = random.tensor<float, 2>({33, 200}), b = random.tensor<float, 2>({200, 70});
  const auto q = random.tensor<float, 4>({1, 2, 5, 16});
  Tensor2<float> c({33, 70});
  Tensor4<float> y(q.shape());
  EXPECT_EQ(allocations_of([&] { gemm(a, b, c); }), 0);
  EXPECT_EQ(allocations_of([&] { scaled_dot_product_attention(q, q, q, y); }), 0);
}

TEST_F(Allocation, NoneInAWorkspaceOfTheSizeAskedFor) {
  const attn_test::ThreadExecutor threads(2);
  for (const index_t q_len : {1, 40, 700}) {
    // 5000 keys: a few queries split them.
    const Tensor4<float> q({2, 4, q_len, 32}), k({2, 2, 5000, 32});
    Tensor4<float> y(q.shape());
    for (const Executor* executor :
         {static_cast<const Executor*>(&serial), static_cast<const Executor*>(&threads)}) {
      for (const bool has_qv : {false, true}) {
        AttentionOptions<float> options{.execution = {.executor = executor}};
        if (has_qv) options.qv = q;
        const std::size_t bytes = workspace_bytes(q, k, k, y, options);
        Workspace exact(bytes);
        options.execution.workspace = &exact;
        scaled_dot_product_attention(q, k, k, y, options);
        EXPECT_EQ(exact.capacity(), bytes) << q_len;
        EXPECT_EQ(exact.peak(), bytes) << q_len;
      }
    }
    Workspace exact(workspace_bytes(q, k, k, y, {.execution = {.executor = &serial}}));
    const long before = allocations;
    scaled_dot_product_attention(q, k, k, y,
                                 {.execution = {.executor = &serial, .workspace = &exact}});
    EXPECT_EQ(allocations - before, 0) << q_len;
  }
}

}  // namespace
}  // namespace attn
