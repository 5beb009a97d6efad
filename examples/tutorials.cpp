// tutorials: the demonstrations of five attention tutorials, and the mistake in each that attn
// avoids.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

#include <attn/attn.hpp>

#include "support/command_line.hpp"

namespace {

using attn::index_t;
using attn::Tensor2;
using attn::Tensor3;
using attn::Tensor4;
using attn::TensorView1;
using attn::TensorView2;
using attn::TensorView3;

bool all_good = true;

void title(const char* number, const char* text) {
  std::printf("\n%s  %s\n%s\n", number, text,
              std::string(std::string_view(text).size() + 5, '-').c_str());
}

void slip(const char* text) { std::printf("  The slip: %s\n", text); }

/// Prints whether a claim holds; the program fails if one does not.
void claim(bool holds, const char* text) {
  std::printf("  %s: %s\n", text, holds ? "yes" : "NO");
  all_good = all_good && holds;
}

void print_shape(const char* what, const auto& x) {
  std::printf("  %-46s %s\n", what, attn::to_string(x.shape()).c_str());
}

void print_row(TensorView1<const float> row, index_t columns) {
  for (index_t j = 0; j < std::min(columns, row.extent(0)); ++j) std::printf("%9.4f", row(j));
  std::printf("\n");
}

void print_matrix(const char* what, TensorView2<const float> m, TensorView2<const float> page) {
  for (index_t i = 0; i < m.extent(0); ++i) {
    std::printf("  %-18s", i == 0 ? what : "");
    for (index_t j = 0; j < m.extent(1); ++j) std::printf("%9.4f", m(i, j));
    std::printf("     the page:");
    for (index_t j = 0; j < page.extent(1); ++j) std::printf("%9.4f", page(i, j));
    std::printf("\n");
  }
}

/// Reproducible numbers in (-1, 1).
class Random {
 public:
  float operator()() {
    state_ = state_ * 1103515245u + 12345u;
    return static_cast<float>(static_cast<int>(state_ >> 8) - (1 << 23)) / (1 << 23);
  }
  void fill(auto view, float scale) {
    for (index_t i = 0; i < view.size(); ++i) view.data()[i] = scale * (*this)();
  }

 private:
  unsigned state_ = 42;
};

Random random_number;

template <int Rank>
attn::Tensor<float, Rank> random_tensor(const attn::Shape<Rank>& shape) {
  attn::Tensor<float, Rank> x(shape);
  random_number.fill(x.view(), 1.7f);
  return x;
}

/// Random weights of the size of PyTorch's initialisation.
void randomize(auto& module, index_t width) {
  const float scale = 1.7f / std::sqrt(static_cast<float>(width));
  module.visit_parameters([&](std::string_view name, auto view) {
    if (name.find("norm") == name.npos) random_number.fill(view, scale);
  });
}

float largest_difference(const auto& a, const auto& b) {
  float most = 0;
  for (index_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a.data()[i] - b.data()[i]));
  return most;
}

void permutation() {
  title("000", "Multi-head attention does not see the order of the tokens");
  attn::MultiHeadAttention<float> attention({.embed_dim = 16, .num_heads = 4});
  randomize(attention, 16);
  const Tensor3<float> x1 = random_tensor<3>({1, 4, 16});
  constexpr index_t order[] = {2, 0, 1, 3};  // x2 = [t3, t1, t2, t4]
  Tensor3<float> x2(x1.shape());
  for (index_t i = 0; i < 4; ++i) {
    attn::copy(x1.view().select(0, 0).select(0, order[i]), x2.view().select(0, 0).select(0, i));
  }
  const Tensor3<float> y1 = attention(x1), y2 = attention(x2);
  float difference = 0;
  for (const auto* y : {&y1, &y2}) {
    std::printf("  attention(%s), the first 8 of 16 features\n", y == &y1 ? "x1" : "x2");
    for (index_t i = 0; i < 4; ++i) {
      const index_t token = y == &y1 ? i : order[i];
      std::printf("    t%td", token + 1);
      print_row(y->view().select(0, 0).select(0, i), 8);
      for (index_t j = 0; j < 16; ++j) {
        difference = std::max(difference, std::abs((*y)(0, i, j) - y1(0, token, j)));
      }
    }
  }
  claim(difference < 1e-6f, "Each token has the same row in both, wherever it stands");
  slip("the page's numbers come from a generator's hidden state; what holds is that rows move.");
}

void self_attention() {
  title("001", "Self-attention with key and value widths of its own, then with heads");
  const Tensor3<float> x = random_tensor<3>({2, 5, 12});
  print_shape("x (batch, n, dim_in)", x);
  attn::MultiHeadAttention<float> single({.embed_dim = 12,
                                          .bias = false,
                                          .head_dim = 10,
                                          .head_dim_v = 14,
                                          .output_projection = false});
  randomize(single, 12);
  print_shape("SelfAttention(12, dim_k 10, dim_v 14)(x)", single(x));

  attn::MultiHeadAttention<float> multi({.embed_dim = 12,
                                         .num_heads = 4,
                                         .bias = false,
                                         .head_dim = 6,
                                         .head_dim_v = 8,
                                         .output_projection = false});
  randomize(multi, 12);
  const Tensor3<float> q = attn::linear(x, multi.q_weight()), k = attn::linear(x, multi.k_weight());
  const Tensor3<float> v = attn::linear(x, multi.v_weight());
  print_shape("q = x W_q^T", q);
  print_shape("  split_heads(q, 4): a view, nothing is copied", attn::split_heads(q, 4));
  const Tensor4<float> heads = attn::scaled_dot_product_attention(
      attn::split_heads(q, 4), attn::split_heads(k, 4), attn::split_heads(v, 4));
  print_shape("  attention of the heads", heads);
  const Tensor3<float> combined = attn::combine_heads(heads);
  print_shape("  combine_heads", combined);
  const Tensor3<float> y = multi(x);
  print_shape("MultiHeadSelfAttention(12, 24, 32, 4 heads)(x)", y);
  claim(largest_difference(y, combined) < 1e-5f, "The module and the steps agree");
  slip("reshape(-1, nh, dk) mixes heads unless n == nh; and a mask multiplied as -inf gives NaN.");
}

void causal_mask() {
  title("002", "GPT's causal mask: a token sees itself and what stands before it");
  attn::MultiHeadAttention<float> attention({.embed_dim = 48, .num_heads = 6});
  randomize(attention, 48);
  const Tensor3<float> x = random_tensor<3>({1, 6, 48});
  Tensor3<bool> mask({1, 6, 6});  // (batch, q_len, kv_len), true = visible
  for (index_t i = 0; i < 6; ++i) {
    for (index_t j = 0; j <= i; ++j) mask(0, i, j) = true;
  }
  Tensor3<float> weights({1, 6, 6});
  const Tensor3<float> y =
      attention(x, {.mask = attn::keep_mask(mask.view().unsqueeze(1)), .average_weights = weights});
  std::printf("  Weights, the mean of 6 heads; a row adds up to 1\n");
  for (index_t i = 0; i < 6; ++i) {
    std::printf("    token %td", i + 1);
    for (index_t j = 0; j < 6; ++j) {
      if (j <= i) {
        std::printf("%7.3f", weights(0, i, j));
      } else {
        std::printf("%7s", weights(0, i, j) == 0 ? "." : "LEAK");
      }
    }
    std::printf("\n");
  }
  const Tensor3<float> same = attention(x, {.mask = attn::causal()});
  claim(largest_difference(y, same) < 1e-6f, "attn::causal() gives the same without a mask tensor");
  slip("its listing projects K and V by q_project; a (S, S) mask unsqueezed at 1 hits the heads.");
}

void encoder_layer() {
  title("003",
        "The Transformer's encoder layer: attention and feed-forward, each with residual and norm");
  attn::EncoderLayer<float> layer(
      {.d_model = 32, .nhead = 4, .dim_feedforward = 64, .layer_norm_eps = 1e-6});
  randomize(layer, 32);
  const Tensor3<float> x = random_tensor<3>({2, 5, 32});
  // The second sentence has three tokens; the last two are padding. The page's pad mask: (B, 1, S).
  const Tensor3<bool> pad_mask({2, 1, 5},
                               {true, true, true, true, true, true, true, true, false, false});
  const attn::Mask mask = attn::keep_mask(pad_mask.view().unsqueeze(1));
  const Tensor3<float> y = layer(x, {.mask = mask});
  print_shape("x (batch, seq, d_model)", x);
  print_shape("encoder_layer(x, pad mask)", y);

  const Tensor3<float> a = layer.norm1(layer.self_attn(x, {.mask = mask}, {.residual = x}));
  Tensor3<float> b(a.shape());
  layer.feed_forward.forward(a, b, a.view());
  claim(largest_difference(y, layer.norm2(b)) < 1e-5f,
        "It is norm2(a + feed_forward(a)), where a = norm1(x + self_attn(x))");
  double mean = 0, square = 0;
  for (index_t j = 0; j < 32; ++j) mean += y(0, 0, j) / 32.0;
  for (index_t j = 0; j < 32; ++j) square += (y(0, 0, j) - mean) * (y(0, 0, j) - mean) / 32.0;
  std::printf("  A token comes out with mean %.4f and deviation %.4f\n", std::abs(mean),
              std::sqrt(square));

  // The rest of the paper, from token ids to logits; id 0 is padding.
  attn::TransformerLayerOptions options{
      .d_model = 32, .nhead = 4, .dim_feedforward = 64, .layer_norm_eps = 1e-6};
  options.attention.bias = false;  // the page's projections
  attn::Seq2SeqTransformer<float> transformer(
      {.src_vocab_size = 11,
       .tgt_vocab_size = 13,
       .transformer = {.layer = options, .num_encoder_layers = 2, .num_decoder_layers = 2},
       .pad_id = 0});
  randomize(transformer, 32);
  const Tensor2<int> source({1, 3}, {7, 2, 9}), padded({1, 5}, {7, 2, 9, 0, 0});
  const Tensor2<int> target({1, 4}, {1, 5, 3, 8}), start({1, 2}, {1, 5});
  const Tensor3<float> logits = transformer(source, target);
  print_shape("transformer(source, target): logits", logits);
  claim(largest_difference(logits, transformer(padded, target)) < 1e-5f,
        "Padding behind the source changes nothing");
  const Tensor3<float> first(logits.view().slice(1, 0, 2));
  claim(largest_difference(first, transformer(source, start)) < 1e-5f,
        "Nor do later tokens of the target");
  slip(
      "the page breaks off; built is the paper's rest: pad and subsequent masks, post-norm, 1e-6.");
}

void worked_numbers() {
  title("004", "Two words, worked by hand");
  const Tensor2<float> inputs({2, 3}, {1, 0, 0, 0, 2, 2});
  // Weights (in, out), as on the page: transposed for linear(), which takes (out, in).
  const Tensor2<float> w_q({3, 2}, {1, 0, 1, 0, 0, 1}), w_k({3, 2}, {0, 1, 1, 0, 1, 0});
  const Tensor2<float> w_v({3, 2}, {2, 0, 3, 0, 0, 3});
  const auto project = [&](const Tensor2<float>& w) {
    const Tensor2<float> y = attn::linear(inputs, w.view().transpose(0, 1));
    return Tensor4<float>(y.view().unsqueeze(0).unsqueeze(0));  // (batch 1, head 1, word, dim)
  };
  const Tensor4<float> q = project(w_q), k = project(w_k), v = project(w_v);
  Tensor4<float> weights({1, 1, 2, 2});
  // The page does not scale its scores.
  const Tensor4<float> y =
      attn::scaled_dot_product_attention(q, k, v, {.scale = 1.0, .weights = weights});

  const Tensor2<float> page_weights({2, 2}, {0.0180f, 0.9820f, 0.0025f, 0.9975f});
  const Tensor2<float> page_values({2, 2}, {5.928f, 5.892f, 5.990f, 5.985f});
  const auto matrix = [](const Tensor4<float>& x) { return x.view().select(0, 0).select(0, 0); };
  print_matrix("attention weights", matrix(weights), page_weights);
  print_matrix("attention values", matrix(y), page_values);
  claim(largest_difference(weights, page_weights) < 6e-5f &&
            largest_difference(y, page_values) < 6e-4f,
        "They agree to the digits that the page prints");

  // The same scores with the second word masked out.
  Tensor2<float> filled({2, 2}, {0, -1e-9f, 2, -1e-9f});
  attn::softmax(filled, filled);
  const Tensor2<bool> visible({1, 2}, {true, false});
  attn::scaled_dot_product_attention(
      q, k, v, {.mask = attn::keep_mask(visible), .scale = 1.0, .weights = weights});
  std::printf(
      "  Second word masked out, weights of the first: %.4f %.4f; by masked_fill(-1e-9): %.4f "
      "%.4f\n",
      weights(0, 0, 0, 0), weights(0, 0, 0, 1), filled(0, 0), filled(0, 1));
  claim(weights(0, 0, 0, 1) == 0, "A masked word has weight 0");
  slip(
      "-1e-9 masks out nothing, a large negative was meant; its one-matrix heads are one wide "
      "head.");
}

int run() {
  permutation();
  self_attention();
  causal_mask();
  encoder_layer();
  worked_numbers();
  return all_good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs the demonstrations of five tutorials of attention, and says what holds.");
  return examples::run_program(app, "tutorials", argc, argv, run);
}
