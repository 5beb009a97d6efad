// Prints hashes of the results of fixed calls: two versions with equal lines give the same bits.
//
// A line is an instruction set, an element type, a number of threads and an operation. Inputs come
// from integer arithmetic, so that they are the same on every machine.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include <attn/attn.hpp>

#include "support/thread_executor.hpp"

namespace {

using attn::index_t;

/// FNV-1a of the elements' bits, one hash per call; all NaNs count as equal.
class Hash {
 public:
  template <class T, int Rank>
  void add(const attn::Tensor<T, Rank>& x) {
    for (const T element : x.elements()) {
      add_bits(std::isnan(element) ? 0x7ff8u
                                   : std::bit_cast<std::uint64_t>(static_cast<double>(element)));
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  void add_bits(std::uint64_t bits) {
    for (int byte = 0; byte < 8; ++byte) {
      value_ = (value_ ^ (bits >> (8 * byte) & 0xff)) * 0x100000001b3u;
    }
  }
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

/// Elements in [-1, 1).
template <class T, int Rank>
attn::Tensor<T, Rank> random(const attn::Shape<Rank>& shape, std::uint32_t seed) {
  attn::Tensor<T, Rank> x(shape);
  for (T& element : x.elements()) {
    seed = seed * 1664525u + 1013904223u;
    element = static_cast<T>(seed >> 8) * T(0x1p-23) - T(1);
  }
  return x;
}

/// Runs every operation on one instruction set, with elements of type T.
template <class T>
class Calls {
 public:
  Calls(attn::Isa isa, int threads) : isa_(isa), threads_(threads), executor_(threads) {}

  void run() {
    products();
    rows();
    linear_attention();
    layers();
    for (const auto& [q_len, kv_len] :
         {std::pair<index_t, index_t>{1, 2300}, {3, 130}, {9, 700}, {130, 300}, {401, 97}}) {
      attention(q_len, kv_len);
    }
  }

 private:
  using Tensor4 = attn::Tensor4<T>;

  attn::Execution execution() const { return {.executor = &executor_, .isa = isa_}; }

  void print(const std::string& what, const Hash& hash) const {
    std::printf("%-7s %-6s %d %-32s %016llx\n", std::string(attn::name(isa_)).c_str(),
                sizeof(T) == 4 ? "float" : "double", threads_, what.c_str(),
                static_cast<unsigned long long>(hash.value()));
  }

  void products() const {
    Hash hash;
    for (const index_t m : {1, 5, 6, 16, 97, 401}) {
      for (const index_t n : {1, 7, 40, 130}) {
        const index_t k = 33 + 7 * n;
        const auto a = random<T, 2>({m, k}, 1), b = random<T, 2>({k, n}, 2);
        const auto bias = random<T, 1>({n}, 3);
        auto c = random<T, 2>({m, n}, 4);
        attn::gemm(a, b, c, {}, execution());
        hash.add(c);
        attn::gemm(a, attn::PackedWeights<T>(b, isa_), c,
                   {.alpha = T(0.5), .bias = bias, .activation = attn::Activation::gelu},
                   execution());
        hash.add(c);
        attn::gemm(a, b, c, {.beta = T(1), .residual = c}, execution());
        hash.add(c);
      }
    }
    const auto a = random<T, 3>({9, 12, 20}, 5), b = random<T, 3>({1, 20, 31}, 6);
    attn::Tensor3<T> c({9, 12, 31});
    attn::batched_gemm(a, b, c, {}, execution());
    hash.add(c);
    print("products", hash);
  }

  void rows() const {
    Hash hash;
    for (const index_t n : {1, 7, 16, 31, 130, 1025}) {
      auto x = random<T, 2>({37, n}, 7);
      x(0, 0) = -std::numeric_limits<T>::infinity();
      const auto weight = random<T, 1>({n}, 8), bias = random<T, 1>({n}, 9);
      hash.add(attn::softmax(x, execution()));
      hash.add(attn::log_softmax(x, execution()));
      hash.add(attn::log_sum_exp(x, execution()));
      hash.add(attn::layer_norm(x, weight, bias, 1e-5, execution()));
      hash.add(attn::rms_norm(x, weight, 1e-5, execution()));
      for (const auto activation : {attn::Activation::relu, attn::Activation::gelu,
                                    attn::Activation::gelu_tanh, attn::Activation::silu}) {
        hash.add(attn::activate(activation, x, execution()));
        hash.add(attn::glu(activation, x, x, execution()));
      }
      hash.add(attn::swiglu(x, x, 1.5, execution()));
    }
    print("rows", hash);
  }

  void linear_attention() const {
    Hash hash;
    const auto q = random<T, 4>({2, 4, 33, 20}, 10), k = random<T, 4>({2, 2, 33, 20}, 11),
               v = random<T, 4>({2, 2, 33, 37}, 12);
    const auto beta = random<T, 3>({2, 2, 33}, 13);
    hash.add(attn::linear_attention(q, k, v, {.beta = beta}, execution()));
    print("linear attention", hash);
  }

  void layers() const {
    Hash hash;
    const auto x = random<T, 3>({2, 19, 48}, 14);
    attn::MultiHeadAttention<T> mha({.embed_dim = 48, .num_heads = 4});
    attn::EncoderLayer<T> layer({.d_model = 48, .nhead = 4, .dim_feedforward = 96});
    std::uint32_t seed = 20;
    const auto fill = [&](std::string_view, const auto& parameter) {
      using View = std::remove_cvref_t<decltype(parameter)>;
      attn::copy(random<T, View::rank>(parameter.shape(), seed++), parameter);
    };
    mha.visit_parameters(fill);
    layer.visit_parameters(fill);
    hash.add(mha(x, {.execution = execution()}));
    hash.add(layer(x, {.execution = execution()}));
    print("layers", hash);
  }

  void attention(index_t q_len, index_t kv_len) const {
    const auto q = random<T, 4>({2, 6, q_len, 40}, 30), k = random<T, 4>({2, 2, kv_len, 40}, 31),
               v = random<T, 4>({2, 2, kv_len, 24}, 32);
    const auto slopes = random<T, 1>({6}, 33), sinks = random<T, 1>({6}, 34);
    const auto bias = random<T, 2>({q_len, kv_len}, 35), relative = random<T, 2>({6, 65}, 36);
    attn::Tensor<bool, 2> keep({q_len, kv_len});
    index_t at = 0;
    for (bool& kept : keep.elements()) kept = at++ % 5 != 0;
    const attn::Tensor1<index_t> lengths({2}, {kv_len, (kv_len + 1) / 2});

    const auto call = [&](const char* name, attn::AttentionOptions<T> options,
                          const auto&... functors) {
      Tensor4 y({2, 6, q_len, 24}), weights({2, 6, q_len, kv_len});
      attn::Tensor3<T> lse({2, 6, q_len}), sums({2, 6, kv_len});
      attn::Tensor2<T> logits({2, 6});
      options.execution = execution();
      options.lse = lse;
      Hash hash;
      attn::scaled_dot_product_attention(q, k, v, y, options, functors...);
      hash.add(y);
      hash.add(lse);
      options.weights = weights;
      options.column_sums = sums;
      options.max_logits = logits;
      attn::scaled_dot_product_attention(q, k, v, y, options, functors...);
      hash.add(y);
      hash.add(weights);
      hash.add(sums);
      hash.add(logits);
      print("attention " + std::to_string(q_len) + " x " + std::to_string(kv_len) + " " + name,
            hash);
    };
    call("plain", {});
    call("causal", {.mask = attn::causal()});
    call("window", {.mask = attn::causal() & attn::sliding_window(64, 0)});
    call("lengths", {.mask = attn::key_lengths(lengths), .masked_row = attn::MaskedRow::mean});
    call("keep", {.mask = attn::keep_mask(keep)});
    call("additive", {.mask = attn::additive_mask(bias)});
    call("alibi", {.alibi_slopes = slopes});
    call("relative", {.relative_bias = relative});
    call("softcap", {.scale = 2.0, .softcap = 1.5});
    call("sinks", {.mask = attn::causal(), .sinks = sinks});
    call("dropout", {.dropout = {0.3, 7}});
    call("score_mod", {}, attn::score_mod([](T s, int, int h, int i, int j) {
           return s + static_cast<T>((i + 2 * j + h) % 3);
         }));
    call("mask_mod", {}, attn::mask_mod([](int b, int h, int i, int j) {
           return (3 * i + 5 * j + h + b) % 7 != 0;
         }));
    call("prob_mod", {}, attn::prob_mod([](T p, int, int, int i, int j) {
           return p * static_cast<T>((i + j) % 4);
         }));
  }

  attn::Isa isa_;
  int threads_;
  attn_test::ThreadExecutor executor_;
};

}  // namespace

int main() {
  for (const attn::Isa isa : attn::kAllIsas) {
    if (!attn::is_available(isa) || attn::base(isa) != isa) continue;
    for (const int threads : {1, 2}) {
      Calls<float>(isa, threads).run();
      Calls<double>(isa, threads).run();
    }
  }
}
