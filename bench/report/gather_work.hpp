// Works of the report on gathered keys, beside the same keys in a tensor of their own.
#pragma once

#include "report/work.hpp"

namespace bench {

namespace detail {

/// 64 blocks of `block` queries, each with 512 of 65,536 keys: gathered, and as batch rows of a
/// call whose keys lie together. Both must have the same bits.
inline Group gather_group(std::string name, attn::Isa isa, index_t block) {
  const std::string dense_name = name + "_dense";
  return {{dense_name, name}, [=]() -> std::vector<Work> {
            constexpr index_t kBlocks = 64, kKeys = 512, kTokens = 65536, kDim = 64;
            constexpr index_t kStep = kTokens / kKeys;
            const auto all =
                std::make_shared<AttentionInputs>(1, 1, 1, kBlocks * block, kTokens, kDim);
            const auto own = std::make_shared<AttentionInputs>(kBlocks, 1, 1, block, kKeys, kDim);
            const auto lists =
                std::make_shared<attn::Tensor4<index_t>>(attn::Shape<4>{1, 1, kBlocks, kKeys});
            std::copy_n(all->q.data(), all->q.size(), own->q.data());
            std::uint32_t seed = 1;
            for (index_t b = 0; b < kBlocks; ++b) {
              for (index_t j = 0; j < kKeys; ++j) {
                // One key of each kStep, which hardware prefetchers do not foresee.
                seed = seed * 1664525u + 1013904223u;
                const index_t key = j * kStep + index_t{seed >> 16} % kStep;
                (*lists)(0, 0, b, j) = key;
                std::copy_n(&all->k(0, 0, key, 0), kDim, &own->k(b, 0, j, 0));
                std::copy_n(&all->v(0, 0, key, 0), kDim, &own->v(b, 0, j, 0));
              }
            }
            const Work dense = attention_work(dense_name, isa, own, block);
            Work gathered = dense;
            gathered.name = name;
            gathered.run = [=](const attn::Execution& execution) {
              attn::scaled_dot_product_attention(
                  all->q, all->k, all->v, all->out,
                  {.gather = *lists, .gather_block = block, .execution = execution});
            };
            gathered.complaint = [=]() -> std::string {
              const auto expected = attn::scaled_dot_product_attention(own->q, own->k, own->v,
                                                                       {.execution = {.isa = isa}});
              return std::equal(expected.data(), expected.data() + expected.size(), all->out.data())
                         ? ""
                         : "wrong result: not the bits of keys that lie together";
            };
            return {dense, gathered};
          }};
}

}  // namespace detail

inline std::vector<Comparison> gather_comparisons() {
  return {{"gather_512", "gather_512_dense"}, {"gather_512_rows", "gather_512_rows_dense"}};
}

/// Blocks of 16 queries, and single queries.
inline std::vector<Group> gather_groups() {
  const attn::Isa isa = attn::active_isa();
  return {detail::gather_group("gather_512", isa, 16),
          detail::gather_group("gather_512_rows", isa, 1)};
}

}  // namespace bench
