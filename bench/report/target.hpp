// Target: the value that a row of the report must reach or must not exceed.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>

namespace bench {

struct Target {
  double at = std::numeric_limits<double>::quiet_NaN();  ///< NaN: no target
  bool at_most = false;                                  ///< otherwise at least
  bool of_value = false;  ///< in the row's unit; otherwise of value / limit

  explicit operator bool() const { return !std::isnan(at); }
};

/// The project's targets for machines with AVX-512, by the names of rows.
inline Target target_of(std::string_view name) {
  struct Named {
    std::string_view name;
    Target target;
  };
  constexpr bool kAtMost = true, kOfValue = true;
  static constexpr Named kTargets[] = {
      {"gemm_1024", {0.92}},
      {"gemm_bert", {0.90}},
      {"gemm_1024_high", {1.9}},
      {"gemm_bert_high", {1.9}},
      {"gemm_avx2", {0.85}},
      {"gemm_bf16", {1.88}},
      {"gemm_bf16_bert", {1.85}},
      {"gemm_int8", {3.3}},
      {"gemm_int8_bert", {3.6}},
      {"gemm_q8", {2.5}},
      {"gemm_q4", {2.3}},
      {"gemv_bf16", {0.88}},
      {"gemv_int8", {0.88}},
      {"gemv_q8", {0.88}},
      {"gemv_q4", {0.88}},
      {"sdpa_d64", {0.86}},
      {"sdpa_d64@all", {0.84}},
      {"sdpa_d128", {0.88}},
      {"sdpa_d128@all", {0.86}},
      {"sdpa_d80", {0.80}},
      {"sdpa_512", {0.90}},
      {"sdpa_512@all", {0.90}},
      {"sdpa_avx2", {0.82}},
      {"sdpa_short", {0.72}},
      {"sdpa_decode", {0.88}},
      {"sdpa_decode@all", {0.88}},
      {"sdpa_decode_bf16", {0.53, kAtMost}},
      {"sdpa_decode_int8", {0.30, kAtMost}},
      {"fork_decode", {0.35, kAtMost}},
      {"gather_512", {1.3, kAtMost}},
      {"gather_512_rows", {1.6, kAtMost}},
      {"sdpa_d64_bf16", {1.40}},
      {"sdpa_d128_bf16", {1.60}},
      {"sdpa_d64_high", {1.3}},
      {"sdpa_d128_high", {1.6}},
      {"sdpa_d128_int8", {1.9}},
      {"sdpa_decode_gqa_bf16", {0.60}},
      {"sdpa_decode_gqa", {0.80}},
      {"sdpa_decode_gqa@all", {0.80}},
      {"moe_decode", {0.75}},
      {"moe_prefill", {0.75}},
      {"mla_decode", {1.6, kAtMost}},
      {"mha_bert", {0.90}},
      {"encoder_bert", {0.88}},
      {"encoder_bert@all", {0.88}},
      {"encoder_bert_bf16", {0.56, kAtMost}},
      {"encoder_bert_int8", {0.40, kAtMost}},
      {"encoder_bert_high", {0.58, kAtMost}},
      {"sdpa_causal", {0.55, kAtMost}},
      {"softmax", {1.0 / 3, kAtMost}},
      {"cost_keep", {1.15, kAtMost}},
      {"cost_additive", {1.15, kAtMost}},
      {"cost_alibi", {1.08, kAtMost}},
      {"cost_softcap", {1.30, kAtMost}},
      {"cost_score_mod", {1.25, kAtMost}},
      {"cost_documents", {0.25, kAtMost}},
      {"cost_window", {0.20, kAtMost}},
      {"cost_key_lengths", {0.60, kAtMost}},
      {"cost_dropout", {1.35, kAtMost}},
      {"cost_jvp", {2.2, kAtMost}},
      {"cost_packed", {1.15, kAtMost}},
      {"cost_paged", {1.15, kAtMost}},
      {"mha_tutorial", {1.5, kAtMost, kOfValue}},
      {"memory", {32, kAtMost, kOfValue}},
      {"memory@all", {32, kAtMost, kOfValue}},
      {"sdpa_train_d64", {0.80}},
      {"sdpa_train_d64@all", {0.80}},
      {"sdpa_train_d128", {0.84}},
      {"sdpa_train_d128@all", {0.84}},
      {"sdpa_train_causal", {0.55, kAtMost}},
      {"sdpa_train_short", {0.66}},
      {"cost_train_bias", {1.20, kAtMost}},
      {"cost_train_dropout", {1.25, kAtMost}},
      {"cost_train_score_mod", {1.25, kAtMost}},
      {"encoder_train", {0.84}},
      {"encoder_train@all", {0.80}},
      {"adamw", {1.15, kAtMost}},
      {"adamw@all", {1.15, kAtMost}},
      {"hvp_gpt", {4.5, kAtMost}},
      {"encoder_train_high", {0.65, kAtMost}},
      {"gpt2_train_high", {0.70, kAtMost}},
      {"memory_train", {64, kAtMost, kOfValue}},
      {"memory_train@all", {64, kAtMost, kOfValue}},
      {"accuracy", {2, kAtMost}},
  };
  const auto* found = std::find_if(std::begin(kTargets), std::end(kTargets),
                                   [&](const Named& named) { return named.name == name; });
  return found == std::end(kTargets) ? Target{} : found->target;
}

}  // namespace bench
