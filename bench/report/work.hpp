// The calls that the report times, in groups that share their inputs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attn/models/quantize.hpp"

#include "support/check.hpp"
#include "support/machine.hpp"
#include "support/modules.hpp"
#include "support/shapes.hpp"

namespace bench {

using attn::index_t;

struct Work {
  std::string name;
  attn::Isa isa;
  double flops = 0;
  index_t bytes = 0;            ///< bytes that must be read, if memory is the limit
  index_t traffic = 0;          ///< bytes of inputs and output
  bool beside_reading = false;  ///< compared with reading even if caches could hold `bytes`
  bool one_thread = false;      ///< not timed on all threads
  bool beyond_limit = false;    ///< its instructions multiply more at once than the limit's
  std::function<void(const attn::Execution&)> run = {};
  std::function<std::string()> complaint =
      {};  ///< an error of the last run's result; empty if it is right
};

/// Inputs live as long as the works. Each pass allocates them anew, since physical pages make a
/// difference of a few percent: the best of several draws is the machine's.
struct Group {
  std::vector<std::string> names;
  std::function<std::vector<Work>()> make;
};

/// A work whose time is compared with `share` of another work's time, of the same group.
struct Comparison {
  std::string name, baseline;
  double share = 1;
};

namespace detail {

/// Empty if `out` is near the result of Isa::scalar; otherwise a description of the error.
template <int Rank>
std::string scalar_complaint(const attn::Tensor<float, Rank>& out,
                             const attn::Tensor<float, Rank>& exact, double most) {
  const double worst =
      attn_test::worst(attn_test::to_array(out), attn_test::to_array(exact)).distance;
  return worst <= most ? "" : "wrong result: off the scalar set's by " + std::to_string(worst);
}

inline double attention_flops(const attn::Shape<4>& q, index_t kv_len) {
  return 4 * static_cast<double>(attn::size_of(q)) * static_cast<double>(kv_len);
}

struct AttentionInputs {
  attn::Tensor4<float> q, k, v, out;

  AttentionInputs(index_t batch, index_t heads, index_t kv_heads, index_t q_len, index_t kv_len,
                  index_t dim)
      : q(random_tensor<float, 4>({batch, heads, q_len, dim}, 1)),
        k(random_tensor<float, 4>({batch, kv_heads, kv_len, dim}, 2)),
        v(random_tensor<float, 4>({batch, kv_heads, kv_len, dim}, 3)),
        out({batch, heads, q_len, dim}) {}
  explicit AttentionInputs(const AttentionShape& s)
      : AttentionInputs(s.batch, s.num_heads, s.num_kv_heads, s.q_len, s.kv_len, s.head_dim) {}
};

inline std::shared_ptr<AttentionInputs> attention_inputs(std::string_view shape) {
  return std::make_shared<AttentionInputs>(shape_of(kAttentionShapes, shape));
}

/// Attention of the first `q_len` queries.
inline Work attention_work(std::string name, attn::Isa isa,
                           const std::shared_ptr<AttentionInputs>& in, index_t q_len,
                           bool causal = false) {
  const attn::TensorView4<const float> q = in->q.view().slice(2, 0, q_len);
  const attn::TensorView4<float> out = in->out.view().slice(2, 0, q_len);
  const index_t bytes = (in->k.size() + in->v.size()) * index_t{sizeof(float)};
  // The lower triangle is half of the work.
  Work work{std::move(name), isa, attention_flops(q.shape(), in->k.extent(2)) / (causal ? 2 : 1),
            bytes, bytes + (q.size() + out.size()) * index_t{sizeof(float)}};
  work.run = [=](const attn::Execution& execution) {
    attn::AttentionOptions<float> options{.execution = execution};
    if (causal) options.mask = attn::causal();
    attn::scaled_dot_product_attention(q, in->k, in->v, out, options);
  };
  work.complaint = [=] {
    return attention_errors(q, in->k, in->v, out, {.causal = causal}).complaint();
  };
  return work;
}

/// attention_work() over a cache of `element`.
inline Work cached_work(std::string name, attn::Isa isa, const std::shared_ptr<AttentionInputs>& in,
                        index_t q_len, attn::DType element) {
  const auto cache =
      std::make_shared<attn::KvCache<float>>(attn::KvCacheOptions{.batch = in->k.extent(0),
                                                                  .num_kv_heads = in->k.extent(1),
                                                                  .capacity = in->k.extent(2),
                                                                  .head_dim = in->k.extent(3),
                                                                  .element = element});
  cache->append(in->k, in->v);
  const attn::TensorView4<const float> q = in->q.view().slice(2, 0, q_len);
  const attn::TensorView4<float> out = in->out.view().slice(2, 0, q_len);
  const auto bytes = static_cast<index_t>(cache->bytes());
  Work work{std::move(name), isa, attention_flops(q.shape(), in->k.extent(2)), bytes,
            bytes + (q.size() + out.size()) * index_t{sizeof(float)}};
  work.run = [=](const attn::Execution& execution) {
    attn::scaled_dot_product_attention(q, *cache, out, {.execution = execution});
  };
  work.complaint = [=]() -> std::string {
    // The effect of rounding keys and values on an average of 4096 values.
    const auto exact = attn::scaled_dot_product_attention(q, in->k, in->v);
    const double worst =
        attn_test::worst(attn_test::to_array(out), attn_test::to_array(exact)).distance;
    return worst <= 0.01 ? "" : "wrong result: off float's by " + std::to_string(worst);
  };
  return work;
}

/// A decode step of 8 rows behind one prompt of 4096 tokens: keys of the prompt in a cache of each
/// row, and shared by a fork; with `group` query heads for each of 8 key/value heads.
inline Group fork_group(attn::Isa isa, const std::string& suffix, index_t group) {
  const std::string separate_name = "fork_separate" + suffix, fork_name = "fork_decode" + suffix;
  return {
      {separate_name, fork_name}, [=]() -> std::vector<Work> {
        constexpr index_t kRows = 8, kHeads = 8, kTokens = 4096, kDim = 64;
        const AttentionInputs prompt(1, kHeads, kHeads, 1, kTokens, kDim);
        const auto step =
            std::make_shared<AttentionInputs>(kRows, kHeads * group, kHeads, 1, 1, kDim);
        attn::KvCacheOptions options{
            .num_kv_heads = kHeads, .capacity = kTokens + 1, .head_dim = kDim};
        attn::KvCache<float> one(options);
        one.append(prompt.k, prompt.v);
        options.batch = kRows;
        const auto separate = std::make_shared<attn::KvCache<float>>(options);
        const auto repeated = [&](const attn::Tensor4<float>& x) {
          return attn::TensorView4<const float>(x.data(), {kRows, kHeads, kTokens, kDim},
                                                {0, kTokens * kDim, kDim, 1});
        };
        separate->append(repeated(prompt.k), repeated(prompt.v));
        const auto fork = std::make_shared<attn::KvCache<float>>(one.fork(kRows));
        std::vector<Work> works;
        for (const auto& [name, cache] :
             {std::pair(separate_name, separate), std::pair(fork_name, fork)}) {
          cache->append(step->k, step->v);
          const auto bytes = static_cast<index_t>(cache->bytes());
          Work work{name, isa, attention_flops(step->q.shape(), kTokens + 1), bytes,
                    bytes + 2 * step->q.size() * index_t{sizeof(float)}};
          work.run = [=, cache = cache](const attn::Execution& execution) {
            attn::scaled_dot_product_attention(step->q, *cache, step->out,
                                               {.execution = execution});
          };
          work.complaint = [=]() -> std::string {
            const auto expected =
                attn::scaled_dot_product_attention(step->q, *separate, {.execution = {.isa = isa}});
            return std::equal(expected.data(), expected.data() + expected.size(), step->out.data())
                       ? ""
                       : "wrong result: not the bits of separate caches";
          };
          works.push_back(work);
        }
        return works;
      }};
}

inline Group attention_group(const std::string& shape, attn::Isa isa) {
  const std::string name = "sdpa_" + shape;
  return {{name}, [=]() -> std::vector<Work> {
            const auto in = attention_inputs(shape);
            return {attention_work(name, isa, in, in->q.extent(2))};
          }};
}

struct GemmInputs {
  attn::Tensor2<float> a, b, c;
  attn::PackedWeights<float> packed;

  explicit GemmInputs(const GemmShape& s)
      : a(random_tensor<float, 2>({s.m, s.k}, 1)),
        b(random_tensor<float, 2>({s.k, s.n}, 2)),
        c({s.m, s.n}) {}
};

inline Work gemm_work(std::string name, attn::Isa isa, const std::shared_ptr<GemmInputs>& in,
                      bool packed) {
  Work work{std::move(name), isa,
            2 * static_cast<double>(in->c.size()) * static_cast<double>(in->a.extent(1))};
  work.traffic = (in->a.size() + in->b.size() + in->c.size()) * index_t{sizeof(float)};
  if (packed) in->packed = attn::PackedWeights<float>(in->b.view(), isa);
  work.run = [=](const attn::Execution& execution) {
    if (packed) {
      attn::gemm(in->a, in->packed, in->c, {}, execution);
    } else {
      attn::gemm(in->a, in->b, in->c, {}, execution);
    }
  };
  work.complaint = [=] { return gemm_complaint<float>(in->a, in->b, in->c); };
  return work;
}

inline Group multi_head_group(std::string name, attn::Isa isa) {
  return {
      {name}, [=]() -> std::vector<Work> {
        const auto [_, batch, seq, width, heads, hidden] = shape_of(kModuleShapes, name);
        struct Inputs {
          attn::MultiHeadAttention<float> mha;
          attn::Tensor3<float> x, out;
        };
        const auto in = std::make_shared<Inputs>(
            Inputs{random_multi_head(width, heads), random_tensor<float, 3>({batch, seq, width}, 2),
                   attn::Tensor3<float>({batch, seq, width})});
        in->mha.pack();
        Work work{name, isa, multi_head_flops(batch, seq, width)};
        work.traffic =
            (in->x.size() + in->out.size() + 4 * width * (width + 1)) * index_t{sizeof(float)};
        work.run = [in](const attn::Execution& execution) {
          in->mha.forward(in->x, in->x, in->x, in->out, {.execution = execution});
        };
        work.complaint = [in] { return multi_head_errors(in->mha, in->x, in->out).complaint(); };
        return {work};
      }};
}

/// One of BERT's layers, packed, in float, in MatmulPrecision::high unless that runs as highest,
/// and with weights and activations in bfloat16 and in 8 bits; results are compared with those of
/// Isa::scalar in float.
inline Group encoder_layer_group(std::string name, attn::Isa isa) {
  return {{name, name + "_high", name + "_bf16", name + "_int8"}, [=]() -> std::vector<Work> {
            const auto& s = shape_of(kModuleShapes, name);
            struct Inputs {
              attn::EncoderLayer<float> layer, exact;
              attn::Tensor3<float> x, out;
            };
            std::vector<Work> works;
            using Precision = attn::MatmulPrecision;
            const auto add = [&](const std::string& own, double most, auto prepare,
                                 Precision precision = Precision::highest) {
              const auto in = std::make_shared<Inputs>(
                  Inputs{random_encoder_layer(s.width, s.heads, s.hidden),
                         random_encoder_layer(s.width, s.heads, s.hidden),
                         random_tensor<float, 3>({s.batch, s.seq, s.width}, 2),
                         attn::Tensor3<float>({s.batch, s.seq, s.width})});
              prepare(in->layer);
              Work work{own, isa, encoder_layer_flops(s.batch, s.seq, s.width, s.hidden)};
              work.traffic = (in->x.size() + in->out.size()) * index_t{sizeof(float)} +
                             attn::weight_bytes(in->layer);
              work.run = [=](attn::Execution execution) {
                execution.matmul_precision = precision;
                in->layer.forward(in->x, in->out, {.execution = execution});
              };
              work.complaint = [=]() -> std::string {
                const auto other = in->exact(in->x, {.execution = {.isa = attn::Isa::scalar}});
                return scalar_complaint(in->out, other, most);
              };
              works.push_back(work);
            };
            add(name, 1e-4, [](auto& layer) { layer.pack(); });
            if (attn::precision_on(isa, Precision::high) == Precision::high) {
              add(
                  name + "_high", 2e-3, [](auto& layer) { layer.pack(Precision::high); },
                  Precision::high);
            }
            // The largest error of a million normal elements is five times the errors in
            // docs/precision.md.
            add(name + "_bf16", 0.05, [](auto& layer) {
              attn::quantize(layer, {.weights = attn::WeightFormat::bf16,
                                     .activations = attn::ActivationFormat::bf16});
            });
            add(name + "_int8", 0.2, [](auto& layer) {
              attn::quantize(layer, {.activations = attn::ActivationFormat::int8});
            });
            return works;
          }};
}

}  // namespace detail

inline constexpr index_t kQueryCounts[] = {1, 2, 4, 8, 16, 32, 64};
inline constexpr index_t kSoftmaxColumns = 1024;

inline std::vector<Comparison> all_comparisons() {
  std::vector<Comparison> all = {{"sdpa_causal", "sdpa_4096"},
                                 {"sdpa_queries_8", "sdpa_queries_1"},
                                 {"sdpa_decode_bf16", "sdpa_queries_1"},
                                 {"sdpa_decode_int8", "sdpa_queries_1"},
                                 {"tree_decode", "tree_chain"},
                                 {"fork_decode", "fork_separate"},
                                 {"fork_decode_gqa3", "fork_separate_gqa3"},
                                 {"fork_decode_gqa4", "fork_separate_gqa4"},
                                 {"encoder_bert_bf16", "encoder_bert"},
                                 {"encoder_bert_high", "encoder_bert"},
                                 {"encoder_bert_int8", "encoder_bert"},
                                 {"gelu_cached", "relu_cached"}};
  for (const LinearShape& shape : kLinearShapes) {
    const std::string name(shape.name);
    if (is_cached(shape)) all.push_back({name, name + "_packed"});
  }
  return all;
}

/// Number of rows for which input and output fill half of L2.
inline index_t softmax_rows() {
  return std::max<index_t>(1,
                           second_level_bytes() / (4 * index_t{sizeof(float)} * kSoftmaxColumns));
}

/// All works, on the active instruction set unless their names contain another one.
inline std::vector<Group> all_groups() {
  using attn::Isa;
  const Isa isa = attn::active_isa();
  const bool avx2 = attn::is_available(Isa::avx2);
  std::vector<Group> groups;
  groups.push_back({{"gemm_1024", "gemm_avx2"}, [=] {
                      const auto in =
                          std::make_shared<detail::GemmInputs>(shape_of(kGemmShapes, "gemm_1024"));
                      std::vector<Work> works{detail::gemm_work("gemm_1024", isa, in, false)};
                      if (avx2) {
                        works.push_back(detail::gemm_work("gemm_avx2", Isa::avx2, in, false));
                      }
                      return works;
                    }});
  groups.push_back({{"gemm_bert"}, [=]() -> std::vector<Work> {
                      const auto in =
                          std::make_shared<detail::GemmInputs>(shape_of(kGemmShapes, "gemm_bert"));
                      return {detail::gemm_work("gemm_bert", isa, in, true)};
                    }});
  groups.push_back({{"sdpa_d64", "sdpa_avx2"}, [=] {
                      const auto in = detail::attention_inputs("d64");
                      const index_t q_len = in->q.extent(2);
                      std::vector<Work> works{detail::attention_work("sdpa_d64", isa, in, q_len)};
                      if (avx2) {
                        works.push_back(detail::attention_work("sdpa_avx2", Isa::avx2, in, q_len));
                      }
                      return works;
                    }});
  for (const char* shape : {"d128", "d80", "512"}) {
    groups.push_back(detail::attention_group(shape, isa));
  }
  groups.push_back({{"sdpa_4096", "sdpa_causal"}, [=]() -> std::vector<Work> {
                      const auto in = detail::attention_inputs("causal");
                      const index_t q_len = in->q.extent(2);
                      return {detail::attention_work("sdpa_4096", isa, in, q_len),
                              detail::attention_work("sdpa_causal", isa, in, q_len, true)};
                    }});
  groups.push_back(detail::attention_group("short", isa));
  groups.push_back({{"sdpa_decode_gqa", "sdpa_decode_gqa_bf16"}, [=]() -> std::vector<Work> {
                      const auto in = detail::attention_inputs("decode_gqa");
                      Work halves = detail::cached_work("sdpa_decode_gqa_bf16", isa, in, 1,
                                                        attn::DType::BF16);
                      halves.beside_reading = true;
                      return {detail::attention_work("sdpa_decode_gqa", isa, in, 1), halves};
                    }});
  Group queries;
  for (index_t n : kQueryCounts) queries.names.push_back("sdpa_queries_" + std::to_string(n));
  queries.names.insert(queries.names.end(), {"sdpa_decode_bf16", "sdpa_decode_int8"});
  queries.make = [=] {
    AttentionShape shape = shape_of(kAttentionShapes, "decode");
    shape.q_len = *std::ranges::max_element(kQueryCounts);
    const auto in = std::make_shared<detail::AttentionInputs>(shape);
    std::vector<Work> works;
    for (index_t n : kQueryCounts) {
      works.push_back(detail::attention_work("sdpa_queries_" + std::to_string(n), isa, in, n));
    }
    works.push_back(detail::cached_work("sdpa_decode_bf16", isa, in, 1, attn::DType::BF16));
    works.push_back(detail::cached_work("sdpa_decode_int8", isa, in, 1, attn::DType::I8));
    return works;
  };
  groups.push_back(queries);
  groups.push_back(detail::fork_group(isa, "", 1));
  groups.push_back(detail::fork_group(isa, "_gqa3", 3));
  groups.push_back(detail::fork_group(isa, "_gqa4", 4));
  groups.push_back({{"softmax"}, [=]() -> std::vector<Work> {
                      const attn::Shape<2> shape{softmax_rows(), kSoftmaxColumns};
                      const auto x = std::make_shared<attn::Tensor2<float>>(
                          random_tensor<float, 2>(shape, 1, 3.0f));
                      const auto out = std::make_shared<attn::Tensor2<float>>(shape);
                      Work work{"softmax", isa};
                      work.one_thread = true;
                      work.run = [=](const attn::Execution& e) { attn::softmax(*x, *out, e); };
                      work.complaint = [=] { return softmax_complaint(*x, *out); };
                      return {work};
                    }});
  groups.push_back(detail::multi_head_group("mha_bert", isa));
  groups.push_back(detail::encoder_layer_group("encoder_bert", isa));
  groups.push_back(detail::multi_head_group("mha_tutorial", isa));
  return groups;
}

}  // namespace bench
