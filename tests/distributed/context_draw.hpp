// ContextDraw: a random call of context parallel attention, compared with one process.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "attn/distributed/context_attention_backward.hpp"

#include "support/draws/attention_draw.hpp"
#include "support/isas.hpp"
#include "support/thread_executor.hpp"

namespace attn_test {

/// A call of self-attention, equal on every rank.
template <class T>
struct ContextDraw {
  std::optional<AttentionDraw<T>> call;
  attn::ContextLayout::Kind kind;
  attn::Isa isa;
  int functors, threads;
  bool has_int8, has_bfloat16;  ///< only in float
  bool has_gradients;
  std::vector<Index> q_starts, k_starts;  ///< of packed sequences, otherwise empty
  Index masked;                           ///< the key that the mask functor masks out

  explicit ContextDraw(Random& random) {
    const Index seq = random.pick<Index>({1, 2, 5, 13, 64, 130, 257, 512, 600, 1025, 1100});
    const Index kv_heads = random.integer(1, 2), dim = random.pick<Index>({1, 3, 8, 16, 17});
    const Index heads = kv_heads * (seq > 300 ? 1 : random.pick<Index>({1, 2, 3}));
    const Index batch = seq > 300 ? 1 : random.integer(1, 2);
    const Index dim_v = random.chance(0.6) ? dim : random.pick<Index>({1, 5, 16, 33});
    attn::Shape<4> scores{batch, heads, seq, seq};
    if (random.chance(0.35)) {
      const Index sequences = random.integer(1, 5);
      q_starts = draw_starts(random, sequences, seq);
      k_starts = random.chance(0.6) ? q_starts : draw_starts(random, sequences, seq);
      scores = {sequences, heads, longest(q_starts), longest(k_starts)};
    }
    do {
      call.emplace(random, scores, kv_heads, dim, dim_v);
    } while (call->options.first_key > 0);
    if (is_packed()) pack(random, kv_heads, dim, dim_v);
    call->options.mean_of_masked_row = false;  // context parallel attention refuses these two
    call->options.qv = {};
    // NaN in a masked key must not reach a result; the mask functor below masks it out.
    functors = static_cast<int>(random.integer(0, 5));
    masked = scores[3] / 2;
    if (functors == 3) {
      const Index first = is_packed() ? first_key_of_longest() : 0;
      for (Index x = 0; x < dim_v; ++x)
        call->v(0, 0, first + masked, x) = std::numeric_limits<T>::infinity();
    }
    kind = random.chance(0.5) ? attn::ContextLayout::Kind::zigzag
                              : attn::ContextLayout::Kind::contiguous;
    isa = random.pick(extended_isas());
    threads = static_cast<int>(random.integer(1, 2));
    has_gradients = random.chance(0.5);
    has_int8 = std::same_as<T, float> && random.chance(0.15);
    has_bfloat16 = std::same_as<T, float> && random.chance(0.15);
  }

  std::string text() const {
    return call->text() + ", " + std::string(attn::name(isa)) +
           (kind == attn::ContextLayout::Kind::zigzag ? ", zigzag" : ", contiguous") +
           ", functors " + std::to_string(functors) + ", threads " + std::to_string(threads) +
           (has_int8 ? ", int8" : "") + (has_bfloat16 ? ", bfloat16" : "") +
           (has_gradients ? ", gradients" : "") + starts_text(", q_starts", q_starts) +
           starts_text(", k_starts", k_starts);
  }

  bool is_packed() const { return !q_starts.empty(); }

  /// Calls run(functors...).
  template <class Run>
  void with_functors(const Run& run) const {
    const int key = static_cast<int>(masked);
    const auto score = attn::score_mod(
        [](auto s, int, int h, int i, int j) { return s + static_cast<T>((i + j + h) % 3); });
    const auto mask = attn::mask_mod([key](int, int, int, int j) { return j != key; });
    const auto prob = attn::prob_mod(
        [](auto p, int, int, int i, int j) { return p * static_cast<T>((i + j) % 2); });
    switch (functors) {
      case 1:
        return run(score);
      case 2:
        return run(prob, mask);
      case 3:
        return run(mask);
      case 4:
        return run(score, mask, prob);
      default:
        return run();
    }
  }

  /// Whether outputs, lse and gradients on this rank have the bits of one process.
  bool has_same_bits(attn::Communicator& communicator) const {
    if constexpr (std::same_as<T, float>) {
      if (has_bfloat16) {
        return has_same_bits(communicator, call->q.template as<attn::bfloat16>(),
                             call->k.template as<attn::bfloat16>(),
                             call->v.template as<attn::bfloat16>());
      }
    }
    return has_same_bits(communicator, call->q, call->k, call->v);
  }

 private:
  /// `sequences` random sequences of `total` tokens, some of which may be short or empty.
  static std::vector<Index> draw_starts(Random& random, Index sequences, Index total) {
    std::vector<Index> starts{0, total};
    for (Index n = 1; n < sequences; ++n) {
      const bool is_near = random.chance(0.4);
      starts.push_back(is_near ? (std::min)(total, random.pick(starts) + random.integer(0, 3))
                               : random.integer(0, total));
    }
    std::sort(starts.begin(), starts.end());
    return starts;
  }
  static Index longest(const std::vector<Index>& starts) {
    Index most = 0;
    for (std::size_t b = 1; b < starts.size(); ++b) {
      most = (std::max)(most, starts[b] - starts[b - 1]);
    }
    return most;
  }
  Index first_key_of_longest() const {
    std::size_t b = 0;
    while (k_starts[b + 1] - k_starts[b] < longest(k_starts)) ++b;
    return k_starts[b];
  }
  static std::string starts_text(std::string_view name, const std::vector<Index>& starts) {
    std::string text;
    for (const Index start : starts) text += " " + std::to_string(start);
    return starts.empty() ? text : std::string(name) + text;
  }

  /// Tensors of all sequences, and lengths within them.
  void pack(Random& random, Index kv_heads, Index dim, Index dim_v) {
    const Index total = q_starts.back();
    call->q = random.array<T>({1, call->q.extent(1), total, dim});
    call->k = random.array<T>({1, kv_heads, total, dim});
    call->v = random.array<T>({1, kv_heads, total, dim_v});
    const auto clamp = [](std::vector<Index>& lengths, const std::vector<Index>& starts) {
      for (std::size_t b = 0; b < lengths.size(); ++b) {
        lengths[b] = (std::min)(lengths[b], starts[b + 1] - starts[b]);
      }
    };
    ReferenceOptions& o = call->options;
    clamp(o.key_lengths, k_starts);
    clamp(o.left_padding, k_starts);
    clamp(o.prefix_lengths, k_starts);
    clamp(o.query_lengths, q_starts);
  }

  template <class E>
  bool has_same_bits(attn::Communicator& communicator, const Array<E>& all_q, const Array<E>& all_k,
                     const Array<E>& all_v) const {
    const auto q = all_q.template view<4>();
    const auto k = all_k.template view<4>(), v = all_v.template view<4>();
    const LibraryOptions<T> library(call->options);
    const ThreadExecutor executor(threads);
    attn::Tensor4<E> out({q.extent(0), q.extent(1), q.extent(2), v.extent(3)});
    attn::Tensor4<T> lse({q.extent(0), q.extent(1), q.extent(2), 1});
    attn::AttentionOptions<T> options = library.get();
    options.execution = {.executor = &executor, .isa = isa};
    if (has_int8) options.precision = attn::AttentionPrecision::int8;
    if (is_packed()) {
      options.cu_seqlens_q = q_starts;
      options.cu_seqlens_k = k_starts;
    }
    options.lse = lse.view().select(3, 0);

    const attn::ContextLayout layout(q.extent(2), communicator.size(), kind);
    const int rank = communicator.rank();
    const auto local_q = attn::local_tokens(layout, rank, q);
    const auto local_k = attn::local_tokens(layout, rank, k);
    const auto local_v = attn::local_tokens(layout, rank, v);
    auto local_out = attn::local_tokens(layout, rank, out);
    auto local_lse = attn::local_tokens(layout, rank, lse);
    attn::Tensor4<E> d_out(out.shape()), d_q(q.shape()), d_k(k.shape()), d_v(v.shape());
    attn::Tensor4<T> d_lse(lse.shape());
    for (attn::index_t n = 0; n < d_out.size(); ++n) {
      d_out.data()[n] = all_q.data[static_cast<std::size_t>(n % q.size())];
    }
    for (attn::index_t n = 0; n < d_lse.size(); ++n) d_lse.data()[n] = static_cast<T>(n % 5) / 4;
    auto local_d_q = attn::local_tokens(layout, rank, d_q);
    auto local_d_k = attn::local_tokens(layout, rank, d_k);
    auto local_d_v = attn::local_tokens(layout, rank, d_v);
    const auto local_d_lse = attn::local_tokens(layout, rank, d_lse);
    attn::AttentionBackwardCall<T> whole_call, local_call;
    if (functors % 2 == 0) {
      whole_call.d_lse = d_lse.view().select(3, 0);
      local_call.d_lse = local_d_lse.view().select(3, 0);
    }
    attn::AttentionOptions<T> local_options = options;
    local_options.lse = local_lse.view().select(3, 0);
    with_functors([&](const auto&... with) {
      attn::scaled_dot_product_attention(q, k, v, out, options, with...);
      attn::context_parallel_attention(communicator, layout, local_q, local_k, local_v, local_out,
                                       local_options, with...);
      if (has_gradients) {
        attn::scaled_dot_product_attention_backward(d_out, q, k, v, out, options.lse, d_q, d_k, d_v,
                                                    options, whole_call, with...);
        attn::context_parallel_attention_backward(
            communicator, layout, attn::local_tokens(layout, rank, d_out), local_q, local_k,
            local_v, local_out, local_options.lse, local_d_q, local_d_k, local_d_v, local_options,
            local_call, with...);
      }
    });
    const auto same = []<class X>(const X& a, const X& b) {
      const auto size = static_cast<std::size_t>(a.size()) * sizeof(*a.data());
      return a.shape() == b.shape() && (size == 0 || std::memcmp(a.data(), b.data(), size) == 0);
    };
    return same(local_out, attn::local_tokens(layout, rank, out)) &&
           same(local_lse, attn::local_tokens(layout, rank, lse)) &&
           same(local_d_q, attn::local_tokens(layout, rank, d_q)) &&
           same(local_d_k, attn::local_tokens(layout, rank, d_k)) &&
           same(local_d_v, attn::local_tokens(layout, rank, d_v));
  }
};

}  // namespace attn_test
