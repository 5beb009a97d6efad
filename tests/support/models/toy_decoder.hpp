// ToyDecoder: a CachedDecoder whose logits depend on all earlier tokens of a row.
#pragma once

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "attn/core/tensor.hpp"

#include "support/random.hpp"

namespace attn_test {

using Tokens = std::vector<attn::index_t>;

/// Logits after `history`: random numbers determined by it, a tenth of them -inf.
inline std::vector<double> toy_logits(const Tokens& history, attn::index_t vocab_size,
                                      double scale) {
  std::uint64_t seed = 7;
  for (attn::index_t token : history) seed = seed * 1000003 + static_cast<std::uint64_t>(token) + 1;
  Random random(seed);
  std::vector<double> logits(static_cast<std::size_t>(vocab_size));
  for (double& logit : logits)
    logit = static_cast<double>(static_cast<float>(scale * random.normal()));
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (random.chance(0.1)) logits[i] = -std::numeric_limits<double>::infinity();
  }
  return logits;
}

class ToyDecoder {
 public:
  using value_type = float;

  ToyDecoder(attn::index_t batch, attn::index_t vocab_size, double scale = 1)
      : histories(static_cast<std::size_t>(batch)), vocab_size_(vocab_size), scale_(scale) {}

  attn::index_t batch() const { return std::ssize(histories); }
  attn::index_t vocab_size() const { return vocab_size_; }

  void step(attn::TensorView2<const attn::index_t> tokens, attn::TensorView2<float> logits) {
    ++steps;
    for (attn::index_t b = 0; b < batch(); ++b) {
      Tokens& history = histories.at(static_cast<std::size_t>(b));
      for (attn::index_t i = 0; i < tokens.extent(1); ++i) {
        if (tokens(b, i) < 0 || tokens(b, i) >= vocab_size_)
          throw std::out_of_range(std::to_string(tokens(b, i)));
        history.push_back(tokens(b, i));
      }
      const auto row = toy_logits(history, vocab_size_, scale_);
      for (attn::index_t i = 0; i < vocab_size_; ++i) {
        logits(b, i) = static_cast<float>(row[static_cast<std::size_t>(i)]);
      }
    }
  }

  void reorder(attn::TensorView1<const attn::index_t> rows) {
    const auto old = histories;
    for (attn::index_t b = 0; b < batch(); ++b) {
      histories.at(static_cast<std::size_t>(b)) = old.at(static_cast<std::size_t>(rows(b)));
    }
  }

  std::vector<Tokens> histories;
  int steps = 0;

 private:
  attn::index_t vocab_size_;
  double scale_;
};

}  // namespace attn_test
