// Works of the report on layers of newer decoders: a mixture of experts, a decode step of latent
// attention, and a step that verifies a tree of drafts.
#pragma once

#include "attn/layers/attention/latent_attention.hpp"
#include "attn/layers/experts/mixture_of_experts.hpp"

#include "report/work.hpp"

namespace bench {

namespace detail {

/// Tokens through packed experts.
inline Work experts_work(const ExpertsShape& s, attn::Isa isa) {
  struct Inputs {
    attn::MixtureOfExperts<float> layer;
    attn::Tensor3<float> x, out;
  };
  const auto in = std::make_shared<Inputs>(
      Inputs{with_random_parameters(attn::MixtureOfExperts<float>(s.width, attn::Activation::silu,
                                                                  {.num_experts = s.experts,
                                                                   .experts_per_token = s.chosen,
                                                                   .dim_feedforward = s.hidden}),
                                    s.width),
             random_tensor<float, 3>({1, s.tokens, s.width}, 2),
             attn::Tensor3<float>({1, s.tokens, s.width})});
  in->layer.pack();
  const index_t expert = 3 * s.width * s.hidden;
  Work work{std::string(s.name), isa, 2 * static_cast<double>(s.tokens * s.chosen * expert)};
  const index_t read = (s.tokens == 1 ? s.chosen : s.experts) * expert * index_t{sizeof(float)};
  if (s.tokens == 1) work.bytes = read;
  work.traffic = read + (in->x.size() + in->out.size()) * index_t{sizeof(float)};
  work.run = [in](const attn::Execution& execution) {
    in->layer.forward(in->x, in->out, {}, execution);
  };
  work.complaint = [in] {
    attn::Tensor3<float> exact(in->out.shape());
    in->layer.forward(in->x, exact, {}, {.isa = attn::Isa::scalar});
    return scalar_complaint(in->out, exact, 1e-4);
  };
  return work;
}

/// What LatentAttention computes between its projections for one token after 4095: 16 queries
/// attend to latents of 512 features and shared rotary features of 64.
inline Work latent_work(std::string name, attn::Isa isa) {
  constexpr index_t kHeads = 16, kKeys = 4096, kRank = 512, kRotary = 64;
  struct Inputs {
    attn::KvCache<float> cache;
    attn::Tensor4<float> q, qv, out;

    void run(attn::Tensor4<float>& to, const attn::Execution& execution) const {
      attn::scaled_dot_product_attention(q, cache, to,
                                         {.scale = 0.07f, .qv = qv.view(), .execution = execution});
    }
  };
  const attn::LatentAttention<float> layer({.embed_dim = 1,
                                            .num_heads = kHeads,
                                            .kv_lora_rank = kRank,
                                            .head_dim = 1,
                                            .rotary_dim = kRotary});
  const auto in = std::make_shared<Inputs>(
      Inputs{layer.make_cache(1, kKeys), random_tensor<float, 4>({1, kHeads, 1, kRotary}, 1),
             random_tensor<float, 4>({1, kHeads, 1, kRank}, 2),
             attn::Tensor4<float>({1, kHeads, 1, kRank})});
  in->cache.append(random_tensor<float, 4>({1, 1, kKeys, kRotary}, 3),
                   random_tensor<float, 4>({1, 1, kKeys, kRank}, 4));
  Work work{std::move(name), isa, 2.0 * static_cast<double>(kHeads * kKeys * (2 * kRank + kRotary)),
            static_cast<index_t>(in->cache.bytes())};
  work.beside_reading = true;
  work.traffic = work.bytes + (in->q.size() + 2 * in->out.size()) * index_t{sizeof(float)};
  work.run = [in](const attn::Execution& execution) { in->run(in->out, execution); };
  work.complaint = [in] {
    attn::Tensor4<float> exact(in->out.shape());
    in->run(exact, {.isa = attn::Isa::scalar});
    return scalar_complaint(in->out, exact, 1e-4);
  };
  return work;
}

/// 13 tokens after 2048 through a packed layer: a chain, and three chains of four after the first
/// token.
inline Group tree_group(attn::Isa isa) {
  return {{"tree_chain", "tree_decode"}, [=]() -> std::vector<Work> {
            constexpr index_t kTokens = 13, kPast = 2048, kWidth = 768, kHidden = 3072;
            struct Inputs {
              attn::EncoderLayer<float> layer;
              attn::KvCache<float> cache;
              attn::Tensor3<float> x, out;
              std::vector<index_t> parents = {};

              void run(attn::Tensor3<float>& to, const attn::Execution& execution) {
                layer.forward(x, to, {.mask = attn::causal(), .execution = execution},
                              {.cache = &cache, .parents = {parents.data(), {kTokens}}});
                cache.truncate_to(kPast);
              }
            };
            std::vector<Work> works;
            for (const auto& [name, branches] : {std::pair("tree_chain", 1), {"tree_decode", 3}}) {
              const auto layer = random_encoder_layer(kWidth, 12, kHidden);
              const auto in =
                  std::make_shared<Inputs>(Inputs{layer, layer.make_cache(1, kPast + kTokens),
                                                  random_tensor<float, 3>({1, kTokens, kWidth}, 2),
                                                  attn::Tensor3<float>({1, kTokens, kWidth})});
              in->layer.pack();
              in->cache.append(random_tensor<float, 4>({1, 12, kPast, 64}, 3),
                               random_tensor<float, 4>({1, 12, kPast, 64}, 4));
              const index_t in_branch = (kTokens - 1) / branches;
              for (index_t i = 0; i < kTokens; ++i)
                in->parents.push_back(i > 0 && (i - 1) % in_branch == 0 ? 0 : i - 1);
              Work work{name, isa,
                        encoder_layer_flops(1, kTokens, kWidth, kHidden) +
                            attention_flops({1, 12, kTokens, 64}, kPast)};
              work.traffic = attn::weight_bytes(in->layer) +
                             static_cast<index_t>(in->cache.bytes()) +
                             (in->x.size() + in->out.size()) * index_t{sizeof(float)};
              work.run = [in](const attn::Execution& execution) { in->run(in->out, execution); };
              work.complaint = [in] {
                attn::Tensor3<float> exact(in->out.shape());
                in->run(exact, {.isa = attn::Isa::scalar});
                return scalar_complaint(in->out, exact, 1e-4);
              };
              works.push_back(work);
            }
            return works;
          }};
}

}  // namespace detail

inline std::vector<Group> layer_groups() {
  const attn::Isa isa = attn::active_isa();
  std::vector<Group> groups;
  for (const ExpertsShape& s : kExpertsShapes) {
    groups.push_back({{std::string(s.name)},
                      [=]() -> std::vector<Work> { return {detail::experts_work(s, isa)}; }});
  }
  groups.push_back({{"mla_decode"}, [=]() -> std::vector<Work> {
                      return {detail::latent_work("mla_decode", isa)};
                    }});
  groups.push_back(detail::tree_group(isa));
  return groups;
}

}  // namespace bench
