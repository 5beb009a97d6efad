// The cost of attention's options: each call is compared with a plain call.
#pragma once

#include <numeric>

#include "attn/attention/jvp/sdpa_jvp.hpp"

#include "report/work.hpp"

namespace bench {

namespace detail {

using Options = attn::AttentionOptions<float>;

/// One call on one thread, with given options, into a given output.
template <class Call>
Work cost_work(std::string name, const std::shared_ptr<AttentionInputs>& in, double flops,
               Call call) {
  Work work{std::move(name), attn::active_isa(), flops};
  work.traffic =
      (in->q.size() + in->k.size() + in->v.size() + in->out.size()) * index_t{sizeof(float)};
  work.one_thread = true;
  work.run = [=](const attn::Execution& execution) { call(execution, in->out.view()); };
  // The baseline has none of the kernels that make these options fast.
  work.complaint = [=] {
    attn::Tensor4<float> other(in->out.shape());
    call({.isa = attn::Isa::scalar}, other.view());
    return scalar_complaint(in->out, other, 1e-5);
  };
  return work;
}

/// The slopes of Press et al., "Train Short, Test Long" (2021).
inline attn::Tensor1<float> alibi_slopes(index_t heads) {
  attn::Tensor1<float> slopes({heads});
  for (index_t h = 0; h < heads; ++h) {
    slopes(h) = std::exp2(-8 * static_cast<float>(h + 1) / static_cast<float>(heads));
  }
  return slopes;
}

/// Documents of `size` tokens each.
struct SameDocument {
  int size;
  bool operator()(int, int, int i, int j) const { return i / size == j / size; }
  attn::Visibility classify(index_t, index_t, attn::IndexRange queries,
                            attn::IndexRange keys) const {
    const index_t first = queries.begin / size, last = (queries.end - 1) / size;
    if (last < keys.begin / size || (keys.end - 1) / size < first) return attn::Visibility::empty;
    const bool same = first == last && keys.begin / size == first && (keys.end - 1) / size == first;
    return same ? attn::Visibility::full : attn::Visibility::partial;
  }
};

inline std::vector<Work> option_works() {
  constexpr index_t kHeads = 8, kSeq = 2048;
  const auto in = std::make_shared<AttentionInputs>(1, kHeads, kHeads, kSeq, kSeq, 64);
  struct Extras {
    attn::Tensor4<bool> keep{{1, 1, kSeq, kSeq}};
    attn::Tensor4<float> bias{{1, 1, kSeq, kSeq}};
    attn::Tensor1<float> slopes = alibi_slopes(kHeads);
    attn::Tensor1<index_t> half{{1}, {kSeq / 2}};
    attn::Tensor4<float> d_q, d_k, d_v, out;  ///< tangents, and out of the call with them
  };
  const auto extras = std::make_shared<Extras>();
  extras->d_q = random_tensor<float, 4>(in->q.shape(), 6);
  extras->d_k = random_tensor<float, 4>(in->k.shape(), 7);
  extras->d_v = random_tensor<float, 4>(in->v.shape(), 8);
  extras->out = in->out;
  Random random(4);
  for (bool& x : extras->keep.elements()) x = random.below(10) > 0;
  for (float& x : extras->bias.elements()) x = random.number<float>();
  const double flops = attention_flops(in->q.shape(), kSeq);

  const auto work = [&](const char* name, double share, auto tell, auto... functors) {
    return cost_work(name, in, share * flops,
                     [=](const attn::Execution& execution, attn::TensorView4<float> out) {
                       Options options{.execution = execution};
                       tell(options, *extras);
                       attn::scaled_dot_product_attention(in->q, in->k, in->v, out, options,
                                                          functors...);
                     });
  };
  const auto nothing = [](Options&, const Extras&) {};
  const float* slopes = extras->slopes.data();
  return {
      work("cost_plain", 1, nothing),
      work("cost_keep", 1, [](Options& o, const Extras& e) { o.mask = attn::keep_mask(e.keep); }),
      work("cost_additive", 1,
           [](Options& o, const Extras& e) { o.mask = attn::additive_mask(e.bias); }),
      work("cost_alibi", 1, [](Options& o, const Extras& e) { o.alibi_slopes = e.slopes; }),
      work("cost_softcap", 1, [](Options& o, const Extras&) { o.softcap = 30; }),
      work("cost_score_mod", 1, nothing,
           attn::score_mod([slopes](float score, int, int h, int i, int j) {
             return score - slopes[h] * static_cast<float>(std::abs(i - j));
           })),
      work("cost_documents", 1.0 / 8, nothing, attn::mask_mod(SameDocument{kSeq / 8})),
      work("cost_key_lengths", 0.5,
           [](Options& o, const Extras& e) { o.mask = attn::key_lengths(e.half); }),
      work("cost_dropout", 1,
           [](Options& o, const Extras&) {
             o.dropout = {0.1, 1};
           }),
      cost_work("cost_jvp", in, 3 * flops,
                [=](const attn::Execution& execution, attn::TensorView4<float> d_out) {
                  attn::scaled_dot_product_attention_jvp(
                      in->q, in->k, in->v, {.q = extras->d_q, .k = extras->d_k, .v = extras->d_v},
                      extras->out, d_out, {.execution = execution});
                }),
  };
}

inline std::vector<Work> window_works() {
  constexpr index_t kSeq = 4096, kWindow = 256;
  const auto in = std::make_shared<AttentionInputs>(1, 8, 8, kSeq, kSeq, 64);
  const auto work = [&](const char* name, double share, const attn::Mask& mask) {
    return cost_work(name, in, share * attention_flops(in->q.shape(), kSeq),
                     [=](const attn::Execution& execution, attn::TensorView4<float> out) {
                       attn::scaled_dot_product_attention(in->q, in->k, in->v, out,
                                                          {.mask = mask, .execution = execution});
                     });
  };
  return {work("cost_open", 1, {}), work("cost_window", static_cast<double>(kWindow) / kSeq,
                                         attn::sliding_window(kWindow - 1, 0))};
}

/// Sequences of 100, 200, .. 1000 tokens, padded to 1000 and packed.
inline constexpr index_t kPackedSequences = 10, kPackedStep = 100;

inline std::vector<Work> packed_works() {
  constexpr index_t kLongest = kPackedSequences * kPackedStep;
  struct Packed {
    attn::Tensor1<index_t> starts{{kPackedSequences + 1}}, lengths{{kPackedSequences}};
  };
  const auto packed = std::make_shared<Packed>();
  double pairs = 0;
  for (index_t b = 0; b < kPackedSequences; ++b) {
    packed->lengths(b) = (b + 1) * kPackedStep;
    packed->starts(b + 1) = packed->starts(b) + packed->lengths(b);
    pairs += static_cast<double>(packed->lengths(b) * packed->lengths(b));
  }
  const index_t total = packed->starts(kPackedSequences);
  const auto padded =
      std::make_shared<AttentionInputs>(kPackedSequences, 8, 8, kLongest, kLongest, 64);
  const auto rows = std::make_shared<AttentionInputs>(1, 8, 8, total, total, 64);
  return {cost_work("cost_padded", padded, attention_flops(padded->q.shape(), kLongest),
                    [=](const attn::Execution& execution, attn::TensorView4<float> out) {
                      attn::scaled_dot_product_attention(padded->q, padded->k, padded->v, out,
                                                         {.execution = execution});
                    }),
          cost_work("cost_packed", rows, 4.0 * 8 * 64 * pairs,
                    [=](const attn::Execution& execution, attn::TensorView4<float> out) {
                      attn::scaled_dot_product_attention(rows->q, rows->k, rows->v, out,
                                                         {.cu_seqlens_q = packed->starts,
                                                          .cu_seqlens_k = packed->starts,
                                                          .execution = execution});
                    })};
}

/// The number of query-key pairs of packed sequences relative to padded ones.
inline double packed_share() {
  double pairs = 0;
  for (index_t n = 1; n <= kPackedSequences; ++n) pairs += static_cast<double>(n * n);
  return pairs / static_cast<double>(kPackedSequences * kPackedSequences * kPackedSequences);
}

inline std::vector<Work> layout_works() {
  constexpr index_t kKeys = 4096, kPage = 16, kPages = kKeys / kPage;
  const auto in = std::make_shared<AttentionInputs>(1, 32, 8, 1, kKeys, 128);
  struct Pages {
    attn::Tensor4<float> k, v;
    attn::Tensor2<index_t> table{{1, kPages}};
  };
  const auto pages = std::make_shared<Pages>();
  std::iota(pages->table.data(), pages->table.data() + kPages, index_t{0});
  Random random(5);
  for (index_t page = kPages - 1; page > 0; --page) {
    std::swap(pages->table(0, page), pages->table(0, random.below(page + 1)));
  }
  const auto deal = [&](const attn::Tensor4<float>& x) {
    attn::Tensor4<float> to({kPages, x.extent(1), kPage, x.extent(3)});
    for (index_t page = 0; page < kPages; ++page) {
      attn::copy(x.view().slice(2, page * kPage, (page + 1) * kPage),
                 to.view().slice(0, pages->table(0, page), pages->table(0, page) + 1));
    }
    return to;
  };
  pages->k = deal(in->k);
  pages->v = deal(in->v);
  // Memory layout (batch, seq, heads, dim).
  struct SeqMajor {
    attn::Tensor4<float> k, v;
  };
  const auto turned = [](const attn::Tensor4<float>& x) {
    attn::Tensor4<float> to({x.extent(0), x.extent(2), x.extent(1), x.extent(3)});
    attn::copy(x.view().transpose(1, 2), to.view());
    return to;
  };
  const auto seq_major = std::make_shared<SeqMajor>(SeqMajor{turned(in->k), turned(in->v)});
  const double flops = attention_flops(in->q.shape(), kKeys);
  return {cost_work("cost_contiguous", in, flops,
                    [=](const attn::Execution& execution, attn::TensorView4<float> out) {
                      attn::scaled_dot_product_attention(in->q, in->k, in->v, out,
                                                         {.execution = execution});
                    }),
          cost_work("cost_paged", in, flops,
                    [=](const attn::Execution& execution, attn::TensorView4<float> out) {
                      attn::scaled_dot_product_attention(
                          in->q, pages->k, pages->v, out,
                          {.block_table = pages->table, .execution = execution});
                    }),
          cost_work("cost_seq_major", in, flops,
                    [=](const attn::Execution& execution, attn::TensorView4<float> out) {
                      attn::scaled_dot_product_attention(in->q, seq_major->k.view().transpose(1, 2),
                                                         seq_major->v.view().transpose(1, 2), out,
                                                         {.execution = execution});
                    })};
}

}  // namespace detail

/// The rows, in the report's order.
inline std::vector<Comparison> all_costs() {
  std::vector<Comparison> costs;
  for (const char* name : {"keep", "additive", "alibi", "softcap", "score_mod", "documents",
                           "key_lengths", "dropout", "jvp"}) {
    costs.push_back({std::string("cost_") + name, "cost_plain"});
  }
  costs.push_back({"cost_window", "cost_open"});
  costs.push_back({"cost_packed", "cost_padded", detail::packed_share()});
  costs.push_back({"cost_paged", "cost_contiguous"});
  costs.push_back({"cost_seq_major", "cost_contiguous"});
  return costs;
}

inline std::vector<Group> cost_groups() {
  return {{{"cost_plain", "cost_keep", "cost_additive", "cost_alibi", "cost_softcap",
            "cost_score_mod", "cost_documents", "cost_key_lengths", "cost_dropout", "cost_jvp"},
           detail::option_works},
          {{"cost_open", "cost_window"}, detail::window_works},
          {{"cost_padded", "cost_packed"}, detail::packed_works},
          {{"cost_contiguous", "cost_paged", "cost_seq_major"}, detail::layout_works}};
}

}  // namespace bench
