// train_reverse: trains the Transformer of "Attention Is All You Need" to reverse sequences that it
// has not seen.
#include <chrono>
#include <iomanip>
#include <iostream>
#include <random>
#include <vector>

#include <CLI/CLI.hpp>

#include <attn/generation.hpp>
#include <attn/train.hpp>

#include "support/command_line.hpp"

namespace {

using attn::index_t;

constexpr index_t kSymbols = 20, kLength = 10, kBatch = 64,
                  kStart = kSymbols;  // one more id marks the start of a target

// Random sequences (rows, kLength), and the reversed ones.
struct Examples {
  attn::Tensor2<index_t> src, tgt, reversed;

  Examples(index_t rows, std::mt19937_64& random)
      : src({rows, kLength}), tgt({rows, kLength}), reversed({rows, kLength}) {
    for (index_t& id : src.elements()) id = static_cast<index_t>(random() % kSymbols);
    for (index_t b = 0; b < rows; ++b) {
      for (index_t i = 0; i < kLength; ++i) {
        reversed(b, i) = src(b, kLength - 1 - i);
        tgt(b, i) = i == 0 ? kStart : reversed(b, i - 1);
      }
    }
  }
};

// Counts the `examples` that the model reverses without an error, taking the most likely symbol at
// each position.
index_t count_exact(const attn::Seq2SeqTransformer<float>& model, const Examples& examples) {
  const index_t rows = examples.src.extent(0);
  const index_t dim = model.options().transformer.layer.d_model;
  attn::Tensor3<float> memory({rows, kLength, dim}), logits({rows, 1, kSymbols + 1});
  model.encode(examples.src, memory);
  attn::Tensor2<index_t> said({rows, kLength + 1});
  for (index_t b = 0; b < rows; ++b) said(b, 0) = kStart;
  for (index_t i = 0; i < kLength; ++i) {
    model.decode(said.view().slice(1, 0, i + 1), memory, examples.src, logits);
    for (index_t b = 0; b < rows; ++b) {
      said(b, i + 1) = attn::argmax(logits.view().select(0, b).select(0, 0));
    }
  }
  index_t exact = 0;
  for (index_t b = 0; b < rows; ++b) {
    bool same = true;
    for (index_t i = 0; i < kLength; ++i) same = same && said(b, i + 1) == examples.reversed(b, i);
    exact += same ? 1 : 0;
  }
  return exact;
}

void run(double seconds) {
  attn::Seq2SeqTransformer<float> model(
      {.src_vocab_size = kSymbols,
       .tgt_vocab_size = kSymbols + 1,
       .transformer = {.layer = {.d_model = 64, .nhead = 4, .dim_feedforward = 128, .dropout = 0},
                       .num_encoder_layers = 2,
                       .num_decoder_layers = 2},
       .max_positions = kLength});
  attn::initialize(model, {.seed = 1, .embedding_std = 0.125});

  auto gradients = attn::gradients_of(model);
  const auto parameters = attn::parameters_of<float>(model, gradients);
  attn::Adam<float> adam(parameters, {.beta2 = 0.98, .eps = 1e-9});
  attn::Seq2SeqSaved<float> saved;
  attn::Tensor3<float> logits({kBatch, kLength, kSymbols + 1});
  const attn::TensorView2<float> rows(logits.data(), {kBatch * kLength, kSymbols + 1});

  std::mt19937_64 random(7);
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  for (index_t step = 1; passed() < seconds; ++step) {
    const Examples batch(kBatch, random);
    attn::clear_gradients(parameters);
    attn::forward(model, batch.src, batch.tgt, logits, saved);
    const attn::TensorView1<const index_t> targets(batch.reversed.data(), {kBatch * kLength});
    const double loss = attn::cross_entropy_backward(rows, targets, rows);
    attn::backward(model, logits, saved, gradients);
    attn::clip_gradient_norm(parameters, 1);
    adam.step(attn::paper_rate(step, 64, 200, 0.3));
    if (step % 100 == 0) {
      std::cout << "step " << step << std::fixed << std::setprecision(0) << ", " << passed()
                << " s: loss " << std::setprecision(4) << loss << std::endl;
    }
  }
  const index_t exact = count_exact(model, Examples(1000, random));
  std::cout << exact << " of 1000 unseen sequences are reversed without a mistake\n";
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 20;
  CLI::App app("Teaches the Transformer of \"Attention Is All You Need\" to reverse sequences.");
  examples::add_real(app, "--seconds", seconds, {.open = true}, "Stop after this many seconds");
  return examples::run_program(app, "train_reverse", argc, argv, [&] { run(seconds); });
}
